"""The budget of a run that is known to have one."""

from __future__ import annotations

import outlay


def tracker_of(run: outlay.Run) -> outlay.BudgetTracker:
    assert run.budget is not None
    return run.budget
