"""A machine that a policy rents is neither forgotten nor had twice, whatever is killed."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import numpy as np
import pytest

from command_line import outlay
from outlay.clock import SYSTEM
from paused_training import ABOVE, STEPS, PausedTraining
from rented_training import RentedTraining, all_ended
from waiting import until


def check(training: RentedTraining, undisturbed: PausedTraining, others: list[str]) -> None:
    """The result is the undisturbed one's, no machine is left, each was paid once."""
    run = training.figures()
    assert np.array_equal(training.weights(), undisturbed.weights())
    assert run.figures.steps == STEPS
    assert run.view.timeline.attempts[-1].completed
    assert not training.is_doubled()
    assert not training.overlaps()
    assert training.recorded_delays() == training.delays()
    assert training.vendor.running() == others
    own = {line["hold"] for line in training.own_rentals()}
    assert training.open_holds().isdisjoint(own)
    training.check_money()
    assert training.captured_micros() <= 100 * 10**6
    assert outlay("guard", "verify", "--log", training.log).code == 0


def test_it_goes_on_where_it_was_after_each_of_its_processes_was_killed(tmp_path: Path) -> None:
    undisturbed = PausedTraining(tmp_path / "undisturbed", slow_starts=0)
    undisturbed.run_undisturbed()
    training = RentedTraining(tmp_path / "killed", slow_starts=4)
    training.price("36 USD/h")
    others = training.vendor.add("somebody")
    with all_ended(training):
        training.start()
        until(lambda: training.has_stepped(0), "the first attempt")
        training.kill()  # While it trains: its machine is ended, and another one rented.
        training.start()
        until(lambda: training.has_stepped(1), "the second attempt")
        watched = len(training.watchers())
        training.kill_watcher()
        until(lambda: len(training.watchers()) > watched, "another watcher")
        training.vendor.behave("terminate", "ignore")
        training.price(ABOVE)
        until(lambda: "kept" in training.decisions(), "the vendor to end nothing")
        training.price("35 USD/h")  # It may run again, but its machine is still there.
        SYSTEM.sleep(1.0)
        assert training.starts() == 2
        training.kill()  # While its machine is being ended.
        training.vendor.behave("terminate", "ok")
        training.price(ABOVE)
        training.start()
        until(lambda: training.vendor.running() == others, "its machine to be ended")
        until(lambda: "wait" in training.decisions(), "it to wait")
        training.kill()  # While it is paused.
        training.price("35 USD/h")
        process = training.start()
        until(lambda: training.has_stepped(2), "the third attempt")
        training.kill_training()
        assert process.wait() == 128 + 9
        assert training.vendor.running() == others
        process = training.start()
        until(lambda: training.has_stepped(3), "the fourth attempt")
        process.send_signal(15)
        assert process.wait() == 0  # It saved and ended, and so does its machine.
        assert training.vendor.running() == others
        assert training.start().wait() == 0
        assert training.start().wait() == 0  # It is done: nothing is rented.
    assert len(training.own_rentals()) == training.starts() == 5
    check(training, undisturbed, others)


def test_a_machine_that_may_have_been_created_is_not_rented_again(tmp_path: Path) -> None:
    training = RentedTraining(tmp_path, slow_starts=0)
    training.price("36 USD/h")
    training.vendor.behave("create", "hang")
    with all_ended(training):
        training.start()
        until(lambda: training.own_rentals(), "the order")
        until(lambda: training.vendor.calls("create"), "the command that hangs")
        training.kill()
        training.vendor.behave("create", "ok")
        training.start()
        until(lambda: "kept" in training.decisions(), "it to look for its machine")
        SYSTEM.sleep(1.0)
        assert (training.vendor.calls("create"), training.starts()) == (1, 0)
        (name,) = [line["rental"]["name"] for line in training.own_rentals()]
        training.vendor.add(name)  # The order arrives.
        until(lambda: training.starts() == 1, "it to be ended, and another one rented")
        assert training.process is not None
        assert training.process.wait() == 0
    assert training.vendor.running() == []
    assert not training.overlaps()
    training.check_money()


def test_the_ceiling_is_kept_by_what_is_rented(tmp_path: Path) -> None:
    training = RentedTraining(tmp_path, slow_starts=0, ceiling="4")
    training.price("36 USD/h")
    with all_ended(training):
        assert training.start().wait() == 3  # A notice and the margin cost more than that.
    assert not training.vendor.running()
    assert training.of_kind("hold") == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_moments(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    undisturbed = PausedTraining(tmp_path / "undisturbed", slow_starts=0)
    undisturbed.run_undisturbed()
    training = RentedTraining(tmp_path / "killed", slow_starts=6)
    others = training.vendor.add("somebody")
    with all_ended(training):
        for _ in range(12):
            training.price(chance.choice(["36 USD/h", ABOVE]))
            process = training.start()
            SYSTEM.sleep(chance.uniform(0.0, 8.0))
            training.price(chance.choice(["36 USD/h", ABOVE]))
            SYSTEM.sleep(chance.uniform(0.0, 3.0))
            with contextlib.suppress(ProcessLookupError, IndexError):
                if chance.random() < 0.3 and training.starts():
                    training.kill_training()
                if chance.random() < 0.3:
                    training.kill_watcher()
            process.send_signal(9)
            process.wait()
            _settle_unordered(training)
        training.price("36 USD/h")
        for _ in range(8):
            if training.start().wait() == 0:
                break
    check(training, undisturbed, others)


def _settle_unordered(training: RentedTraining) -> None:
    """Do what a person does about orders that were killed before they reached the vendor."""
    created = set(training.vendor.arguments("create"))
    for line in training.own_rentals():
        if line["hold"] in training.open_holds() and line["rental"]["name"] not in created:
            ended = [
                "reconcile",
                line["hold"],
                "--gone",
                "--reason",
                "never ordered",
                "--actual",
                "0",
            ]
            assert outlay("guard", *ended, "--log", training.log).code == 0
