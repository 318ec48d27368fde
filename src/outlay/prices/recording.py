"""Offers and series as rows of the store; appending snapshots and their alerts."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    bindparam,
    delete,
    func,
    select,
    true,
    update,
)

from outlay.decoding import BadDocument, convert
from outlay.errors import Finding, InvalidValue
from outlay.prices.alerts import AlertRules
from outlay.prices.offer import Offer, Snapshot, Tier, terms_label
from outlay.store.connection import LARGEST, insert_rows, report_damage
from outlay.store.schema import (
    price_alerts,
    price_offers,
    price_points,
    price_series,
    price_snapshots,
)

T = TypeVar("T")
_NUMBER = re.compile(
    r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+(?:[eE][+-]?[0-9]{1,3})?"
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Series:
    """A price series: the same GPUs on the same terms from one source.

    Attributes:
        gpu_count: GPUs per offer; 0 in old series, which did not distinguish sizes.
    """

    source: str
    provider: str
    gpu: str
    gpu_count: int
    tier: Tier
    community: bool
    currency: str

    @property
    def label(self) -> str:
        """The terms: ``spot``, ``community on-demand``."""
        return terms_label(self.tier, community=self.community)

    @property
    def machine(self) -> str:
        """GPU count and name: ``8x H100-SXM``."""
        return f"{self.gpu_count}x {self.gpu}" if self.gpu_count else self.gpu


SERIES_COLUMNS = tuple(field.name for field in fields(Series))
MACHINE_COLUMNS = SERIES_COLUMNS[1:]
"""A machine and its terms: the columns of a series without its source."""
machine_of = attrgetter(*MACHINE_COLUMNS)


SeriesKey = tuple[str, str, str, int, str, bool, str]
"""The columns of a series in order; cheaper to group many offers by than a Series."""


def series_key(offer: Offer) -> SeriesKey:
    """Return the key of an offer's series."""
    return (
        offer.source, offer.provider, offer.gpu, offer.gpu_count, str(offer.tier),
        offer.community, offer.price.currency,
    )  # fmt: skip


def series_of(offer: Offer) -> Series:
    """Return an offer's series."""
    return convert(dict(zip(SERIES_COLUMNS, series_key(offer), strict=True)), Series)


