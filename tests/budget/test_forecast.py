"""When a budget will stop a run: what is left of a limit at the present pace of its use."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

import outlay
from outlay.budget.display import budget_line
from outlay.budget.limits import (
    COST,
    PACE_NS,
    PACE_STEPS,
    TIME,
    TOKENS,
    Bound,
    RecentUse,
    forecast,
    pace_start,
)
from outlay.budget.report import budget_report
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import Usage
from outlay.clock import ManualClock
from outlay.goodput.follower import read_view
from outlay.runs.live import Run

SECOND, MINUTE = 10**9, 60 * 10**9
PRICE = "12 USD/h"


def tracker_of(run: Run) -> BudgetTracker:
    assert run.budget is not None
    return run.budget


def seconds_left(run: Run) -> float:
    ahead = tracker_of(run).forecast()
    assert ahead is not None
    return ahead.time_left_ns / SECOND


# The pure functions


@pytest.mark.parametrize(
    ("steps_s", "start"),
    [
        ([1] * 3, 0),
        ([1] * 400, 399 - 300),  # Five minutes ago.
        ([60] * 100, 99 - PACE_STEPS),  # Twenty steps are longer.
        ([1000] + [1] * 10, 0),
        ([1] * 300 + [100] * 10, 310 - 1 - PACE_STEPS),
    ],
)
def test_the_pace_is_that_of_five_minutes_or_of_twenty_steps(
    steps_s: list[int], start: int
) -> None:
    assert pace_start([end * SECOND for end in accumulate(steps_s)]) == start


def test_what_is_kept_of_recent_use_is_the_pace_of_all_steps(clock: ManualClock) -> None:
    """Short steps are not all kept; the pace is as if they were, but for a second."""
    recent, ends_ns = RecentUse(), []
    step = Usage(tokens=1, steps=1, time_ns=SECOND // 10)
    for _ in range(9_000):
        clock.advance(SECOND // 10)
        ends_ns.append(clock.monotonic_ns())
        recent.add_step(ends_ns[-1], step, step)
    pace_ns, used = recent.pace
    assert used.tokens * (SECOND // 10) == pace_ns
    assert 0 <= pace_ns - (ends_ns[-1] - ends_ns[pace_start(ends_ns)]) <= SECOND
    assert len(recent._marks) <= PACE_NS // SECOND + 2


def test_before_the_first_step_there_is_no_pace() -> None:
    recent = RecentUse()
    recent.add(Usage(cost_units=5))
    assert recent.pace == (0, Usage())


def test_the_first_step_counts_only_until_there_are_three() -> None:
    recent = RecentUse()
    for number, seconds in enumerate((90, 2, 2), start=1):
        step = Usage(steps=1, time_ns=seconds * SECOND)
        recent.add_step((88 + 2 * number) * SECOND, step, step)
        expected = {1: (90, 1), 2: (92, 2), 3: (4, 2)}[number]
        pace_ns, used = recent.pace
        assert (pace_ns // SECOND, used.steps) == expected


def test_the_time_left_is_what_is_left_at_the_present_rate() -> None:
    measured = Usage(tokens=100, steps=10, time_ns=10 * SECOND, cost_units=7)
    for bound, left_s in [(Bound(TIME, 500 * SECOND), 1000), (Bound(COST, 70), 200)]:
        ahead = forecast(Usage(), measured, 20 * SECOND, [bound])
        assert ahead is not None
        assert ahead.time_left_ns == left_s * SECOND


def test_the_time_left_of_a_limit_that_is_never_exceeded_is_that_of_whole_steps() -> None:
    measured = Usage(tokens=100, steps=10, time_ns=10 * SECOND)
    ahead = forecast(Usage(tokens=1), measured, 20 * SECOND, [Bound(TOKENS, 40)])
    assert ahead is not None
    assert (ahead.steps_left, ahead.time_left_ns) == (3, 6 * SECOND)


# In a run


def test_start_up_and_the_first_step_are_not_spread_over_the_steps(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A loop of short steps after a long start: 5 USD at 12 USD an hour are 25 minutes."""
    budget = outlay.iso_cost("5 USD")
    with outlay.run("m", dir=tmp_path, budget=budget, price=PRICE, clock=clock) as run:
        clock.advance(MINUTE)
        for number in run.steps(range(50)):
            clock.advance(20 * SECOND if number == 0 else 10_000)
            if number > 0:
                assert seconds_left(run) == pytest.approx(25 * 60 - 60, abs=21)
        assert seconds_left(run) == pytest.approx(25 * 60 - 80, abs=0.1)


