"""Price files in the outlay home: current offers, and what a GPU-hour costs on each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import BadDocument, read_document
from outlay.errors import InvalidValue, OutlayError
from outlay.files import write_whole
from outlay.ledger.price import AUTO, Price, split_kind, typed_price
from outlay.prices.names import Machine, Quote, look_up, look_up_automatic, parse_name
from outlay.store.home import outlay_home
from outlay.units import Rate

# What a GPU-hour costs on each partition of a cluster: a small file in the outlay home.
#
# A cluster that is not rented has no price list; its rate is what somebody decides an hour is
# worth. It is therefore showback, unless ``cash`` is said behind it.

RATES_FILE: Final = "rates.json"


def rates_file() -> Path:
    """Return where the rates are kept."""
    return outlay_home() / RATES_FILE


def read_rates() -> dict[str, Price]:
    """Return the rate of every partition that has one, by name.

    Raises:
        InvalidValue: The file is there and cannot be understood.
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
    """Return ``1.20 USD/h`` as the rate of a partition: showback, unless ``cash`` follows it."""
    source = f"rate of {partition}"
    return typed_price(text, name=name or source, source=source, kind="showback")


def set_rate(partition: str, rate: Price | None) -> dict[str, Price]:
    """Set a partition's rate per GPU-hour, or remove it; return all of them.

    Raises:
        InvalidValue: The name cannot be a partition's, or there is nothing to remove.
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
    _write(rates)
    return dict(sorted(rates.items()))


def _write(rates: Mapping[str, Price]) -> None:
    """Put the file in place, whole."""
    path = rates_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = {name: rate_text(rate) for name, rate in sorted(rates.items())}
    content = msgspec.json.format(msgspec.json.encode(text), indent=2) + b"\n"
    write_whole(path, content, synced=True)


def rate_text(rate: Price) -> str:
    """Return a rate as the file states it: ``1.20 USD/h``, or ``1.20 USD/h cash``."""
    return str(rate.rate) if rate.kind == "showback" else f"{rate.rate} {rate.kind}"


# The price file: the current offers, where a run finds its price without opening the store.
#
# ``prices.json`` in the outlay home is replaced as a whole by every command that records offers.
# The store stays the truth about them, and their history is there alone. Nothing here asks a
# vendor, and nothing here loads a database library: a training process may call it.

PRICES_FILE: Final = "prices.json"
VERSION: Final = 1


class PriceFileNotWritten(OutlayError):
    """Offers were recorded in the store, and the price file could not be replaced."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: cannot be written ({reason}). The offers are in the store, and runs find the "
            "earlier ones by name. Set OUTLAY_HOME to a directory that you can write to."
        )


class PriceFileUnusable(OutlayError):
    """The price file is there and cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: the known prices cannot be read ({reason}). Nothing was started. "
            "`outlay prices fetch` writes the file anew, and a typed price needs none."
        )


class PriceFile(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the file."""

    version: int = VERSION
    offers: tuple[Quote, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedPrice:
    """What a name stands for.

    Attributes:
        price: Per GPU-hour, with offer, source and age.
        whole: What the whole offer costs; None where a size is neither named nor seen.
    """

    price: Price
    whole: Rate | None


def price_file() -> Path:
    """Return where the current offers are kept."""
    return outlay_home() / PRICES_FILE


def read_quotes() -> tuple[Quote, ...]:
    """Return the current offers; none where nothing was ever recorded.

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
        raise PriceFileUnusable(path, f"version {found.version}, and this outlay knows {VERSION}")
    return found.offers


def write_quotes(quotes: Iterable[Quote]) -> Path:
    """Replace the file by one with these offers; return where it is.

    Raises:
        PriceFileNotWritten: The home cannot be written; the file is as it was.
    """
    path = price_file()
    encode = msgspec.json.Encoder().encode
    lines = b",\n".join(map(encode, quotes))
    content = b'{"version":%d,"offers":[\n%b\n]}\n' % (VERSION, lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content, synced=True)
    except OSError as error:
        raise PriceFileNotWritten(path, error.strerror or str(error)) from None
    return path


def resolve_price(
    text: str, *, name: str, environ: Mapping[str, str], gpu: str = "", gpus: int = 0
) -> ResolvedPrice:
    """Return the price that a name stands for on this machine.

    Args:
        text: ``lambda:8xH100``, ``auto``; ``showback`` or ``cash`` may follow it.
        name: What to call it in an error.
        environ: Says which instance, and which Slurm partition, the process is on.
        gpu: The driver's name of the GPU, for ``auto``.
        gpus: How many are visible, for ``auto``.

    Raises:
        InvalidValue: It is no name, stands for no price, or for several.
        PriceFileUnusable: The known prices cannot be read.
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
    """Return the price that a name stands for, and what all of it costs per hour.

    Raises:
        InvalidValue: As ``resolve_price``; or nothing says how many GPUs are meant.
        PriceFileUnusable: The known prices cannot be read.
    """
    resolved = resolve_price(text, name=name, environ=environ, gpu=gpu, gpus=gpus)
    if resolved.whole is None:
        raise InvalidValue(name, text, "a number of GPUs in it, such as lambda:8xH100")
    return resolved


def _resolved(quote: Quote, price: Price, gpus: int | None) -> ResolvedPrice:
    if gpus is None:
        return ResolvedPrice(price, None)
    exact = Rate(quote.offer_micros_per_hour, quote.currency)
    return ResolvedPrice(price, exact if gpus == quote.gpus else price.rate * gpus)
