"""Lightning's Trainer as a run: phases, tokens, budgets, kills and resumption, on 1 and 2 ranks.

The trainings move the clock themselves, so that what outlay says can be compared exactly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import outlay
import trainer_labs
from outlay.ledger import CheckpointCommitted, SpanBegun, SpanEnded, read_run

STEP_NS, DATA_NS, EVAL_NS, SAVE_NS = (ms * 10**6 for ms in (200, 30, 50, 200))
SANITY_CHECKS = 2
LIMIT_TOKENS, STEP_TOKENS = 75, 6
LIMIT_NS = 3 * 10**9
Results = dict[str, list[dict[str, Any]]]

pytestmark = pytest.mark.xdist_group("lightning")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainer_labs.play("lightning_lab.py", tmp_path_factory.mktemp("lightning"))


@pytest.fixture(scope="module")
def results(lab: Path) -> Results:
    found: Results = json.loads((lab / "results.json").read_text())
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_phase_is_as_long_as_the_training_made_it(
    ranks: int, lab: Path, results: Results
) -> None:
    truth = results[f"phases-{ranks}"][0]
    assert outlay.read_run(lab / f"phases-{ranks}").phases == {
        "step": truth["forwards"] * STEP_NS // 2,
        "training_prep": SANITY_CHECKS * EVAL_NS,
        "data_loading": truth["drawn"] * DATA_NS,
        "checkpoint_save": truth["saves"] * SAVE_NS,
        "evaluation": (truth["evaluations"] - SANITY_CHECKS) * EVAL_NS,
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_is_the_optimizers_and_tokens_are_exact(
    ranks: int, lab: Path, results: Results
) -> None:
    figures = outlay.read_run(lab / f"phases-{ranks}").figures
    truth = results[f"phases-{ranks}"]
    assert figures.steps == truth[0]["global_step"] == 12
    assert figures.tokens == figures.samples == sum(rank["tokens"] for rank in truth)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_budget_of_tokens_is_never_passed_and_stops_a_killed_run_where_it_stops_a_whole_one(
    ranks: int, lab: Path, results: Results
) -> None:
    """Also where ``min_steps`` asks for more."""
    name = f"tokens-{ranks}"
    assert {rank["exit"] for rank in results[f"{name}-killed"]} == {-9}
    stopped = set()
    for end in ("whole", "again"):
        document = json.loads((lab / f"{name}-{end}" / "budget.json").read_text())
        assert document["totals"]["tokens"] <= LIMIT_TOKENS
        stopped |= {rank["global_step"] for rank in results[f"{name}-{end}"]}
    assert stopped == {LIMIT_TOKENS // STEP_TOKENS // ranks}


def test_a_budget_of_time_is_passed_by_at_most_one_step(lab: Path, results: Results) -> None:
    for end in ("whole", "again"):
        document = json.loads((lab / f"time-2-{end}" / "budget.json").read_text())
        used_ns = round(document["totals"]["time_ms"] * 10**6)
        assert LIMIT_NS <= used_ns < LIMIT_NS + STEP_NS + 2 * DATA_NS
    assert {rank["exit"] for rank in results["time-2-killed"]} == {-9}


def test_an_exhausted_run_trains_no_step(results: Results) -> None:
    assert results["exhausted"][0]["forwards"] == 0


def test_a_training_that_raises_is_a_failed_run(lab: Path, results: Results) -> None:
    assert results["raises"][0]["raised"] == "the model diverged"
    assert outlay.read_run(lab / "raises").status == "failed"


def test_an_error_inside_the_callback_ends_no_training(results: Results) -> None:
    (rank,) = results["fails"]
    assert (rank["global_step"], rank["errors"]) == (12, 24)


def test_a_training_goes_on_though_nothing_can_be_recorded(results: Results) -> None:
    """Every method of the Run raises."""
    (rank,) = results["broken"]
    assert (rank["exit"], rank["global_step"], rank["forwards"]) == (0, 12, 24)
    assert rank["errors"] > 50


def test_no_value_of_a_tensor_is_read_in_training_that_lightning_does_not_read(
    results: Results,
) -> None:
    """Each such read would wait for the accelerator. Those of an evaluation are read at its end."""
    reads = [results[name][0]["synchronisations"] for name in ("recorded", "unrecorded")]
    assert reads[0] == reads[1] > 0


def test_steps_of_several_optimizers_are_numbered_as_lightning_does(
    lab: Path, results: Results
) -> None:
    """Else a resumed run would take what it repeats for new."""
    assert results["optimizers-killed"][0]["exit"] == -9
    for end in ("whole", "again"):
        run = outlay.read_run(lab / f"optimizers-{end}")
        assert run.figures.steps == results[f"optimizers-{end}"][0]["global_step"] == 22
        totals = json.loads((lab / f"optimizers-{end}" / "budget.json").read_text())["totals"]
        assert totals["tokens"] == 33
    commits = [
        one.step
        for one in read_run(lab / "optimizers-whole").records
        if isinstance(one, CheckpointCommitted)
    ]
    assert max(commits) % 2 == 1  # The second of a pair.


def test_the_trainers_own_profiler_sees_everything_and_is_put_back(results: Results) -> None:
    (rank,) = results["phases-1"]
    assert (rank["profiled"], rank["restored"]) == (24, True)


def test_an_asynchronous_checkpoint_is_committed_when_it_is_written(
    lab: Path, results: Results
) -> None:
    records = read_run(lab / "asynchronous").records
    spans = [one for one in records if isinstance(one, SpanBegun) and one.overlapped]
    ended = {one.begun: one.seq for one in records if isinstance(one, SpanEnded)}
    commits = [one for one in records if isinstance(one, CheckpointCommitted)]
    assert len(spans) == len(commits) == results["asynchronous"][0]["saves"]
    for span, commit in zip(spans, commits, strict=True):
        assert ended[span.seq] < commit.seq
    assert {commit.step for commit in commits} == {3, 7, 11}


def test_hyperparameters_and_metrics_are_recorded_without_secrets(lab: Path) -> None:
    run = outlay.read_run(lab / "phases-1")
    assert run.config == {"raises_at": 0, "secret_key": "<redacted>"}
    assert "val_loss" in run.metrics


def test_the_example_stops_at_its_budget(lab: Path, results: Results) -> None:
    assert results["example-lightning"] == [{"exit": 0} | results["example-lightning"][0]]
    run = outlay.read_run(lab / "runs" / "lightning")
    assert (run.figures.steps, run.figures.tokens) == (62, 992)
    assert (run.status, run.budget is not None) == ("completed", True)