@pytest.mark.parametrize(
    ("budget", "left_s"),
    [
        # A step takes 2 s, one in ten is followed by an evaluation of 5 s: 25 s are ten steps.
        pytest.param(outlay.iso_tokens(1000), (1000 - 100) * 2.5, id="tokens"),
        pytest.param(outlay.iso_epochs(10, steps_per_epoch=100), 900 * 2.5, id="epochs"),
        pytest.param(outlay.iso_time("1h"), (3600 - 200) * 25 / 20, id="time of training"),
        pytest.param(outlay.iso_time("1h", charge="all"), 3600 - 250, id="all time"),
        pytest.param(outlay.iso_cost("1 USD"), 300 - 250 - 30, id="all cost"),
        pytest.param(
            outlay.iso_cost("1 USD", charge="training"),
            (300 - 200) * 25 / 20,
            id="cost of training",
        ),
    ],
)
def test_what_is_left_is_divided_by_the_present_rate_on_every_screen(
    budget: outlay.Budget, left_s: float, tmp_path: Path, clock: ManualClock
) -> None:
    with outlay.run("m", dir=tmp_path, budget=budget, price=PRICE, clock=clock) as run:
        clock.advance(30 * SECOND)
        for number in run.steps(range(100), tokens=1):
            clock.advance(2 * SECOND)
            if number % 10 == 9:
                with run.span("evaluation"):
                    clock.advance(5 * SECOND)
        live = tracker_of(run).forecast()
        assert live is not None
        # The pace begins at the end of the first step: one evaluation more than steps have.
        assert live.time_left_ns / SECOND == pytest.approx(left_s, rel=0.01)
        report = budget_report(read_view(tmp_path, clock.wall_ns()))
        assert report is not None
        assert report.forecast == live
        shown = report.document()["forecast"]
        assert shown["seconds_left"] == live.time_left_ns / SECOND
        assert f"({live.steps_left:,} steps) to go" in budget_line(tracker_of(run))


def test_the_pace_follows_steps_that_become_slower(tmp_path: Path, clock: ManualClock) -> None:
    budget = outlay.iso_tokens(3000)
    with outlay.run("m", dir=tmp_path, budget=budget, clock=clock) as run:
        for number in run.steps(range(2000), tokens=1):
            clock.advance(SECOND if number < 1500 else 3 * SECOND)
        assert seconds_left(run) == 1000 * 3


def test_the_present_pace_is_that_of_this_attempt(tmp_path: Path, clock: ManualClock) -> None:
    budget = outlay.iso_tokens(1000)
    for step_s in (10, 1):
        with outlay.run("m", dir=tmp_path, budget=budget, clock=clock) as run:
            assert tracker_of(run).forecast() is None
            for _ in run.steps(range(100), tokens=1):
                clock.advance(step_s * SECOND)
            run.checkpoint_committed()
            left_s = seconds_left(run)
    assert left_s == 800
    report = budget_report(read_view(tmp_path, clock.wall_ns()))
    assert report is not None
    assert report.forecast is not None
    assert report.forecast.time_left_ns == 800 * SECOND


def test_ranks_that_train_together_use_a_limit_together() -> None:
    """Others' use is known at all-gathers; between them they advance as this rank does."""
    tracker = BudgetTracker("iso_tokens", {"max_tokens": 1000})
    for _ in range(10):
        tracker.update(10, 1000.0)
    tracker.absorb(Usage(), Usage(tokens=300))  # Three others.
    for _ in range(5):
        tracker.update(10, 1000.0)
    ahead = tracker.forecast()
    assert ahead is not None
    assert (ahead.steps_left, ahead.time_left_ns) == (550 // 40, 550 // 40 * SECOND)
