"""Offers and series as rows of the store, and the writing of one snapshot with its alerts."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from inspect import get_annotations
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import Connection, RowMapping, Table, delete, func, insert, select, update

from outlay.decoding import BadDocument, convert
from outlay.errors import Finding, InvalidValue
from outlay.prices.alerts import AlertRules
from outlay.prices.offer import Offer, Snapshot, Tier, terms
from outlay.store.engine import LARGEST
from outlay.store.schema import (
    price_alerts,
    price_offers,
    price_points,
    price_series,
    price_snapshots,
)
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


# Writing one snapshot: its offers, the points they make in their series, and the alerts of those.
#
# Each function works inside a transaction that somebody else began, in a fixed number of
# statements.

# Findings are for reading; beyond this many of one snapshot their number says enough.
FINDINGS_KEPT = 100


def record_snapshot(connection: Connection, snapshot: Snapshot, rules: AlertRules | None) -> None:
    """Append a snapshot; without rules no alerts are judged."""
    snapshot_id, held = _snapshot_row(connection, snapshot)
    if not snapshot.offers:
        return
    rows = [
        offer_row(offer, snapshot_id, position)
        for position, offer in enumerate(snapshot.offers, start=held)
    ]
    connection.execute(insert(price_offers), rows)
    found = cheapest_by_series(snapshot.offers)
    ids = _series_ids(connection, snapshot.source, found)
    current = {ids[series]: cheapest for series, cheapest in found.items()}
    at_ns = snapshot.fetched_ns
    if held:
        current = _joined(connection, current, at_ns)
    points = [
        {"series_id": key, "snapshot_id": snapshot_id, "micros": micros, "offers": count}
        for key, (micros, count) in current.items()
    ]
    _put(connection, price_points, current, at_ns, points)
    if rules is not None:
        _put(connection, price_alerts, current, at_ns, _judged(connection, current, at_ns, rules))


def _snapshot_row(connection: Connection, snapshot: Snapshot) -> tuple[int, int]:
    """Return the snapshot's id and how many offers it holds already."""
    column = price_snapshots.c
    found = connection.execute(
        select(column.id, column.offers).where(
            column.source == snapshot.source, column.fetched_ns == snapshot.fetched_ns
        )
    ).one_or_none()
    if found is not None:
        snapshot_id, held = found
        if not isinstance(held, int):  # Damaged: the offers themselves say how many they are.
            last = select(func.max(price_offers.c.position))
            last = last.where(price_offers.c.snapshot_id == snapshot_id)
            held = 1 + (connection.execute(last).scalar() or 0)
        grown = {"offers": held + len(snapshot.offers), "failed": snapshot.failed and not held}
        connection.execute(update(price_snapshots).where(column.id == snapshot_id).values(grown))
        return int(snapshot_id), int(held)
    values = {
        "source": snapshot.source,
        "fetched_ns": snapshot.fetched_ns,
        "failed": snapshot.failed,
        "offers": len(snapshot.offers),
        "quarantined": len(snapshot.findings),
        "findings": [_finding_row(finding) for finding in snapshot.findings[:FINDINGS_KEPT]],
    }
    key = connection.execute(insert(price_snapshots).values(values)).inserted_primary_key
    assert key is not None, "an inserted row has a key"
    return int(key[0]), 0


def _finding_row(finding: Finding) -> dict[str, Any]:
    return {
        "source": finding.source,
        "line": finding.line,
        "message": finding.message,
        "severity": finding.severity,
    }


def _series_ids(
    connection: Connection, source: str, wanted: Mapping[Series, object]
) -> dict[Series, int]:
    known = _known_series(connection, source)
    missing = [series for series in wanted if series not in known]
    if not missing:
        return known
    rows = [{name: getattr(series, name) for name in SERIES_COLUMNS} for series in missing]
    connection.execute(insert(price_series), rows)
    return _known_series(connection, source)


def _known_series(connection: Connection, source: str) -> dict[Series, int]:
    rows = connection.execute(select(price_series).where(price_series.c.source == source))
    known: dict[Series, int] = {}
    for row in rows.mappings():
        with contextlib.suppress(BadDocument):  # A damaged one is begun anew.
            known[series_from(row)] = row["id"]
    return known


def _joined(
    connection: Connection, current: Mapping[int, tuple[int, int]], at_ns: int
) -> dict[int, tuple[int, int]]:
    """Return points joined with those that their snapshot has already."""
    column = price_points.c
    rows = connection.execute(
        select(column.series_id, column.micros, column.offers).where(
            column.fetched_ns == at_ns,
            column.series_id.in_(current),
            column.micros <= LARGEST,
            column.offers <= LARGEST,
        )
    )
    joined = dict(current)
    for series_id, micros, offers in rows:
        cheapest, count = current[series_id]
        joined[series_id] = (min(cheapest, micros), count + offers)
    return joined


def _put(
    connection: Connection,
    table: Table,
    series: Mapping[int, object],
    at_ns: int,
    rows: list[dict[str, Any]],
) -> None:
    """Make these the rows of the series at an instant, whatever stood there before."""
    there = table.c.fetched_ns == at_ns, table.c.series_id.in_(series)
    connection.execute(delete(table).where(*there))
    if rows:
        connection.execute(insert(table), [row | {"fetched_ns": at_ns} for row in rows])


def _judged(
    connection: Connection, current: Mapping[int, tuple[int, int]], at_ns: int, rules: AlertRules
) -> list[dict[str, Any]]:
    """Return an alert for each series whose price moved far enough since its point before."""
    point = price_points.c
    before = (
        select(point.micros)
        .where(
            point.series_id == price_series.c.id,
            point.fetched_ns < at_ns,
            point.micros <= LARGEST,
        )
        .order_by(point.fetched_ns.desc())
        .limit(1)
    )
    lowest = before.order_by(None).order_by(point.micros)
    history = select(
        price_series.c.id,
        before.scalar_subquery().label("previous"),
        before.offset(1).scalar_subquery().label("one_before"),
        lowest.scalar_subquery().label("lowest"),
    ).where(price_series.c.id.in_(current))
    rows: list[dict[str, Any]] = []
    for series_id, previous, one_before, low in connection.execute(history):
        if previous is None:
            continue
        micros, _ = current[series_id]
        earlier = 1 if one_before is None else 2
        kind = rules.judge(micros, previous, low, earlier=earlier)
        if kind is not None:
            alert = {"kind": kind.value, "current_micros": micros, "previous_micros": previous}
            rows.append({"series_id": series_id} | alert)
    return rows
