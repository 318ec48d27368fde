"""A clock that is set between two attempts refunds no budget and loses no cost."""

from __future__ import annotations

from pathlib import Path

import pytest

import outlay
from command_line import in_process
from outlay.clock import ManualClock
from outlay.cost.charges import charges_of
from outlay.goodput.follower import read_view
from outlay.machine import ProcessStart
from outlay.runs import attempt_start

MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
BUDGET = outlay.iso_cost("8 USD")


def train(run_dir: Path, clock: ManualClock, minutes: int, *, tokens: int = 0) -> int:
    """Train at most so many minutes at 4 USD an hour; return how many."""
    with outlay.run("m", dir=run_dir, budget=BUDGET, price="4 USD/h", clock=clock) as run:
        trained = 0
        for _ in run.steps(range(minutes), tokens=tokens):
            clock.advance(MINUTE)
            trained += 1
            run.checkpoint_committed(run.step_number)
        return trained


def test_a_restart_on_a_clock_an_hour_behind_gets_only_what_is_left(
    tmp_path: Path, clock: ManualClock
) -> None:
    assert train(tmp_path, clock, 75) == 75  # 5 USD.
    clock.step_wall(-HOUR)
    assert train(tmp_path, clock, 1000) == 45  # 3 USD.
    assert train(tmp_path, clock, 1000) == 0


@pytest.mark.parametrize("clock_of_boot", [True, False])
def test_restarts_that_each_set_the_clock_back_train_no_more_than_the_limit(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, clock_of_boot: bool
) -> None:
    if clock_of_boot:
        since_boot = lambda clock: HOUR + clock.monotonic_ns()  # noqa: E731
        monkeypatch.setattr(attempt_start, "since_boot_ns", since_boot)
        monkeypatch.setattr(attempt_start, "process_start", lambda *_: ProcessStart())
    trained = 0
    for _ in range(14):
        trained += train(tmp_path, clock, 31)
        clock.step_wall(-HOUR)
    assert trained == 120  # 8 USD.
    view = read_view(tmp_path, clock.wall_ns())
    whole = view.break_down()
    assert whole.cost == outlay.Money.parse("8 USD")
    assert whole.wall_ns == sum(whole.phases.values()) == 120 * MINUTE


def test_cost_and_budget_agree_after_the_clock_was_set_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    train(tmp_path, clock, 75)
    clock.step_wall(-HOUR)
    train(tmp_path, clock, 30)
    cost = in_process("cost", "show", tmp_path, "--json").json
    budget = in_process("budget", tmp_path, "--json").json
    assert cost["cost"]["cost"] == {"micros": 7_000_000, "currency": "USD"}
    assert budget["totals"]["cost_usd"] == 7
    (finding,) = [text for text in cost["cost"]["findings"] if "clock" in text["message"]]
    assert "set back by 3,600.000 s before the next attempt" in finding["message"]


def test_a_charge_stays_in_the_month_in_which_it_was_recorded(tmp_path: Path) -> None:
    clock = ManualClock(wall_ns=1_698_796_800 * 10**9)  # 2023-11-01.
    train(tmp_path, clock, 15)
    before = charges_of(read_view(tmp_path, clock.wall_ns()))
    clock.step_wall(-10 * MINUTE)
    train(tmp_path, clock, 15)
    (first, second) = charges_of(read_view(tmp_path, clock.wall_ns()))
    assert first == before[0]
    assert second.micros == first.micros == 1_000_000


def test_tokens_of_an_attempt_on_a_clock_set_back_survive_the_next(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_start, "since_boot_ns", lambda clock: HOUR + clock.monotonic_ns())
    monkeypatch.setattr(attempt_start, "process_start", lambda *_: ProcessStart())
    for _ in range(3):
        train(tmp_path, clock, 10, tokens=5)
        clock.step_wall(-HOUR)
    found = in_process("budget", tmp_path, "--json").json
    assert found["totals"]["tokens"] == 3 * 10 * 5
