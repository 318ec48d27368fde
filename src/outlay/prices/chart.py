"""A price over time, drawn in text or as a picture."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outlay.clock import utc_text
from outlay.errors import MissingExtra
from outlay.prices.series import PricePoint
from outlay.units.money import MICROS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def text_chart(line: Sequence[tuple[int, int]], *, width: int, height: int = _HEIGHT) -> str:
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
    grid = [[" "] * columns for _ in range(height)]
    for column, price in enumerate(prices):
        level = (price - low) * (height - 1) // (high - low) if high > low else 0
        grid[height - 1 - level][column] = "▪"
    top, bottom = (f"{micros / MICROS:>10.4f}" for micros in (high, low))
    labels = [top, *[" " * 10] * (height - 2), bottom]
    rows = [f"{label} │{''.join(cells)}" for label, cells in zip(labels, grid, strict=True)]
    first, last = utc_text(times[0])[:10], utc_text(times[-1])[:10]
    axis = f"{'':>11}└{'─' * columns}\n{'':>12}{first}{last:>{columns - 10}}"
    return "\n".join([*rows, axis])


def new_figure(feature: str) -> Figure:
    """Return an empty picture.

    Args:
        feature: What needs it, for the error.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra(feature, "report") from None
    return Figure(figsize=(9, 4.5), layout="constrained")


def save_png(points: Sequence[PricePoint], path: Path, *, title: str) -> None:
    """Write a picture with one step line per series.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure = new_figure("drawing a price history")
    axes: Any = figure.subplots()
    for series in sorted({point.series for point in points}):
        mine = [point for point in points if point.series == series]
        axes.step(
            np.array([point.at_ns for point in mine], dtype="datetime64[ns]"),
            [float(point.price.amount) for point in mine],
            where="post",
            marker=".",
            label=f"{series.provider} {series.gpu} {series.label}",
        )
    axes.set(title=title, ylabel="per GPU-hour", ylim=(0, None))
    axes.legend()
    figure.savefig(path, format="png")
