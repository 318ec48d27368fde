"""Plain jobs of a real cluster, written by hand: each is its own run, ends in time, and says how."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import outlay
from outlay.ledger import Attempt, derive_attempts, read_lives
from slurm_cluster import Cluster, require_programs
from waiting import until

pytestmark = pytest.mark.cluster
TASKS = 200


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster for large arrays, forty tasks at a time."""
    require_programs()
    cluster = Cluster(tmp_path / "cluster", cpus=10, tasks=TASKS + 1)
    try:
        cluster.start()
        for name, value in cluster.environ.items():
            monkeypatch.setenv(name, value)
        yield cluster
    finally:
        cluster.stop()


def submit(cluster: Cluster, program: str, *options: str, **environment: str) -> str:
    """Submit a Python program from the present directory; return the job's number."""
    Path("train.py").write_text(program)
    exported = ",".join(["ALL", *(f"{name}={value}" for name, value in environment.items())])
    done = cluster.run(
        "sbatch", "--parsable", "--output=job-%j.txt", f"--export={exported}", *options,
        f"--wrap={sys.executable} train.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def is_idle(cluster: Cluster) -> bool:
    return not cluster.run("squeue", "--noheader").stdout.strip()


def registered() -> list[Any]:
    runs: list[Any] = outlay("runs", "--all", "--json").json["runs"]
    return runs


def test_two_hundred_array_tasks_that_start_at_once_are_two_hundred_runs(
    wide: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = "import outlay\nwith outlay.run('m') as run:\n    list(run.steps(range(3)))\n"
    submit(wide, program, f"--array=0-{TASKS - 1}", "--output=/dev/null")
    until(lambda: is_idle(wide), wide.explain)
    runs = registered()
    assert len({run["run_id"] for run in runs}) == len(runs) == TASKS
    assert {(run["status"], run["steps"]) for run in runs} == {("completed", 3)}
    together = Counter(run["started_ns"] // 10**9 for run in runs)
    assert max(together.values()) > 1
    ends = wide.run("squeue", "--noheader", "--states=all", "--array", "--format=%T").stdout
    assert Counter(ends.split()) == {"COMPLETED": TASKS}
