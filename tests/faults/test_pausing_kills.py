"""A training that a price pauses is neither lost nor doubled, whatever is killed."""

from __future__ import annotations

import contextlib
import random
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from command_line import outlay
from outlay.clock import SYSTEM
from paused_training import ABOVE, STEPS, PausedTraining, ended
from waiting import until


def check(training: PausedTraining, undisturbed: PausedTraining) -> None:
    """The result is the undisturbed one's, and the money is that of the log, once."""
    run = training.figures()
    assert np.array_equal(training.weights(), undisturbed.weights())
    assert run.figures.steps == STEPS
    assert run.view.timeline.attempts[-1].completed
    assert not training.is_doubled()
    assert run.cost.cost.micros == training.cost_by_hand() == training.captured_micros()
    parts = [line["part"]["segment"] for line in training.of_kind("capture")]
    assert len(parts) == len(set(parts))
    assert training.recorded_delays() == training.delays()
    assert outlay("guard", "verify", "--log", training.log).code == 0


def test_it_goes_on_where_it_was_after_each_of_its_processes_was_killed(tmp_path: Path) -> None:
    undisturbed = PausedTraining(tmp_path / "undisturbed", slow_starts=0)
    undisturbed.run_undisturbed()
    training = PausedTraining(tmp_path / "killed", slow_starts=3)
    training.root.mkdir()
    training.price("36 USD/h")
    with ended(training):
        training.start()
        until(lambda: training.has_stepped(0), "the first attempt")
        training.kill()  # While it trains.
        training.start()
        until(lambda: training.has_stepped(1), "the second attempt")
        training.price_file.write_text("99.0")  # Half of 99.00 USD/h is no news.
        training.price(ABOVE)
        until(lambda: training.waits_after("pause"), "it to be paused")
        training.kill()  # While it is paused.
        training.price("35 USD/h")
        process = training.start()
        until(lambda: training.has_stepped(2), "the third attempt")
        training.kill_training()
        assert process.wait() == 128 + 9
        assert training.start().wait() == 0
        assert training.start().wait() == 0  # It is done: nothing is started.
    assert training.starts() == 4
    assert training.open_holds() == set()
    check(training, undisturbed)


def test_a_timeline_shows_the_waits_of_processes_that_were_killed(tmp_path: Path) -> None:
    training = PausedTraining(tmp_path, slow_starts=1)
    training.price(ABOVE)
    with ended(training):
        training.start()
        until(lambda: "wait" in training.decisions(), "it to wait")
        waited = len(training.decisions())
        training.kill()  # Before there is a run.
        training.start()
        until(lambda: len(training.decisions()) > waited, "it to wait again")
        training.price("36 USD/h")
        until(lambda: training.has_stepped(0), "it to train")
        training.price(ABOVE)
        until(lambda: training.waits_after("pause"), "it to be paused")
        training.kill()
        training.price("35 USD/h")
        assert training.start().wait() == 0
    timeline = training.timeline()
    shown = [decision for decision, _ in groupby(decision for decision, _ in timeline)]
    assert shown == ["waits", "starts", "pauses", "waits", "starts"]
    assert timeline == training.decided()


@pytest.mark.parametrize("slice", ["20s", "10m"], ids=["room", "no room beside its hold"])
def test_the_hold_of_a_pause_at_a_stopped_price_is_taken_over(slice: str, tmp_path: Path) -> None:
    """The longest pause would cost 86.40 USD, which are held while it lasts."""
    training = PausedTraining(tmp_path, slow_starts=1, stopped="3.6 USD/h", ceiling="90")
    training.price("36 USD/h")
    with ended(training):
        training.start()
        until(lambda: training.has_stepped(0), "the first attempt")
        training.price(ABOVE)
        until(lambda: "wait" in training.decisions(), "it to wait")
        assert len(training.open_holds()) == 1
        training.kill()
        training.price("35 USD/h")
        assert training.start("--slice", slice).wait() == 0
    assert training.open_holds() == set()
    cost = training.figures().cost.cost.micros
    assert cost == training.cost_by_hand(3_600_000) == training.captured_micros()


def test_a_second_process_for_the_same_run_is_refused(tmp_path: Path) -> None:
    training = PausedTraining(tmp_path, slow_starts=1)
    training.price("36 USD/h")
    with ended(training):
        training.start()
        until(lambda: training.has_stepped(0), "the first attempt")
        again = outlay(*training.arguments("--act"))
        assert (again.code, training.starts()) == (1, 1)
        assert "already starts and pauses this run" in again.err


def test_the_ceiling_is_kept_and_ends_it(tmp_path: Path) -> None:
    training = PausedTraining(tmp_path, slow_starts=9, ceiling="0.20", stopped="1 USD/h")
    training.price("36 USD/h")
    with ended(training):  # Half of the money is for the notice, whatever the machine is doing.
        assert training.start("--notice", "10s", "--slice", "2s").wait() == 3
    assert 0 < training.captured_micros() <= 200_000
    assert training.open_holds() == set()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_moments(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    undisturbed = PausedTraining(tmp_path / "undisturbed", slow_starts=0)
    undisturbed.run_undisturbed()
    training = PausedTraining(tmp_path / "killed", slow_starts=6)
    training.root.mkdir()
    with ended(training):
        for _ in range(12):
            training.price(chance.choice(["36 USD/h", ABOVE]))
            process = training.start()
            SYSTEM.sleep(chance.uniform(0.0, 6.0))
            training.price(chance.choice(["36 USD/h", ABOVE]))
            SYSTEM.sleep(chance.uniform(0.0, 2.0))
            if chance.random() < 0.3 and training.starts():
                with contextlib.suppress(ProcessLookupError):
                    training.kill_training()
            process.send_signal(9)
            process.wait()
        training.price("36 USD/h")
        for _ in range(8):
            if training.start().wait() == 0:
                break
    assert training.captured_micros() <= 100 * 10**6
    check(training, undisturbed)
