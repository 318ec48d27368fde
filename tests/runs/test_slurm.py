"""A run in a job that somebody wrote by hand: its directory, its price, its identity."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import outlay
from outlay.clock import SYSTEM, ManualClock
from outlay.errors import InvalidValue, RunInUse
from outlay.ledger import AttemptEnded, AttemptStarted, read_run
from outlay.prices.current import rates_file, read_rate, set_rate
from outlay.runs.exec import execute
from outlay.runs.live import Run
from outlay.runs.options import Arguments, RunOptions, resolve
from outlay.runs.reading import read_figures
from process_trees import reaping
from slurm_cluster import squeue_line

LAST_TASK = {"SLURM_JOB_ID": "40", "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "4"}


def options(environ: Mapping[str, str], /, **arguments: Any) -> RunOptions:
    return resolve(Arguments(**{"model": "m"} | arguments), environ, ManualClock().wall_ns())


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Run inside job 17, on its first start, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "gpu")
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield monkeypatch
    for number, handler in before.items():  # After a notice, another one is ignored for good.
        signal.signal(number, handler)


def headers(run_dir: Path) -> list[AttemptStarted]:
    return [r for r in read_run(run_dir).records if isinstance(r, AttemptStarted)]


# Identity


def test_the_log_names_the_task_and_not_the_array(job: pytest.MonkeyPatch) -> None:
    for name, value in LAST_TASK.items():
        job.setenv(name, value)
    with outlay.run("m") as run:
        pass
    assert [header.slurm_job for header in headers(run.dir)] == ["40_4"]


# Directories


def test_two_hundred_tasks_that_start_at_once_have_two_hundred_directories() -> None:
    tasks = [LAST_TASK | {"SLURM_ARRAY_TASK_ID": str(task)} for task in range(200)]
    assert len({options(task).dir for task in tasks}) == 200


def test_a_requeued_job_resumes_its_run_and_its_budget(
    job: pytest.MonkeyPatch,
) -> None:
    with outlay.run("m", budget="iso_tokens=800") as first:
        assert len(list(first.steps(range(5), tokens=100))) == 5
        first.checkpoint_committed()
    job.setenv("SLURM_RESTART_COUNT", "1")
    with outlay.run("m", budget="iso_tokens=800") as second:
        steps = list(second.steps(range(100), tokens=100))
    assert (second.dir, second.run_id) == (first.dir, first.run_id)
    assert len(steps) == 3


@pytest.mark.usefixtures("job")
def test_two_trainings_of_one_job_are_two_runs() -> None:
    with outlay.run("m") as first:
        pass
    with outlay.run("m") as second:
        pass
    assert [first.dir.name, second.dir.name] == ["m-slurm-17", "m-slurm-17-2"]


def test_a_requeued_job_of_two_trainings_resumes_both(
    job: pytest.MonkeyPatch,
) -> None:
    found = []
    for restart in ("0", "1"):
        job.setenv("SLURM_RESTART_COUNT", restart)
        for _ in range(2):
            with outlay.run("m") as run:
                found.append(run.run_id)
    assert found[:2] == found[2:]
    assert found[0] != found[1]


@pytest.mark.usefixtures("job")
def test_trainings_side_by_side_in_one_process_are_runs_of_their_own() -> None:
    with outlay.run("m") as one, outlay.run("m") as other:
        assert one.dir != other.dir


def test_a_start_beside_one_that_still_lives_takes_another_directory(
    job: pytest.MonkeyPatch,
) -> None:
    with outlay.run("m") as lost:
        job.setenv("SLURM_RESTART_COUNT", "1")
        with outlay.run("m") as again:
            assert again.dir != lost.dir


@pytest.mark.usefixtures("job")
def test_another_model_of_the_same_name_takes_another_directory() -> None:
    with outlay.run("a", name="m") as one, outlay.run("b", name="m") as other:
        assert one.dir != other.dir


def test_a_file_in_the_way_does_not_stop_training(job: pytest.MonkeyPatch, tmp_path: Path) -> None:
    del job
    (tmp_path / "outlay-runs").mkdir()
    (tmp_path / "outlay-runs" / "m-slurm-17").touch()
    with outlay.run("m") as run:
        assert run.dir.name == "m-slurm-17-2"
    assert run.recorder.writer.lost == 0


def test_runs_of_the_same_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clock = ManualClock()
    with outlay.run("m", clock=clock) as one, outlay.run("m", clock=clock) as other:
        assert one.dir != other.dir


def test_ranks_of_a_step_share_a_directory_and_the_next_step_has_its_own(
    job: pytest.MonkeyPatch,
) -> None:
    found = []
    job.setenv("SLURM_NTASKS", "2")
    for step, rank in [("0", "0"), ("0", "1"), ("1", "1"), ("1", "0")]:
        job.setenv("SLURM_STEP_ID", step)
        job.setenv("SLURM_PROCID", rank)
        with outlay.run("m") as run:
            found.append(run.dir.name)
    assert found == ["m-slurm-17", "m-slurm-17", "m-slurm-17-2", "m-slurm-17-2"]


def test_workers_that_torchrun_restarts_resume_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = set()
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    for restart in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        with outlay.run("m") as run:
            found.add(run.dir)
    assert len(found) == 1


@pytest.mark.usefixtures("job")
def test_a_run_that_is_refused_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(outlay.errors.OutlayError):
        outlay.run("m", budget="iso_cost=5 USD")  # Nothing says what a GPU costs here.
    assert list(tmp_path.glob("outlay-runs/*")) == []


@pytest.mark.usefixtures("job")
def test_a_stated_directory_is_not_replaced_by_another(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / "r"), pytest.raises(RunInUse):
        outlay.run("m", dir=tmp_path / "r")


# Money


@pytest.mark.usefixtures("job")
def test_without_a_price_a_job_costs_its_partitions_rate() -> None:
    set_rate("gpu", read_rate("1.20 USD/h", "gpu"))
    with outlay.run("m") as run:
        pass
    (header,) = headers(run.dir)
    assert header.price is not None
    assert str(header.price.rate) == "1.20 USD/h showback"


@pytest.mark.usefixtures("job")
def test_exec_in_a_job_costs_its_partitions_rate(tmp_path: Path) -> None:
    set_rate("gpu", read_rate("1.20 USD/h", "gpu"))
    result = execute(["true"], options(os.environ, name="m"))
    assert result.figures is not None
    assert result.figures.cost is not None
    assert Path(result.figures.dir) == tmp_path / "outlay-runs" / "m-slurm-17"


@pytest.mark.parametrize("stated", [{"price": "2 USD/h"}, {"environ": {"OUTLAY_PRICE": "2 USD/h"}}])
def test_a_stated_price_comes_before_the_partitions(stated: dict[str, Any]) -> None:
    set_rate("gpu", read_rate("1.20 USD/h", "gpu"))
    environ = {"SLURM_JOB_ID": "17", "SLURM_JOB_PARTITION": "gpu"} | stated.pop("environ", {})
    price = options(environ, **stated).price
    assert price is not None
    assert str(price.rate) == "2.00 USD/h"


def test_unreadable_rates_do_not_stop_training(
    job: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del job
    rates_file().parent.mkdir(parents=True, exist_ok=True)
    rates_file().write_text("{")
    with outlay.run("m") as run:
        assert len(list(run.steps(range(2)))) == 2
    assert "the run has no price" in caplog.text


# The end of the job's time


def end_in_an_hour(job: pytest.MonkeyPatch) -> str:
    """Return the end of the job's time; set a grace that begins three seconds from now."""
    now_ns = SYSTEM.wall_ns()
    end_s = now_ns // 10**9 + 3600
    job.setenv("OUTLAY_GRACE", f"{end_s * 1000 - now_ns // 10**6 - 3000}ms")
    return str(end_s)


