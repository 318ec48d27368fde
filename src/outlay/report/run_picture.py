"""A run's report as one picture, for slides and chats; needs matplotlib (extra ``report``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from outlay.errors import MissingExtra
from outlay.goodput import phases as ph
from outlay.report.colours import of_phase
from outlay.report.run_account import RunAccount
from outlay.report.run_charts import own_seconds
from outlay.report.run_verdict import verdict
from outlay.units.money import MICROS


def save_picture(account: RunAccount, path: Path) -> None:
    """Write phases, money and step times as a PNG.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing a report", "report") from None
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(verdict(account), fontsize=9, wrap=True)
    shares, money, steps = figure.subplots(3, 1, height_ratios=(1, 2, 2))
    _draw_shares(shares, account)
    _draw_money(money, account)
    _draw_steps(steps, account)
    figure.savefig(path, format="png", dpi=150)


def _draw_shares(axes: Any, account: RunAccount) -> None:
    left = 0.0
    for row in account.summary.phases:
        label = f"{row.phase} {row.share:.1%}"
        axes.barh([0], [row.share * 100], left=left, color=of_phase(row.phase), label=label)
        left += row.share * 100
    axes.set(yticks=[], xlabel="% of wall time", xlim=(0, 100))
    axes.legend(ncols=4, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _draw_money(axes: Any, account: RunAccount) -> None:
    if account.cost.cost is None:
        axes.text(0.5, 0.5, "no price", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    parts = account.cost.by_phase
    amounts = [part.micros / MICROS for part in parts.values()]
    bars = axes.barh(list(parts), amounts, color=[of_phase(phase) for phase in parts])
    axes.bar_label(bars, [f" {part}" for part in parts.values()], fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set(xlabel=f"{account.cost.cost.currency}, together {account.cost.cost}")


def _draw_steps(axes: Any, account: RunAccount) -> None:
    own = own_seconds(account.reading.view.timeline)
    axes.plot(np.arange(len(own)), own, color=of_phase(ph.STEP), linewidth=0.7)
    axes.set(xlabel="steps executed", ylabel="seconds a step")
