"""Writing one snapshot: its offers, the points they make in their series, and the alerts of those.

Each function works inside a transaction that somebody else began, in a fixed number of statements.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from outlay.decoding import BadDocument
from outlay.errors import Finding
from outlay.prices.alerts import AlertRules
from outlay.prices.rows import (
    SERIES_COLUMNS,
    Series,
    cheapest_by_series,
    offer_row,
    series_from,
)
from outlay.prices.snapshot import Snapshot
from outlay.store.engine import LARGEST
from outlay.store.schema import (
    price_alerts,
    price_offers,
    price_points,
    price_series,
    price_snapshots,
)

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
