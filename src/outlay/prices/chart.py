"""A price over time, drawn in text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from outlay.clock import utc_text
from outlay.prices.series import PricePoint
from outlay.units.money import MICROS

_HEIGHT = 10


def cheapest_over_time(points: Sequence[PricePoint]) -> list[tuple[int, int]]:
    """Return (instant, micro-units) where the cheapest of several series changes or is seen.

    Each series holds its price until its next point.
    """
    in_force: dict[object, int] = {}
    line: dict[int, int] = {}
    for point in sorted(points, key=lambda point: point.at_ns):
        in_force[point.series] = point.price.micros
        line[point.at_ns] = min(in_force.values())
    return sorted(line.items())


def text_chart(line: Sequence[tuple[int, int]], *, width: int) -> str:
    """Return a chart of a step line; the price is in force until the next point."""
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
    grid = [[" "] * columns for _ in range(_HEIGHT)]
    for column, price in enumerate(prices):
        level = (price - low) * (_HEIGHT - 1) // (high - low) if high > low else 0
        grid[_HEIGHT - 1 - level][column] = "▪"
    top, bottom = (f"{micros / MICROS:>10.4f}" for micros in (high, low))
    labels = [top, *[" " * 10] * (_HEIGHT - 2), bottom]
    rows = [f"{label} │{''.join(cells)}" for label, cells in zip(labels, grid, strict=True)]
    first, last = utc_text(times[0])[:10], utc_text(times[-1])[:10]
    axis = f"{'':>11}└{'─' * columns}\n{'':>12}{first}{last:>{columns - 10}}"
    return "\n".join([*rows, axis])
