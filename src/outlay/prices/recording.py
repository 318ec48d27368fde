"""Offers and series as rows of the store, and the writing of snapshots with their alerts."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from inspect import get_annotations
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
from outlay.prices.offer import Offer, Snapshot, Tier, terms
from outlay.store.engine import LARGEST, insert_rows
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


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Series:
    """What is compared with itself over time: so many GPUs on the same terms, from one source.

    Attributes:
        gpu_count: GPUs of one offer; 0 in series from before they were told apart.
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
        """The terms in a word or two."""
        return terms(self.tier, community=self.community)

    @property
    def machine(self) -> str:
        """How many of which GPU: ``8x H100-SXM``."""
        return f"{self.gpu_count}x {self.gpu}" if self.gpu_count else self.gpu


SERIES_COLUMNS = tuple(field.name for field in fields(Series))
MACHINE_COLUMNS = SERIES_COLUMNS[1:]
"""What a machine and its terms are: all that names a series, but its source."""
machine_of = attrgetter(*MACHINE_COLUMNS)


SeriesKey = tuple[str, str, str, int, str, bool, str]
"""The columns of a series, in their order: what the many offers of a snapshot are grouped by."""


def key_of(offer: Offer) -> SeriesKey:
    """Return which series an offer belongs to."""
    return (
        offer.source, offer.provider, offer.gpu, offer.gpu_count, str(offer.tier),
        offer.community, offer.price.currency,
    )  # fmt: skip


def series_of(offer: Offer) -> Series:
    """Return the series that an offer belongs to."""
    return cells_of(dict(zip(SERIES_COLUMNS, key_of(offer), strict=True)), Series)


_OFFER_COLUMNS = tuple(column.name for column in price_offers.columns)


def offer_row(offer: Offer, snapshot_id: int, position: int) -> tuple[object, ...]:
    """Return an offer as a row of its snapshot, in the order of the table's columns."""
    price, storage = offer.price, offer.storage_price
    return (
        snapshot_id, position, offer.provider, offer.gpu, offer.gpu_count, price.micros,
        offer.per_gpu_micros, price.currency, str(offer.tier), offer.community, offer.memory_gb,
        offer.nvlink, offer.interconnect, offer.bandwidth_mbps, offer.region, offer.availability,
        None if storage is None else storage.micros, offer.cuda, offer.offer_id, offer.given,
    )  # fmt: skip


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


_SAME = tuple(set(_OfferCells.__struct_fields__) & set(Offer.__struct_fields__))
"""The columns that hold a field of an offer as it is."""


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
        storage_price=None if storage is None else Money(storage, cells.currency),
        **{name: getattr(cells, name) for name in _SAME},
    )


@functools.cache
def _names_of(kind: Hashable) -> tuple[str, ...]:
    return tuple(get_annotations(cast(type, kind)))


def cells_of(row: Mapping[Any, Any], kind: type[T]) -> T:
    """Return the cells of a row that a type names; raises BadDocument where one does not fit."""
    # The names that the database answers with are no plain str, which msgspec wants.
    return convert({name: row[name] for name in _names_of(cast(Hashable, kind))}, kind)


