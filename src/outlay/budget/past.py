"""What a run used before this attempt, put into its tracker; and taken back where it is undone."""

from __future__ import annotations

from outlay.budget.fold import RunSpend
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import ZERO, progress_of, resources_of


class Past:
    """The earlier attempts, cut where this one goes on.

    Args:
        tracker: What goes on from them.
        before: What they used.
    """

    def __init__(self, tracker: BudgetTracker, before: RunSpend) -> None:
        self._tracker = tracker
        self._before = before
        self._cut = 0

    def resume_at(self, step: int) -> None:
        """Start from what the log says survives below ``step``, or a loaded snapshot says."""
        tracker, self._cut = self._tracker, step
        budget = tracker.budget
        logged = self._before.total(
            charge=budget.charge, charge_cost=budget.charge_cost, below=step
        )
        progress = progress_of(logged).largest(tracker.loaded_progress or ZERO)
        tracker.rebase(progress + resources_of(logged.largest(tracker.used)))

    def runs(self, step: int) -> None:
        """Step number ``step`` ran: where that lies behind the cut, less of the past survives."""
        if step >= self._cut:
            return
        lost = self._before.progress_below(self._cut) - self._before.progress_below(step)
        self._cut = step
        if self._tracker.loaded_progress is None:
            self._tracker.take_back_base(lost)
        self._tracker.loaded_progress = None  # A snapshot loaded since has said so already.
