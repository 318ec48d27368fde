"""Offers and series as rows of the store, and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import RowMapping

from outlay.prices.offer import Offer, Tier, terms
from outlay.units import Money

# Columns that hold a field of an offer as it is.
_PLAIN = (
    "provider",
    "gpu",
    "gpu_count",
    "community",
    "memory_gb",
    "nvlink",
    "interconnect",
    "bandwidth_mbps",
    "region",
    "availability",
    "cuda",
    "offer_id",
    "given",
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Series:
    """What is compared with itself over time: a GPU on the same terms, from the same source."""

    source: str
    provider: str
    gpu: str
    tier: Tier
    community: bool
    currency: str

    @property
    def label(self) -> str:
        """The terms in a word or two."""
        return terms(self.tier, community=self.community)


SERIES_COLUMNS = tuple(field.name for field in fields(Series))


def series_of(offer: Offer) -> Series:
    """Return the series that an offer belongs to."""
    return Series(
        source=offer.source,
        provider=offer.provider,
        gpu=offer.gpu,
        tier=offer.tier,
        community=offer.community,
        currency=offer.price.currency,
    )


def series_from(row: RowMapping) -> Series:
    """Return the series in a row that holds its columns."""
    columns = {name: row[name] for name in SERIES_COLUMNS}
    return Series(**(columns | {"tier": Tier(row["tier"])}))


def cheapest_by_series(offers: Iterable[Offer]) -> dict[Series, tuple[int, int]]:
    """Return each series' cheapest price per GPU in micro-units, and how many offers it has."""
    found: dict[Series, tuple[int, int]] = {}
    for offer in offers:
        series = series_of(offer)
        each = offer.per_gpu_micros
        cheapest, count = found.get(series, (each, 0))
        found[series] = (min(cheapest, each), count + 1)
    return found


def offer_row(offer: Offer, snapshot_id: int, position: int) -> dict[str, Any]:
    """Return an offer as a row of its snapshot."""
    plain = {name: getattr(offer, name) for name in _PLAIN}
    storage = offer.storage_price
    return plain | {
        "snapshot_id": snapshot_id,
        "position": position,
        "price_micros": offer.price.micros,
        "per_gpu_micros": offer.per_gpu_micros,
        "currency": offer.price.currency,
        "tier": offer.tier.value,
        "storage_micros": None if storage is None else storage.micros,
    }


def offer_from(row: RowMapping) -> Offer:
    """Return a row, joined with its snapshot's source and instant, as the offer it was."""
    currency = row["currency"]
    storage = row["storage_micros"]
    return Offer(
        price=Money(row["price_micros"], currency),
        tier=Tier(row["tier"]),
        storage_price=None if storage is None else Money(storage, currency),
        fetched_ns=row["fetched_ns"],
        source=row["source"],
        **{name: row[name] for name in _PLAIN},
    )