def read_rows(
    rows: Iterable[RowMapping], read: Callable[[RowMapping], T], name: str, damage: list[Finding]
) -> Iterator[T]:
    """Yield what rows of the store hold; ``name`` is what a row is.

    A row for which ``read`` raises is left out, and a finding about it added to ``damage``.
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


# Writing snapshots: their offers, the points they make in their series, and the alerts of those.
#
# Works inside a transaction that somebody else began, in a number of statements that does not
# depend on how many snapshots there are: a history of prices has one for each price.

# Findings are for reading; beyond this many of one snapshot their number says enough.
FINDINGS_KEPT = 100
_MOST_NAMED = 1000  # In a condition; a database takes only so many.
_Look = tuple[str, int]  # A source and an instant: what makes a snapshot.
_At = tuple[int, int]  # A series and an instant: what makes a point.


@dataclass(frozen=True, slots=True)
class _Held:
    """A snapshot in the store: its id, and how many offers it had before these."""

    id: int
    offers: int


def record_snapshots(
    connection: Connection, snapshots: Iterable[Snapshot], rules: AlertRules
) -> None:
    """Append snapshots; alerts are judged once, when all of them are there."""
    looks = _looks(snapshots)
    if not looks:
        return
    held = _snapshot_rows(connection, looks)
    cheapest: dict[tuple[SeriesKey, int], tuple[int, int]] = {}
    rows: list[tuple[object, ...]] = []
    for look, snapshot in looks.items():
        at = held[look]
        for position, offer in enumerate(snapshot.offers, start=at.offers):
            rows.append(offer_row(offer, at.id, position))
            each, key = offer.per_gpu_micros, (key_of(offer), look[1])
            known = cheapest.get(key)
            cheapest[key] = (each, 1) if known is None else (min(each, known[0]), known[1] + 1)
    insert_rows(connection, price_offers, _OFFER_COLUMNS, rows)
    ids = _series_ids(connection, looks, dict.fromkeys(key for key, _ in cheapest))
    of_look = {(ids[key], at_ns): held[key[0], at_ns] for key, at_ns in cheapest}
    points = {(ids[key], at_ns): figures for (key, at_ns), figures in cheapest.items()}
    points |= _replaced(connection, {at: points[at] for at, had in of_look.items() if had.offers})
    columns = ("series_id", "fetched_ns", "snapshot_id", "micros", "offers")
    insert_rows(
        connection, price_points, columns,
        [(*at, of_look[at].id, *figures) for at, figures in points.items()],
    )  # fmt: skip
    _judge(connection, points, rules)


def _looks(snapshots: Iterable[Snapshot]) -> dict[_Look, Snapshot]:
    """Return snapshots by source and instant; several of one are joined."""
    looks: dict[_Look, Snapshot] = {}
    for each in snapshots:
        look = each.source, each.fetched_ns
        if (known := looks.get(look)) is not None:
            each = replace(
                known,
                offers=known.offers + each.offers,
                findings=known.findings + each.findings,
                failed=known.failed and each.failed,
            )
        looks[look] = each
    return looks


def _snapshot_rows(connection: Connection, looks: Mapping[_Look, Snapshot]) -> dict[_Look, _Held]:
    """Add what is new, and return every snapshot's row."""
    known = _known_snapshots(connection, looks)
    for look, held in known.items():
        _grow(connection, held, looks[look])
    fresh = [look for look in looks if look not in known]
    columns = ("source", "fetched_ns", "failed", "offers", "quarantined", "findings")
    rows = [(*look, *_snapshot_cells(looks[look])) for look in fresh]
    insert_rows(connection, price_snapshots, columns, rows)
    added = _known_snapshots(connection, fresh) if fresh else {}
    return known | {look: _Held(held.id, 0) for look, held in added.items()}


def _snapshot_cells(snapshot: Snapshot) -> tuple[object, ...]:
    said = msgspec.json.encode(snapshot.findings[:FINDINGS_KEPT]).decode()
    return snapshot.failed, len(snapshot.offers), len(snapshot.findings), said


def _known_snapshots(connection: Connection, looks: Collection[_Look]) -> dict[_Look, _Held]:
    """Return those that are in the store."""
    column, instants = price_snapshots.c, [at_ns for _, at_ns in looks]
    query = select(column.source, column.fetched_ns, column.id, column.offers).where(
        _among(column.source, {source for source, _ in looks}),
        column.fetched_ns.between(min(instants), max(instants)),
    )
    wanted, found = set(looks), dict[_Look, _Held]()
    for source, at_ns, snapshot_id, offers in connection.execute(query):
        if (source, at_ns) in wanted:
            held = offers if isinstance(offers, int) else _counted(connection, snapshot_id)
            found[source, at_ns] = _Held(snapshot_id, held)
    return found


def _counted(connection: Connection, snapshot_id: int) -> int:
    """Return how many offers a snapshot has whose row is damaged: they say so themselves."""
    last = select(func.max(price_offers.c.position))
    last = last.where(price_offers.c.snapshot_id == snapshot_id)
    return 1 + (connection.execute(last).scalar() or 0)


def _grow(connection: Connection, held: _Held, more: Snapshot) -> None:
    grown = {
        "offers": held.offers + len(more.offers), "failed": more.failed and not held.offers
    }  # fmt: skip
    connection.execute(update(price_snapshots).where(price_snapshots.c.id == held.id).values(grown))


