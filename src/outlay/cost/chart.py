"""Costs as pictures; needs matplotlib (the ``report`` extra)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlay.cost.compare import Candidate
from outlay.prices.chart import new_figure


def save_bars(
    values: Mapping[str, float],
    path: Path,
    *,
    title: str,
    unit: str,
    intervals: Mapping[str, tuple[float, float]] | None = None,
) -> None:
    """Write one bar for each value, with its interval where there is one.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure = new_figure("drawing costs")
    axes: Any = figure.subplots()
    names = list(values)
    axes.barh(names, [values[name] for name in names], color="#0072b2")
    for name, (low, high) in (intervals or {}).items():
        axes.plot([low, high], [name, name], color="#d55e00", linewidth=3)
    axes.invert_yaxis()
    axes.set(title=title, xlabel=unit)
    figure.savefig(path, format="png")


def save_front(
    candidates: Sequence[Candidate], front: Sequence[Candidate], path: Path, *, title: str
) -> None:
    """Write metric against cost, what nothing beats in another colour.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure = new_figure("drawing costs")
    axes: Any = figure.subplots()
    for points, colour, label in ((candidates, "#999999", "runs"), (front, "#d55e00", "unbeaten")):
        costs, metrics = [c.cost for c in points], [c.metric for c in points]
        axes.scatter(costs, metrics, color=colour, label=label)
    axes.set(title=title, xlabel="cost", ylabel="accuracy")
    axes.legend()
    figure.savefig(path, format="png")
