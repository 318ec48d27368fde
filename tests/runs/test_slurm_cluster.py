"""Plain jobs of a real cluster, written by hand: each is its own run and ends in time."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from command_line import outlay
from outlay.ledger import Attempt, derive_attempts, read_lives
from slurm_cluster import Cluster
from waiting import until

pytestmark = pytest.mark.cluster


def submit(cluster: Cluster, program: str, *options: str, then: str = "true") -> str:
    """Submit a Python program from the present directory; return the job's number."""
    Path("train.py").write_text(program)
    done = cluster.run(
        "sbatch", "--parsable", "--output=job-%j.txt", *options,
        f"--wrap={sys.executable} train.py; {then}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def is_idle(cluster: Cluster) -> bool:
    return not cluster.run("squeue", "--noheader").stdout.strip()


def registered() -> list[Any]:
    runs: list[Any] = outlay("runs", "--all", "--json").json["runs"]
    return runs


def test_tasks_of_two_arrays_that_start_at_once_are_runs_of_their_own(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty tasks, eight at a time."""
    monkeypatch.chdir(tmp_path)
    program = "import outlay\nwith outlay.run('m') as run:\n    list(run.steps(range(3)))\n"
    arrays = [submit(slurm, program, "--array=0-19", "--output=/dev/null") for _ in range(2)]
    until(lambda: is_idle(slurm), slurm.explain)
    runs = registered()
    assert len({run["run_id"] for run in runs}) == len(runs) == 40
    assert {(run["status"], run["steps"]) for run in runs} == {("completed", 3)}
    started_in = Counter(run["started_ns"] // 10**9 for run in runs)
    assert max(started_in.values()) > 1
    jobs = f"--jobs={','.join(arrays)}"
    ends = slurm.run("squeue", "--noheader", jobs, "--states=all", "--array", "--format=%T").stdout
    assert Counter(ends.split()) == {"COMPLETED": 40}


TRAINING = """\
import pathlib, time
import outlay

with outlay.run("m", budget="iso_tokens=15000") as run:
    run.on_preemption(lambda: run.checkpoint_committed())
    for _ in run.steps(range(1000), tokens=100):
        time.sleep(0.1)
if run.budget.should_stop():  # Outside: the job is cancelled as soon as the file is there.
    pathlib.Path("done").touch()
"""


def attempts_of(job: str) -> list[Attempt]:
    (directory,) = Path("outlay-runs").glob(f"*-slurm-{job}")
    return derive_attempts(read_lives(directory))


def test_a_job_at_its_time_limit_stops_a_grace_before_and_resumes_run_and_budget(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may take a minute and its grace is 48 s: 15 s of training take several starts."""
    monkeypatch.chdir(tmp_path)
    again = "test -e done || scontrol requeue $SLURM_JOB_ID; sleep 60"
    monkeypatch.setenv("OUTLAY_GRACE", "48s")
    job = submit(slurm, TRAINING, "--time=1", "--requeue", then=again)
    until(lambda: (tmp_path / "done").exists(), slurm.explain)
    slurm.run("scancel", job)
    (run,) = registered()
    attempts = attempts_of(job)
    first = attempts[0]
    assert first.end is not None
    assert (first.end.status, first.end.reason) == ("preempted", "the job's time is up in 48.0s")
    assert len(attempts) > 1
    assert (run["status"], run["steps"], run["tokens"]) == ("completed", 150, 15_000)


def test_a_run_whose_job_is_cancelled_ends_terminated(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = submit(slurm, TRAINING.replace("15000", "150000"))
    until(lambda: list(tmp_path.glob("outlay-runs/*/budget.json")), slurm.explain)
    slurm.run("scancel", job)
    until(lambda: attempts_of(job)[0].end is not None, slurm.explain)
    end = attempts_of(job)[0].end
    assert end is not None
    assert end.status == "terminated"
    # Slurm calls a job that it is still ending COMPLETING, whatever ends it.
    assert end.reason in ("SIGTERM: the job was cancelled", "SIGTERM: cancelled or preempted")
