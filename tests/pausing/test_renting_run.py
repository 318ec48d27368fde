"""``outlay guard rent --offers``: a machine that is ended and rented again as its price moves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from command_line import in_process
from paused_training import DOUBLE, FIXED, STEPS, THRESHOLDS, PausedTraining
from rented_training import RentedTraining, all_ended
from waiting import until


@pytest.mark.parametrize("policy", [FIXED, DOUBLE], ids=["below", "double-threshold"])
def test_a_training_on_rented_machines_is_the_one_that_was_not_disturbed(
    policy: tuple[str, ...], tmp_path: Path
) -> None:
    undisturbed = PausedTraining(tmp_path / "undisturbed", slow_starts=0)
    undisturbed.run_undisturbed()
    rented = RentedTraining(tmp_path / "rented", slow_starts=2, policy=policy)
    rented.price("36 USD/h")
    strangers = [*rented.vendor.add("somebody"), rented.rent_by_hand()]
    rented.vendor.behave("create", "fail")
    with all_ended(rented):
        process = rented.start()
        until(lambda: "unavailable" in rented.decisions(), "a creation that fails")
        assert (rented.of_kind("capture"), rented.starts()) == ([], 0)
        rented.vendor.behave("create", "ok")
        for start in range(2):
            rented.pause_and_resume(start, f"{35 - start} USD/h")
        assert process.wait() == 0
        assert sorted(rented.vendor.running()) == sorted(strangers)
    assert np.array_equal(rented.weights(), undisturbed.weights())
    run = rented.figures()
    assert run.figures.steps == STEPS
    statuses = [attempt.end.status for attempt in run.view.timeline.attempts]
    assert statuses == ["paused", "paused", "completed"]
    prices = [attempt.header.price.micros_per_hour for attempt in run.view.timeline.attempts]
    assert prices == [36 * 10**6, 35 * 10**6, 34 * 10**6]
    assert run.cost.cost.micros == rented.cost_by_hand()  # A pause costs nothing.
    assert not rented.is_doubled()
    assert not rented.overlaps()
    assert len(rented.of_kind("capture")) == 3
    rented.check_money()
    assert rented.decisions().count("pause") == 2
    hand, *own = [line for line in rented.of_kind("hold") if line["hold"] in rented.open_holds()]
    assert (hand["rental"].get("run"), own) == (None, [])
    at_most = f"36.00 USD/h is at most the threshold of {THRESHOLDS[policy]}"
    assert rented.decided()[0] == ("starts", at_most)
    assert rented.timeline()[0][0] == "unavailable"
    assert rented.recorded_delays() == rented.delays()
    machines = {attempt.header.instance_id for attempt in run.view.timeline.attempts}
    assert len(machines) == 3


def dry(root: Path, *more: str) -> list[str]:
    training = RentedTraining(root, slow_starts=0)
    training.price("36 USD/h")
    words = training.arguments()
    at = words.index("--dir")
    return [*words[:at], *more, *words[at:]]


def test_without_act_nothing_is_rented(tmp_path: Path) -> None:
    ran = in_process(*dry(tmp_path))
    assert ran.code == 0, ran.err
    assert "mycloud:H100: 36.00 USD/h" in ran.out
    assert "it would run now, since 36.00 USD/h is at most the threshold of 40.00 USD/h" in ran.out
    assert "its machine is ended, and is paid for until verified gone" in ran.out
    assert {path.name for path in tmp_path.iterdir()} == {"vendor", "price"}
    assert not (tmp_path / "vendor" / "calls").exists()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--rate", "1 USD/h"], "--offers without it"),
        (["--most-rate", "1 USD/h"], "--offers without it"),
        (["--create", "true"], "{name} in it"),
        (["--below", "1 USD/h", "--policy", "always-on"], "either --policy or --below"),
    ],
)
def test_what_cannot_be_rented_is_refused(more: list[str], why: str, tmp_path: Path) -> None:
    ran = in_process(*dry(tmp_path, *more))
    assert ran.code == 2
    assert why in ran.err
    assert not (tmp_path / "spend.jsonl").exists()


def test_options_of_a_policy_need_an_offer(tmp_path: Path) -> None:
    training = RentedTraining(tmp_path, slow_starts=0)
    for more in (["--below", "1 USD/h"], ["--dir", "x"], ["--", "true"]):
        ran = in_process(*training.renting(), "--rate", "1 USD/h", "--max-hours", "1", *more)
        assert (ran.code, "--offers SOURCE:GPU" in ran.err) == (2, True)
    ran = in_process(*training.renting())
    assert (ran.code, "--rate" in ran.err) == (2, True)
