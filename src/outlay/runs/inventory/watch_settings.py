"""The ``[watch]`` table of ``outlay.toml``: what ``outlay watch`` on this host asks and collects.

The file holds no secret: keys of vendors are in environment variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from outlay.decoding import BadDocument, read_toml
from outlay.errors import InvalidValue, choices
from outlay.guard.entries import Vendor
from outlay.guard.rental.rental import split_command
from outlay.guard.rental.vendor_commands import LISTED_RATES, PRESETS, ListedRate
from outlay.store.home import settings_path
from outlay.units import Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedVendor:
    """A vendor's account that is asked for its machines; nothing is ever ended by it.

    Attributes:
        source: The name of its list: the vendor, and the account if it has several.
        listed_rate: Where its list has a machine's price; None if it has none.
        rate: Of a machine whose price the list does not have; None if that is not stated.
        is_complete: Whether the user states that the list has no pages.
    """

    source: str
    vendor: Vendor
    listed_rate: ListedRate | None
    rate: Rate | None
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """What is asked and collected.

    Attributes:
        slurm: Whether sacct is asked for everybody's jobs.
        runs: Directories below which runs are registered that left no notice in this home.
    """

    slurm: bool = False
    runs: tuple[Path, ...] = ()
    vendors: tuple[AskedVendor, ...] = ()


class _VendorTable(msgspec.Struct, forbid_unknown_fields=True):
    preset: str = ""
    name: str = ""
    account: str = ""
    list: str = ""
    items: str = ""
    id_key: str = "id"
    name_key: str = "name"
    state_key: str = ""
    gone_states: tuple[str, ...] = ()
    created_key: str = ""
    rate_key: str = ""
    currency: str = "USD"
    stdin: str = ""
    rate: str = ""
    list_is_complete: bool = False


class _WatchTable(msgspec.Struct, forbid_unknown_fields=True):
    slurm: bool = False
    runs: tuple[str, ...] = ()
    vendor: tuple[_VendorTable, ...] = ()


class _WatchFile(msgspec.Struct):  # Other tables belong to other packages.
    watch: _WatchTable = msgspec.field(default_factory=_WatchTable)


def read_watch_settings(path: Path | None = None) -> WatchSettings:
    """Return the settings of a file (default: the user's ``outlay.toml``).

    Raises:
        InvalidValue: The file cannot be read, or a vendor in it is invalid.
    """
    path = settings_path() if path is None else path
    try:
        found = read_toml(path, _WatchFile).watch
    except FileNotFoundError:
        return WatchSettings()
    except (OSError, BadDocument) as error:
        raise InvalidValue(str(path), str(error), "a file with a [watch] table") from None
    vendors = tuple(_vendor(each, place) for place, each in enumerate(found.vendor, 1))
    sources = [each.source for each in vendors]
    if repeated := {each for each in sources if sources.count(each) > 1}:
        expected = 'account = "NAME" in each of them, to tell them apart'
        raise InvalidValue("[[watch.vendor]]", sorted(repeated), expected)
    runs = tuple(Path(each).expanduser().absolute() for each in found.runs)
    return WatchSettings(slurm=found.slurm, runs=runs, vendors=vendors)


def _vendor(stated: _VendorTable, place: int) -> AskedVendor:
    where = f"[[watch.vendor]] {place}"
    if bool(stated.preset) == bool(stated.name and stated.list):
        raise InvalidValue(where, stated.preset or stated.name, "preset, or name and list")
    if stated.preset and stated.preset not in PRESETS:
        raise InvalidValue(f"{where} preset", stated.preset, choices(PRESETS))
    vendor = PRESETS[stated.preset] if stated.preset else _own(stated, where)
    listed = LISTED_RATES.get(stated.preset)
    if stated.rate_key:
        listed = ListedRate(key=stated.rate_key, currency=stated.currency)
    return AskedVendor(
        source=f"{vendor.name}/{stated.account}" if stated.account else vendor.name,
        vendor=vendor, listed_rate=listed, is_complete=stated.list_is_complete,
        rate=Rate.parse(stated.rate, name=f"{where} rate") if stated.rate else None,
    )  # fmt: skip


def _own(stated: _VendorTable, where: str) -> Vendor:
    return Vendor(
        name=stated.name, list=split_command(stated.list, name=f"{where} list"), terminate=(),
        items=stated.items, id_key=stated.id_key, name_key=stated.name_key,
        state_key=stated.state_key, gone_states=stated.gone_states,
        created_key=stated.created_key, stdin=stated.stdin,
    )  # fmt: skip
