"""Price files in the outlay home: current offers and partition rates; prices resolved from them.

No network and no database library: training processes load this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import BadDocument, read_document
from outlay.errors import InvalidValue, OutlayError
from outlay.files import make_private, write_whole
from outlay.ledger.price import AUTO, Price, split_kind, typed_price
from outlay.prices.names import Machine, Quote, look_up, look_up_automatic, parse_name
from outlay.store.home import outlay_home
from outlay.units import Rate

# Partition rates per GPU-hour (rates.json)
#
# An owned cluster has no price list: its rate is an internal decision, and therefore showback
# unless it is marked ``cash``.

RATES_FILE: Final = "rates.json"


def rates_file() -> Path:
    """Return the path of the rates file."""
    return outlay_home() / RATES_FILE


def read_rates() -> dict[str, Price]:
    """Return all partition rates by partition name.

    Raises:
        InvalidValue: The file exists and cannot be parsed.
    """
    path = rates_file()
    try:
        stated = read_document(path, dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, BadDocument) as error:
        expected = f"a JSON object of partitions and rates ({error})"
        raise InvalidValue("rates", str(path), expected) from None
    return {name: read_rate(text, name) for name, text in sorted(stated.items())}


def read_rate(text: str, partition: str, *, name: str = "") -> Price:
    """Parse a partition's rate such as ``1.20 USD/h``: showback unless ``cash`` follows."""
    source = f"rate of {partition}"
    price = typed_price(text, name=name or source, source=source, kind="showback")
    if price.terms is not None:
        raise InvalidValue(name or source, text, "a rate without billing terms")
    return price


def set_rate(partition: str, rate: Price | None) -> dict[str, Price]:
    """Set a partition's rate per GPU-hour, or remove it (None); return all rates.

    Raises:
        InvalidValue: The name is invalid, or there is no rate to remove.
    """
    rates = read_rates()
    if not partition.strip() or "," in partition or partition != partition.strip():
        raise InvalidValue("PARTITION", partition, "the name of one partition")
    if rate is None and partition not in rates:
        known = ", ".join(rates) or "none has a rate"
        raise InvalidValue("PARTITION", partition, f"a partition with a rate ({known})")
    rates.pop(partition, None)
    if rate is not None:
        rates[partition] = rate
    rates = dict(sorted(rates.items()))
    path = rates_file()
    make_private(path.parent)
    text = {name: rate_text(rate) for name, rate in rates.items()}
    content = msgspec.json.format(msgspec.json.encode(text), indent=2) + b"\n"
    write_whole(path, content, synced=True, private=True)
    return rates


def rate_text(rate: Price) -> str:
    """Return a rate as written in the file: ``1.20 USD/h``, or ``1.20 USD/h cash``."""
    return str(rate.stated) if rate.kind == "showback" else f"{rate.stated} {rate.kind}"


# The price file (prices.json): a copy of the current offers for lookup without the store
#
# Every command that records offers replaces it. The store remains the source of truth and is the
# only place with their history.

PRICES_FILE: Final = "prices.json"
VERSION: Final = 1


class PriceFileNotWritten(OutlayError):
    """Offers were recorded in the store, but the price file could not be replaced."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: cannot be written ({reason}). The offers are in the store, but runs still "
            "look up the earlier ones. Set OUTLAY_HOME to a directory that you can write to."
        )


class PriceFileUnusable(OutlayError):
    """The price file exists and cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: the known prices cannot be read ({reason}). Nothing was started. "
            "`outlay prices fetch` rewrites the file, and a typed price does not need it."
        )


class PriceFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the price file."""

    version: int = VERSION
    offers: tuple[Quote, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedPrice:
    """The price that a name refers to.

    Attributes:
        price: Per GPU-hour, with offer, source and age.
        whole: Of all GPUs; None if their number is neither in the name nor detected.
    """

    price: Price
    whole: Rate | None


def price_file() -> Path:
    """Return the path of the price file."""
    return outlay_home() / PRICES_FILE


def read_quotes() -> tuple[Quote, ...]:
    """Return the current offers; empty if none were ever recorded.

    Raises:
        PriceFileUnusable: The file cannot be read.
    """
    path = price_file()
    try:
        found = read_document(path, PriceFile)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise PriceFileUnusable(path, error.strerror or str(error)) from None
    except BadDocument as error:
        raise PriceFileUnusable(path, str(error)) from None
    if found.version != VERSION:
        raise PriceFileUnusable(path, f"version {found.version}; this outlay supports {VERSION}")
    return found.offers


def write_quotes(quotes: Iterable[Quote]) -> Path:
    """Replace the price file; return its path.

    Raises:
        PriceFileNotWritten: The home cannot be written; the file is unchanged.
    """
    path = price_file()
    encode = msgspec.json.Encoder().encode
    lines = b",\n".join(map(encode, quotes))
    content = b'{"version":%d,"offers":[\n%b\n]}\n' % (VERSION, lines)
    try:
        make_private(path.parent)
        write_whole(path, content, synced=True, private=True)
    except OSError as error:
        raise PriceFileNotWritten(path, error.strerror or str(error)) from None
    return path


def resolve_price(
    text: str, *, name: str, environ: Mapping[str, str], gpu: str = "", gpus: int = 0
) -> ResolvedPrice:
    """Return the price that a name refers to on this machine.

    Args:
        text: ``lambda:8xH100``, ``auto``; ``showback`` or ``cash`` may follow it.
        name: The option's name in errors.
        environ: Identifies the instance and the Slurm partition.
        gpu: The driver's name of the GPU, for ``auto``.
        gpus: Number of visible GPUs, for ``auto``.

    Raises:
        InvalidValue: It is not a price name, or matches no price or several.
        PriceFileUnusable: The price file cannot be read.
    """
    asked, kind = split_kind(text)
    machine = Machine.of(environ, gpu=gpu, gpus=gpus)
    if asked.lower() != AUTO:
        named = parse_name(asked, name=name)
        quote = look_up(named, read_quotes(), name=name, ids=machine.ids)
        count = named.gpus or (quote.gpus if quote.offer_id.lower() == named.gpu.lower() else None)
        return _resolved(quote, quote.price(kind), count)
    rates = read_rates() if machine.partition else {}
    found = look_up_automatic(machine, read_quotes(), rates, name=name)
    if isinstance(found, Quote):
        return _resolved(found, found.price(kind), machine.gpus or None)
    price = found if kind is None else msgspec.structs.replace(found, kind=kind)
    return ResolvedPrice(price, price.rate * machine.gpus if machine.gpus else None)


def resolve_whole(
    text: str, *, name: str, environ: Mapping[str, str], gpu: str = "", gpus: int = 0
) -> ResolvedPrice:
    """Do the same, and require ``whole``.

    Raises:
        InvalidValue: As ``resolve_price``; or the number of GPUs is unknown.
        PriceFileUnusable: The price file cannot be read.
    """
    resolved = resolve_price(text, name=name, environ=environ, gpu=gpu, gpus=gpus)
    if resolved.whole is None:
        raise InvalidValue(name, text, "a number of GPUs in it, such as lambda:8xH100")
    return resolved


def _resolved(quote: Quote, price: Price, gpus: int | None) -> ResolvedPrice:
    if gpus is None:
        return ResolvedPrice(price, None)
    exact = price.unit.rate(quote.offer_micros_per_hour)
    return ResolvedPrice(price, exact if gpus == quote.gpus else price.rate * gpus)
