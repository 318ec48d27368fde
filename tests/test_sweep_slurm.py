"""Sweeps on a real Slurm: arrays, several nodes, preemption, lost nodes, outages, detaching."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amounts import assert_one_cost
from command_line import in_process, outlay
from outlay.budget.display import read_document
from outlay.clock import SYSTEM
from outlay.rates import round_units
from outlay.runs.figures import RunFigures, read_figures
from outlay.sweep.engines.base import Task
from outlay.sweep.engines.slurm.engine import SlurmEngine
from outlay.sweep.engines.slurm.job_options import SlurmOptions
from outlay.sweep.engines.slurm.job_spec import read_times
from outlay.sweep.engines.slurm.queue import read_batches
from outlay.sweep.grid.files import plan_file
from outlay.sweep.run.harness import SweepOptions
from outlay.sweep.run.sweeps import Result, resume, start
from outlay.sweep.state.manifest import read_events, read_manifest
from slurm_cluster import NODES, Cluster
from waiting import until

pytestmark = pytest.mark.cluster
PROGRAMS = Path(__file__).parent / "programs"
RUN = [sys.executable, str(PROGRAMS / "cluster_run.py")]
FIRST = "001_group00"
PATIENCE_S = 200


def write_grid(tmp_path: Path, entrypoint: list[str], **more: Any) -> Path:
    grid = {
        "engine": "slurm",
        "slurm": {"partition": "main", "time": "10m"},
        "arguments": "none",
        "entrypoint": entrypoint,
        "output_dir": str(tmp_path / "sweep"),
        "grid": [{"params": {"x": 1}}],
    }
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(grid | more))
    return path


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def run_grid(tmp_path: Path, entrypoint: list[str], **more: Any) -> Result:
    return start(plan_file(write_grid(tmp_path, entrypoint, **more)), None, SweepOptions())


class Harness:
    """Sweeps in separate processes, which may be killed; none outlives its test."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, grid: Path, *options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "outlay", "sweep", "run", "--yes", str(grid), *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def harness() -> Iterator[Harness]:
    started = Harness()
    yield started
    started.close()


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    printed, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, printed


def ends(root: Path) -> dict[str, list[str]]:
    """Return every recorded end, by run."""
    found: dict[str, list[str]] = {}
    for event in read_events(root):
        if event.status != "running":
            found.setdefault(event.run, []).append(event.status)
    return found


def job_of(root: Path, run: str = FIRST) -> str:
    ticket = read_manifest(root).state(run).ticket
    (batch,) = [batch for batch in read_batches(root) if ticket in batch.tickets]
    return batch.job_of(ticket)


def exists(path: Path, slurm: Cluster) -> None:
    until(path.exists, slurm.explain)


def figures(run_dir: Path) -> RunFigures:
    return read_figures(run_dir, SYSTEM.wall_ns())


def test_a_cluster_that_is_stopped_leaves_no_process_behind(
    slurm_cluster: Cluster, tmp_path: Path
) -> None:
    assert slurm_cluster.daemons  # Slurm is installed here; another one may stand beside it.
    other = Cluster(tmp_path / "other")
    try:
        other.start()
        other.run("sbatch", "--wrap=setsid sleep 600 & wait", "--output=/dev/null")
        until(lambda: len(other.running()) > len(other.daemons) + 2, other.explain)
    finally:
        other.stop()
    assert other.running() == []


@pytest.mark.usefixtures("slurm")
def test_an_array_of_twenty_with_one_failing_task(tmp_path: Path) -> None:
    script = "echo {x}; exit $(({x} == 7 ? 3 : 0))"
    grid = [{"params": {"x": list(range(20))}}]
    result = run_grid(tmp_path, shell(script), price="3.60 USD/h", ceiling="20 USD", timeout="5m",
                      grid=grid)  # fmt: skip
    assert result.counts == {"completed": 19, "error": 1}
    (batch,) = read_batches(result.root)
    assert len(batch.tickets) == 20
    (failed,) = result.of_status("error")
    assert result.manifest.state(failed).reason == "exit code 3"
    assert {len(of_run) for of_run in ends(result.root).values()} == {1}
    assert (result.root / failed / "sweep.log").read_text() == "7\n"
    check_money(result)


