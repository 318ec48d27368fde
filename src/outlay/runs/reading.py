"""``outlay.read_run()``: everything that is known about one run, from one reading of its log."""

from __future__ import annotations

from collections import ChainMap
from functools import cached_property
from pathlib import Path
from typing import Any

from outlay.account.run import MetricPoint
from outlay.advise.recommendation import OptimizationRecommendation
from outlay.advise.run_advice import advise_run, floor_of
from outlay.budget.report import BudgetReport, budget_report
from outlay.clock import SYSTEM
from outlay.cost.run_cost import RunCost, cost_of
from outlay.errors import Finding
from outlay.goodput.follower import GoodputSummary, RunView, read_view, summarise
from outlay.record.redaction import CONFIGURATION_NOTE
from outlay.runs.figures import RunFigures, figures_of
from outlay.runs.numbers import used_shares
from outlay.units import Money


class RunReading:
    """A run as it stands: what the command line and the pages show, in Python.

    Each property is computed from the same reading when it is first asked for, so that no two of
    them disagree.
    """

    def __init__(self, view: RunView) -> None:
        self.view = view

    @property
    def run_id(self) -> str:
        """What tells the run apart from every other."""
        return self.view.identity.run_id

    @property
    def status(self) -> str:
        """``running``, ``dead`` (no end, no sign of life), or how the last attempt ended."""
        return self.view.status

    @property
    def config(self) -> dict[str, Any]:
        """What its last attempt was configured with, without secrets; {} where nobody said.

        What a tracker was told once the run was open is a note of its log, and stands here, too.
        """
        header = self.view.timeline.attempts[-1].header
        segments = self.view.account.segments.values()
        notes = [note for segment in segments for note in segment.notes]
        told = [
            note.data
            for note in sorted(notes, key=lambda each: each.t_ns)
            if note.text == CONFIGURATION_NOTE and note.t_ns >= header.t_ns
        ]
        return dict(ChainMap(*reversed(told), header.config)) if told else header.config

    @property
    def command(self) -> tuple[str, ...]:
        """What started its last attempt, without secrets; () where that is not recorded."""
        return self.view.timeline.attempts[-1].header.command

    @cached_property
    def figures(self) -> RunFigures:
        """The run at a glance, as ``outlay runs`` lists it."""
        return figures_of(self.view)

    @cached_property
    def goodput(self) -> GoodputSummary:
        """How much was productive, and what became of the rest."""
        return summarise(self.view)

    @property
    def phases(self) -> dict[str, int]:
        """Nanoseconds of wall time by phase, in reading order; they sum to the wall time."""
        return {row.phase: row.ns for row in self.goodput.phases}

    @cached_property
    def cost(self) -> RunCost:
        """What it cost, by phase and per unit of what it got for it."""
        return cost_of(self.view)

    @cached_property
    def budget(self) -> BudgetReport | None:
        """How its budget stands; None when it was started without one."""
        return budget_report(self.view)

    @property
    def budget_used(self) -> tuple[str, float] | None:
        """The limit of which the largest share is used, and that share; None without a budget."""
        shares = {} if self.budget is None else used_shares(self.budget)
        return max(shares.items(), key=lambda each: each[1], default=None)

    @cached_property
    def metrics(self) -> dict[str, list[MetricPoint]]:
        """What the training reported about itself: finite values in time, by name."""
        account = self.view.account
        return {name: account.series(name) for name in account.metric_names()}

    @cached_property
    def advice(self) -> list[OptimizationRecommendation]:
        """What would make the next run like it cheaper; savings first, then trades."""
        return advise_run(self.view)

    @property
    def advice_floor(self) -> Money | None:
        """Below which saving nothing is said; None without a price."""
        return floor_of(self.view)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong in its log."""
        return self.view.findings


def read_run(run_dir: Path | str, now_ns: int | None = None) -> RunReading:
    """Return a run as its log says it stands.

    Args:
        run_dir: The run's directory.
        now_ns: The present, in UTC nanoseconds; default: what the clock says.

    Raises:
        NotARun: There is no run log.
    """
    return RunReading(read_view(run_dir, SYSTEM.wall_ns() if now_ns is None else now_ns))
