"""Sweeps on a real Ray: who dies, who stops the spend, and what the books say of it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

import pytest

from object_store_stand_in import ObjectStoreStandIn, object_store
from outlay.clock import SYSTEM
from outlay.decoding import decode
from outlay.proc.identity import marked
from outlay.sweep.engines.base import Ended, Task
from outlay.sweep.engines.ray.ray_engine import RayEngine
from outlay.sweep.engines.ray.ray_options import RayOptions
from outlay.sweep.engines.remote.job_spec import JobEvent, read_times, spec_path
from outlay.sweep.run.sweep_guard import logged_cost
from outlay.sweep.state.manifest import read_manifest
from ray_cluster import RayCluster
from sweep_process import end_of
from toy_sweep import OUTCOME, toy_outcome
from waiting import until


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RayEngine]:
    engine = RayEngine(tmp_path)
    yield engine
    engine.close()


def job(
    engine: RayEngine,
    ray: RayCluster,
    root: Path,
    script: str,
    *words: str,
    name: str = "run",
    **options: Any,
) -> Task:
    directory = root / name
    directory.mkdir(exist_ok=True)
    return Task(
        name=name, ticket=engine.new_ticket(name), command=("/bin/sh", "-c", script, *words),
        env={**os.environ, "HF_TOKEN": "s3cr3t-value"}, cwd=root, directory=directory,
        log=directory / "sweep.log", options=RayOptions(address=ray.url, **options),
    )  # fmt: skip


def until_said(engine: RayEngine, one: Task, words: str) -> None:
    def said() -> bool:
        engine.wait(0)
        return one.log.exists() and words in one.log.read_text()

    until(said, lambda: f"{engine.standing(one.ticket)}")


def until_alive(engine: RayEngine, one: Task) -> None:
    """Wait for a job's first sign of life after its start."""

    def lives() -> bool:
        engine.wait(0.1)
        return read_times(one.directory, one.ticket).ran_ns() > 0

    until(lives, lambda: f"{engine.standing(one.ticket)}")


def node_process(one: Task) -> int:
    """Return the pid of the process that runs a job on its node."""
    path = str(spec_path(one.directory, one.ticket)).encode()
    found = [
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if path in _words(entry) and b"-m" in _words(entry)
    ]
    return min(found)  # Its second process, which waits for its end, is younger.


