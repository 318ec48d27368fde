"""transformers' Trainer and trl's as runs: phases, tokens, budgets, kills, resuming; 1 and 2 ranks.

The trainings move the clock themselves, so that what outlay says can be compared exactly.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outlay.integrations.driver import LoopDriver
from trainer_labs import DATA_NS, EVAL_NS, FORWARD_NS, PlayedLab, play

STEP_NS = 2 * FORWARD_NS  # Of two micro-batches.
LIMIT_TOKENS, LARGEST_STEP_TOKENS = 157, 16
LIMIT_NS = 3 * 10**9
KINDS = ["callback", "mixin"]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> PlayedLab:
    return play("transformers_lab.py", tmp_path_factory.mktemp("transformers"))


pytestmark = pytest.mark.xdist_group("transformers")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_phase_is_as_long_as_the_training_made_it(
    kind: str, ranks: int, played: PlayedLab
) -> None:
    name = f"phases-{kind}-{ranks}"
    assert played.read(name).phases == played.phases(name)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_tokens_and_samples_are_exact(kind: str, ranks: int, played: PlayedLab) -> None:
    name = f"phases-{kind}-{ranks}"
    figures = played.read(name).figures
    assert figures.steps == 12
    assert figures.tokens == sum(rank["tokens"] for rank in played.results[name])
    assert figures.samples == sum(rank["forwards"] for rank in played.results[name])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_of_tokens_stops_a_killed_run_where_it_stops_a_whole_one(
    kind: str, ranks: int, played: PlayedLab
) -> None:
    name = f"tokens-{kind}-{ranks}"
    assert played.all_of("exit", f"{name}-killed") == {-9}
    for end in ("whole", "again"):
        assert "tokens: " in str(played.results[f"{name}-{end}"][0]["reason"])
        # Without the mixin the next step is taken to be as large as the last one.
        over = 0 if kind == "mixin" else LARGEST_STEP_TOKENS * ranks - 1
        assert played.totals(f"{name}-{end}")["tokens"] <= LIMIT_TOKENS + over
    assert len(played.all_of("global_step", f"{name}-whole", f"{name}-again")) == 1


@pytest.mark.parametrize("name", ["time-callback-2", "time-mixin-1"])
def test_a_budget_of_time_is_passed_by_at_most_one_step(name: str, played: PlayedLab) -> None:
    for end in ("whole", "again"):
        assert LIMIT_NS <= played.used_ns(f"{name}-{end}") < LIMIT_NS + STEP_NS + 3 * DATA_NS
    assert played.all_of("exit", f"{name}-killed") == {-9}


def test_what_was_done_between_a_checkpoint_and_a_kill_is_wasted_and_not_counted_twice(
    played: PlayedLab,
) -> None:
    run = played.read("tokens-mixin-1-again")
    assert run.figures.attempts == 3
    assert run.phases["wasted_progress"] == STEP_NS  # The fifth step; the sixth was never ended.
    assert run.phases["training_prep"] > 0  # Batches that were skipped.


def test_an_exhausted_run_trains_no_step_with_the_mixin_and_one_without(played: PlayedLab) -> None:
    (mixed,) = played.results["exhausted-mixin"]
    assert (mixed["forwards"], mixed["evaluations"], mixed["saves"]) == (0, 0, 0)
    assert played.results["exhausted-callback"][0]["forwards"] == 2  # Micro-batches of one step.


def test_a_run_that_must_stop_saves_what_it_has(played: PlayedLab) -> None:
    for kind in KINDS:
        stopped = played.results[f"tokens-{kind}-2-whole"][0]
        assert (
            played.root / f"tokens-{kind}-2-whole" / f"checkpoint-{stopped['global_step']}"
        ).is_dir()


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_raises_is_a_failed_run(kind: str, played: PlayedLab) -> None:
    assert played.results[f"raises-{kind}"][0]["raised"] == "the model diverged"
    assert played.read(f"raises-{kind}").status == "failed"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_inside_the_callback_does_not_end_training(kind: str, played: PlayedLab) -> None:
    (rank,) = played.results[f"fails-{kind}"]
    assert (rank["global_step"], rank["errors"]) == (12, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_if_nothing_can_be_recorded(kind: str, played: PlayedLab) -> None:
    """Every method of the Run raises."""
    (rank,) = played.results[f"broken-{kind}"]
    assert (rank["exit"], rank["global_step"], rank["forwards"]) == (0, 12, 24)
    assert rank["errors"] > 50


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_of_a_tensor_is_read_that_the_trainer_does_not_read(
    kind: str, played: PlayedLab
) -> None:
    """Each such read would wait for the accelerator."""
    reads = played.results[f"phases-{kind}-1"][0]["synchronisations"]
    assert reads == played.results["unrecorded"][0]["synchronisations"] > 0


@pytest.mark.parametrize(("kind", "missed"), [("mixin", 0), ("callback", 2)])
def test_evaluating_several_datasets_is_not_a_data_wait(
    kind: str, missed: int, played: PlayedLab
) -> None:
    """Without the mixin the first batch of each further dataset is missed."""
    truth = played.results[f"datasets-{kind}"][0]
    phases = played.read(f"datasets-{kind}").phases
    assert phases["data_loading"] == truth["drawn"] * DATA_NS
    assert phases["step"] == truth["forwards"] * STEP_NS // 2
    rounds = truth["evaluations"] // 12
    assert phases["evaluation"] == (truth["evaluations"] - rounds * missed) * EVAL_NS


def test_the_summary_is_read_after_the_end_and_not_charged(tmp_path: Path) -> None:
    driver = LoopDriver({"model": "m", "dir": tmp_path})
    run = driver.start()
    ends = []
    run.on_close(lambda: ends.append(dict(driver.summary)))
    driver.finish()
    assert ends == [{}]
    assert driver.summary["outlay/attempts"] == 1


def test_generation_is_not_training(played: PlayedLab) -> None:
    """Prompts have no size yet: the model's inputs are counted, except those of generation."""
    assert played.results["generation"][0]["counted"] == 2 * 2 * 8