def series_cells(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the columns of a row that make a Series."""
    return {name: row[name] for name in SERIES_COLUMNS}


_OFFER_COLUMNS = tuple(column.name for column in price_offers.columns)


def _offer_row(offer: Offer, snapshot_id: int, position: int) -> tuple[object, ...]:
    """Return an offer's cells in the order of the table's columns."""
    price, storage = offer.price, offer.storage_price
    return (
        snapshot_id, position, offer.provider, offer.gpu, offer.gpu_count, price.micros,
        offer.per_gpu_micros, price.currency, str(offer.tier), offer.community, offer.memory_gb,
        offer.nvlink, offer.interconnect, offer.bandwidth_mbps, offer.region, offer.availability,
        None if storage is None else storage.micros, offer.cuda, offer.offer_id, offer.given,
        None if offer.terms is None else msgspec.json.encode(offer.terms).decode(),
    )  # fmt: skip


_PLAIN_COLUMNS = {*_OFFER_COLUMNS, "source", "fetched_ns"} & set(Offer.__struct_fields__)


def offer_from(row: RowMapping) -> Offer:
    """Return the offer of a row that is joined with its snapshot's source and time.

    Raises:
        BadDocument: A cell is damaged.
        InvalidValue: A number is out of range.
    """
    cells = {name: row[name] for name in _PLAIN_COLUMNS}
    cells["price"] = money_cells(row, "price_micros")
    if row["storage_micros"] is not None:
        cells["storage_price"] = money_cells(row, "storage_micros")
    offer = convert(cells, Offer)
    if offer.given is not None and _NUMBER.fullmatch(offer.given) is None:
        raise BadDocument("its original price text is not a number")
    return offer


def money_cells(row: Mapping[Any, Any], micros: str) -> dict[str, Any]:
    """Return an amount of a row for ``convert`` to Money; ``micros`` is its column."""
    return {"micros": row[micros], "currency": row["currency"]}


def read_rows(
    rows: Iterable[RowMapping], read: Callable[[RowMapping], T], name: str, damage: list[Finding]
) -> Iterator[T]:
    """Yield the parsed rows; ``name`` is a row's noun in findings.

    A row for which ``read`` raises is skipped, and a finding about it is added to ``damage``.
    """
    for row in rows:
        try:
            yield read(row)
        except (BadDocument, InvalidValue) as error:
            report_damage(damage, f"{name} of {row['provider']!s}, {row['gpu']!s}", str(error))


# Appending snapshots
#
# Runs in the caller's transaction, with a number of statements that does not depend on the number
# of snapshots: an imported price history has one snapshot per price.

FINDINGS_KEPT = 100  # Per snapshot; the total count is stored as well.
_MAX_IN_CLAUSE = 1000  # Databases limit the number of parameters.
_SnapshotKey = tuple[str, int]  # Source, fetched_ns.
_PointKey = tuple[int, int]  # Series id, fetched_ns.


@dataclass(frozen=True, slots=True)
class _StoredSnapshot:
    """A snapshot's id, and its number of offers before the append."""

    id: int
    offers: int


def record_snapshots(
    connection: Connection, snapshots: Iterable[Snapshot], rules: AlertRules
) -> None:
    """Append snapshots; alerts are derived once all of them are stored."""
    merged = _merge_snapshots(snapshots)
    if not merged:
        return
    stored = _store_snapshots(connection, merged)
    cheapest: dict[tuple[SeriesKey, int], tuple[int, int]] = {}
    rows: list[tuple[object, ...]] = []
    for snapshot_key, snapshot in merged.items():
        row = stored[snapshot_key]
        for position, offer in enumerate(snapshot.offers, start=row.offers):
            rows.append(_offer_row(offer, row.id, position))
            each, key = offer.per_gpu_micros, (series_key(offer), snapshot.fetched_ns)
            known = cheapest.get(key)
            cheapest[key] = (each, 1) if known is None else (min(each, known[0]), known[1] + 1)
    insert_rows(connection, price_offers, _OFFER_COLUMNS, rows)
    sources = {source for source, _ in merged}
    ids = _series_ids(connection, sources, dict.fromkeys(key for key, _ in cheapest))
    snapshot_of = {(ids[key], at_ns): stored[key[0], at_ns] for key, at_ns in cheapest}
    points = {(ids[key], at_ns): figures for (key, at_ns), figures in cheapest.items()}
    extended = {at: points[at] for at, snapshot in snapshot_of.items() if snapshot.offers}
    points |= _merge_points(connection, extended)
    columns = ("series_id", "fetched_ns", "snapshot_id", "micros", "offers")
    point_rows = [(*at, snapshot_of[at].id, *figures) for at, figures in points.items()]
    insert_rows(connection, price_points, columns, point_rows)
    _record_alerts(connection, points, rules)


def _merge_snapshots(snapshots: Iterable[Snapshot]) -> dict[_SnapshotKey, Snapshot]:
    """Return one snapshot per source and instant."""
    merged: dict[_SnapshotKey, Snapshot] = {}
    for each in snapshots:
        key = each.source, each.fetched_ns
        if (known := merged.get(key)) is not None:
            each = replace(
                known,
                offers=known.offers + each.offers,
                findings=known.findings + each.findings,
                failed=known.failed and each.failed,
            )
        merged[key] = each
    return merged


def _store_snapshots(
    connection: Connection, snapshots: Mapping[_SnapshotKey, Snapshot]
) -> dict[_SnapshotKey, _StoredSnapshot]:
    """Insert new snapshots and extend existing ones; return all of them."""
    known = _find_snapshots(connection, snapshots)
    for key, stored in known.items():
        _extend_snapshot(connection, stored, snapshots[key])
    new = [key for key in snapshots if key not in known]
    columns = ("source", "fetched_ns", "failed", "offers", "quarantined", "findings")
    rows = [(*key, *_snapshot_cells(snapshots[key])) for key in new]
    insert_rows(connection, price_snapshots, columns, rows)
    added = _find_snapshots(connection, new) if new else {}
    return known | {key: _StoredSnapshot(stored.id, 0) for key, stored in added.items()}


def _snapshot_cells(snapshot: Snapshot) -> tuple[object, ...]:
    findings = msgspec.json.encode(snapshot.findings[:FINDINGS_KEPT]).decode()
    return snapshot.failed, len(snapshot.offers), len(snapshot.findings), findings


def _find_snapshots(
    connection: Connection, keys: Collection[_SnapshotKey]
) -> dict[_SnapshotKey, _StoredSnapshot]:
    column, instants = price_snapshots.c, [at_ns for _, at_ns in keys]
    query = select(column.source, column.fetched_ns, column.id, column.offers).where(
        _is_in(column.source, {source for source, _ in keys}),
        column.fetched_ns.between(min(instants), max(instants)),
    )
    wanted, found = set(keys), dict[_SnapshotKey, _StoredSnapshot]()
    for source, at_ns, snapshot_id, offers in connection.execute(query):
        if (source, at_ns) in wanted:
            count = offers if isinstance(offers, int) else _count_offers(connection, snapshot_id)
            found[source, at_ns] = _StoredSnapshot(snapshot_id, count)
    return found


def _count_offers(connection: Connection, snapshot_id: int) -> int:
    """Return a snapshot's number of offers from their rows; its own row is damaged."""
    last = select(func.max(price_offers.c.position))
    last = last.where(price_offers.c.snapshot_id == snapshot_id)
    return 1 + (connection.execute(last).scalar() or 0)


def _extend_snapshot(connection: Connection, stored: _StoredSnapshot, more: Snapshot) -> None:
    count, failed = stored.offers + len(more.offers), more.failed and not stored.offers
    row = update(price_snapshots).where(price_snapshots.c.id == stored.id)
    connection.execute(row.values(offers=count, failed=failed))


def _series_ids(
    connection: Connection, sources: Collection[str], wanted: Collection[SeriesKey]
) -> dict[SeriesKey, int]:
    known = _known_series(connection, sources)
    missing = [key for key in wanted if key not in known]
    if not missing:
        return known
    insert_rows(connection, price_series, SERIES_COLUMNS, missing)
    return _known_series(connection, sources)


def _known_series(connection: Connection, sources: Collection[str]) -> dict[SeriesKey, int]:
    query = select(price_series).where(_is_in(price_series.c.source, sources))
    known: dict[SeriesKey, int] = {}
    for row in connection.execute(query).mappings():
        with contextlib.suppress(BadDocument):  # A new series replaces a damaged one.
            cells = series_cells(row)
            convert(cells, Series)
            known[cast(SeriesKey, tuple(cells.values()))] = row["id"]
    return known


def _merge_points(
    connection: Connection, points: Mapping[_PointKey, tuple[int, int]]
) -> dict[_PointKey, tuple[int, int]]:
    """Return points merged with the stored ones of the same snapshot, which are deleted."""
    if not points:
        return {}
    merged = dict(points)
    for row in _points_since(connection, points):
        at = row.series_id, row.fetched_ns
        if at in points and isinstance(row.offers, int):
            merged[at] = (min(points[at][0], row.micros), points[at][1] + row.offers)
    for table in (price_points, price_alerts):
        column = table.c
        same = column.series_id == bindparam("key"), column.fetched_ns == bindparam("at")
        pairs = [{"key": key, "at": at_ns} for key, at_ns in points]
        connection.execute(delete(table).where(*same), pairs)
    return merged


def _points_since(connection: Connection, points: Collection[_PointKey]) -> Iterable[Any]:
    """Return the stored points of the same series, from the earliest of these on, in order."""
    column, first_ns = price_points.c, min(at_ns for _, at_ns in points)
    query = select(column.series_id, column.fetched_ns, column.micros, column.offers).where(
        _is_in(column.series_id, {key for key, _ in points}),
        column.fetched_ns >= first_ns,
        column.micros <= LARGEST,
    )
    return connection.execute(query.order_by(column.series_id, column.fetched_ns))


def _is_in(column: Any, values: Collection[object]) -> ColumnElement[bool]:
    """Return an IN condition; true if there are too many values, so callers must filter."""
    found: ColumnElement[bool] = column.in_(values) if len(values) <= _MAX_IN_CLAUSE else true()
    return found


def _record_alerts(
    connection: Connection, points: Collection[_PointKey], rules: AlertRules
) -> None:
    """Insert an alert for each of these points that moved far enough since the previous one."""
    if not points:
        return
    first: dict[int, int] = {}
    for key, at_ns in points:
        first[key] = min(at_ns, first.get(key, at_ns))
    past = _past_prices(connection, first)
    wanted, rows = set(points), list[tuple[object, ...]]()
    for key, at_ns, micros, _ in _points_since(connection, points):
        if at_ns < first.get(key, LARGEST):
            continue
        before = past.get(key)
        if before is None:
            past[key] = _PastPrices(micros, micros, 1)
            continue
        kind = rules.judge(micros, before.last, before.lowest, earlier=before.count)
        if kind is not None and (key, at_ns) in wanted:
            rows.append((key, at_ns, kind.value, micros, before.last))
        past[key] = _PastPrices(micros, min(micros, before.lowest), before.count + 1)
    columns = ("series_id", "fetched_ns", "kind", "current_micros", "previous_micros")
    insert_rows(connection, price_alerts, columns, rows)


@dataclass(frozen=True, slots=True)
class _PastPrices:
    """The prices of a series before a point; ``count`` stops at 2 when it is read."""

    last: int
    lowest: int
    count: int


def _past_prices(connection: Connection, first: Mapping[int, int]) -> dict[int, _PastPrices]:
    """Return each series' prices before an instant; omits series without any."""
    found: dict[int, _PastPrices] = {}
    point = price_points.c
    before = select(point.micros).where(
        point.series_id == price_series.c.id,
        point.fetched_ns < bindparam("at_ns"),
        point.micros <= LARGEST,
    )
    latest = before.order_by(point.fetched_ns.desc()).limit(1)
    history = select(
        price_series.c.id,
        latest.scalar_subquery().label("last"),
        latest.offset(1).scalar_subquery().label("one_before"),
        before.order_by(point.micros).limit(1).scalar_subquery().label("lowest"),
    )
    starts: dict[int, set[int]] = {}
    for key, start_ns in first.items():
        starts.setdefault(start_ns, set()).add(key)
    for start_ns, keys in starts.items():
        query = history.where(_is_in(price_series.c.id, keys))
        for key, last, one_before, lowest in connection.execute(query, {"at_ns": start_ns}):
            if last is not None and key in keys:
                found[key] = _PastPrices(last, lowest, 1 if one_before is None else 2)
    return found