def _words(entry: Path) -> list[bytes]:
    try:
        return (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


LOST = "it recorded no end, and its scheduler has forgotten it"
UP = "echo up; while :; do sleep 0.1; done"
Victim = Literal["node-side process", "supervisor", "raylet", "whole node", "head"]


@pytest.mark.slow
def test_the_toy_sweep_has_the_outcome_of_every_cluster(ray: RayCluster, tmp_path: Path) -> None:
    block = {"engine": "ray", "ray": {"address": ray.url}}
    assert toy_outcome(tmp_path, block, {}, ray.explain) == OUTCOME


def test_a_stop_leaves_time_to_save_and_a_job_that_waits_runs_nothing(
    ray: RayCluster, engine: RayEngine, tmp_path: Path
) -> None:
    """Two jobs for several claims: one that needs a secret and saves, one that waits for it."""
    room = {"resources": {"node-w1": 60}}  # Of a hundred: two do not fit.
    script = f"""test "$HF_TOKEN" = "$0" || exit 1; trap 'sleep 5; echo saved; exit 0' TERM; {UP}"""
    first = job(engine, ray, tmp_path, script, "s3cr3t-value", name="first", **room)
    assert engine.allow(None) == 1
    engine.submit(first)
    until_said(engine, first, "up")
    assert_only_the_spec_has_the_secret(ray, first, tmp_path)
    waits = job(engine, ray, tmp_path, "echo ran", name="waits", **room)
    until(lambda: _polled(engine) and engine.allow(None) == 2, "the first counts as waiting")
    engine.submit(waits)
    until(lambda: _polled(engine) and "pending" in engine.standing(waits.ticket).text, "no status")
    assert engine.standing(waits.ticket).queued
    assert (engine.allow(None), engine.allow(0)) == (2, 0)
    engine.cancel(waits.ticket)
    outcome = end_of(engine, waits)
    assert (outcome.how, outcome.asked, outcome.elapsed_ns) == ("exited", True, 0)
    engine.cancel(first.ticket)
    outcome = end_of(engine, first)
    assert (outcome.returncode, outcome.asked) == (0, True)
    assert "saved" in first.log.read_text()
    assert not spec_path(first.directory, first.ticket).exists()
    # Ray itself starts the other one as soon as there is room.
    assert ray.ended(waits.ticket.replace("/", "-"))["status"] in ("FAILED", "STOPPED")
    assert not waits.log.exists()
    assert read_times(waits.directory, waits.ticket).ran_ns() == 0


def assert_only_the_spec_has_the_secret(ray: RayCluster, one: Task, root: Path) -> None:
    files = [path for path in root.rglob("*") if path.is_file()]
    holding = [path for path in files if b"s3cr3t" in path.read_bytes()]
    assert holding == [spec_path(one.directory, one.ticket)]
    assert holding[0].stat().st_mode & 0o077 == 0
    assert "s3cr3t" not in json.dumps(ray.job(one.ticket.replace("/", "-")))


def _polled(engine: RayEngine) -> bool:
    engine.wait(0)
    return True


# -- without a shared directory -----------------------------------------------------------------


@pytest.fixture
def store(ray: RayCluster, tmp_path: Path) -> Iterator[ObjectStoreStandIn]:
    """An object store, and nodes that share no directory of runs, neither with others nor here."""
    homes = ray.directory / ".local" / "share" / "outlay"
    hidden = (homes, tmp_path / "sweep", tmp_path / "run")
    for directory in hidden:
        directory.mkdir(parents=True, exist_ok=True)
    with ray.hiding(*hidden), object_store(ray.gateway) as store:
        yield store


def assert_all_came_home(ray: RayCluster, run: Path) -> None:
    """Check the files of a run against those of the node that wrote them."""
    first = decode((run / "ray_times.jsonl").read_bytes().splitlines()[0], JobEvent)
    there = ray.path_on(first.node, first.apart)
    files = [*there.glob("ledger/*.jsonl"), *there.glob("*.jsonl"), *there.glob("sweep*")]
    written = {path.relative_to(there): path.read_bytes() for path in files if path.stat().st_size}
    assert {path: (run / path).read_bytes() for path in written} == written != {}
    charged = logged_cost(there)
    assert charged is None or logged_cost(run) == charged


def test_the_toy_sweep_has_the_same_outcome_without_a_shared_directory(
    ray: RayCluster, store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    """Each training fills a node, so that there are two; the harness dies meanwhile."""
    block = {
        "engine": "ray", "ray": {"address": ray.url, "num_cpus": 2},
        "ship": {"to": store.url, "every": "1s"},
    }  # fmt: skip
    assert toy_outcome(tmp_path, block, {}, ray.explain, pause_s=2) == OUTCOME
    nodes = set()
    for run in OUTCOME[1]:
        if (times := tmp_path / "sweep" / run / "ray_times.jsonl").exists():
            assert_all_came_home(ray, times.parent)
            nodes |= {decode(times.read_bytes().splitlines()[0], JobEvent).node}
    assert len(nodes) > 1
    state = read_manifest(tmp_path / "sweep").state("001_trains_00")
    cost = logged_cost(tmp_path / "sweep" / "001_trains_00")
    assert cost is not None
    assert state.logged_micros == cost.micros > 0


def test_what_a_killed_job_recorded_comes_home_and_it_goes_on_where_its_directory_is(
    ray: RayCluster, store: ObjectStoreStandIn, engine: RayEngine, tmp_path: Path
) -> None:
    """The connection to the storage is cut in the middle of what it recorded last."""
    one = job(engine, ray, tmp_path, f'touch "$OUTLAY_RUN_DIR/seen"; setsid sleep 600 & {UP}')
    ship = {"OUTLAY_SHIP_TO": store.url, "OUTLAY_SHIP_EVERY": "1s"}
    env = {name: value for name, value in one.env.items() if name != "HF_TOKEN"}
    one = replace(one, env={**env, **ship, "OUTLAY_RUN_DIR": str(one.directory)})
    engine.submit(one)
    until_alive(engine, one)
    store.to_cut = 3
    os.kill(node_process(one), signal.SIGKILL)
    until(lambda: not marked(one.ticket), "a process is left")
    outcome = end_of(engine, one)
    assert outcome.how in ("preempted", "lost")
    assert_all_came_home(ray, one.directory)
    assert outcome.elapsed_ns == read_times(one.directory, one.ticket).ran_ns() > 0
    script = ("/bin/sh", "-c", 'test -e "$OUTLAY_RUN_DIR/seen"')
    again = replace(one, ticket=engine.new_ticket("run"), command=script)
    engine.submit(again)
    assert end_of(engine, again).returncode == 0
    assert_all_came_home(ray, one.directory)


# -- who dies: last, as a cluster that was killed takes jobs only to see that it is back ----------


def kill(ray: RayCluster, engine: RayEngine, one: Task, victim: Victim) -> None:
    """Kill -9 something that a job on w1 depends on; a head that was killed comes back."""
    match victim:
        case "node-side process":
            os.kill(node_process(one), signal.SIGKILL)
        case "supervisor":
            os.kill(parent_of(node_process(one)), signal.SIGKILL)
        case "raylet":
            os.kill(ray.nodes["w1"].pid_of("raylet"), signal.SIGKILL)
        case "whole node":
            ray.kill_node("w1")
        case "head":
            ray.kill_node("head")
            engine.wait(0.1)
            assert engine.poll(one.ticket) is None  # Nobody answers.
            ray.start_head()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def start(engine: RayEngine, ray: RayCluster, root: Path, *, name: str, node: str) -> Task:
    """Start a job on a node that leaves a process of its own behind."""
    script = f"setsid sleep 600 & {UP}"
    one = job(engine, ray, root, script, name=name, label_selector={"node": node})
    engine.submit(one)
    until_said(engine, one, "up")
    return one


def outcome_after_kill(engine: RayEngine, one: Task) -> Ended:
    """Whatever was killed, no process is left, and the job is charged to its last sign of life."""
    outcome = end_of(engine, one)
    until(lambda: not marked(one.ticket), "a process is left")
    assert outcome.elapsed_ns == read_times(one.directory, one.ticket).ran_ns()
    return outcome


def test_nothing_outlives_a_kill_and_jobs_are_charged_to_their_last_sign_of_life(
    ray: RayCluster, engine: RayEngine, tmp_path: Path
) -> None:
    """The kills of a job's supervisor and a raylet at once, and that of the head after them."""
    nodes: dict[Victim, str] = {"supervisor": "w2", "raylet": "w1", "head": "w2"}
    jobs = {
        victim: start(engine, ray, tmp_path, name=victim, node=node)
        for victim, node in nodes.items()
    }
    for one in jobs.values():
        until_alive(engine, one)
    for victim in ("supervisor", "raylet"):
        kill(ray, engine, jobs[victim], victim)
    found = [outcome_after_kill(engine, jobs[victim]) for victim in ("supervisor", "raylet")]
    assert {outcome.how for outcome in found} <= {"preempted", "lost"}
    kill(ray, engine, jobs["head"], "head")
    forgotten = outcome_after_kill(engine, jobs["head"])
    assert (forgotten.how, forgotten.reason) == ("lost", LOST)
    assert all(outcome.elapsed_ns > 0 for outcome in (*found, forgotten))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("victim", get_args(Victim))
def test_a_kill_at_any_moment_leaves_nothing(
    ray: RayCluster, engine: RayEngine, tmp_path: Path, victim: Victim, number: int
) -> None:
    one = start(engine, ray, tmp_path, name="run", node="w1")
    SYSTEM.sleep(Random(f"{victim} {number}").uniform(0, 12))
    kill(ray, engine, one, victim)
    assert outcome_after_kill(engine, one).how in ("preempted", "lost")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_a_harness_that_is_killed_at_any_moment_changes_no_outcome(
    ray: RayCluster, tmp_path: Path, number: int
) -> None:
    block = {"engine": "ray", "ray": {"address": ray.url}}
    after_s = Random(number).uniform(0, 4)
    assert toy_outcome(tmp_path, block, {}, ray.explain, kill_after_s=after_s) == OUTCOME
