"""Writing one snapshot: its offers, the points they make in their series, and the alerts of those.

Each function works inside a transaction that somebody else began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from outlay.errors import Finding
from outlay.prices.alerts import AlertRules
from outlay.prices.rows import Series, cheapest_by_series, offer_row
from outlay.prices.snapshot import Snapshot
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
    for series, (micros, count) in cheapest_by_series(snapshot.offers).items():
        series_id = _series_id(connection, series)
        at = {"series_id": series_id, "fetched_ns": snapshot.fetched_ns}
        _put_point(connection, at, snapshot_id, micros, count)
        if rules is not None:
            _judge(connection, series_id, snapshot.fetched_ns, rules)


def _judge(connection: Connection, series_id: int, at_ns: int, rules: AlertRules) -> None:
    """Write, correct or withdraw the alert of one point."""
    point = price_points.c
    mine = select(point.micros).where(point.series_id == series_id)
    before = mine.where(point.fetched_ns < at_ns)
    current = connection.scalar(mine.where(point.fetched_ns == at_ns))
    previous = connection.scalars(before.order_by(point.fetched_ns.desc()).limit(2)).all()
    connection.execute(
        delete(price_alerts).where(
            price_alerts.c.series_id == series_id, price_alerts.c.fetched_ns == at_ns
        )
    )
    if not previous or current is None:
        return
    lowest = connection.scalar(before.order_by(point.micros).limit(1))
    assert lowest is not None, "a series with earlier points has a lowest one"
    kind = rules.judge(current, previous[0], lowest, earlier=len(previous))
    if kind is not None:
        connection.execute(
            insert(price_alerts).values(
                series_id=series_id,
                fetched_ns=at_ns,
                kind=kind.value,
                current_micros=current,
                previous_micros=previous[0],
            )
        )


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


def _series_id(connection: Connection, series: Series) -> int:
    values = {name: getattr(series, name) for name in Series.__slots__}
    same = [price_series.c[name] == value for name, value in values.items()]
    found = connection.scalar(select(price_series.c.id).where(*same))
    if found is not None:
        return int(found)
    key = connection.execute(insert(price_series).values(values)).inserted_primary_key
    assert key is not None, "an inserted row has a key"
    return int(key[0])


def _put_point(
    connection: Connection, at: Mapping[str, int], snapshot_id: int, micros: int, count: int
) -> None:
    column = price_points.c
    same = [column[name] == value for name, value in at.items()]
    found = connection.execute(select(column.micros, column.offers).where(*same)).one_or_none()
    if found is None:
        row = {**at, "snapshot_id": snapshot_id, "micros": micros, "offers": count}
        connection.execute(insert(price_points).values(row))
        return
    joined = {"micros": min(micros, found.micros), "offers": count + found.offers}
    connection.execute(update(price_points).where(*same).values(joined))