def check_money(result: Result) -> None:
    """Every attempt costs what it ran, by its own start and end, and no hold is left."""
    log = (result.root / "spend.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in log]
    assert kinds.count("hold") == kinds.count("capture") == len(result.manifest.runs)
    for run in result.manifest.runs:
        state = result.manifest.state(run)
        ran_ns = read_times(result.root / run, state.ticket).ran_ns()
        assert ran_ns > 0
        assert state.elapsed_ns == ran_ns
        assert state.cost_micros == round_units(ran_ns * 3_600_000)


@pytest.mark.usefixtures("slurm")
def test_two_nodes_meet_by_torchrun(tmp_path: Path) -> None:
    result = run_grid(
        tmp_path, [str(PROGRAMS / "sweep_ranks.py")], nnodes=2, env={"OMP_NUM_THREADS": "1"}
    )
    log = result.root / FIRST / "sweep.log"
    assert result.counts == {"completed": 1}, log.read_text()
    printed = log.read_text() + log.with_name("sweep.node1.log").read_text()
    assert "rank 0 of 2: 3.0" in printed
    assert "rank 1 of 2: 3.0" in printed
    command = result.manifest.state(FIRST).command
    assert command[1:4] == ["-m", "torch.distributed.run", "--nproc_per_node=1"]


@pytest.mark.usefixtures("slurm")
def test_every_book_says_the_same_of_a_run_that_is_killed_and_of_one_that_records_nothing(
    tmp_path: Path,
) -> None:
    training = f"{sys.executable} {PROGRAMS / 'one_cost.py'}"
    script = f"[ {{how}} = silent ] && exec sleep 0.1 || exec {training} {{how}}"
    result = run_grid(
        tmp_path, shell(script), price="36 USD/h", ceiling="20 USD", timeout="5m", retries=1,
        grid=[{"params": {"how": ["kill", "silent"]}}, {"params": {"how": "x"}, "timeout": "10h"}],
    )  # fmt: skip
    assert result.counts == {"completed": 2, "skipped": 1}
    assert len(assert_one_cost(result.root)) == 2


ARRAYS = (1, 2, 5)
"""Tasks of the arrays that are interrupted: one, two, and more; the last of each is the array's."""


def start_arrays(
    slurm: Cluster, harness: Harness, tmp_path: Path, **of_jobs: str
) -> subprocess.Popen[str]:
    """Start trainings in arrays of 1, 2 and 5 tasks, and wait until all have begun to train.

    Each has sixty steps, which take two minutes if nobody interrupts them.
    """
    # Runs that differ in an option go into different arrays.
    entries = [
        {"params": {"x": list(range(1, tasks + 1))}, "slurm": {"extra": {"nice": str(tasks)}}}
        for tasks in ARRAYS
    ]
    grid = write_grid(
        tmp_path, [*RUN, "{x}", "2"], grid=entries, budget={"mode": "iso_tokens", "limit": 6000},
        slurm={"partition": "main", "time": "10m"} | of_jobs, price="1 USD/h", ceiling="9 USD",
        timeout="1h",
    )  # fmt: skip
    going = harness(grid)
    root = tmp_path / "sweep"
    until(lambda: len(list(root.glob("*/going"))) == sum(ARRAYS), slurm.explain)
    assert sorted(len(batch.tickets) for batch in read_batches(root)) == sorted(ARRAYS)
    return going


def check_every_task_went_on(
    root: Path, going: subprocess.Popen[str], slurm: Cluster, *between: str
) -> None:
    """Every task was started again exactly once, from its checkpoint; none is cancelled.

    It ends at the same step, under the same id, and the wait in the queue costs nothing.
    """
    code, printed = finish(going)
    runs = read_manifest(root).runs
    assert (code, ends(root)) == (0, {run: ["completed"] for run in runs}), printed
    for run in runs:
        told = figures(root / run)
        moments = read_times(root / run, read_manifest(root).state(run).ticket).events
        starts = [moment.restart for moment in moments if moment.what == "started"]
        assert (starts, told.attempts, told.steps) == ([0, 1], 2, 60), slurm.explain()
        assert (told.tokens, told.status) == (6000, "completed")
        assert len({moment.job for moment in moments}) == 1
        assert set(between) <= {moment.what for moment in moments}
        budget = read_document(root / run)
        assert budget is not None
        assert budget["totals"]["tokens"] == 6000
        check_waits_are_recovery_and_free(root / run)
    assert_one_cost(root)


def jobs_of(root: Path) -> list[str]:
    return [job_of(root, run) for run in read_manifest(root).runs]


def test_every_task_of_a_preempted_array_continues(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    going = start_arrays(slurm, harness, tmp_path)
    slurm.run("sbatch", "-p", "urgent", "-N4", "--exclusive", "--wrap=sleep 1", "-o", "/dev/null")
    check_every_task_went_on(tmp_path / "sweep", going, slurm)


def test_every_task_of_an_array_at_its_time_limit_continues(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    # Slurm looks twice a minute, and early: it tells a job 40 to 70 s after its start.
    going = start_arrays(slurm, harness, tmp_path, time="2m", notice="50s")
    check_every_task_went_on(tmp_path / "sweep", going, slurm)


def test_every_task_of_a_requeued_array_continues(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    going = start_arrays(slurm, harness, tmp_path)
    for job in jobs_of(tmp_path / "sweep"):
        assert slurm.run("scontrol", "requeue", job).returncode == 0
    check_every_task_went_on(tmp_path / "sweep", going, slurm)


def test_every_task_of_an_array_continues_after_its_nodes_are_lost(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    going = start_arrays(slurm, harness, tmp_path)
    try:
        for node in NODES:
            slurm.kill_node(node)
    finally:
        for node in NODES:
            slurm.revive_node(node)
    check_every_task_went_on(tmp_path / "sweep", going, slurm, "lost")


def check_waits_are_recovery_and_free(run_dir: Path) -> None:
    """Between two starts of a job everything is ``recovery``, and none of it is charged."""
    phases = {row["phase"]: row for row in in_process("goodput", run_dir, "--json").json["phases"]}
    assert phases["recovery"]["ns"] > 0
    assert phases["recovery"]["cost"]["micros"] == 0


def test_a_job_cancelled_in_slurm_is_cancelled_and_not_failed(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    root = tmp_path / "sweep"
    going = harness(write_grid(tmp_path, shell("touch $OUTLAY_RUN_DIR/going; exec sleep 600")))
    exists(root / FIRST / "going", slurm)
    slurm.run("scancel", job_of(root))
    code, printed = finish(going)
    assert (code, ends(root)) == (1, {FIRST: ["cancelled"]}), printed
    assert read_manifest(root).state(FIRST).reason == "cancelled in Slurm"


def test_a_job_that_may_not_start_again_has_failed_when_its_time_is_up(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    root = tmp_path / "sweep"
    budget = {"mode": "iso_tokens", "limit": 10**9}
    once = {"partition": "main", "time": "10m", "requeues": 0}
    going = harness(write_grid(tmp_path, [*RUN, "{x}", "0.05"], budget=budget, slurm=once))
    exists(root / FIRST / "going", slurm)
    slurm.run("scancel", "--signal=USR2", job_of(root))  # As Slurm does before the time is up.
    code, printed = finish(going)
    assert (code, ends(root)) == (1, {FIRST: ["error"]}), printed
    state = read_manifest(root).state(FIRST)
    assert (state.returncode, "still not done" in state.reason) == (0, True)
    assert figures(root / FIRST).status == "preempted"


def has_more_than(path: Path, count: int) -> bool:
    return path.exists() and len(path.read_text()) > count


def queue_again(slurm: Cluster, root: Path, sign: str, times: int) -> None:
    """Queue a job again so many times, each when the program has left another line in a file."""
    path = root / FIRST / sign
    for count in range(times):
        until(partial(has_more_than, path, count), slurm.explain)
        assert slurm.run("scontrol", "requeue", job_of(root)).returncode == 0


def test_a_job_that_makes_no_progress_has_failed_after_so_many_starts(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    root = tmp_path / "sweep"
    script = "printf x >> $OUTLAY_RUN_DIR/begun; exec sleep 600"
    options = {"partition": "main", "time": "10m", "requeues": 2}
    going = harness(write_grid(tmp_path, shell(script), slurm=options))
    queue_again(slurm, root, "begun", times=3)
    code, printed = finish(going)
    assert (code, ends(root)) == (1, {FIRST: ["error"]}), printed
    assert "started again 2 times without progress" in read_manifest(root).state(FIRST).reason
    assert (root / FIRST / "begun").read_text() == "xxx"


def test_starts_that_made_progress_are_not_counted(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    root = tmp_path / "sweep"
    program = [sys.executable, str(PROGRAMS / "step_per_start.py"), "3"]
    options = {"partition": "main", "time": "10m", "requeues": 1}
    going = harness(write_grid(tmp_path, program, slurm=options))
    queue_again(slurm, root, "committed", times=2)
    code, printed = finish(going)
    assert (code, ends(root)) == (0, {FIRST: ["completed"]}), printed
    assert figures(root / FIRST).attempts == 3


@pytest.mark.usefixtures("slurm")
def test_a_program_that_ignores_sigterm_costs_no_more_than_is_held_for_it(tmp_path: Path) -> None:
    script = "trap '' TERM; while :; do sleep 0.1; done"
    result = run_grid(
        tmp_path, shell(script), price="3600 USD/h", ceiling="99 USD", timeout="3s"
    )  # fmt: skip
    assert result.counts == {"error": 1}
    log = [json.loads(line) for line in (result.root / "spend.jsonl").read_text().splitlines()]
    (held,) = [entry for entry in log if entry["kind"] == "hold"]
    (captured,) = [entry for entry in log if entry["kind"] == "capture"]
    assert 3 < captured["actual"] <= held["estimated"]
    assert_one_cost(result.root)


@pytest.mark.parametrize("how", [(), ("--detach",)])
@pytest.mark.usefixtures("slurm")
def test_runs_that_do_not_fit_the_ceiling_are_named(tmp_path: Path, how: tuple[str, ...]) -> None:
    entries = [{"params": {"x": 1}}, {"params": {"x": 2}, "timeout": "10h"}]
    grid = write_grid(
        tmp_path, shell("true"), grid=entries, price="36 USD/h", ceiling="20 USD", timeout="5m"
    )
    told = outlay("sweep", "run", grid, "--yes", *how)
    assert (told.code, "002_group01" in told.err) == (3, True), told.out + told.err
    looked = look_until(tmp_path / "sweep", lambda found: "completed" in found["counts"])
    assert [run["status"] for run in looked["runs"]] == ["completed", "skipped"]
    assert "asked > 20.00 USD" in looked["runs"][1]["reason"]


@pytest.mark.usefixtures("slurm")
def test_a_run_that_takes_too_long_ends_itself(tmp_path: Path) -> None:
    result = run_grid(tmp_path, shell("exec sleep 600"), timeout="1s")
    assert result.counts == {"error": 1}
    assert result.manifest.state(FIRST).reason == "timeout: not done after 1.0s"


def test_a_controller_restart_loses_no_run(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    root = tmp_path / "sweep"
    script = (
        "touch $OUTLAY_RUN_DIR/going; while ! test -e $OUTLAY_RUN_DIR/../go; do sleep 0.1; done"
    )
    grid = write_grid(tmp_path, shell(script), grid=[{"params": {"x": [1, 2, 3]}}])
    going = harness(grid, "--jobs", "2")
    exists(root / "002_group00_01" / "going", slurm)
    slurm.restart_controller()
    assert not (root / "003_group00_02" / "going").exists()
    (root / "go").touch()
    code, printed = finish(going)
    assert code == 0, printed
    assert list(ends(root).values()) == [["completed"]] * 3


@pytest.mark.parametrize("how", ["SIGKILL", "SIGHUP"])
def test_jobs_outlive_their_harness_and_are_reattached_to(
    slurm: Cluster, harness: Harness, tmp_path: Path, how: str
) -> None:
    root = tmp_path / "sweep"
    script = "touch $OUTLAY_RUN_DIR/going; while ! test -e $OUTLAY_RUN_DIR/go; do sleep 0.1; done"
    grid = write_grid(
        tmp_path, shell(script), grid=[{"params": {"x": [1, 2]}}], price="1 USD/h", timeout="5m",
        ceiling="1 USD",
    )  # fmt: skip
    going = harness(grid)
    exists(root / "002_group00_01" / "going", slurm)
    going.send_signal(signal.Signals[how])  # Killed, or its terminal is gone.
    code, _ = finish(going)
    assert code == (0 if how == "SIGHUP" else -9)
    (root / "001_group00_00" / "go").touch()
    exists(root / "001_group00_00" / "sweep_exit.json", slurm)
    (root / "002_group00_01" / "go").touch()  # It may end before or after it is found again.
    assert resume(root, SweepOptions(), grid=None, retry_failed=False).counts == {"completed": 2}
    assert list(ends(root).values()) == [["completed"], ["completed"]]
    kinds = [json.loads(line)["kind"] for line in (root / "spend.jsonl").read_text().splitlines()]
    assert sorted(kinds) == ["capture", "capture", "hold", "hold"]


def test_a_detached_sweep_is_polled_and_cancelled_from_other_processes(
    slurm: Cluster, tmp_path: Path
) -> None:
    script = "test {x} = 1 || exec sleep 600"
    grid = write_grid(tmp_path, shell(script), grid=[{"params": {"x": [1, 2]}}], price="1 USD/h")
    left = outlay("sweep", "run", grid, "--yes", "--detach", "--json")
    assert (left.code, left.json["counts"]) == (0, {"running": 2}), left.err
    root = tmp_path / "sweep"
    exists(root / "001_group00_00" / "sweep_exit.json", slurm)
    looked = look_until(root, lambda found: "running on n" in found["runs"][1]["reason"])
    assert looked["counts"] == {"completed": 1, "running": 1}
    assert outlay("sweep", "cancel", root, "--json").json == {"told": None, "jobs": 1}
    assert list(ends(root).values()) == [["completed"], ["cancelled"]]
    assert outlay("sweep", "aggregate", root, "--allow-missing").code == 0


def names_in_queue(slurm: Cluster) -> list[list[str]]:
    """Return what ``squeue`` shows of every job: its name and its comment."""
    asked = ("--noheader", "--array", "--states=PENDING,RUNNING", "--format=%j %k")
    shown = slurm.run("squeue", *asked).stdout
    return sorted(line.split() for line in shown.splitlines())


@pytest.mark.parametrize("runs", [1, 2])
def test_jobs_are_named_after_their_sweep_and_their_run(
    slurm: Cluster, harness: Harness, tmp_path: Path, runs: int
) -> None:
    root = tmp_path / "sweep"
    entries = [{"params": {"x": list(range(runs))}}] if runs > 1 else [{"params": {"x": 0}}]
    harness(write_grid(tmp_path, shell("exec sleep 600"), grid=entries))
    names = [FIRST] if runs == 1 else ["001_group00_00", "002_group00_01"]
    expected = [[f"sweep-{name}", str(root)] for name in names]
    until(lambda: names_in_queue(slurm) == expected, lambda: str(names_in_queue(slurm)))
    assert outlay("sweep", "cancel", root, names[-1], "--json").json["jobs"] == 1


def test_an_array_that_waits_has_one_name(slurm: Cluster, tmp_path: Path) -> None:
    engine = SlurmEngine(tmp_path)
    for number in range(3):
        held_task(engine, tmp_path, number)
    engine.wait(0)
    assert names_in_queue(slurm) == [[f"{tmp_path.name}-3-runs", str(tmp_path)]] * 3


@pytest.mark.parametrize("attached", [True, False])
def test_one_run_is_cancelled_and_the_others_continue(
    slurm: Cluster, harness: Harness, tmp_path: Path, *, attached: bool
) -> None:
    root = tmp_path / "sweep"
    script = (
        "touch $OUTLAY_RUN_DIR/going; while ! test -e $OUTLAY_RUN_DIR/../go; do sleep 0.1; done"
    )
    grid = write_grid(tmp_path, shell(script), grid=[{"params": {"x": [1, 2, 3]}}])
    going = harness(grid, *([] if attached else ["--detach"]))
    runs = [f"00{n + 1}_group00_0{n}" for n in range(3)]
    for run in runs:
        exists(root / run / "going", slurm)
    if not attached:
        assert finish(going)[0] == 0
    assert outlay("sweep", "cancel", root, runs[2], "--json").json["jobs"] == 1
    look_until(root, lambda found: found["counts"] == {"cancelled": 1, "running": 2})
    (root / "go").touch()
    look_until(root, lambda found: found["counts"] == {"cancelled": 1, "completed": 2})
    assert ends(root)[runs[2]] == ["cancelled"]


def test_a_run_that_a_sweep_does_not_have_is_refused_with_those_it_has(
    slurm: Cluster, tmp_path: Path
) -> None:
    del slurm
    result = run_grid(tmp_path, shell("true"))
    told = outlay("sweep", "cancel", result.root, "nothing")
    assert (told.code, FIRST in told.err) == (2, True)


def look_until(root: Path, condition: Callable[[Any], bool]) -> Any:
    """Poll the status of a sweep until it is as expected."""
    found: list[Any] = []

    def looks_right() -> bool:
        found.append(outlay("sweep", "status", root, "--json").json)
        return condition(found[-1])

    until(looks_right, lambda: str(found[-1]))
    return found[-1]


def without_moments(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a sweep without its harness and without elapsed times."""
    # The head changes when the later poll captures what has ended.
    moving = ("harness", "running", "head")
    fixed = {name: value for name, value in status.items() if name not in moving}
    passing = ("elapsed_s", "running")
    fixed["runs"] = [
        {name: value for name, value in run.items() if name not in passing or not run["running"]}
        for run in status["runs"]
    ]
    return fixed


def test_status_is_the_same_with_and_without_a_harness(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    root = tmp_path / "sweep"
    script = "touch $OUTLAY_RUN_DIR/going; while ! test -e $OUTLAY_RUN_DIR/go; do sleep 0.1; done"
    grid = write_grid(
        tmp_path, shell(script), grid=[{"params": {"x": [1, 2, 3]}}], price="36 USD/h",
        ceiling="90 USD", timeout="10m",
    )  # fmt: skip
    going = harness(grid, "--jobs", "1")
    exists(root / "001_group00_00" / "going", slurm)
    going.send_signal(signal.SIGSTOP)  # It runs the sweep, and writes nothing down.
    (root / "001_group00_00" / "go").touch()
    exists(root / "002_group00_01" / "going", slurm)
    attached = look_until(root, lambda found: "running on n" in found["runs"][1]["reason"])
    going.kill()
    finish(going)
    detached = outlay("sweep", "status", root, "--json").json
    assert (attached["harness"], detached["harness"]) == (going.pid, None)
    assert without_moments(attached) == without_moments(detached)
    assert attached["counts"] == {"completed": 1, "running": 1, "queued": 1}
    job = job_of(root, "001_group00_00").partition("_")[0]
    assert [run["job"] for run in attached["runs"]] == [f"{job}_{task}" for task in range(3)]
    for status in (attached, detached):
        done, runs, waits = status["runs"]
        assert done["cost"]["micros"] == status["spent"][0]["micros"] > 0
        assert runs["running"]["micros"] == status["running"][0]["micros"] > 0
        assert (waits["elapsed_s"], waits["cost"]) == (0, None)


@pytest.mark.usefixtures("slurm")
def test_the_same_grid_gives_the_same_summary_here_and_there(tmp_path: Path) -> None:
    rows = {}
    for engine in ("process", "slurm"):
        (tmp_path / engine).mkdir()
        grid = write_grid(
            tmp_path / engine, [*RUN, "{x}", "0"], engine=engine, price="1 USD/h",
            budget={"mode": "iso_tokens", "limit": 1000, "target_metric": "accuracy"},
            grid=[{"params": {"x": [1, 2]}}],
        )  # fmt: skip
        result = start(plan_file(grid), None, SweepOptions())
        assert outlay("sweep", "aggregate", result.root).code == 0
        (summary,) = (result.root / "reports").glob("summary_*.csv")
        rows[engine] = [
            without_times(row) for row in csv.DictReader(summary.read_text().splitlines())
        ]
    assert rows["process"] == rows["slurm"]
    assert [row["accuracy_value"] for row in rows["slurm"]] == ["1.0", "0.5"]


TIMES = {
    "ips_mean", "step_time_ms", "cost", "charged_cost", "goodput", "wall_minutes",
    "time_minutes", "time_to_target_min",
}  # fmt: skip


def without_times(row: dict[str, str]) -> dict[str, str]:
    """Return a run's row in the summary without times and cost."""
    return {name: value for name, value in row.items() if name not in TIMES}


# -- what a cluster is asked for ------------------------------------------------------------


def held_task(engine: SlurmEngine, tmp_path: Path, number: int, **options: Any) -> str:
    """Submit a job that is held and never released."""
    directory = tmp_path / f"run{number}"
    directory.mkdir()
    ticket = engine.new_ticket(directory.name)
    engine.submit(
        Task(
            name=directory.name, ticket=ticket, command=("true",), env=dict(os.environ),
            cwd=tmp_path, directory=directory, log=directory / "log",
            options=SlurmOptions(extra={"hold": True}, **options),
        )
    )  # fmt: skip
    return ticket


def test_arrays_respect_the_clusters_maximum_size(slurm: Cluster, tmp_path: Path) -> None:
    engine = SlurmEngine(tmp_path)
    engine.allow(4)
    for number in range(23):  # MaxArraySize is 21.
        held_task(engine, tmp_path, number)
    engine.wait(0)
    assert sorted(len(batch.tickets) for batch in read_batches(tmp_path)) == [2, 21]
    first, second = sorted(read_batches(tmp_path), key=lambda batch: int(batch.job))
    shown = slurm.run("scontrol", "show", "job", first.job).stdout
    assert "ArrayTaskThrottle=4" in shown
    waiting = slurm.run("scontrol", "show", "job", second.job).stdout
    assert f"afterany:{first.job}" in waiting


@pytest.mark.usefixtures("slurm")
def test_no_more_jobs_are_submitted_at_once_than_the_grid_allows(tmp_path: Path) -> None:
    engine = SlurmEngine(tmp_path)
    tickets = [held_task(engine, tmp_path, number, max_submit=2) for number in range(3)]
    engine.wait(0)
    assert (sum(len(b.tickets) for b in read_batches(tmp_path)), engine.all_submitted()) == (
        2,
        False,
    )
    engine.cancel(tickets[0])

    def handed_over() -> bool:
        engine.wait(0.05)
        return engine.all_submitted()

    until(handed_over, "the third never reached Slurm")
    assert sum(len(batch.tickets) for batch in read_batches(tmp_path)) == 3


@pytest.mark.usefixtures("slurm")
def test_a_secret_word_of_the_command_reaches_the_program_and_no_file(tmp_path: Path) -> None:
    word = "pg://user:hunter22@host/db"
    result = run_grid(tmp_path, [*shell('echo "$0" | md5sum'), word])
    expected = hashlib.md5(f"{word}\n".encode()).hexdigest()
    assert (result.root / FIRST / "sweep.log").read_text() == f"{expected}  -\n"
    files = [path for path in result.root.rglob("*") if path.is_file()]
    assert b"hunter22" not in b"".join(path.read_bytes() for path in files)


@pytest.mark.usefixtures("slurm")
def test_secrets_reach_the_program_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-from-env")
    script = "printenv HF_TOKEN MY_API_KEY | md5sum"
    result = run_grid(tmp_path, shell(script), env={"HF_TOKEN": "t0k3n-in-grid"})
    expected = hashlib.md5(b"t0k3n-in-grid\ns3cr3t-from-env\n").hexdigest()
    assert (result.root / FIRST / "sweep.log").read_text() == f"{expected}  -\n"
    files = [path for path in result.root.rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    assert b"t0k3n-in-grid" not in written
    assert b"s3cr3t-from-env" not in written
