"""Lines that people and other programs append: they add spend, and settle none of our holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlay.clock import ManualClock
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded

DAY_NS = 86_400 * 10**9


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "spend.jsonl"


def append(log_path: Path, *, ts: str = "2023-11-14T22:00:00Z", **amounts: float) -> None:
    line = {"ts": ts, "op_label": "a", **amounts, "currency": "USD"}
    with log_path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def open_guard(log_path: Path, clock: ManualClock, **more: object) -> BudgetGuard:
    return BudgetGuard(5, log_path, clock=clock, environ={}, **more)  # type: ignore[arg-type]


def test_a_simple_actual_settles_no_hold_of_the_guard(log_path: Path, clock: ManualClock) -> None:
    guard = open_guard(log_path, clock)
    hold = guard.authorize("a", 3)
    append(log_path, actual=0)
    append(log_path, actual=0.5)
    assert guard.holds() == (hold,)
    assert (guard.total_spent, guard.held) == (0.5, 3.0)
    guard.record_actual("a", 2, hold=hold)
    assert (guard.total_spent, guard.held) == (2.5, 0.0)


def test_an_actual_settles_the_estimate_of_its_own_kind_behind_ours(
    log_path: Path, clock: ManualClock
) -> None:
    guard = open_guard(log_path, clock)
    hold = guard.authorize("a", 1)
    append(log_path, estimated=2)
    append(log_path, actual=1.5)
    assert guard.holds() == (hold,)
    assert (guard.total_spent, guard.held) == (1.5, 1.0)


def test_one_dated_ahead_is_a_finding_of_status_and_verify(
    log_path: Path, clock: ManualClock
) -> None:
    append(log_path, ts="9999-12-31T23:00:00Z", actual=1)
    guard = open_guard(log_path, clock)
    assert "is dated 9999-12-31, which lies ahead" in str(guard.findings()[0])
    (ahead,) = (found for found in guard.verify().findings if "ahead" in found.message)
    assert (ahead.line, ahead.severity) == (1, "warning")


@pytest.mark.parametrize("amount", ["actual", "estimated"])
def test_a_simple_line_dated_ahead_does_not_advance_the_day(
    log_path: Path, clock: ManualClock, amount: str
) -> None:
    append(log_path, ts="9999-12-31T23:00:00Z", **{amount: 1})
    guard = open_guard(log_path, clock, day_usd=2)
    assert guard.authorize("b", 2).day == "2023-11-14"
    with pytest.raises(BudgetGuardExceeded, match="day 2023-11-14"):
        guard.authorize("b", 1)
    clock.advance(DAY_NS)
    assert guard.authorize("b", 2).day == "2023-11-15"


def test_settling_one_dated_ahead_pins_no_day(log_path: Path, clock: ManualClock) -> None:
    append(log_path, ts="9999-12-31T23:00:00Z", estimated=1)
    guard = open_guard(log_path, clock)
    guard.record_actual("a", 1)
    guard.correct("a", "0.5", "invoice")
    assert guard.authorize("b", 1).day == "2023-11-14"


def test_a_day_that_a_wrong_clock_opened_is_freed_by_accepting_it(
    log_path: Path, clock: ManualClock
) -> None:
    guard = open_guard(log_path, clock, day_usd=2)
    clock.step_wall(400 * 365 * DAY_NS)
    guard.authorize("a", 2)
    clock.step_wall(-400 * 365 * DAY_NS)
    assert "lies ahead" in str(guard.findings()[0])
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("b", 1)
    guard.accept("the clock was wrong")
    assert guard.authorize("b", 1).day == "2023-11-14"
    assert guard.verify().sound
