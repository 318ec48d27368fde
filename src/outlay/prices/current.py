"""The price file: the current offers, where a run finds its price without opening the store.

``prices.json`` in the outlay home is replaced as a whole by every command that records offers. The
store stays the truth about them, and their history is there alone. Nothing here asks a vendor, and
nothing here loads a database library: a training process may call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import BadDocument, read_document
from outlay.errors import InvalidValue, OutlayError
from outlay.files import write_whole
from outlay.ledger.price import AUTO, Price, split_kind
from outlay.prices.names import Machine, Quote, look_up, look_up_automatic, parse_name
from outlay.prices.offer import Offer
from outlay.prices.partition_rates import read_rates
from outlay.store.home import outlay_home
from outlay.units import Rate

NAME: Final = "prices.json"
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
class Resolved:
    """What a name stands for.

    Attributes:
        price: Per GPU-hour, with offer, source and age.
        whole: What the whole offer costs; None where a size is neither named nor seen.
    """

    price: Price
    whole: Rate | None


def price_file() -> Path:
    """Return where the current offers are kept."""
    return outlay_home() / NAME


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


def write_quotes(offers: Iterable[Offer]) -> Path:
    """Replace the file by one with these offers; return where it is.

    Raises:
        PriceFileNotWritten: The home cannot be written; the file is as it was.
    """
    path = price_file()
    quotes = sorted(map(Quote.of, offers), key=lambda quote: (quote.name, quote.offer_id))
    lines = b",\n".join(msgspec.json.encode(quote) for quote in quotes)
    content = b'{"version":%d,"offers":[\n%b\n]}\n' % (VERSION, lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content, synced=True)
    except OSError as error:
        raise PriceFileNotWritten(path, error.strerror or str(error)) from None
    return path


def resolve_price(
    text: str, *, name: str, environ: Mapping[str, str], gpu: str = "", gpus: int = 0
) -> Resolved:
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
    return Resolved(price, price.rate * machine.gpus if machine.gpus else None)


def resolve_whole(
    text: str, *, name: str, environ: Mapping[str, str], gpu: str = "", gpus: int = 0
) -> Resolved:
    """Return the price that a name stands for, and what all of it costs per hour.

    Raises:
        InvalidValue: As ``resolve_price``; or nothing says how many GPUs are meant.
        PriceFileUnusable: The known prices cannot be read.
    """
    resolved = resolve_price(text, name=name, environ=environ, gpu=gpu, gpus=gpus)
    if resolved.whole is None:
        raise InvalidValue(name, text, "a number of GPUs in it, such as lambda:8xH100")
    return resolved


def _resolved(quote: Quote, price: Price, gpus: int | None) -> Resolved:
    if gpus is None:
        return Resolved(price, None)
    exact = Rate(quote.offer_micros_per_hour, quote.currency)
    return Resolved(price, exact if gpus == quote.gpus else price.rate * gpus)
