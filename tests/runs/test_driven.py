"""A Run that a callback drives: steps, phases, resumption, stops, epochs, ranks, configuration."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

import outlay
from command_line import in_process, python
from outlay.clock import ManualClock
from outlay.errors import InvalidValue, RunInUse
from outlay.ledger import AttemptStarted, Metric, Note, Step, read_run
from outlay.record.ranks import RankPlace, find_place

SECOND = 10**9


def steps_of(run_dir: Path) -> list[Step]:
    return [record for record in read_run(run_dir).records if isinstance(record, Step)]


def drive(run: outlay.Run, clock: ManualClock, count: int, *, tokens: int = 10) -> int:
    """Run up to ``count`` steps of a second each; return how many ran."""
    for done in range(count):
        if run.should_stop(tokens=tokens):
            return done
        run.begin_step()
        clock.advance(SECOND)
        run.end_step(tokens=tokens)
    return count


# Steps and phases


def test_a_driven_step_records_its_wait_time_tokens_and_samples(tmp_path: Path) -> None:
    clock = ManualClock()
    with outlay.run("m", dir=tmp_path, clock=clock) as run:
        clock.advance(3 * SECOND)
        assert run.begin_step(wait_ns=2 * SECOND) == 0
        clock.advance(SECOND)
        run.end_step(tokens=7, samples=2)
    (step,) = steps_of(tmp_path)
    assert (step.step, step.wait_ns, step.dur_ns) == (0, 2 * SECOND, SECOND)
    assert (step.tokens, step.samples) == (7, 2)


def test_a_phase_lasts_until_the_next_one_or_the_next_step(tmp_path: Path) -> None:
    clock = ManualClock()
    with outlay.run("m", dir=tmp_path, clock=clock) as run:
        run.phase("evaluation")
        clock.advance(SECOND)
        run.phase("checkpoint_save")
        clock.advance(2 * SECOND)
        run.begin_step()
        clock.advance(3 * SECOND)
        run.end_step()
        run.phase("evaluation")
        clock.advance(4 * SECOND)
        run.phase(None)
        clock.advance(5 * SECOND)
    phases = outlay.read_run(tmp_path).phases
    seconds = {name: ns / SECOND for name, ns in phases.items()}
    assert seconds == {"evaluation": 5, "checkpoint_save": 2, "step": 3, "other": 5}


def test_a_phase_in_the_body_of_a_loop_lasts_until_its_end(tmp_path: Path) -> None:
    clock = ManualClock()

    def batches() -> Iterator[int]:
        for number in range(3):
            clock.advance(7 * SECOND)
            yield number

    with outlay.run("m", dir=tmp_path, clock=clock) as run:
        run.phase("training_prep")
        for _ in run.steps(batches()):
            clock.advance(2 * SECOND)
            run.phase("evaluation")
            clock.advance(SECOND)
    seconds = {name: ns / SECOND for name, ns in outlay.read_run(tmp_path).phases.items()}
    assert seconds == {"training_prep": 7, "step": 6, "evaluation": 3, "data_loading": 14}


def test_a_step_that_never_ended_is_not_recorded(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.begin_step()
        assert run.begin_step() == 0
        run.end_step()
        run.begin_step()
    assert [step.step for step in steps_of(tmp_path)] == [0]


def test_an_end_without_a_begin_is_refused(tmp_path: Path) -> None:
    with (
        outlay.run("m", dir=tmp_path) as run,
        pytest.raises(InvalidValue, match="begin_step"),
    ):
        run.end_step()


# Resumption and stops


def test_a_budget_counts_what_survives_below_the_step_that_a_trainer_resumes_from(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    budget = outlay.iso_tokens(100)
    with outlay.run("m", dir=tmp_path, budget=budget, clock=clock) as run:
        assert drive(run, clock, 6) == 6
    with outlay.run("m", dir=tmp_path, budget=budget, clock=clock) as run:
        run.resume_from(4)  # Its checkpoint was never recorded as committed.
        assert drive(run, clock, 20) == 6
        assert run.budget is not None
        assert run.budget.totals["tokens"] == 100
    assert [step.step for step in steps_of(tmp_path)] == [*range(6), *range(4, 10)]


def test_resume_from_may_follow_should_stop(tmp_path: Path) -> None:
    clock = ManualClock()
    budget = outlay.iso_tokens(100)
    with outlay.run("m", dir=tmp_path, budget=budget, clock=clock) as run:
        drive(run, clock, 6)
    with outlay.run("m", dir=tmp_path, budget=budget, clock=clock) as run:
        assert not run.should_stop()
        run.resume_from(6)
        assert drive(run, clock, 20) == 4


def test_a_step_before_the_first_should_stop_is_counted(tmp_path: Path) -> None:
    clock = ManualClock()
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(30), clock=clock) as run:
        run.resume_from(4)
        for _ in range(3):
            run.begin_step()
            run.end_step(tokens=10)
            stopped = run.should_stop(tokens=10)
    assert stopped
    assert len(steps_of(tmp_path)) == 3


@pytest.mark.parametrize("step", [-1, 1.5, None, "3"])
def test_resume_from_refuses_what_is_not_a_step_number(tmp_path: Path, step: Any) -> None:
    with outlay.run("m", dir=tmp_path) as run, pytest.raises(InvalidValue, match="step"):
        run.resume_from(step)


def test_epochs_end_when_the_run_must_stop(tmp_path: Path) -> None:
    evaluations = 0
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(25)) as run:
        for _ in run.epochs(10):
            for _ in run.steps(range(10), tokens=1):
                pass
            evaluations += 1
    assert evaluations == 3
    assert len(steps_of(tmp_path)) == 25


def test_epochs_of_an_exhausted_run_never_begin(tmp_path: Path) -> None:
    for expected in ([0], []):
        with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(5)) as run:
            begun = []
            for epoch in run.epochs(3):
                begun.append(epoch)
                for _ in run.steps(range(5), tokens=1):
                    pass
                run.checkpoint_committed()
        assert begun == expected


def test_a_loop_around_a_run_that_must_stop_is_warned_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "outlay"),
        outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(5)) as run,
    ):
        for _ in range(4):
            assert len(list(run.steps(range(5), tokens=1))) in (5, 0)
    (warning,) = [each for each in caplog.messages if "yields nothing" in each]
    assert "run.epochs(n)" in warning


def test_a_resumed_loop_skips_what_was_done(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        for _ in run.epochs(1):
            for batch in run.steps(range(10)):
                if batch == 6:
                    break
        run.checkpoint_committed()
    seen = []
    with outlay.run("m", dir=tmp_path) as run:
        for epoch in range(2):
            seen += [(epoch, batch) for batch in run.steps(range(10), skip=True)]
    assert seen == [(0, 7), (0, 8), (0, 9), *((1, batch) for batch in range(10))]
    assert [step.step for step in steps_of(tmp_path)] == list(range(20))


def test_a_resumed_training_begins_with_the_epoch_it_was_interrupted_in(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.resume_from(23)
        seen = [
            (epoch, batch)
            for epoch in run.epochs(4, steps_per_epoch=10)
            for batch in run.steps(range(10), skip=True)
        ]
    assert seen[0] == (2, 3)
    assert len(seen) == 17


# Metrics


def test_a_metric_that_is_not_a_number_is_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "outlay"), outlay.run("m", dir=tmp_path) as run:
        bad: list[Any] = [None, "many", [1, 2]]
        for value in bad:
            run.metric("loss", value)
        run.metric("loss", 0.5)
    records = read_run(tmp_path).records
    assert [record.value for record in records if isinstance(record, Metric)] == [0.5]
    assert [record.data for record in records if isinstance(record, Note)] == [{"count": 3}]
    assert len([message for message in caplog.messages if "not a number" in message]) == 1


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_a_metric_without_a_name_is_refused(tmp_path: Path, name: Any) -> None:
    with outlay.run("m", dir=tmp_path) as run, pytest.raises(InvalidValue, match="metric"):
        run.metric(name, 1.0)


# Ranks


def set_process_group(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    dist = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8)),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}, (1, 2)),
        (
            {"LOCAL_RANK": "1", "NODE_RANK": "2", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "16"},
            (9, 16),
        ),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (2, 4)),
    ],
)
def test_a_rank_comes_from_the_environment(environ: dict[str, str], place: tuple[int, int]) -> None:
    assert find_place(environ) == RankPlace(rank=place[0], world_size=place[1])


def test_the_rank_comes_from_torch_distributed_if_not_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_process_group(monkeypatch, 1, 2)
    assert find_place({}) == RankPlace(rank=1, world_size=2)


def test_processes_inside_one_task_of_slurm_may_be_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    set_process_group(monkeypatch, 3, 4)
    for environ in (
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"},  # A batch script.
    ):
        assert find_place(environ) == RankPlace(rank=3, world_size=4)


@pytest.mark.parametrize(
    ("argument", "environ", "sources"),
    [
        (0, {}, "the argument says; torch.distributed says 1"),
        (None, {"RANK": "0", "WORLD_SIZE": "2"}, "torch.distributed says; the environment"),
        (0, {"RANK": "1", "WORLD_SIZE": "2"}, "the argument says"),
    ],
)
def test_sources_that_differ_about_the_rank_are_an_error(
    argument: int | None, environ: dict[str, str], sources: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_process_group(monkeypatch, 1, 2)
    with pytest.raises(InvalidValue, match=sources):
        find_place(environ, rank=argument)


@pytest.mark.parametrize(
    ("rank", "world_size"), [(2, 2), (-1, 2), (True, 2), ("1", 2), (0, 0), (0, 1.0)]
)
def test_an_impossible_rank_is_refused(rank: Any, world_size: Any) -> None:
    with pytest.raises(InvalidValue):
        find_place({}, rank=rank, world_size=world_size)


def test_ranks_that_state_their_place_share_a_directory(tmp_path: Path) -> None:
    with (
        outlay.run("m", dir=tmp_path, rank=0, world_size=2) as zero,
        outlay.run("m", dir=tmp_path, rank=1, world_size=2) as one,
    ):
        assert (zero.rank, one.rank, one.world_size) == (0, 1, 2)
    headers = [each for each in read_run(tmp_path).records if isinstance(each, AttemptStarted)]
    assert sorted((header.rank, header.world_size) for header in headers) == [(0, 2), (1, 2)]


def test_error_of_a_taken_rank_names_rank_and_world_size(tmp_path: Path) -> None:
    with (
        outlay.run("m", dir=tmp_path),
        pytest.raises(RunInUse, match=r"another rank .*init_process_group.*rank= and world_size="),
    ):
        outlay.run("m", dir=tmp_path)


# Ends


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(1)", "failed"),
        ("sys.exit('no data')", "failed"),
        ("sys.exit(main())", "completed"),
        ("sys.exit()", "completed"),
        ("catch_exit()", "completed"),
    ],
)
def test_a_run_without_a_with_block_ends_with_the_status_of_sys_exit(
    end: str, status: str, tmp_path: Path
) -> None:
    program = """
        import sys, outlay
        main = lambda: 0
        def catch_exit():
            try:
                sys.exit(2)
            except SystemExit:
                pass
        run = outlay.run("m", dir=sys.argv[1])
    """
    python(f"{textwrap.dedent(program)}{end}", tmp_path)
    assert outlay.read_run(tmp_path).status == status


# Configuration


@dataclasses.dataclass
class Settings:
    lr: float
    api_key: str
    nested: dict[str, Any]


SECRET = "hunter2hunter2"
CONFIG = {"lr": 0.1, "api_key": SECRET, "nested": {"layers": [1, 2], "password": 1234}}
RECORDED = {
    "lr": 0.1,
    "api_key": "<redacted>",
    "nested": {"layers": [1, 2], "password": "<redacted>"},
}


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        OmegaConf.create(CONFIG),
        Settings(**CONFIG),  # type: ignore[arg-type]
        argparse.Namespace(**CONFIG),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_configuration_is_recorded_without_secrets(config: object, tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, config=config):
        pass
    header = read_run(tmp_path).records[0]
    assert isinstance(header, AttemptStarted)
    assert header.config == RECORDED
    text = "".join(path.read_text() for path in (tmp_path / "ledger").glob("*.jsonl"))
    assert SECRET not in text


def test_a_configuration_is_shown_in_a_runs_report_and_log(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, config=Settings(**CONFIG)):  # type: ignore[arg-type]
        pass
    assert in_process("report", tmp_path, "--html", "--md").code == 0
    document = in_process("report", tmp_path, "--json").json
    assert document["config"] == RECORDED
    assert '"layers":[1,2]' in in_process("log", tmp_path, "--json").out
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    assert "<td>nested.layers</td><td>[1, 2]</td>" in page
    assert "| lr | 0.1 |" in text
    assert "| nested.password | &lt;redacted&gt; |" in text
    assert SECRET not in page + text


def test_values_without_a_json_type_are_kept_as_text(tmp_path: Path) -> None:
    config = {"path": Path("a"), "inf": float("inf"), 3: "three", "big": 2**70, "none": None}
    with outlay.run("m", dir=tmp_path, config=config) as run:
        assert run.options.config == {
            "path": "a", "inf": "inf", "3": "three", "big": str(2**70), "none": None,
        }  # fmt: skip


@pytest.mark.parametrize("config", [3, "lr=1", [1, 2], Settings])
def test_a_configuration_without_names_is_refused(config: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="config"):
        outlay.run("m", dir=tmp_path, config=config)
