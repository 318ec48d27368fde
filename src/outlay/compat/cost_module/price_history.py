"""Import and export of the cost module's price history file.

``{"GPU|provider": [[price, ISO time], ...]}``, in dollars per GPU-hour. Lossless both ways: prices
keep all digits, and an export keeps what is in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine

from outlay.clock import as_utc, utc_datetime
from outlay.compat.cost_module.data_directory import price_file, write_json
from outlay.compat.cost_module.gpu_price import GPUPrice
from outlay.decoding import BadDocument, read_document
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.prices.offer import TRACKED, Offer, Snapshot
from outlay.prices.price_book import PriceBook
from outlay.prices.series import points

_Histories = dict[str, list[tuple[float, datetime]]]


class CorruptHistory(OutlayError):
    """A price history file cannot be parsed, so it is neither imported nor overwritten."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is not a price history: {reason}. Repair it or move it away first; "
            "it was left as it is."
        )


class Tracked(NamedTuple):
    """A price in the file."""

    gpu: str
    provider: str
    at: datetime
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPrices:
    """Number of new and known prices, and findings about rejected ones."""

    added: int
    known: int
    findings: tuple[Finding, ...]


def history_file(path: Path) -> Path:
    """Return the history file of a path that may be its data directory."""
    return price_file(path) if path.is_dir() else path


def read_history(path: Path) -> list[Tracked]:
    """Return every price in a file.

    Raises:
        CorruptHistory: It cannot be parsed.
    """
    try:
        histories = read_document(path, _Histories)
    except (OSError, BadDocument) as error:
        raise CorruptHistory(path, str(error)) from None
    found: list[Tracked] = []
    for key, prices in histories.items():
        gpu, bar, provider = key.rpartition("|")
        if not bar:
            raise CorruptHistory(path, f"the key {key!r} is not GPU|provider")
        found += [Tracked(gpu, provider, as_utc(at), price) for price, at in prices]
    return found


def import_history(store: Engine, path: Path) -> ImportedPrices:
    """Import a file's prices into the store; idempotent."""
    wanted = Counter(read_history(path))
    findings: list[Finding] = []
    known = Counter(_tracked_in(store, findings)) | Counter(_fetched_in(store, findings))
    offers: list[Offer] = []
    for tracked, count in (wanted - known).items():
        try:
            gpu, provider, at, price = tracked
            offer = GPUPrice(gpu, provider, price, timestamp=at).to_offer()
        except InvalidValue as error:
            findings.append(Finding(source=str(path), message=f"{tracked.gpu}: {error}"))
        else:
            offers += [offer] * count
    PriceBook(store).record(
        Snapshot(source=one.source, fetched_ns=one.fetched_ns, offers=(one,)) for one in offers
    )
    return ImportedPrices(
        added=len(offers), known=(wanted & known).total(), findings=tuple(findings)
    )


def export_history(store: Engine, path: Path, damage: list[Finding] | None = None) -> int:
    """Write every price to a file, and keep those in it; return their total number.

    Tracked prices are written as they are, fetched snapshots as their cheapest offers. The file is
    in dollars, so prices in other currencies are not written. Findings about unreadable prices are
    added to ``damage``.

    Raises:
        CorruptHistory: The file exists and cannot be parsed.
    """
    damage = [] if damage is None else damage
    known = Counter(_tracked_in(store, damage)) | Counter(_fetched_in(store, damage))
    everything = known | _present_in(path)
    _write(path, everything)
    return everything.total()


def append_price(path: Path, price: GPUPrice) -> None:
    """Append a tracked price to a file.

    Raises:
        CorruptHistory: The file exists and cannot be parsed.
    """
    at = as_utc(price.timestamp)
    added = Tracked(price.gpu_name, price.provider, at, price.price_per_hour)
    _write(path, _present_in(path) + Counter([added]))


def _present_in(path: Path) -> Counter[Tracked]:
    return Counter(read_history(path)) if path.exists() else Counter()


def _write(path: Path, prices: Counter[Tracked]) -> None:
    histories: dict[str, list[tuple[float, str]]] = {}
    for tracked in sorted(prices.elements(), key=lambda tracked: tracked[:3]):
        key = f"{tracked.gpu}|{tracked.provider}"
        histories.setdefault(key, []).append((tracked.price, tracked.at.isoformat()))
    write_json(path, histories)


def _tracked_in(store: Engine, damage: list[Finding]) -> Iterable[Tracked]:
    book = PriceBook(store)
    for offer in book.observed(source_prefix=TRACKED):
        price = GPUPrice.from_offer(offer)
        yield Tracked(price.gpu_name, price.provider, price.timestamp, price.price_per_hour)
    damage += book.damage


def _fetched_in(store: Engine, damage: list[Finding]) -> Iterable[Tracked]:
    cheapest: dict[Tracked, float] = {}
    for point in points(store, currency="USD", damage=damage):
        series = point.series
        if series.source.startswith(TRACKED):
            continue
        at = Tracked(series.gpu, series.provider, utc_datetime(point.at_ns), 0.0)
        each = float(point.price.amount)
        cheapest[at] = min(each, cheapest.get(at, each))
    return (at._replace(price=price) for at, price in cheapest.items())
