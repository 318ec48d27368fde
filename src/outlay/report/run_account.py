"""Everything that is known about one run, read once for its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outlay.advise.recommendation import OptimizationRecommendation
from outlay.advise.run_advice import advise_run
from outlay.budget.report import BudgetReport, read_report
from outlay.cost.reading import RunReading, read_whole_run
from outlay.cost.run_cost import RunCost, cost_of
from outlay.errors import InvalidValue
from outlay.goodput.summary import GoodputSummary, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccount:
    """A run as it stands.

    Attributes:
        budget: How its budget stands; None when it was started without one.
    """

    reading: RunReading
    summary: GoodputSummary
    cost: RunCost
    budget: BudgetReport | None
    advice: list[OptimizationRecommendation]


def read_account(run_dir: Path, now_ns: int) -> RunAccount:
    """Read a run for its report.

    Raises:
        NotARun: There is no run log.
    """
    reading = read_whole_run(run_dir, now_ns)
    return RunAccount(
        reading=reading,
        summary=summarise(reading.view),
        cost=cost_of(reading),
        budget=_budget(run_dir, reading.view.timeline.end_ns),
        advice=advise_run(reading),
    )


def _budget(run_dir: Path, until_ns: int) -> BudgetReport | None:
    try:
        return read_report(run_dir, until_ns)
    except InvalidValue:  # It was started without one.
        return None
