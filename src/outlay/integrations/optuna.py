"""Optuna: a pruner that ends a trial when its budget is used up, around another pruner.

``optuna.create_study(pruner=BudgetPruner(MedianPruner()))``

A trial registers its tracker with ``pruner.watch(trial, run.budget)``, or all trials get a time
limit by ``BudgetPruner(budget=outlay.iso_time("5min"))``, counted from the trial's first report.
"""

from __future__ import annotations

from typing import Any

from outlay.budget.config import read_budget
from outlay.budget.limits import TIME
from outlay.budget.terms import Budget
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import Usage
from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, MissingExtra

try:
    from optuna.pruners import BasePruner
except ImportError:
    raise MissingExtra("outlay.integrations.optuna", "optuna") from None


class BudgetPruner(BasePruner):
    """Prunes a trial once its budget is used up; before that another pruner decides.

    Args:
        inner: The pruner that decides while there is budget left; default: no pruning.
        budget: The time limit of each trial without a tracker of its own.
        clock: Times trials without a tracker.

    Raises:
        InvalidValue: The budget limits something other than time, which only a tracker can count.
    """

    def __init__(
        self,
        inner: BasePruner | None = None,
        *,
        budget: object = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._inner = inner
        self._budget = _time_budget(budget)
        self._clock = clock
        self._trackers: dict[int, BudgetTracker] = {}
        self._begun_ns: dict[int, int] = {}

    def watch(self, trial: Any, tracker: BudgetTracker | None) -> None:
        """Prune this trial by a run's tracker; None, for a run without a budget, does nothing."""
        if tracker is not None:
            self._trackers[trial.number] = tracker

    def tracker_of(self, trial: Any) -> BudgetTracker | None:
        """Return the trial's tracker, or one with the time since its first report."""
        number = trial.number
        if number in self._trackers or self._budget is None:
            return self._trackers.get(number)
        now_ns = self._clock.monotonic_ns()
        tracker = BudgetTracker.of(self._budget, clock=self._clock)
        tracker.add(Usage(time_ns=now_ns - self._begun_ns.setdefault(number, now_ns)))
        return tracker

    def prune(self, study: Any, trial: Any) -> bool:
        """Return whether to prune a trial; ``trial.should_prune()`` calls it."""
        tracker = self.tracker_of(trial)
        if tracker is not None and tracker.should_stop():
            return True
        return self._inner is not None and self._inner.prune(study, trial)


def _time_budget(value: object) -> Budget | None:
    budget = read_budget(value)
    if budget is not None and set(budget.limits) != {TIME.key}:
        expected = "a limit on time alone; for others name each trial's tracker with watch()"
        raise InvalidValue("budget", sorted(budget.limits), expected)
    return budget
