"""A guarded run: held before the first step, extended beside the training, settled after it."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outlay
from outlay.budget.agreement import PAYLOAD_BYTES
from outlay.clock import ManualClock
from outlay.errors import InvalidValue, RunInUse
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded, HoldResolved
from outlay.guard.gate import HOLD_VARIABLE, GuardGate, Guarding
from outlay.ledger import segment_paths
from outlay.runs.preemption import JointStop
from outlay.units import Duration, Rate
from waiting import PATIENCE_S, until

SECOND = 10**9
DOLLAR_A_SECOND = Rate.parse("3600 USD/h")


@pytest.fixture
def guard(tmp_path: Path, clock: ManualClock) -> BudgetGuard:
    return BudgetGuard(1000, tmp_path / "books" / "spend.jsonl", clock=clock, environ={})


def kinds(guard: BudgetGuard) -> list[str]:
    return [json.loads(line)["kind"] for line in guard.log_path.read_text().splitlines()]


def gate_of(guard: BudgetGuard, clock: ManualClock, **environ: str) -> GuardGate:
    guarding = Guarding(guard=guard, slice=Duration.parse("100s"), grace=Duration.parse("20s"))
    return GuardGate(guarding, DOLLAR_A_SECOND, "bert", environ, clock=clock)


class TestTheGate:
    def test_the_first_slice_and_the_grace_are_held_at_the_start(
        self, guard: BudgetGuard, clock: ManualClock
    ) -> None:
        gate_of(guard, clock)
        assert guard.held == 120.0

    def test_nothing_is_asked_for_before_half_a_slice_is_used(
        self, guard: BudgetGuard, clock: ManualClock
    ) -> None:
        gate = gate_of(guard, clock)
        clock.advance(49 * SECOND)
        gate.renew()
        assert guard.held == 120.0
        clock.advance(1 * SECOND)
        gate.renew()
        assert guard.held == 170.0

    def test_when_more_is_refused_training_continues_while_there_is_money_for_stopping(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(130, tmp_path / "spend.jsonl", clock=clock, environ={})
        gate = gate_of(guard, clock)
        clock.advance(99 * SECOND)
        gate.renew()
        clock.advance(10 * SECOND)
        gate.renew()
        assert gate.stop_reason() is None
        clock.advance(1 * SECOND)
        reason = gate.stop_reason()
        assert reason is not None
        assert "whole" in reason
        clock.advance(20 * SECOND)
        gate.settle()
        assert guard.total_spent == 130.0

    def test_a_remainder_of_one_micro_unit_is_held(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(120.000001, tmp_path / "spend.jsonl", clock=clock, environ={})
        gate = gate_of(guard, clock)
        clock.advance(60 * SECOND)
        gate.renew()
        assert guard.remaining == 0.0

    def test_a_ceiling_below_the_first_slice_pays_for_a_training_that_fits_it(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(50, tmp_path / "spend.jsonl", clock=clock, environ={})
        gate = gate_of(guard, clock)
        clock.advance(29 * SECOND)
        gate.renew()
        assert gate.stop_reason() is None
        gate.settle()
        assert guard.total_spent == 29.0

    def test_a_ceiling_that_pays_only_for_stopping_starts_nothing(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(20, tmp_path / "spend.jsonl", clock=clock, environ={})
        with pytest.raises(BudgetGuardExceeded):
            gate_of(guard, clock)
        assert guard.committed == 0.0

    def test_a_joined_hold_is_extended_by_what_fits(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(80, tmp_path / "spend.jsonl", clock=clock, environ={})
        hold = guard.authorize("sweep-trial", 50)
        gate_of(guard, clock, **{HOLD_VARIABLE: f"{hold.id}@{guard.log_path}"})
        assert guard.held == 80.0

    def test_a_joined_hold_that_pays_only_for_stopping_starts_nothing(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(20, tmp_path / "spend.jsonl", clock=clock, environ={})
        hold = guard.authorize("sweep-trial", 20)
        with pytest.raises(BudgetGuardExceeded):
            gate_of(guard, clock, **{HOLD_VARIABLE: f"{hold.id}@{guard.log_path}"})

    def test_when_the_log_fails_training_continues_and_then_stops_with_that_reason(
        self, guard: BudgetGuard, clock: ManualClock
    ) -> None:
        gate = gate_of(guard, clock)
        sound = guard.log_path.read_bytes()
        guard.log_path.write_bytes(sound + b"nonsense\n")
        clock.advance(60 * SECOND)
        gate.renew()
        assert gate.stop_reason() is None
        clock.advance(40 * SECOND)
        assert "line 2" in (gate.stop_reason() or "")
        guard.log_path.write_bytes(sound)
        gate.renew()
        assert gate.stop_reason() is None

    def test_a_failed_capture_leaves_the_hold_and_raises_nothing(
        self, guard: BudgetGuard, clock: ManualClock
    ) -> None:
        gate, notes = gate_of(guard, clock), list[str]()
        gate.begin(notes.append)
        sound = guard.log_path.read_bytes()
        guard.log_path.write_bytes(sound + b"nonsense\n")
        gate.settle()
        assert "the hold stays open" in notes[-1]
        guard.log_path.write_bytes(sound)
        assert guard.held == 120.0

    def test_a_changed_price_counts_from_its_change(
        self, guard: BudgetGuard, clock: ManualClock
    ) -> None:
        gate = gate_of(guard, clock)
        clock.advance(40 * SECOND)
        gate.change_rate(Rate.parse("7200 USD/h"))
        # 40 at one dollar, then twice as much for 100 + 20 seconds.
        assert guard.held == 280.0
        clock.advance(10 * SECOND)
        gate.settle()
        assert guard.total_spent == 60.0

    def test_a_higher_price_extends_the_hold_at_once(
        self, guard: BudgetGuard, clock: ManualClock
    ) -> None:
        gate = gate_of(guard, clock)
        gate.change_rate(Rate.parse("25200 USD/h"))
        assert gate.stop_reason() is None
        assert guard.held == 840.0

    def test_a_joined_hold_is_extended_and_not_captured(
        self, guard: BudgetGuard, clock: ManualClock
    ) -> None:
        hold = guard.authorize("sweep-trial", 50)
        environ = {HOLD_VARIABLE: f"{hold.id}@{guard.log_path}"}
        gate = gate_of(guard, clock, **environ)
        assert guard.held == 120.0
        gate.settle()
        assert kinds(guard) == ["hold", "extend"]

    def test_a_settled_hold_cannot_be_joined(self, guard: BudgetGuard, clock: ManualClock) -> None:
        hold = guard.authorize("sweep-trial", 50)
        guard.record_actual("sweep-trial", 1)
        with pytest.raises(HoldResolved):
            gate_of(guard, clock, **{HOLD_VARIABLE: f"{hold.id}@{guard.log_path}"})


class TestARun:
    """``outlay.run(..., guard=...)`` with real clocks; a dollar a second."""

    PRICE = "3600 USD/h"

    @pytest.fixture
    def guard(self, tmp_path: Path) -> BudgetGuard:
        return BudgetGuard(1000, tmp_path / "books" / "spend.jsonl", environ={})

    def guarding(self, guard: BudgetGuard, slice: str = "1s", grace: str = "1s") -> Guarding:
        return Guarding(guard=guard, slice=Duration.parse(slice), grace=Duration.parse(grace))

    def test_one_hold_is_opened_and_captured(self, guard: BudgetGuard, tmp_path: Path) -> None:
        with outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=guard) as run:
            assert guard.held == 360.0
            assert list(run.steps(range(3))) == [0, 1, 2]
        assert kinds(guard) == ["hold", "capture"]
        assert (guard.held, guard.total_spent > 0) == (0.0, True)
        (line, _) = guard.log_path.read_text().splitlines()
        assert json.loads(line)["op_label"] == "bert"

    def test_a_crash_is_captured_too(self, guard: BudgetGuard, tmp_path: Path) -> None:
        with (
            pytest.raises(ZeroDivisionError),
            outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=guard),
        ):
            _ = 1 / 0
        assert kinds(guard) == ["hold", "capture"]

    def test_without_room_nothing_starts(self, tmp_path: Path) -> None:
        guard = BudgetGuard(1, tmp_path / "spend.jsonl", environ={})
        with pytest.raises(BudgetGuardExceeded):
            outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=guard)
        assert list(segment_paths(tmp_path / "run")) == []

    def test_a_ceiling_below_the_first_slice_lets_a_run_finish_that_fits_it(
        self, tmp_path: Path
    ) -> None:
        guard = BudgetGuard(300, tmp_path / "spend.jsonl", environ={})
        with outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=guard) as run:
            assert list(run.steps(range(3))) == [0, 1, 2]
            assert run.stop_reason is None
        assert guard.holds() == ()

    def test_a_guard_needs_a_price(self, guard: BudgetGuard, tmp_path: Path) -> None:
        with pytest.raises(InvalidValue, match="price"):
            outlay.run("bert", dir=tmp_path / "run", guard=guard)

    def test_a_run_that_cannot_start_releases_its_hold(
        self, guard: BudgetGuard, tmp_path: Path
    ) -> None:
        with (
            outlay.run("bert", dir=tmp_path / "run", price=self.PRICE),
            pytest.raises(RunInUse),
        ):
            outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=guard)
        assert guard.committed == 0.0

    def test_the_path_of_a_log_is_accepted_as_guard(self, tmp_path: Path) -> None:
        BudgetGuard(1000, tmp_path / "spend.jsonl", environ={}).authorize("before", 1)
        with outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=tmp_path):
            pass
        assert BudgetGuard.of_log(tmp_path / "spend.jsonl").total_spent > 0

    def test_another_type_is_refused_as_guard(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidValue, match="guard"):
            outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=5)

    def test_only_rank_0_writes_to_the_log(
        self, guard: BudgetGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=guard) as run:
            assert list(run.steps(range(3))) == [0, 1, 2]
        assert not guard.log_path.exists()

    def test_it_joins_the_hold_of_its_launcher(
        self, guard: BudgetGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hold = guard.authorize("trial-7", 500)
        monkeypatch.setenv(HOLD_VARIABLE, f"{hold.id}@{guard.log_path}")
        with outlay.run("bert", dir=tmp_path / "run", price=self.PRICE):
            pass
        assert kinds(guard) == ["hold"]

    def test_without_a_price_a_launchers_hold_is_not_joined(
        self, guard: BudgetGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hold = guard.authorize("trial-7", 500)
        monkeypatch.setenv(HOLD_VARIABLE, f"{hold.id}@{guard.log_path}")
        with outlay.run("bert", dir=tmp_path / "run") as run:
            assert list(run.steps(range(3))) == [0, 1, 2]

    def test_it_stops_cleanly_when_the_money_ends(self, tmp_path: Path) -> None:
        guard = BudgetGuard("121.20", tmp_path / "spend.jsonl", environ={})
        guarding = self.guarding(guard, grace="120s")
        with outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=guarding) as run:
            for _ in run.steps(endless()):
                threading.Event().wait(0.02)
            assert "whole" in (run.stop_reason or "")
        assert guard.holds() == ()
        assert 0 < guard.total_spent <= 121.2

    def test_a_run_that_is_killed_leaves_its_hold(self, guard: BudgetGuard, tmp_path: Path) -> None:
        script = (
            "import os, signal, sys, outlay; "
            "from outlay.guard.budget_guard import BudgetGuard; "
            "run = outlay.run('bert', dir=sys.argv[1], price='3600 USD/h',"
            " guard=BudgetGuard(1000, sys.argv[2])); os.kill(os.getpid(), signal.SIGKILL)"
        )
        words = [sys.executable, "-c", script, str(tmp_path / "run"), str(guard.log_path)]
        assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
        assert guard.held == 360.0

    def test_a_higher_price_brings_the_extension_forward(
        self, guard: BudgetGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hold = guard.authorize("trial-7", 500)  # minutes at the first price, seconds at the next
        monkeypatch.setenv(HOLD_VARIABLE, f"{hold.id}@{guard.log_path}")
        guarding = self.guarding(guard)
        with outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=guarding) as run:
            run.set_price("720000 USD/h")
            assert guard.held == 500.0
            until(lambda: guard.held > 500.0, what="an extension")

    def test_the_hold_is_extended_beside_the_training_and_a_locked_log_stops_no_step(
        self, tmp_path: Path
    ) -> None:
        guard = BudgetGuard(1000, tmp_path / "spend.jsonl", environ={})
        guarding = self.guarding(guard, slice="2s", grace="1s")
        with outlay.run("bert", dir=tmp_path / "run", price=self.PRICE, guard=guarding) as run:
            until(lambda: guard.held > 3.0, what="an extension")
            with guard.log_path.open("rb") as other:
                fcntl.flock(other, fcntl.LOCK_EX)
                assert len(list(run.steps(range(100)))) == 100
        assert guard.holds() == ()


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


class ThreadGroup:
    """Ranks that are threads of this process, with a real barrier between them."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, box: list[bytes]) -> None:
        self.rank, self.size = rank, size
        self._barrier, self._box = barrier, box

    def gather(self, payload: bytes) -> list[bytes]:
        self._box[self.rank] = payload
        self._barrier.wait(PATIENCE_S)
        answer = list(self._box)
        self._barrier.wait(PATIENCE_S)
        return answer


