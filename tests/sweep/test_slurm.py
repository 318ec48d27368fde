"""Sweeps on a real Slurm: arrays, several nodes, preemption, lost nodes, outages, detaching."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from amounts import assert_one_cost
from command_line import in_process, outlay
from outlay import BudgetGuard
from outlay.budget.display import read_document
from outlay.clock import SYSTEM
from outlay.guard.entries import Captured, micros_of
from outlay.rates import round_units
from outlay.runs.reading import read_figures
from outlay.store.run_row import RunRow
from outlay.sweep.engines.base import Task
from outlay.sweep.engines.remote.job_spec import read_times
from outlay.sweep.engines.slurm.engine import SlurmEngine
from outlay.sweep.engines.slurm.job_options import SlurmOptions
from outlay.sweep.engines.slurm.queue import read_batches
from outlay.sweep.grid.files import plan_file
from outlay.sweep.run.harness import SweepOptions
from outlay.sweep.run.sweeps import Result, resume, start
from outlay.sweep.state.manifest import read_events, read_manifest
from outlay.sweep.state.outcomes import STOPPED_BY_PERSON
from postgres import TeamDatabase
from slurm_cluster import Cluster
from toy_sweep import OUTCOME, toy_outcome
from waiting import until

pytestmark = pytest.mark.cluster
PROGRAMS = Path(__file__).parents[1] / "programs"
RUN = [sys.executable, str(PROGRAMS / "cluster_run.py")]
FIRST = "001_group00"


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

    def __init__(self, environ: Mapping[str, str] = MappingProxyType({})) -> None:
        self._environ = environ
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, grid: Path, *options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "outlay", "sweep", "run", "--yes", str(grid), *options],
            env=os.environ | self._environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            with process:  # Waits for it, and closes its output.
                process.kill()


@pytest.fixture
def harness() -> Iterator[Harness]:
    started = Harness()
    yield started
    started.close()


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    printed, _ = process.communicate()
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


def figures(run_dir: Path) -> RunRow:
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


# -- one sweep whose runs are disturbed while other tests run -------------------------------------

ARRAYS = (1, 2)
"""Tasks of what is interrupted: a plain job, and an array, whose last task has its number."""
INTERRUPTED = {
    # Slurm checks time limits twice a minute, and early: it signals 45 to 75 s after the start.
    "limited": {"time": "2m", "notice": "45s"},
    "preempted": {"partition": "preempted"},
    "lost": {"partition": "lost"},
    "requeued": {},
}
"""The options of jobs that are interrupted, by how."""


def disturbed_entries() -> list[dict[str, Any]]:
    """Return trainings of two minutes that are interrupted, and jobs that end in other ways."""
    training = {"entrypoint": [*RUN, "{x}", "2"], "budget": {"mode": "iso_tokens", "limit": 6000}}
    endless = {"entrypoint": [*RUN, "1", "0.05"], "budget": {"mode": "iso_tokens", "limit": 10**9}}
    waits = "exec sleep 600"
    entries: list[dict[str, Any]] = [
        {"name": how, "params": {"x": list(range(1, tasks + 1))}, "slurm": options, **training}
        for how, options in INTERRUPTED.items()
        for tasks in ARRAYS
    ]
    entries += [
        {"name": "array", "entrypoint": shell("echo {x}; exit $(({x} == 4 ? 3 : 0))"),
         "params": {"x": list(range(6))}},
        {"name": "nodes", "entrypoint": [str(PROGRAMS / "sweep_ranks.py")], "nnodes": 2,
         "env": {"OMP_NUM_THREADS": "1"}},
        {"name": "killed", "entrypoint": [sys.executable, str(PROGRAMS / "one_cost.py"), "kill"],
         "retries": 1},
        {"name": "silent", "entrypoint": shell("exec sleep 0.1")},
        {"name": "refused", "entrypoint": shell("true"), "timeout": "100h"},
        {"name": "cancelled", "entrypoint": shell(f"touch $OUTLAY_RUN_DIR/going; {waits}")},
        {"name": "once", "slurm": {"requeues": 0}, **endless},
        {"name": "stuck", "entrypoint": shell(f"printf x >> $OUTLAY_RUN_DIR/committed; {waits}"),
         "slurm": {"requeues": 2}},
        {"name": "advancing", "slurm": {"requeues": 1},
         "entrypoint": [sys.executable, str(PROGRAMS / "step_per_start.py"), "3"]},
        {"name": "ignoring", "entrypoint": shell("trap '' TERM; while :; do sleep 0.1; done"),
         "price": "3600 USD/h", "timeout": "3s"},
        {"name": "slow", "entrypoint": shell(waits), "timeout": "1s"},
    ]  # fmt: skip
    for number, entry in enumerate(entries):
        # Runs that differ in an option go into different arrays. Not all of them start at once.
        later = {} if entry["name"] in INTERRUPTED else {"begin": f"now+{number}"}
        entry["slurm"] = {**entry.get("slurm", {}), "extra": {"nice": str(number), **later}}
    return entries


def runs_of(root: Path, group: str) -> list[str]:
    return [name for name, run in read_manifest(root).runs.items() if run.group == group]


def disturb(slurm: Cluster, root: Path) -> None:
    """Interrupt jobs once they train; requeue some as often as needed."""

    def perform(*command: str) -> None:
        until(lambda: slurm.run(*command).returncode == 0, slurm.explain)

    until((root / "sweep_manifest.json").exists, slurm.explain)
    (cancelled,), (once,) = runs_of(root, "cancelled"), runs_of(root, "once")
    training = [run for how in INTERRUPTED for run in runs_of(root, how)]
    for run in (*training, cancelled, once):
        exists(root / run / "going", slurm)
    perform(
        "sbatch", "-p", "urgent", "-w", "p1", "--exclusive", "--wrap=sleep 1", "-o", "/dev/null"
    )
    for run in runs_of(root, "requeued"):
        perform("scontrol", "requeue", job_of(root, run))
    perform("scancel", job_of(root, cancelled))
    perform("scancel", "--signal=USR2", job_of(root, once))  # As Slurm does before the time is up.
    slurm.kill_node("l1")
    slurm.revive_node("l1")
    (stuck,), (advancing,) = runs_of(root, "stuck"), runs_of(root, "advancing")
    for starts, run in [(1, stuck), (1, advancing), (2, stuck), (2, advancing), (3, stuck)]:
        until(partial(has_started, root / run / "committed", starts), slurm.explain)
        perform("scontrol", "requeue", job_of(root, run))


def has_started(path: Path, times: int) -> bool:
    return path.exists() and len(path.read_text()) >= times


@dataclass(frozen=True)
class Disturbed:
    """A sweep that is run by a process, and disturbed by a thread."""

    root: Path
    going: subprocess.Popen[str]
    disturbance: Future[None]


@pytest.fixture(scope="module")
def disturbed(
    slurm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Disturbed]:
    """Start a sweep whose jobs are interrupted; it continues while other tests run."""
    directory = tmp_path_factory.mktemp("disturbed")
    grid = write_grid(
        directory, shell("true"), grid=disturbed_entries(), price="1 USD/h", ceiling="20 USD",
        timeout="10m", slurm={"partition": "disturbed", "time": "20m"},
    )  # fmt: skip
    harness = Harness(slurm_cluster.environ)
    with ThreadPoolExecutor(1) as thread:
        going, root = harness(grid), directory / "sweep"
        yield Disturbed(root, going, thread.submit(disturb, slurm_cluster, root))
    harness.close()


@pytest.fixture(scope="module")
def settled(disturbed: Disturbed) -> Path:
    """The directory of the disturbed sweep after its end."""
    disturbed.disturbance.result()
    code, printed = finish(disturbed.going)
    assert code == 1, printed  # Some of its runs fail.
    return disturbed.root


def test_runs_with_equal_options_are_submitted_as_one_array(
    slurm_cluster: Cluster, disturbed: Disturbed
) -> None:
    sizes = sorted([*ARRAYS * len(INTERRUPTED), 6, *[1] * 9])
    until(lambda: batch_sizes(disturbed.root) == sizes, slurm_cluster.explain)


def batch_sizes(root: Path) -> list[int]:
    """Return how many runs were submitted together, without those that were submitted again."""
    submitted = sorted((b for b in read_batches(root) if b.job), key=lambda batch: int(batch.job))
    seen: set[str] = set()
    sizes = []
    for batch in submitted:
        runs = {ticket.split("/")[1] for ticket in batch.tickets}
        sizes += [len(runs)] if runs - seen else []
        seen |= runs
    return sorted(sizes)


def test_the_toy_sweep_has_the_outcome_of_every_cluster(slurm: Cluster, tmp_path: Path) -> None:
    block = {"engine": "slurm", "slurm": {"partition": "main", "time": "10m"}}
    assert toy_outcome(tmp_path, block, slurm.environ, slurm.explain) == OUTCOME


@pytest.mark.usefixtures("slurm")
def test_detaching_names_the_runs_that_do_not_fit_the_ceiling(tmp_path: Path) -> None:
    entries = [{"params": {"x": 1}}, {"params": {"x": 2}, "timeout": "10h"}]
    grid = write_grid(
        tmp_path, shell("true"), grid=entries, price="36 USD/h", ceiling="20 USD", timeout="5m"
    )
    told = outlay("sweep", "run", grid, "--yes", "--detach")
    assert (told.code, "002_group01" in told.err) == (3, True), told.out + told.err
    looked = look_until(tmp_path / "sweep", lambda found: "completed" in found["counts"])
    assert [run["status"] for run in looked["runs"]] == ["completed", "skipped"]
    assert "asked > 20.00 USD" in looked["runs"][1]["reason"]


@pytest.mark.usefixtures("slurm")
def test_jobs_at_a_partitions_rate_draw_on_a_showback_book(
    team: TeamDatabase, tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", team.password)
    url = team.new_book().replace(f":{team.password}@", "@")
    name, unit = url.partition("book=")[2], "USD showback"
    team.execute(f"UPDATE outlay.book SET currency = '{unit}' WHERE name = '{name}'")
    BudgetGuard(50, url, currency=unit, environ={}).note("opened")
    (private_home / "rates.json").write_text('{"main": "36 USD/h"}')
    both = [{"params": {"x": [1, 2]}}]
    ceiling = {"book": url, "limit": "20 USD"}
    done = run_grid(tmp_path, shell("sleep 1"), grid=both, ceiling=ceiling, timeout="5m")
    assert done.counts == {"completed": 2}
    root, guard = tmp_path / "sweep", BudgetGuard.of_log(url, environ={})
    lines = guard.log.lines()
    assert {line.currency for line in lines} == {unit}
    captured = [micros_of(line.actual) for line in lines if isinstance(line, Captured)]
    rows = [read_figures(root / run, SYSTEM.wall_ns()) for run in done.manifest.runs]
    assert sorted(captured) == sorted(row.cost.micros for row in rows if row.cost is not None)
    assert (len(captured), guard.holds()) == (2, ())
    assert {row.kind for row in rows} == {"showback"}
    assert guard.verify(runs={row.run_id: Path(row.dir) for row in rows}).findings == ()


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
    grid = write_grid(tmp_path, shell(script), grid=[{"params": {"x": [1, 2, 3]}}], price="1 USD/h")
    left = outlay("sweep", "run", grid, "--yes", "--detach", "--json")
    assert (left.code, left.json["counts"]) == (0, {"running": 3}), left.err
    root = tmp_path / "sweep"
    exists(root / "001_group00_00" / "sweep_exit.json", slurm)
    looked = look_until(root, lambda found: "running on n" in found["runs"][2]["reason"])
    assert looked["counts"] == {"completed": 1, "running": 2}
    assert outlay("sweep", "cancel", root, "003_group00_02", "--json").json["jobs"] == 1
    look_until(
        root, lambda found: found["counts"] == {"completed": 1, "running": 1, "cancelled": 1}
    )
    assert outlay("sweep", "cancel", root, "--json").json == {"told": None, "jobs": 1}
    assert list(ends(root).values()) == [["completed"], ["cancelled"], ["cancelled"]]
    assert outlay("sweep", "aggregate", root, "--allow-missing").code == 0


def names_in_queue(slurm: Cluster) -> list[list[str]]:
    """Return what ``squeue`` shows of every job: its name and its comment."""
    asked = ("--noheader", "--array", "--states=PENDING,RUNNING", "--format=%j %k")
    shown = slurm.run("squeue", "--partition=main", *asked).stdout
    return sorted(line.split() for line in shown.splitlines())


def test_jobs_are_named_after_their_sweep_and_their_run(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    root = tmp_path / "sweep"
    alone = {"params": {"x": 0}, "slurm": {"extra": {"nice": "1"}}}
    harness(write_grid(tmp_path, shell("exec sleep 600"), grid=[alone, {"params": {"x": [1, 2]}}]))
    names = [FIRST, "002_group01_00", "003_group01_01"]
    expected = [[f"sweep-{name}", str(root)] for name in names]
    until(lambda: names_in_queue(slurm) == expected, lambda: str(names_in_queue(slurm)))
    assert outlay("sweep", "cancel", root, names[-1], "--json").json["jobs"] == 1


def test_an_array_that_waits_has_one_name(slurm: Cluster, tmp_path: Path) -> None:
    engine = SlurmEngine(tmp_path)
    for number in range(3):
        held_task(engine, tmp_path, number)
    engine.wait(0)
    assert names_in_queue(slurm) == [[f"{tmp_path.name}-3-runs", str(tmp_path)]] * 3


PAIR = ("001_group00_00", "002_group00_01")


def waiting_pair(slurm: Cluster, harness: Harness, tmp_path: Path) -> subprocess.Popen[str]:
    """Start a sweep of two runs that wait for a file ``go`` in its directory."""
    script = (
        "touch $OUTLAY_RUN_DIR/going; while ! test -e $OUTLAY_RUN_DIR/../go; do sleep 0.1; done"
    )
    going = harness(write_grid(tmp_path, shell(script), grid=[{"params": {"x": [1, 2]}}]))
    for run in PAIR:
        exists(tmp_path / "sweep" / run / "going", slurm)
    return going


def test_one_run_is_cancelled_beside_its_harness_and_the_others_continue(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    root, (first, second) = tmp_path / "sweep", PAIR
    going = waiting_pair(slurm, harness, tmp_path)
    assert outlay("sweep", "cancel", root, second, "--json").json["jobs"] == 1
    look_until(root, lambda found: found["counts"] == {"cancelled": 1, "running": 1})
    (root / "go").touch()
    assert finish(going)[0] == 1
    assert ends(root) == {second: ["cancelled"], first: ["completed"]}


def test_one_run_is_stopped_beside_its_harness_and_is_no_failure(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    root, (first, second) = tmp_path / "sweep", PAIR
    going = waiting_pair(slurm, harness, tmp_path)
    assert outlay("sweep", "stop", root, second).code == 0
    looked = look_until(root, lambda found: found["counts"] == {"cancelled": 1, "running": 1})
    assert looked["runs"][1]["reason"] == STOPPED_BY_PERSON
    (root / "go").touch()
    assert finish(going)[0] == 0
    assert ends(root) == {second: ["cancelled"], first: ["completed"]}


def test_a_stop_is_known_before_the_harness_records_it(
    slurm: Cluster, harness: Harness, tmp_path: Path
) -> None:
    root = tmp_path / "sweep"
    going = harness(write_grid(tmp_path, shell("touch $OUTLAY_RUN_DIR/going; sleep 1000")))
    exists(root / FIRST / "going", slurm)
    going.send_signal(signal.SIGSTOP)
    try:
        assert outlay("sweep", "stop", root, FIRST).code == 0
        assert outlay("sweep", "cancel", root, FIRST).code == 0
        looked = look_until(root, lambda found: found["counts"] == {"cancelled": 1})
        assert looked["runs"][0]["reason"] == STOPPED_BY_PERSON
    finally:
        going.send_signal(signal.SIGCONT)
    assert finish(going)[0] == 0
    assert ends(root) == {FIRST: ["cancelled"]}


def test_a_detached_run_is_stopped_for_good(slurm: Cluster, tmp_path: Path) -> None:
    script = "test {x} = 1 || exec sleep 600"
    grid = write_grid(tmp_path, shell(script), grid=[{"params": {"x": [1, 2]}}], price="1 USD/h")
    assert outlay("sweep", "run", grid, "--yes", "--detach").code == 0
    root = tmp_path / "sweep"
    exists(root / "001_group00_00" / "sweep_exit.json", slurm)
    look_until(root, lambda found: "running on n" in found["runs"][1]["reason"])
    assert outlay("sweep", "stop", root, "002_group00_01", "--json").json == {
        "told": None, "runs": 1,
    }  # fmt: skip
    assert outlay("sweep", "resume", root).code == 0
    status = outlay("sweep", "status", root, "--json").json["runs"][1]
    assert (status["status"], status["reason"], status["attempts"]) == (
        "cancelled", STOPPED_BY_PERSON, 1,
    )  # fmt: skip


def look_until(root: Path, condition: Callable[[Any], bool]) -> Any:
    """Poll the status of a sweep until it is as expected."""
    found: list[Any] = []

    def looks_right() -> bool:
        found.append(outlay("sweep", "status", root, "--json").json)
        return condition(found[-1])

    until(looks_right, lambda: str(found[-1]))
    return found[-1]


def _continues(run: dict[str, Any]) -> bool:
    return run["status"] in ("running", "queued")


def without_moments(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a sweep without its harness and without elapsed times."""
    # The head changes when the later poll captures what has ended.
    moving = ("harness", "running", "head")
    fixed = {name: value for name, value in status.items() if name not in moving}
    passing = ("elapsed_s", "running", "queue_s", "scheduling_goodput")
    fixed["runs"] = [
        {name: value for name, value in run.items() if name not in passing or not _continues(run)}
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
def test_the_same_grid_gives_the_same_summary_on_both_engines(tmp_path: Path) -> None:
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
    "time_minutes", "time_to_target_min", "queue_minutes", "scheduling_goodput",
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


# -- the runs of the disturbed sweep, last, so that other tests need not wait for them ------------


@pytest.mark.parametrize("how", INTERRUPTED)
def test_every_task_of_an_interrupted_array_continues(settled: Path, how: str) -> None:
    """Every task was started again exactly once, from its checkpoint; none is cancelled.

    It ends at the same step, under the same id, and the wait in the queue costs nothing.
    """
    runs = runs_of(settled, how)
    assert len(runs) == sum(ARRAYS)
    for run in runs:
        assert ends(settled)[run] == ["completed"]
        told = figures(settled / run)
        moments = read_times(settled / run, read_manifest(settled).state(run).ticket).events
        starts = [moment.restart for moment in moments if moment.what == "started"]
        assert (starts, told.attempts, told.steps) == ([0, 1], 2, 60)
        assert (told.tokens, told.status) == (6000, "completed")
        assert len({moment.job for moment in moments}) == 1
        assert ("lost" in {moment.what for moment in moments}) == (how == "lost")
        budget = read_document(settled / run)
        assert budget is not None
        assert budget["totals"]["tokens"] == 6000
        check_waits_are_recovery_and_free(settled / run)


def check_waits_are_recovery_and_free(run_dir: Path) -> None:
    """Between two starts of a job everything is ``recovery``, and none of it is charged."""
    phases = {row["phase"]: row for row in in_process("goodput", run_dir, "--json").json["phases"]}
    assert phases["recovery"]["ns"] > 0
    assert phases["recovery"]["cost"]["micros"] == 0


def test_one_failing_task_of_an_array_fails_alone_and_each_costs_its_own_time(
    settled: Path,
) -> None:
    manifest, runs = read_manifest(settled), runs_of(settled, "array")
    statuses = [manifest.state(run).status for run in runs]
    assert statuses == [*["completed"] * 4, "error", "completed"]
    assert manifest.state(runs[4]).reason == "exit code 3"
    assert (settled / runs[4] / "sweep.log").read_text() == "4\n"
    for run in runs:
        assert len(ends(settled)[run]) == 1
        state = manifest.state(run)
        ran_ns = read_times(settled / run, state.ticket).ran_ns()
        assert ran_ns > 0
        assert state.elapsed_ns == ran_ns
        assert state.cost_micros == round_units(ran_ns * 1_000_000)


def test_every_book_has_the_same_cost_of_every_run_and_no_hold_is_left(settled: Path) -> None:
    costs = assert_one_cost(settled)
    (refused,) = runs_of(settled, "refused")
    assert set(costs) == set(read_manifest(settled).runs) - {refused}
    holds, captures = entries_of(settled, "hold"), entries_of(settled, "capture")
    assert sorted(entry["hold"] for entry in holds) == sorted(entry["hold"] for entry in captures)


def entries_of(root: Path, kind: str) -> list[Any]:
    log = [json.loads(line) for line in (root / "spend.jsonl").read_text().splitlines()]
    return [entry for entry in log if entry["kind"] == kind]


def test_two_nodes_meet_by_torchrun(settled: Path) -> None:
    (run,) = runs_of(settled, "nodes")
    log = settled / run / "sweep.log"
    assert ends(settled)[run] == ["completed"], log.read_text()
    printed = log.read_text() + log.with_name("sweep.node1.log").read_text()
    assert "rank 0 of 2: 3.0" in printed
    assert "rank 1 of 2: 3.0" in printed
    command = read_manifest(settled).state(run).command
    assert command[1:4] == ["-m", "torch.distributed.run", "--nproc_per_node=1"]


@pytest.mark.parametrize(
    ("group", "statuses", "reason"),
    [
        ("killed", ["error", "completed"], ""),
        ("silent", ["completed"], ""),
        ("refused", ["skipped"], "asked > 20.00 USD"),
        ("cancelled", ["cancelled"], "cancelled in Slurm"),
        ("once", ["error"], "still not done when it had to end, and requeues is 0"),
        ("stuck", ["error"], "started again 2 times without progress, and still not done"),
        ("advancing", ["completed"], ""),
        ("ignoring", ["error"], "timeout: not done after 3.0s"),
        ("slow", ["error"], "timeout: not done after 1.0s"),
    ],
)
def test_a_job_ends_with_its_status_and_reason(
    settled: Path, group: str, statuses: list[str], reason: str
) -> None:
    (run,) = runs_of(settled, group)
    found = read_manifest(settled).state(run).reason
    assert ends(settled)[run] == statuses
    assert reason in found if reason else found == ""


def test_a_job_that_may_not_start_again_is_preempted_in_its_own_log(settled: Path) -> None:
    (run,) = runs_of(settled, "once")
    assert read_manifest(settled).state(run).returncode == 0
    assert figures(settled / run).status == "preempted"


def test_only_starts_without_progress_count_towards_the_limit(settled: Path) -> None:
    (stuck,), (advancing,) = runs_of(settled, "stuck"), runs_of(settled, "advancing")
    assert (settled / stuck / "committed").read_text() == "xxx"
    assert figures(settled / advancing).attempts == 3


def test_a_program_that_ignores_sigterm_costs_no_more_than_is_held_for_it(settled: Path) -> None:
    (run,) = runs_of(settled, "ignoring")
    (held,) = [entry for entry in entries_of(settled, "hold") if entry["op_label"] == run]
    (captured,) = [entry for entry in entries_of(settled, "capture") if entry["op_label"] == run]
    assert 3 < captured["actual"] <= held["estimated"]
