"""Prices over time: each series' cheapest offer per snapshot, statistics, alerts, a text chart."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, RowMapping, Select, func, select

from outlay.clock import utc_text
from outlay.decoding import convert
from outlay.errors import Finding
from outlay.prices.alerts import AlertKind, change_percent
from outlay.prices.gpus import matching_names
from outlay.prices.offer import TRACKED, Tier
from outlay.prices.price_book import latest_snapshots
from outlay.prices.recording import (
    MACHINE_COLUMNS,
    SERIES_COLUMNS,
    Series,
    machine_of,
    money_cells,
    read_rows,
    series_cells,
)
from outlay.store.connection import LARGEST
from outlay.store.schema import price_alerts, price_points, price_series
from outlay.units import Money
from outlay.units.money import MICROS
from outlay.units.quantity import NS_PER_HOUR

_SERIES = [price_series.c[name] for name in SERIES_COLUMNS]
_CHART_HEIGHT = 10
VALID_NS = 24 * NS_PER_HOUR
"""A tracked price is valid until replaced, or until others have been tracked for this long."""


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
    lowest: float
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
            lowest=min(seen) / MICROS,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceStatistics:
    """Prices of all tracked GPUs in dollars; the keys are ``provider:gpu``.

    Average and trend are of the currently cheapest machine and terms, and missing without a price
    in the last 24 hours.
    """

    total_tracked: int
    gpus_by_type: dict[str, list[str]]
    current_prices: dict[str, float]
    average_prices_24h: dict[str, float]
    price_trends_24h: dict[str, float]


def price_statistics(store: Engine, now_ns: int, damage: list[Finding]) -> PriceStatistics:
    """Return the statistics; findings about unreadable rows are added to ``damage``."""
    current = _cheapest_points(current_points(store, damage))
    recent = windows(store, since_ns=now_ns - 24 * NS_PER_HOUR, currency="USD")
    by_type: dict[str, list[str]] = defaultdict(list)
    for gpu, provider in sorted(current):
        by_type[gpu].append(provider)
    named = {f"{provider}:{gpu}": point for (gpu, provider), point in current.items()}
    machines = {key: recent.get(machine_of(point.series)) for key, point in named.items()}
    seen = {key: window for key, window in machines.items() if window is not None}
    return PriceStatistics(
        total_tracked=len(current),
        gpus_by_type=dict(by_type),
        current_prices={key: float(point.price.amount) for key, point in named.items()},
        average_prices_24h={key: window.average for key, window in seen.items()},
        price_trends_24h={key: window.trend_percent for key, window in seen.items()},
    )


def _cheapest_points(found: Iterable[PricePoint]) -> dict[tuple[str, str], PricePoint]:
    """Return the cheapest valid point by GPU and provider."""
    by_machine: dict[tuple[object, ...], list[PricePoint]] = defaultdict(list)
    for point in found:
        if point.series.currency == "USD":
            by_machine[machine_of(point.series)].append(point)
    valid = sorted(map(_valid_point, by_machine.values()), key=lambda point: -point.price.micros)
    return {(point.series.gpu, point.series.provider): point for point in valid}


def _valid_point(found: list[PricePoint]) -> PricePoint:
    """Return a machine's cheapest point in the latest snapshot, or of the valid tracked prices."""
    newest = max(found, key=lambda point: point.at_ns)
    since_ns = newest.at_ns
    if newest.series.source.startswith(TRACKED):
        found = [point for point in found if point.series.source.startswith(TRACKED)]
        since_ns -= VALID_NS - 1
    return min(
        (point for point in found if point.at_ns >= since_ns), key=lambda point: point.price.micros
    )


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