@pytest.mark.parametrize("kind", KINDS)
def test_limited_tokens_that_cannot_be_counted_are_refused_before_the_first_step(
    kind: str, played: PlayedLab
) -> None:
    (rank,) = played.results[f"images-{kind}-limited"]
    assert rank["refused"].startswith("max_tokens is set, but a batch is a ")
    assert "pixel_values: float32[1, 2]" in rank["refused"]
    assert "OutlayCallback(tokens=lambda batch: ...)" in rank["refused"]
    assert rank["forwards"] == 0
    run = played.read(f"images-{kind}-limited")
    assert (run.figures.steps, run.figures.tokens, run.status) == (0, 0, "failed")


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_cannot_be_counted_are_recorded_only_if_stated(
    kind: str, played: PlayedLab
) -> None:
    (rank,) = played.results[f"images-{kind}"]
    figures = played.read(f"images-{kind}").figures
    assert (rank["global_step"], figures.samples, figures.tokens) == (12, 24, 0)
    assert played.totals(f"images-{kind}-stated")["tokens"] == 14


def test_the_configuration_and_the_metrics_are_recorded(played: PlayedLab) -> None:
    run = played.read("phases-callback-1")
    assert run.config["gradient_accumulation_steps"] == 2
    assert {"loss", "eval_loss"} <= set(run.metrics)


# trl


@pytest.mark.parametrize("name", ["sft-phases-1", "sft-phases-2", "grpo-phases"])
def test_every_phase_of_a_trainer_of_trl_is_as_long_as_it_made_it(
    name: str, played: PlayedLab
) -> None:
    """What a step generates is part of the step."""
    assert played.read(name).phases == played.phases(name)
    assert (played.results[name][0]["generated"] > 0) == name.startswith("grpo")


@pytest.mark.parametrize("name", ["sft-phases-1", "sft-phases-2", "grpo-phases"])
def test_a_trainer_of_trl_counts_what_it_trains_on_and_not_what_it_generates(
    name: str, played: PlayedLab
) -> None:
    figures = played.read(name).figures
    assert figures.steps == played.results[name][0]["global_step"] == 12
    assert figures.tokens == sum(rank["tokens"] for rank in played.results[name])
    assert played.all_of("errors", name) == {0}


@pytest.mark.parametrize(
    ("name", "limit"), [("sft-tokens-1", 157), ("sft-tokens-2", 157), ("grpo-tokens", 1350)]
)
def test_a_trainer_of_trl_never_passes_its_tokens_and_stops_at_one_step_also_when_killed(
    name: str, limit: int, played: PlayedLab
) -> None:
    assert played.all_of("exit", f"{name}-killed") == {-9}
    for end in ("whole", "again"):
        assert played.totals(f"{name}-{end}")["tokens"] <= limit
    whole = played.results[f"{name}-whole"]
    assert played.read(f"{name}-whole").figures.tokens == sum(rank["tokens"] for rank in whole)
    stopped = played.all_of("global_step", f"{name}-whole", f"{name}-again")
    assert stopped == {whole[0]["forwards"] // 2}


def test_a_run_on_prompts_that_was_stopped_trains_no_step_when_it_is_resumed(
    played: PlayedLab,
) -> None:
    """Prompts have no size: how large the last step was is in the Trainer's checkpoint."""
    assert played.all_of("forwards", "grpo-exhausted") == {0}
    assert played.all_of("generated", "grpo-exhausted") == {0}
    assert len(played.all_of("global_step", "grpo-exhausted", "grpo-tokens-whole")) == 1
