"""Lightning's Trainer as a run: phases, tokens, budgets, kills and resumption, on 1 and 2 ranks.

The trainings move the clock themselves, so that what outlay says can be compared exactly.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outlay.ledger import AttemptStarted, CheckpointCommitted, SpanBegun, SpanEnded, read_run
from trainer_labs import DATA_NS, EVAL_NS, FORWARD_NS, PlayedLab, play

STEP_NS = 2 * FORWARD_NS  # Of two batches.
SANITY_CHECKS = 2
LIMIT_TOKENS, STEP_TOKENS = 150, 12
LIMIT_NS = 3 * 10**9

pytestmark = pytest.mark.xdist_group("lightning")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> PlayedLab:
    return play("lightning_lab.py", tmp_path_factory.mktemp("lightning"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_phase_is_as_long_as_the_training_made_it(ranks: int, played: PlayedLab) -> None:
    made = played.phases(f"phases-{ranks}")
    made["evaluation"] -= SANITY_CHECKS * EVAL_NS
    made["training_prep"] = SANITY_CHECKS * EVAL_NS
    assert played.read(f"phases-{ranks}").phases == made


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_is_the_optimizers_and_tokens_are_exact(ranks: int, played: PlayedLab) -> None:
    figures = played.read(f"phases-{ranks}").figures
    truth = played.results[f"phases-{ranks}"]
    assert figures.steps == truth[0]["global_step"] == 12
    assert figures.tokens == 2 * figures.samples == sum(rank["tokens"] for rank in truth)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_budget_of_tokens_is_never_passed_and_stops_a_killed_run_where_it_stops_a_whole_one(
    ranks: int, played: PlayedLab
) -> None:
    """Also where ``min_steps`` asks for more."""
    name = f"tokens-{ranks}"
    assert played.all_of("exit", f"{name}-killed") == {-9}
    for end in ("whole", "again"):
        assert played.totals(f"{name}-{end}")["tokens"] <= LIMIT_TOKENS
    stopped = played.all_of("global_step", f"{name}-whole", f"{name}-again")
    assert stopped == {LIMIT_TOKENS // STEP_TOKENS // ranks}


def test_a_budget_of_time_is_passed_by_at_most_one_step(played: PlayedLab) -> None:
    for end in ("whole", "again"):
        assert LIMIT_NS <= played.used_ns(f"time-2-{end}") < LIMIT_NS + STEP_NS + 2 * DATA_NS
    assert played.all_of("exit", "time-2-killed") == {-9}


def test_an_exhausted_run_trains_no_step(played: PlayedLab) -> None:
    assert played.results["exhausted"][0]["forwards"] == 0


def test_a_training_that_raises_is_a_failed_run(played: PlayedLab) -> None:
    assert played.results["raises"][0]["raised"] == "the model diverged"
    assert played.read("raises").status == "failed"


def test_an_error_inside_the_callback_does_not_end_training(played: PlayedLab) -> None:
    (rank,) = played.results["fails"]
    assert (rank["global_step"], rank["errors"]) == (12, 24)


def test_training_continues_if_nothing_can_be_recorded(played: PlayedLab) -> None:
    """Every method of the Run raises."""
    (rank,) = played.results["broken"]
    assert (rank["exit"], rank["global_step"], rank["forwards"]) == (0, 12, 24)
    assert rank["errors"] > 50


@pytest.mark.parametrize("form", ["pair", "named", "nested"])
def test_tokens_are_the_inputs_of_batches_of_ids(form: str, played: PlayedLab) -> None:
    """Of inputs and targets, the inputs: not both, and not how many samples they are."""
    (whole,), (limited,) = (played.results[f"form-{form}{end}"] for end in ("", "-limited"))
    assert played.read(f"form-{form}").figures.tokens == whole["tokens"] == 12 * STEP_TOKENS
    assert limited["tokens"] == played.totals(f"form-{form}-limited")["tokens"] == 3 * STEP_TOKENS


@pytest.mark.parametrize("name", ["form-images-limited", "fails-limited"])
def test_limited_tokens_that_cannot_be_counted_are_refused_before_the_first_step(
    name: str, played: PlayedLab
) -> None:
    (rank,) = played.results[name]
    assert rank["refused"].startswith("max_tokens is set, but a batch is a list of ")
    assert "OutlayCallback(tokens=lambda batch: ...)" in rank["refused"]
    assert rank["forwards"] == 0
    run = played.read(name)
    assert (run.figures.steps, run.figures.tokens, run.status) == (0, 0, "failed")


def test_tokens_that_cannot_be_counted_are_not_recorded_if_nothing_limits_them(
    played: PlayedLab,
) -> None:
    figures = played.read("form-images").figures
    assert (figures.steps, figures.samples, figures.tokens) == (12, 72, 0)


def test_tokens_that_cannot_be_counted_can_be_stated(played: PlayedLab) -> None:
    assert played.totals("stated")["tokens"] == 36  # Six samples a step.


def test_no_value_of_a_tensor_is_read_in_training_that_lightning_does_not_read(
    played: PlayedLab,
) -> None:
    """Each such read would wait for the accelerator. Those of an evaluation are read at its end."""
    reads = [played.results[name][0]["synchronisations"] for name in ("recorded", "unrecorded")]
    assert reads[0] == reads[1] > 0


def test_steps_of_several_optimizers_are_numbered_as_lightning_does(played: PlayedLab) -> None:
    """Else a resumed run would take what it repeats for new."""
    assert played.results["optimizers-killed"][0]["exit"] == -9
    for end in ("whole", "again"):
        run = played.read(f"optimizers-{end}")
        assert run.figures.steps == played.results[f"optimizers-{end}"][0]["global_step"] == 22
        totals = played.totals(f"optimizers-{end}")
        assert totals["tokens"] == 66
    commits = [
        one.step
        for one in read_run(played.root / "optimizers-whole").records
        if isinstance(one, CheckpointCommitted)
    ]
    assert max(commits) % 2 == 1  # The second of a pair.


def test_the_trainers_own_profiler_sees_everything_and_is_restored(played: PlayedLab) -> None:
    (rank,) = played.results["phases-1"]
    assert (rank["profiled"], rank["restored"]) == (24, True)


def test_an_asynchronous_checkpoint_is_committed_when_it_is_written(played: PlayedLab) -> None:
    records = read_run(played.root / "asynchronous").records
    spans = [one for one in records if isinstance(one, SpanBegun) and one.overlapped]
    ended = {one.begun: one.seq for one in records if isinstance(one, SpanEnded)}
    commits = [one for one in records if isinstance(one, CheckpointCommitted)]
    assert len(spans) == len(commits) == played.results["asynchronous"][0]["saves"]
    for span, commit in zip(spans, commits, strict=True):
        assert ended[span.seq] < commit.seq
    assert {commit.step for commit in commits} == {3, 7, 11}


def test_hyperparameters_and_metrics_are_recorded_without_secrets(played: PlayedLab) -> None:
    run = played.read("phases-1")
    assert run.config == {"raises_at": 0, "secret_key": "<redacted>"}
    assert "val_loss" in run.metrics


def ranks_of(run_dir: Path) -> list[int]:
    headers = [one for one in read_run(run_dir).records if isinstance(one, AttemptStarted)]
    return sorted(header.rank for header in headers)


@pytest.mark.parametrize(
    "strategy", ["ddp_fork", pytest.param("ddp_spawn", marks=pytest.mark.slow)]
)
def test_ranks_that_lightning_starts_record_one_run(
    strategy: str, played: PlayedLab, tmp_path: Path
) -> None:
    """The environment of the processes has no rank; spawned ones import everything again."""
    lab = played if strategy == "ddp_fork" else play("lightning_lab.py", tmp_path, strategy)
    run = lab.read(strategy)
    assert ranks_of(lab.root / strategy) == [0, 1]
    assert run.phases == played.read("phases-2").phases
    assert (run.figures.steps, run.figures.tokens) == (12, 12 * STEP_TOKENS * 2)
    assert run.status == "completed"


def test_a_callback_can_be_sent_to_another_process(played: PlayedLab) -> None:
    assert played.all_of("pickles", "phases-1", "phases-2") == {True}


def test_a_script_that_lightning_starts_again_for_each_rank_records_one_run(
    played: PlayedLab,
) -> None:
    """``ddp``: the example on two processes, of which Lightning starts the second."""
    assert played.results["example-lightning"][0]["exit"] == 0
    run = played.read("runs/lightning")
    assert ranks_of(played.root / "runs" / "lightning") == [0, 1]
    assert (run.figures.steps, run.figures.tokens) == (31, 31 * 2 * 16)
    assert (run.status, run.budget is not None) == ("completed", True)
