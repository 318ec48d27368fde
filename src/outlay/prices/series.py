"""Prices over time: each series' cheapest offer per snapshot, alerts, and a text chart."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, RowMapping, Select, func, select

from outlay.clock import utc_text
from outlay.decoding import convert
from outlay.errors import Finding
from outlay.prices.alerts import AlertKind, change_percent
from outlay.prices.gpus import matching_names
from outlay.prices.offer import Tier
from outlay.prices.price_book import latest_snapshots
from outlay.prices.recording import (
    MACHINE_COLUMNS,
    SERIES_COLUMNS,
    Series,
    money_cells,
    read_rows,
    series_cells,
)
from outlay.store.connection import LARGEST
from outlay.store.schema import price_alerts, price_points, price_series
from outlay.units import Money
from outlay.units.money import MICROS

_SERIES = [price_series.c[name] for name in SERIES_COLUMNS]
_CHART_HEIGHT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PricePoint:
    """A series at a snapshot.

    Attributes:
        price: Of its cheapest offer, per GPU-hour.
        offers: Number of its offers.
    """

    series: Series
    at_ns: int
    price: Money
    offers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A price that moved far enough between two snapshots of a series."""

    series: Series
    at_ns: int
    kind: AlertKind
    current: Money
    previous: Money

    @property
    def change_percent(self) -> float:
        """The change in percent, for display."""
        return change_percent(self.current.micros, self.previous.micros)


def points(
    store: Engine,
    *,
    gpu: str | None = None,
    provider: str | None = None,
    tier: Tier | None = None,
    since_ns: int | None = None,
    currency: str | None = None,
    damage: list[Finding] | None = None,
) -> list[PricePoint]:
    """Return points from ``since_ns`` on, in order of time; ``gpu`` is a card or a family.

    Findings about unreadable rows are added to ``damage``.
    """
    query = _joined(select(price_points, *_SERIES), price_points.c.series_id)
    query = query.order_by(price_points.c.fetched_ns, price_series.c.id)
    if since_ns is not None:
        query = query.where(price_points.c.fetched_ns >= since_ns)
    for name, wanted in (("currency", currency), ("provider", provider), ("tier", tier)):
        if wanted is not None:
            query = query.where(price_series.c[name] == str(wanted))
    with store.begin() as connection:
        if gpu is not None:
            known = connection.scalars(select(price_series.c.gpu).distinct())
            names = [name for name in known if isinstance(name, str)]
            query = query.where(price_series.c.gpu.in_(sorted(matching_names(gpu, names))))
        rows = connection.execute(query).mappings()
        return list(read_rows(rows, _point, "price", [] if damage is None else damage))


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceWindow:
    """A machine's prices over a window: the cheapest of its series at each instant."""

    average: float
    trend_percent: float


def windows(
    store: Engine, *, since_ns: int, currency: str
) -> dict[tuple[object, ...], PriceWindow]:
    """Return the figures of points after ``since_ns``, by ``MACHINE_COLUMNS``."""
    point = price_points.c
    columns = [price_series.c[name] for name in MACHINE_COLUMNS]
    query = _joined(select(*columns, func.min(point.micros)), point.series_id).where(
        point.fetched_ns > since_ns, point.micros <= LARGEST, price_series.c.currency == currency
    )
    query = query.group_by(*columns, point.fetched_ns).order_by(point.fetched_ns)
    prices: dict[tuple[object, ...], list[int]] = defaultdict(list)
    with store.begin() as connection:
        for *machine, micros in connection.execute(query):
            prices[tuple(machine)].append(micros)
    return {
        machine: PriceWindow(
            average=sum(seen) / len(seen) / MICROS,
            trend_percent=change_percent(seen[-1], seen[0]),
        )
        for machine, seen in prices.items()
    }


def current_points(store: Engine, damage: list[Finding] | None = None) -> list[PricePoint]:
    """Return the points of each source's last snapshot.

    Findings about unreadable rows are added to ``damage``.
    """
    query = _joined(select(price_points, *_SERIES), price_points.c.series_id)
    query = query.where(price_points.c.snapshot_id.in_(latest_snapshots(None)))
    with store.begin() as connection:
        rows = connection.execute(query).mappings()
        return list(read_rows(rows, _point, "price", [] if damage is None else damage))


def alerts(
    store: Engine,
    *,
    since_ns: int = 0,
    until_ns: int | None = None,
    damage: list[Finding] | None = None,
) -> list[Alert]:
    """Return the alerts between two instants, both included, in order of time.

    Findings about unreadable rows are added to ``damage``.
    """
    query = _joined(select(price_alerts, *_SERIES), price_alerts.c.series_id)
    query = query.where(price_alerts.c.fetched_ns >= since_ns)
    if until_ns is not None:
        query = query.where(price_alerts.c.fetched_ns <= until_ns)
    query = query.order_by(price_alerts.c.fetched_ns, price_series.c.id)
    with store.begin() as connection:
        rows = connection.execute(query).mappings()
        return list(read_rows(rows, _alert, "alert", [] if damage is None else damage))


def _joined(query: Select[Any], series_id: Any) -> Select[Any]:
    return query.join(price_series, price_series.c.id == series_id)


def _point(row: RowMapping) -> PricePoint:
    cells = {
        "series": series_cells(row),
        "at_ns": row["fetched_ns"],
        "price": money_cells(row, "micros"),
        "offers": row["offers"],
    }
    return convert(cells, PricePoint)


def _alert(row: RowMapping) -> Alert:
    cells = {
        "series": series_cells(row),
        "at_ns": row["fetched_ns"],
        "kind": row["kind"],
        "current": money_cells(row, "current_micros"),
        "previous": money_cells(row, "previous_micros"),
    }
    return convert(cells, Alert)


# Text chart


def cheapest_over_time(points: Sequence[PricePoint]) -> list[tuple[int, int]]:
    """Return (instant, micro-units) of the cheapest series at each point.

    Each series keeps its price until its next point.
    """
    in_force: dict[object, int] = {}
    line: dict[int, int] = {}
    for point in sorted(points, key=lambda point: point.at_ns):
        in_force[point.series] = point.price.micros
        line[point.at_ns] = min(in_force.values())
    return sorted(line.items())


def text_chart(line: Sequence[tuple[int, int]], *, width: int) -> str:
    """Return a text chart of a step line; a price holds until the next point."""
    if not line:
        return ""
    columns = max(10, width - 14)
    times = [at_ns for at_ns, _ in line]
    span = max(1, times[-1] - times[0])
    prices = [
        line[bisect_right(times, times[0] + span * column // (columns - 1)) - 1][1]
        for column in range(columns)
    ]
    low, high = min(prices), max(prices)
    grid = [[" "] * columns for _ in range(_CHART_HEIGHT)]
    for column, price in enumerate(prices):
        level = (price - low) * (_CHART_HEIGHT - 1) // (high - low) if high > low else 0
        grid[_CHART_HEIGHT - 1 - level][column] = "▪"
    top, bottom = (f"{micros / MICROS:>10.4f}" for micros in (high, low))
    labels = [top, *[" " * 10] * (_CHART_HEIGHT - 2), bottom]
    rows = [f"{label} │{''.join(cells)}" for label, cells in zip(labels, grid, strict=True)]
    first, last = utc_text(times[0])[:10], utc_text(times[-1])[:10]
    axis = f"{'':>11}└{'─' * columns}\n{'':>12}{first}{last:>{columns - 10}}"
    return "\n".join([*rows, axis])
