"""A training that a price pauses and resumes is the training that was never disturbed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paused_training import STEPS, PausedTraining, ended


@pytest.mark.parametrize(
    ("pauses", "stopped", "micros"),
    [(5, None, 0), (2, "3.6 USD/h", 3_600_000)],
    ids=["pay-per-use", "stopped-price"],
)
def test_a_training_that_was_paused_and_resumed_is_the_one_that_was_not(
    pauses: int, stopped: str | None, micros: int, tmp_path: Path
) -> None:
    undisturbed = PausedTraining(tmp_path / "undisturbed", slow_starts=0)
    undisturbed.run_undisturbed()
    paused = PausedTraining(tmp_path / "paused", slow_starts=pauses, stopped=stopped)
    paused.root.mkdir()
    paused.price("36 USD/h")
    with ended(paused):
        process = paused.start()
        for start in range(pauses):
            paused.pause_and_resume(start, f"{35 - start} USD/h")
        assert process.wait() == 0
    once, again = undisturbed.figures(), paused.figures()
    assert np.array_equal(paused.weights(), undisturbed.weights())
    assert (again.figures.steps, again.figures.tokens) == (STEPS, once.figures.tokens)
    statuses = [attempt.end.status for attempt in again.view.timeline.attempts]
    assert statuses == ["paused"] * pauses + ["completed"]
    assert again.cost.cost.micros == paused.cost_by_hand(micros)
    assert again.cost.cost.micros == paused.captured_micros()
    assert paused.open_holds() == set()
    assert not paused.is_doubled()
    assert paused.decisions().count("pause") == pauses
    assert paused.decisions().count("run") == pauses + 1
