"""A run as numbers at one instant: what experiment trackers and monitors are told.

Nothing is computed here that ``outlay cost``, ``goodput`` and ``budget`` do not show: it only gives
their figures flat names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from outlay.budget.report import BudgetReport, budget_report
from outlay.cost.run_cost import RunCost, cost_of
from outlay.goodput.follower import GoodputFollower, RunView, known_goodput
from outlay.runs.figures import RunFigures, figures_of
from outlay.units import Money

PREFIX = "outlay/"


@dataclass(frozen=True, kw_only=True)
class RunNumbers:
    """The figures of a run at one instant.

    Attributes:
        t_ns: The instant, in UTC nanoseconds. Of a run that goes on it is the last record's, so
            that no later look at the log takes anything back, and cost only grows.
        phases_ns: Nanoseconds of wall time by phase; they sum to the wall time.
        goodput: The productive share of wall time, 0 to 1; None where nobody knows.
        budget: How much of each limit is used: 1 is all of it.
        view: The reading that all of it is from.
    """

    view: RunView
    t_ns: int
    figures: RunFigures
    cost: RunCost
    phases_ns: dict[str, int]
    goodput: float | None
    budget: dict[str, float]

    @property
    def step(self) -> int:
        """The last step; -1 before the first."""
        return self.figures.steps - 1

    @property
    def unit(self) -> str:
        """The currency as it ends a metric's name."""
        return "usd" if self.cost.cost is None else self.cost.cost.currency.lower()

    @property
    def wasted(self) -> Money | None:
        """What everything but surviving steps cost; None without a price."""
        cost, productive = self.cost.cost, self.cost.productive
        return None if cost is None or productive is None else cost - productive

    @cached_property
    def values(self) -> dict[str, float]:
        """Every number under a flat name; what is not known is left out."""
        figures, unit = self.figures, self.unit
        burn = figures.burn_micros_per_hour
        known: dict[str, float | None] = {
            "read_at_s": self.t_ns / 1e9,
            **figures.counts(),
            "gpu_hours": self.cost.gpu_ns / 3.6e12,
            "goodput": self.goodput,
            f"cost_{unit}": _amount(self.cost.cost),
            f"wasted_cost_{unit}": _amount(self.wasted),
            f"burn_{unit}_per_hour": None if burn is None else burn / 1e6,
            "budget_fraction": max(self.budget.values(), default=None),
        }
        known |= {f"seconds/{name}": ns / 1e9 for name, ns in self.phases_ns.items()}
        known |= {f"cost_{unit}/{name}": _amount(c) for name, c in self.cost.by_phase.items()}
        return {f"{PREFIX}{name}": float(v) for name, v in known.items() if v is not None}

    @cached_property
    def facts(self) -> dict[str, str]:
        """What is text about the run, under flat names."""
        figures, cost = self.figures, self.cost.cost
        known = {
            "run_id": figures.run_id,
            "model": figures.model,
            "name": figures.name,
            "dir": figures.dir,
            "status": figures.status,
            "user": figures.user,
            "host": figures.host,
            "gpu": figures.gpu,
            "currency": "" if cost is None else cost.currency,
            "kind": "" if cost is None else figures.kind,
        }
        return {f"{PREFIX}{name}": text for name, text in known.items() if text}


def numbers_of(view: RunView) -> RunNumbers:
    """Return the numbers of a run as it stands."""
    breakdown = view.break_down()
    budget = budget_report(view)
    return RunNumbers(
        view=view,
        t_ns=view.timeline.end_ns,
        figures=figures_of(view),
        cost=cost_of(view),
        phases_ns=breakdown.phases,
        goodput=known_goodput(view, breakdown),
        budget={} if budget is None else used_shares(budget),
    )


def used_shares(budget: BudgetReport) -> dict[str, float]:
    """Return how much of each limit is used, by the limit's key: 1 is all of it."""
    return {
        bound.dimension.key: bound.used(budget.used) / bound.limit
        for bound in budget.budget.bounds_known
        if bound.limit
    }


class RunNumbersReader:
    """Reads one run again and again; a look costs what is new in its log."""

    def __init__(self, run_dir: Path) -> None:
        self._follower = GoodputFollower(run_dir)

    def read(self, now_ns: int) -> RunNumbers:
        """Return the run's numbers at its last record, or at its end.

        Raises:
            NotARun: There is no run log.
        """
        view = self._follower.view(now_ns)
        last_ns = view.timeline.last_seen_ns
        if view.timeline.alive and last_ns < now_ns:
            view = self._follower.view(last_ns, alive=True)
        return numbers_of(view)


def _amount(money: Money | None) -> float | None:
    return None if money is None else float(money.amount)
