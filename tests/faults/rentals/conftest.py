"""Fixtures of the tests of rentals: the vendor's stand-in, and a guard."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlay.clock import ManualClock
from outlay.guard.budget_guard import BudgetGuard
from rented import StandIn, run_in_process


@pytest.fixture
def clock(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """A manual clock, and a vendor that needs no time."""
    monkeypatch.setattr("outlay.guard.rental.rental.run_command", run_in_process)
    return clock


@pytest.fixture
def vendor(tmp_path: Path) -> StandIn:
    directory = tmp_path / "vendor"
    directory.mkdir()
    return StandIn(directory)


@pytest.fixture
def guard(tmp_path: Path, clock: ManualClock) -> BudgetGuard:
    return BudgetGuard(50, tmp_path / "books" / "spend.jsonl", clock=clock, environ={})
