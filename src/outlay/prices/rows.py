"""Offers and series as rows of the store, and back."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, fields
from inspect import get_annotations
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import RowMapping

from outlay.decoding import BadDocument, convert
from outlay.errors import Finding, InvalidValue
from outlay.prices.offer import Offer, Tier, terms
from outlay.units import Money

T = TypeVar("T")
_NUMBER = re.compile(
    r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+(?:[eE][+-]?[0-9]{1,3})?"
)

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
    """Return the series in a row that holds its columns; raises BadDocument for a damaged one."""
    return cells_of(row, Series)


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


class _OfferCells(msgspec.Struct):
    """The types of what a row of an offer holds."""

    provider: str
    gpu: str
    gpu_count: int
    community: bool
    memory_gb: int | None
    nvlink: bool | None
    interconnect: str | None
    bandwidth_mbps: int | None
    region: str | None
    availability: int | None
    cuda: str | None
    offer_id: str | None
    given: str | None
    price_micros: int
    currency: str
    tier: Tier
    storage_micros: int | None
    fetched_ns: int
    source: str


def offer_from(row: RowMapping) -> Offer:
    """Return a row, joined with its snapshot's source and instant, as the offer it was.

    Raises:
        BadDocument: A cell is damaged.
        InvalidValue: It holds a number that no offer has.
    """
    cells = cells_of(row, _OfferCells)
    if cells.given is not None and _NUMBER.fullmatch(cells.given) is None:
        raise BadDocument("its price as it was written is no number")
    storage = cells.storage_micros
    return Offer(
        price=Money(cells.price_micros, cells.currency),
        tier=cells.tier,
        storage_price=None if storage is None else Money(storage, cells.currency),
        fetched_ns=cells.fetched_ns,
        source=cells.source,
        **{name: getattr(cells, name) for name in _PLAIN},
    )


@functools.cache
def _names_of(kind: Hashable) -> tuple[str, ...]:
    return tuple(get_annotations(cast(type, kind)))


def cells_of(row: RowMapping, kind: type[T]) -> T:
    """Return the cells of a row that a type names; raises BadDocument where one does not fit."""
    # The names that the database answers with are no plain str, which msgspec wants.
    return convert({name: row[name] for name in _names_of(cast(Hashable, kind))}, kind)


def read_rows(
    rows: Iterable[RowMapping], read: Callable[[RowMapping], T], name: str, damage: list[Finding]
) -> Iterator[T]:
    """Yield what rows of the store hold.

    Args:
        rows: As they were found.
        read: Raises BadDocument or InvalidValue for a row that is damaged, which is left out.
        name: What a row is.
        damage: Findings about damaged rows are added to it.
    """
    for row in rows:
        try:
            yield read(row)
        except (BadDocument, InvalidValue) as error:
            report_damage(damage, f"{name} of {row['provider']!s}, {row['gpu']!s}", str(error))


def report_damage(damage: list[Finding], what: str, problem: str) -> None:
    """Add a finding about a damaged row, once."""
    message = f"its row in the store is damaged ({problem}) and was left out"
    finding = Finding(source=what, message=message)
    if finding not in damage:
        damage.append(finding)