def _series_ids(
    connection: Connection, looks: Iterable[_Look], wanted: Collection[SeriesKey]
) -> dict[SeriesKey, int]:
    sources = {source for source, _ in looks}
    known = _known_series(connection, sources)
    missing = [key for key in wanted if key not in known]
    if not missing:
        return known
    insert_rows(connection, price_series, SERIES_COLUMNS, missing)
    return _known_series(connection, sources)


def _known_series(connection: Connection, sources: Collection[str]) -> dict[SeriesKey, int]:
    query = select(price_series).where(_among(price_series.c.source, sources))
    known: dict[SeriesKey, int] = {}
    for row in connection.execute(query).mappings():
        with contextlib.suppress(BadDocument):  # A damaged one is begun anew.
            cells_of(row, Series)
            known[cast(SeriesKey, tuple(row[name] for name in SERIES_COLUMNS))] = row["id"]
    return known


def _replaced(
    connection: Connection, points: Mapping[_At, tuple[int, int]]
) -> dict[_At, tuple[int, int]]:
    """Return points joined with those that their snapshots had already, which are taken away."""
    if not points:
        return {}
    joined = dict(points)
    for row in _points_since(connection, points):
        at = row.series_id, row.fetched_ns
        if at in points and isinstance(row.offers, int):
            joined[at] = (min(points[at][0], row.micros), points[at][1] + row.offers)
    for table in (price_points, price_alerts):
        column = table.c
        same = column.series_id == bindparam("key"), column.fetched_ns == bindparam("at")
        pairs = [{"key": key, "at": at_ns} for key, at_ns in points]
        connection.execute(delete(table).where(*same), pairs)
    return joined


def _points_since(connection: Connection, points: Collection[_At]) -> Iterable[Any]:
    """Return the points of the same series from the first of these instants on, in their order."""
    column, first_ns = price_points.c, min(at_ns for _, at_ns in points)
    query = select(column.series_id, column.fetched_ns, column.micros, column.offers).where(
        _among(column.series_id, {key for key, _ in points}),
        column.fetched_ns >= first_ns,
        column.micros <= LARGEST,
    )
    return connection.execute(query.order_by(column.series_id, column.fetched_ns))


def _among(column: Any, values: Collection[object]) -> ColumnElement[bool]:
    """Return the condition that a column has one of some values; true where these are too many."""
    found: ColumnElement[bool] = column.in_(values) if len(values) <= _MOST_NAMED else true()
    return found


def _judge(connection: Connection, points: Collection[_At], rules: AlertRules) -> None:
    """Append an alert for each of these points that moved far enough since the one before."""
    if not points:
        return
    first: dict[int, int] = {}
    for key, at_ns in points:
        first[key] = min(at_ns, first.get(key, at_ns))
    past = _pasts(connection, first)
    wanted, rows = set(points), list[tuple[object, ...]]()
    for key, at_ns, micros, _ in _points_since(connection, points):
        if at_ns < first.get(key, LARGEST):
            continue
        before = past.get(key)
        if before is None:
            past[key] = _Past(micros, micros, 1)
            continue
        kind = rules.judge(micros, before.last, before.lowest, earlier=before.count)
        if kind is not None and (key, at_ns) in wanted:
            rows.append((key, at_ns, kind.value, micros, before.last))
        past[key] = _Past(micros, min(micros, before.lowest), before.count + 1)
    columns = ("series_id", "fetched_ns", "kind", "current_micros", "previous_micros")
    insert_rows(connection, price_alerts, columns, rows)


@dataclass(frozen=True, slots=True)
class _Past:
    """What came before a point of a series: the last price, the lowest, and how many."""

    last: int
    lowest: int
    count: int


def _pasts(connection: Connection, first: Mapping[int, int]) -> dict[int, _Past]:
    """Return what came before an instant of each series; none where nothing did."""
    found: dict[int, _Past] = {}
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
        query = history.where(_among(price_series.c.id, keys))
        for key, last, one_before, lowest in connection.execute(query, {"at_ns": start_ns}):
            if last is not None and key in keys:
                found[key] = _Past(last, lowest, 1 if one_before is None else 2)
    return found