def test_all_ranks_stop_at_the_same_step_with_rank_zeros_reason(
    tmp_path: Path, clock: ManualClock
) -> None:
    guard = BudgetGuard(130, tmp_path / "spend.jsonl", clock=clock, environ={})
    own = gate_of(guard, clock)
    size, box, barrier = 3, [b""] * 3, threading.Barrier(3)
    stopped: dict[int, tuple[int, str]] = {}
    pace = threading.Barrier(size, action=lambda: clock.advance(SECOND // 3))

    def train(rank: int) -> None:
        group = ThreadGroup(rank, size, barrier, box)
        gate = JointStop(
            own.stop_reason if rank == 0 else None, find_group=lambda: group, clock=clock
        )
        for step in endless():
            reason = gate.before_step(tokens=0, samples=0)
            if reason is not None:
                stopped[rank] = (step, reason)
                return
            pace.wait(PATIENCE_S)

    ranks = [threading.Thread(target=train, args=(rank,)) for rank in range(size)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert stopped[0] == stopped[1] == stopped[2]
    assert stopped[0][0] <= 303  # 100 seconds of three steps, and a second until the next word
    assert clock.monotonic_ns() >= 100 * SECOND


class BoundedGroup:
    """One rank whose payloads may be as large as torch's group carries."""

    rank, size = 0, 1

    def gather(self, payload: bytes) -> list[bytes]:
        assert len(payload) < PAYLOAD_BYTES
        return [payload]


def test_a_long_reason_is_cut_to_the_payload_of_an_all_gather(clock: ManualClock) -> None:
    gate = JointStop(lambda: "資" * 900, find_group=BoundedGroup, clock=clock)
    reason = gate.before_step(tokens=0, samples=0)
    assert reason is not None
    assert set(reason) == {"資"}


def test_durations_of_a_guarding_are_parsed_from_text(guard: BudgetGuard) -> None:
    guarding = Guarding(guard=guard, slice="10m", grace="2m")
    assert guarding.slice == Duration(600 * 10**9)
    assert guarding.grace == Duration(120 * 10**9)


@pytest.mark.parametrize("wrong", [{"grace": "soon"}, {"slice": 300}])
def test_a_duration_without_a_unit_is_refused_where_it_is_stated(
    guard: BudgetGuard, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidValue, match="a duration with its unit"):
        Guarding(guard=guard, **wrong)