@pytest.fixture
def ending_job(job: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Run inside a job whose grace begins in three seconds."""
    job.setenv("SLURM_JOB_END_TIME", end_in_an_hour(job))
    return job


def train(run: Run) -> int:
    """Train until the loop is ended; return how many steps that took."""
    count = 0
    for count, _ in enumerate(run.steps(range(2000)), start=1):  # noqa: B007 - counted
        SYSTEM.sleep(0.01)
    return count


def status(run: Run) -> str:
    return read_figures(run.dir, SYSTEM.wall_ns()).status


@pytest.mark.usefixtures("ending_job")
def test_a_run_saves_and_stops_one_grace_before_its_jobs_time_is_up() -> None:
    saved: list[int] = []
    with outlay.run("m") as run:
        run.on_preemption(lambda: saved.append(run.step_number))
        assert 0 < train(run) < 2000
    assert saved == [run.step_number]
    assert status(run) == "preempted"


@pytest.mark.usefixtures("ending_job")
def test_run_without_a_hook_stops_before_its_jobs_time_is_up() -> None:
    with outlay.run("m") as run:
        assert 0 < train(run) < 2000
    assert "the job's time is up" in (run.stop_reason or "")


def put_squeue(job: pytest.MonkeyPatch, directory: Path, script: str) -> None:
    """Put a ``squeue`` in front of the system's."""
    (directory / "bin").mkdir()
    (directory / "bin" / "squeue").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "bin" / "squeue").chmod(0o755)
    job.setenv("PATH", f"{directory / 'bin'}:{os.environ['PATH']}")


