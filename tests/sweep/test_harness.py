"""The harness: concurrent runs, settlement, devices; and manifests of other versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from outlay.clock import ManualClock
from outlay.sweep.engines.base import Ended, Engine, Task, TaskStanding
from outlay.sweep.errors import EngineBroken, InvalidGrid, SweepInUse
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.plan.plan import SweepPlan
from outlay.sweep.plan.planning import make_plan
from outlay.sweep.run.devices import Tasks, check_fit, find_devices
from outlay.sweep.run.harness import Harness, SweepOptions
from outlay.sweep.run.settlement import SweepRecorder
from outlay.sweep.run.sweep_guard import SweepGuard, price_attempt
from outlay.sweep.state.manifest import Journal, read_events, read_manifest
from outlay.sweep.state.outcomes import RunState, RunVerdict
from outlay.sweep.state.setup import create, lock_sweep
from outlay.units import Money, Rate

NS = 10**9


@dataclass
class Endless:
    """A local engine whose tasks never end."""

    at_once: int
    submitted: list[str] = field(default_factory=list)
    remote: ClassVar[bool] = False

    def allow(self, jobs: int | None) -> int:
        return jobs or self.at_once

    def all_submitted(self) -> bool:
        return True

    def standing(self, ticket: str) -> TaskStanding:
        return TaskStanding(text=ticket)

    def new_ticket(self, name: str) -> str:
        return name

    def submit(self, task: Task) -> None:
        self.submitted.append(task.name)

    def wait(self, timeout_s: float) -> None:
        """Nothing ends."""

    def poll(self, ticket: str) -> Ended | None:
        del ticket
        return None

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """Nothing ends."""

    def reattach(self, task: Task) -> Ended | None:
        del task
        return None

    def close(self) -> None:
        """Nothing ends."""


class EndlessCluster(Endless):
    """A remote engine whose tasks never end."""

    remote = True


def plan_of(*entries: dict[str, Any]) -> SweepPlan:
    return make_plan(read_grid(json.dumps({"grid": entries}), source="g", default_name="g"))


@contextmanager
def queued(
    plan: SweepPlan, root: Path, clock: ManualClock, engines: Mapping[str, Engine]
) -> Iterator[Harness]:
    """A harness with the runs of a plan in its queue."""
    with closing(Journal(root)) as journal:
        harness = Harness(
            manifest=create(plan, root, {}, clock, cwd=root), journal=journal, engines=engines,
            tasks=Tasks(plan, root, root, {}), options=SweepOptions(clock=clock),
        )  # fmt: skip
        harness.enqueue(plan.runs)
        yield harness


@dataclass
class Scripted(Endless):
    """A local engine whose tasks end as stated; it breaks at the start of one."""

    ends: dict[str, Ended] = field(default_factory=dict)
    breaks_at: str = ""

    def submit(self, task: Task) -> None:
        if task.name == self.breaks_at:
            raise EngineBroken("no process can be started")

    def poll(self, ticket: str) -> Ended | None:
        return self.ends.get(ticket)


@pytest.mark.parametrize(
    ("returncode", "order"),
    [
        (0, ["001_group00_00 running", "002_group00_01 running", "001_group00_00 completed"]),
        (1, ["001_group00_00 running", "001_group00_00 error", "002_group00_01 running"]),
    ],
)
def test_the_next_run_waits_only_for_the_records_of_one_that_failed(
    tmp_path: Path, clock: ManualClock, returncode: int, order: list[str]
) -> None:
    plan = plan_of({"params": {"x": [1, 2]}})
    ended = Ended(how="exited", returncode=returncode)
    engine = Scripted(at_once=1, ends={"001_group00_00": ended})
    with queued(plan, tmp_path, clock, {"torchrun": engine, "process": engine}) as harness:
        harness.step()
        harness.step()
    assert [f"{event.run} {event.status}" for event in read_events(tmp_path)] == order


def test_an_end_is_recorded_if_the_next_run_cannot_be_started(
    tmp_path: Path, clock: ManualClock
) -> None:
    plan = plan_of({"params": {"x": [1, 2]}})
    ends = {"001_group00_00": Ended(how="exited", returncode=0)}
    engine = Scripted(at_once=1, ends=ends, breaks_at="002_group00_01")
    engines = {"torchrun": engine, "process": engine}
    with queued(plan, tmp_path, clock, engines) as harness, pytest.raises(EngineBroken):
        harness.step()
    assert read_events(tmp_path)[-1].status == "completed"


def test_runs_here_do_not_wait_for_those_of_a_cluster(tmp_path: Path, clock: ManualClock) -> None:
    plan = plan_of(
        {"engine": "slurm", "params": {"x": [1, 2, 3]}},
        {"engine": "process", "params": {"x": 4}},
        {"engine": "torchrun", "params": {"x": 5}},
    )
    engines = {
        "slurm": EndlessCluster(at_once=10**9),
        "process": Endless(at_once=1),
        "torchrun": Endless(at_once=1),
    }
    with queued(plan, tmp_path, clock, engines) as harness:
        assert harness.step()
    started = {name: len(engine.submitted) for name, engine in engines.items()}
    assert started == {"slurm": 3, "process": 1, "torchrun": 0}


@pytest.mark.parametrize(
    ("ended", "cost"),
    [
        (Ended(how="exited", elapsed_ns=3600 * NS), "2 USD"),
        (Ended(how="lost", elapsed_ns=1800 * NS), "1 USD"),  # Until its last sign of life.
        (Ended(how="lost", never_ran=True), "0 USD"),
        (Ended(how="lost"), None),
    ],
)
def test_an_attempt_without_a_log_costs_its_run_time_or_is_unknown(
    ended: Ended, cost: str | None, tmp_path: Path
) -> None:
    expected = None if cost is None else Money.parse(cost)
    assert price_attempt(tmp_path, RunState(), Rate.parse("2 USD/h"), ended).cost == expected


@pytest.mark.parametrize(("ran_h", "kinds"), [(0, ["hold", "void"]), (1, ["hold", "capture"])])
def test_a_job_that_could_not_be_started_again_pays_for_the_starts_before(
    ran_h: int, kinds: list[str], tmp_path: Path, clock: ManualClock
) -> None:
    plan = plan_of({"engine": "slurm", "price": "2 USD/h", "timeout": "2h", "params": {"x": 1}})
    (run,) = plan.runs
    manifest = create(plan, tmp_path, {}, clock, cwd=tmp_path)
    guard = SweepGuard(tmp_path, Money.parse("100 USD"), clock)
    hold = guard.open(run, "ticket", (), remote=True).hold
    recorder = SweepRecorder(manifest, None, guard)
    ended = Ended(how="not_started", reason="no such file", elapsed_ns=ran_h * 3600 * NS)
    recorder.settle(run.id, ended, RunVerdict("error"), remote=True, hold=hold)
    assert manifest.state(run.id).cost_micros == ran_h * 2_000_000
    assert guard.budget_guard.log.books().captured() == ran_h * 2_000_000
    assert not guard.budget_guard.holds()
    lines = (tmp_path / "spend.jsonl").read_text().splitlines()
    assert [kind for kind in (json.loads(line)["kind"] for line in lines) if kind in kinds] == kinds


def test_a_rewritten_manifest_keeps_unknown_keys_and_adds_none(
    tmp_path: Path, clock: ManualClock
) -> None:
    entry = {"engine": "slurm", "price": "2 USD/h", "env": {"A": 1}, "params": {"x": [1, 2]}}
    plan = plan_of(entry)
    create(plan, tmp_path, {}, clock, cwd=tmp_path)
    path = tmp_path / "sweep_manifest.json"
    document = json.loads(path.read_text())
    newer, older = document["runs"]
    newer |= {"document": "mine", "from_tomorrow": {"1": [None]}, "command": ["echo"]}
    for key in ("configuration", "stated", "most_gpus", "charged_gpus", "price_kind", "command"):
        del older[key]
    path.write_text(json.dumps(document))
    manifest = read_manifest(tmp_path, clock)
    manifest.write()
    assert json.loads(path.read_text()) == document
    read = [(run.rate, run.gpus_charged, run.params) for run in manifest.runs.values()]
    assert read == [(Rate.parse("2 USD/h"), 1, {"x": x}) for x in (1, 2)]


@pytest.mark.parametrize(
    ("stated", "visible", "expected"),
    [
        ("0,5", "1", ("0", "5")),
        (None, "1, 2", ("1", "2")),
        (None, "", None),
        (None, "-1", None),
        (None, "3,-1,4", ("3",)),
    ],
)
def test_the_allocated_gpus_are_those_that_cuda_would_see(
    stated: str | None, visible: str, expected: tuple[str, ...] | None
) -> None:
    assert find_devices(stated, {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_only_runs_of_this_machine_must_fit_on_its_gpus() -> None:
    plan = plan_of({"engine": "process", "params": {"world_size": 8}})
    check_fit(plan, ("0",), elsewhere=["process"])
    with pytest.raises(InvalidGrid, match="needs 8 GPUs here, and there are 1"):
        check_fit(plan, ("0",), elsewhere=[])


def test_a_sweep_is_free_when_what_a_killed_harness_was_starting_runs(tmp_path: Path) -> None:
    """From its fork to its program, a child has the lock of its parent."""
    program = """
import os, signal, subprocess, sys
from pathlib import Path
from outlay.sweep.state.setup import lock_sweep
lock = lock_sweep(Path(sys.argv[1]))
subprocess.Popen(["sleep", "1"], pass_fds=[lock.file], start_new_session=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    lock_sweep(tmp_path).release()


def test_a_sweep_that_a_live_process_runs_is_in_use_at_once(tmp_path: Path) -> None:
    with lock_sweep(tmp_path), pytest.raises(SweepInUse, match=f"process {os.getpid()}"):
        lock_sweep(tmp_path)
