"""A run's report as one picture, for slides and chats; needs matplotlib (extra ``report``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from outlay.errors import MissingExtra
from outlay.goodput import phases as ph
from outlay.report.colours import of_phase
from outlay.report.run_charts import own_seconds
from outlay.report.run_verdict import verdict
from outlay.runs.reading import RunReading
from outlay.units.money import MICROS


def save_picture(run: RunReading, path: Path) -> None:
    """Write phases, money and step times as a PNG.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing a report", "report") from None
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(verdict(run), fontsize=9, wrap=True)
    shares, money, steps = figure.subplots(3, 1, height_ratios=(1, 2, 2))
    _draw_shares(shares, run)
    _draw_money(money, run)
    _draw_steps(steps, run)
    figure.savefig(path, format="png", dpi=150)


def _draw_shares(axes: Any, run: RunReading) -> None:
    left = 0.0
    for row in run.goodput.phases:
        label = f"{row.phase} {row.share:.1%}"
        axes.barh([0], [row.share * 100], left=left, color=of_phase(row.phase), label=label)
        left += row.share * 100
    axes.set(yticks=[], xlabel="% of wall time", xlim=(0, 100))
    axes.legend(ncols=4, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _draw_money(axes: Any, run: RunReading) -> None:
    if run.cost.cost is None:
        axes.text(0.5, 0.5, "no price", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    parts = run.cost.by_phase
    amounts = [part.micros / MICROS for part in parts.values()]
    bars = axes.barh(list(parts), amounts, color=[of_phase(phase) for phase in parts])
    axes.bar_label(bars, [f" {part}" for part in parts.values()], fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set(xlabel=f"{run.cost.cost.currency}, together {run.cost.cost}")


def _draw_steps(axes: Any, run: RunReading) -> None:
    own = own_seconds(run.view.timeline)
    axes.plot(np.arange(len(own)), own, color=of_phase(ph.STEP), linewidth=0.7)
    axes.set(xlabel="steps executed", ylabel="seconds a step")
