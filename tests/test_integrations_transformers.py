"""transformers' Trainer as a run: phases, tokens, budgets, kills and resumption, on 1 and 2 ranks.

The trainings move the clock themselves, so that what outlay says can be compared exactly.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainerControl, TrainerState

import outlay
import trainer_labs
from outlay.integrations.driver import LoopDriver
from outlay.integrations.transformers import OutlayCallback

STEP_NS, DATA_NS, EVAL_NS, SAVE_NS = (ms * 10**6 for ms in (200, 30, 50, 200))
LIMIT_TOKENS, LARGEST_STEP_TOKENS = 157, 16
LIMIT_NS = 3 * 10**9
KINDS = ["callback", "mixin"]
Results = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainer_labs.play("transformers_lab.py", tmp_path_factory.mktemp("transformers"))


@pytest.fixture(scope="module")
def results(lab: Path) -> Results:
    found: Results = json.loads((lab / "results.json").read_text())
    return found


pytestmark = pytest.mark.xdist_group("transformers")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_phase_is_as_long_as_the_training_made_it(
    kind: str, ranks: int, lab: Path, results: Results
) -> None:
    name = f"phases-{kind}-{ranks}"
    truth = results[name][0]
    assert outlay.read_run(lab / name).phases == {
        "step": truth["forwards"] * STEP_NS // 2,
        "data_loading": truth["drawn"] * DATA_NS,
        "checkpoint_save": truth["saves"] * SAVE_NS,
        "evaluation": truth["evaluations"] * EVAL_NS,
    }


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_tokens_and_samples_are_exact(
    kind: str, ranks: int, lab: Path, results: Results
) -> None:
    name = f"phases-{kind}-{ranks}"
    figures = outlay.read_run(lab / name).figures
    assert figures.steps == 12
    assert figures.tokens == sum(rank["tokens"] for rank in results[name])
    assert figures.samples == sum(rank["forwards"] for rank in results[name])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_of_tokens_stops_a_killed_run_where_it_stops_a_whole_one(
    kind: str, ranks: int, lab: Path, results: Results
) -> None:
    name = f"tokens-{kind}-{ranks}"
    assert {rank["exit"] for rank in results[f"{name}-killed"]} == {-9}
    stopped = set()
    for end in ("whole", "again"):
        stopped |= {rank["global_step"] for rank in results[f"{name}-{end}"]}
        assert "max_tokens" in str(results[f"{name}-{end}"][0]["reason"])
        document = json.loads((lab / f"{name}-{end}" / "budget.json").read_text())
        # Without the mixin the next step is taken to be as large as the last one.
        over = 0 if kind == "mixin" else LARGEST_STEP_TOKENS * ranks - 1
        assert document["totals"]["tokens"] <= LIMIT_TOKENS + over
    assert len(stopped) == 1


@pytest.mark.parametrize("name", ["time-callback-2", "time-mixin-1"])
def test_a_budget_of_time_is_passed_by_at_most_one_step(
    name: str, lab: Path, results: Results
) -> None:
    for end in ("whole", "again"):
        document = json.loads((lab / f"{name}-{end}" / "budget.json").read_text())
        used_ns = round(document["totals"]["time_ms"] * 10**6)
        assert LIMIT_NS <= used_ns < LIMIT_NS + STEP_NS + 3 * DATA_NS
    assert {rank["exit"] for rank in results[f"{name}-killed"]} == {-9}


def test_what_was_done_between_a_checkpoint_and_a_kill_is_wasted_and_not_counted_twice(
    lab: Path,
) -> None:
    run = outlay.read_run(lab / "tokens-mixin-1-again")
    assert run.figures.attempts == 3
    assert run.phases["wasted_progress"] == STEP_NS  # The fifth step; the sixth was never ended.
    assert run.phases["training_prep"] > 0  # Batches that were skipped.


def test_an_exhausted_run_trains_no_step_with_the_mixin_and_one_without(results: Results) -> None:
    (mixed,) = results["exhausted-mixin"]
    assert (mixed["forwards"], mixed["evaluations"], mixed["saves"]) == (0, 0, 0)
    assert results["exhausted-callback"][0]["forwards"] == 2  # Micro-batches of one step.


def test_a_run_that_must_stop_saves_what_it_has(lab: Path, results: Results) -> None:
    for kind in KINDS:
        stopped = results[f"tokens-{kind}-2-whole"][0]
        assert (lab / f"tokens-{kind}-2-whole" / f"checkpoint-{stopped['global_step']}").is_dir()


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_raises_is_a_failed_run(kind: str, lab: Path, results: Results) -> None:
    assert results[f"raises-{kind}"][0]["raised"] == "the model diverged"
    assert outlay.read_run(lab / f"raises-{kind}").status == "failed"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_inside_the_callback_ends_no_training(kind: str, results: Results) -> None:
    (rank,) = results[f"fails-{kind}"]
    assert (rank["global_step"], rank["errors"]) == (12, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_goes_on_though_nothing_can_be_recorded(kind: str, results: Results) -> None:
    """Every method of the Run raises."""
    (rank,) = results[f"broken-{kind}"]
    assert (rank["exit"], rank["global_step"], rank["forwards"]) == (0, 12, 24)
    assert rank["errors"] > 50


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_of_a_tensor_is_read_that_the_trainer_does_not_read(
    kind: str, results: Results
) -> None:
    """Each such read would wait for the accelerator."""
    reads = results[f"phases-{kind}-1"][0]["synchronisations"]
    assert reads == results["unrecorded"][0]["synchronisations"] > 0


@pytest.mark.parametrize(("kind", "missed"), [("mixin", 0), ("callback", 2)])
def test_several_datasets_are_evaluated_and_no_wait_for_data(
    kind: str, missed: int, lab: Path, results: Results
) -> None:
    """Without the mixin the first batch of each further dataset is missed."""
    truth = results[f"datasets-{kind}"][0]
    phases = outlay.read_run(lab / f"datasets-{kind}").phases
    assert phases["data_loading"] == truth["drawn"] * DATA_NS
    assert phases["step"] == truth["forwards"] * STEP_NS // 2
    rounds = truth["evaluations"] // 12
    assert phases["evaluation"] == (truth["evaluations"] - rounds * missed) * EVAL_NS


def test_the_summary_is_read_after_the_end_and_not_paid_for(tmp_path: Path) -> None:
    driver = LoopDriver({"model": "m", "dir": tmp_path})
    run = driver.start()
    ends = []
    run.on_close(lambda: ends.append(dict(driver.summary)))
    driver.finish()
    assert ends == [{}]
    assert driver.summary["outlay/attempts"] == 1


def test_generation_is_not_training(tmp_path: Path) -> None:
    """Prompts have no size yet: what the model is given counts, but for what it generates."""
    model = torch.nn.Embedding(2, 2)
    callback = OutlayCallback(model="m", dir=tmp_path)
    callback.mixed_in = True
    arguments = SimpleNamespace(output_dir=tmp_path, to_sanitized_dict=dict, eval_on_start=False)
    state, control = TrainerState(), TrainerControl()
    callback.on_train_begin(arguments, state, control, model=model)
    for _ in range(2):
        assert callback.admit([[{"prompt": "one"}, {"prompt": "two"}]])
        callback.on_step_begin(arguments, state, control)
        with torch.no_grad():
            model(torch.zeros(2, 3, dtype=torch.long))
        model(torch.zeros(2, 8, dtype=torch.long))
        callback.on_step_end(arguments, state, control)
    callback.on_train_end(arguments, state, control)
    # An input that has no name is counted by its samples.
    assert callback.summary["outlay/tokens"] == 4


def test_the_configuration_and_the_metrics_are_recorded(lab: Path) -> None:
    run = outlay.read_run(lab / "phases-callback-1")
    assert run.config["gradient_accumulation_steps"] == 2
    assert {"loss", "eval_loss"} <= set(run.metrics)


def test_the_example_stops_at_its_budget(lab: Path, results: Results) -> None:
    assert results["example-transformers"] == [{"exit": 0} | results["example-transformers"][0]]
    run = outlay.read_run(lab / "runs" / "transformers")
    assert (run.figures.steps, run.figures.tokens) == (31, 3968)
    assert (run.status, run.budget is not None) == ("completed", True)