def test_without_an_end_in_the_environment_squeue_is_queried(
    job: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_squeue(job, tmp_path, f"echo '{squeue_line(end=end_in_an_hour(job))}'")
    with outlay.run("m") as run:
        assert 0 < train(run) < 2000


def test_a_job_whose_time_limit_was_extended_continues(
    job: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answered, end_s = tmp_path / "answered", end_in_an_hour(job)
    line = squeue_line(end=str(int(end_s) + 3600))
    put_squeue(job, tmp_path, f"echo '{line}'; touch {answered}")
    job.setenv("SLURM_JOB_END_TIME", end_s)
    job.setenv("OUTLAY_GRACE", "3600s")
    steps_after = 0
    with outlay.run("m") as run:
        for _ in run.steps(itertools.count()):
            SYSTEM.sleep(0.01)
            steps_after += answered.exists()
            if steps_after == 50:
                break
    assert (steps_after, run.stop_reason) == (50, None)


@pytest.mark.parametrize("grace", ["often", "0s"])
def test_an_impossible_grace_is_refused(grace: str) -> None:
    with pytest.raises(InvalidValue, match="OUTLAY_GRACE"):
        options({"OUTLAY_GRACE": grace})


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_the_signal_that_a_script_asked_for_ends_the_loop(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # As in a program that has no handler.
    try:
        with outlay.run("m") as run:
            for batch in run.steps(range(10)):
                if batch == 3:
                    os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)
    assert (run.step_number, status(run)) == (3, "preempted")


@pytest.mark.usefixtures("job")
def test_a_signal_that_the_program_handles_is_left_to_it() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    try:
        with outlay.run("m") as run:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert len(list(run.steps(range(3)))) == 3
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received == [signal.SIGUSR1]


@pytest.mark.parametrize(
    ("state", "ended", "reason"),
    [
        ("RUNNING", "preempted", "SIGTERM: cancelled or preempted"),
        ("PENDING", "preempted", "SIGTERM: cancelled or preempted"),
        ("COMPLETING", "terminated", "SIGTERM: cancelled or preempted"),
        ("CANCELLED", "terminated", "SIGTERM: the job was cancelled"),
    ],
)
def test_a_cancelled_job_is_not_preempted(
    job: pytest.MonkeyPatch, tmp_path: Path, state: str, ended: str, reason: str
) -> None:
    line = squeue_line(state=state)
    put_squeue(job, tmp_path, f"case \"$*\" in *--states=all*) echo '{line}';; esac")
    with outlay.run("m") as run:
        run.on_preemption(lambda: None)
        for batch in run.steps(range(10)):
            if batch == 3:
                os.kill(os.getpid(), signal.SIGTERM)
    assert status(run) == ended
    (end,) = (r for r in read_run(run.dir).records if isinstance(r, AttemptEnded))
    assert end.reason == reason


@pytest.mark.parametrize("handles", [False, True], ids=["without-handler", "with-handler"])
def test_exec_signals_its_command_one_grace_before_the_end(
    ending_job: pytest.MonkeyPatch, *, handles: bool
) -> None:
    ending_job.setattr("outlay.runs.exec._SAMPLE_S", 0.1)
    trap = "trap 'exit 7' USR2; " if handles else ""
    command = ["bash", "-c", f"{trap}for i in $(seq 300); do sleep 0.1; done"]
    with reaping():
        result = execute(command, options(os.environ, name="m"))
    assert result.exit_code == (7 if handles else 128 + signal.SIGTERM)
    assert result.figures is not None
    assert result.figures.status == "preempted"


def test_ranks_run_no_collective_unless_asked_to(ending_job: pytest.MonkeyPatch) -> None:
    """A rank that records alone among several would wait for the others."""
    ending_job.setenv("WORLD_SIZE", "2")
    ending_job.setenv("RANK", "0")
    with outlay.run("m") as run:
        assert list(itertools.islice(run.steps(range(5)), 5)) == [0, 1, 2, 3, 4]
        assert run.recorder.gates == []
