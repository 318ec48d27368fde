"""Jobs on a node that does not see the sweep's directory: what travels, and what is refused."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from network import require_hosts
from object_store_stand_in import ObjectStoreStandIn, object_store
from outlay.clock import SYSTEM, ManualClock
from outlay.proc.exit_record import exit_path
from outlay.runs.reading import read_figures
from outlay.sweep.engines.base import Task
from outlay.sweep.engines.ray.ray_engine import RayEngine
from outlay.sweep.engines.ray.ray_options import RayOptions
from outlay.sweep.engines.remote.job_spec import read_times
from ray_stand_in import RayStandIn, ray_stand_in
from sweep_process import end_of
from waiting import PATIENCE_S, until

UP = "echo up; while :; do sleep 0.1; done"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "sweep"
    root.mkdir()
    return root


@pytest.fixture
def ray(tmp_path: Path, root: Path) -> Iterator[RayStandIn]:
    """A node that has a home of its own, and sees the sweep's directory empty."""
    require_hosts()
    with ray_stand_in(tmp_path / "node", root) as ray:
        yield ray


@pytest.fixture
def store() -> Iterator[ObjectStoreStandIn]:
    with object_store() as store:
        yield store


@pytest.fixture
def engine(root: Path) -> Iterator[RayEngine]:
    engine = RayEngine(root)
    yield engine
    engine.close()


def job(engine: RayEngine, ray: RayStandIn, root: Path, to: str, *command: str, **env: str) -> Task:
    directory = root / "run"
    directory.mkdir(exist_ok=True)
    ship = {"OUTLAY_SHIP_TO": to, "OUTLAY_SHIP_EVERY": "0.2s"} if to else {}
    return Task(
        name="run", ticket=engine.new_ticket("run"), command=command, cwd=root,
        env={**os.environ, "OUTLAY_RUN_DIR": str(directory), **ship, **env}, directory=directory,
        log=directory / "sweep.log", options=RayOptions(address=ray.url),
    )  # fmt: skip


def test_output_and_outcome_come_home(
    ray: RayStandIn, engine: RayEngine, root: Path, store: ObjectStoreStandIn
) -> None:
    one = job(engine, ray, root, store.url, "/bin/sh", "-c", 'echo "in $OUTLAY_RUN_DIR"; exit 3')
    engine.submit(one)
    outcome = end_of(engine, one)
    assert (outcome.how, outcome.returncode, outcome.asked) == ("exited", 3, False)
    (event, _) = read_times(one.directory, one.ticket).events
    assert outcome.elapsed_ns == read_times(one.directory, one.ticket).ran_ns() > 0
    assert one.log.read_text() == f"in {event.apart}\n"
    assert Path(event.apart).parent == Path(ray.environ["OUTLAY_HOME"]) / "jobs"


def shell(script: str, *words: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script, *words)


def until_said(engine: RayEngine, one: Task, words: str) -> None:
    def said() -> bool:
        engine._poller.fetch(one.ticket)
        return one.log.exists() and words in one.log.read_text()

    until(said, lambda: f"{engine.standing(one.ticket)}")


def own_directory(ray: RayStandIn) -> Path:
    (found,) = Path(ray.environ["OUTLAY_HOME"], "jobs").iterdir()
    return found


# -- the log of a training ------------------------------------------------------------------------

TRAINING = (sys.executable, str(Path(__file__).parents[1] / "programs" / "cluster_run.py"), "2")
BUDGET = {"OUTLAY_BUDGET": "iso_tokens=1000", "OUTLAY_PRICE": "36 USD/h"}


def files_of(directory: Path) -> dict[str, bytes]:
    found = [*directory.glob("ledger/*.jsonl"), directory / "sweep.log", directory / "budget.json",
             directory / "ray_times.jsonl", directory / "ledger" / "run.json"]  # fmt: skip
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_the_figures_at_home_are_those_of_the_node(
    ray: RayStandIn, engine: RayEngine, root: Path, store: ObjectStoreStandIn
) -> None:
    one = job(engine, ray, root, store.url, *TRAINING, "0", **BUDGET)
    engine.submit(one)
    assert end_of(engine, one).returncode == 0
    now_ns = SYSTEM.wall_ns()
    figures = read_figures(one.directory, now_ns)
    assert (figures.tokens, figures.status) == (1000, "completed")
    on_node = read_figures(own_directory(ray), now_ns)
    assert msgspec.structs.replace(on_node, dir=figures.dir) == figures
    assert files_of(one.directory) == files_of(own_directory(ray))
    assert engine.poll(one.ticket) is None


@pytest.fixture
def later(root: Path, clock: ManualClock) -> Iterator[RayEngine]:
    """An engine for which time passes as fast as it waits."""
    engine = RayEngine(root, clock)
    yield engine
    engine.close()


def test_an_end_is_not_concluded_while_storage_is_away(
    ray: RayStandIn, later: RayEngine, root: Path, store: ObjectStoreStandIn
) -> None:
    one = job(later, ray, root, store.url, *shell("echo up; sleep 2; exit 5"))
    later.submit(one)
    until_said(later, one, "up")
    store.is_down = True
    process = ray.jobs[one.ticket.replace("/", "-")]
    until(lambda: process.poll() is not None, "it does not end")
    for _ in range(30):
        later.wait(60)
        assert later.poll(one.ticket) is None
    assert "cannot be read" in later.standing(one.ticket).text
    store.is_down = False
    until(lambda: exit_path(own_directory(ray)).exists(), "it recorded no end")
    until(lambda: later._poller.fetch(one.ticket) == 0, "not all of it is shipped")
    outcome = end_of(later, one)
    assert (outcome.how, outcome.returncode) == ("exited", 5)


def test_a_node_that_is_gone_is_settled_by_what_it_shipped(
    ray: RayStandIn, later: RayEngine, root: Path, store: ObjectStoreStandIn
) -> None:
    one = job(later, ray, root, store.url, *shell(UP))
    later.submit(one)
    until(lambda: later._poller.fetch(one.ticket) and ran_ns(one), "no sign of life")
    for pid in processes_of(ray):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not processes_of(ray), "a process is left")
    before_ns = later._clock.monotonic_ns()
    late_ns = later._poller.fetch(one.ticket)  # 0 if all had been shipped.
    outcome = end_of(later, one)
    waited_ns = later._clock.monotonic_ns() - before_ns
    assert outcome.how in ("lost", "preempted")
    assert outcome.elapsed_ns == ran_ns(one) > 0
    assert late_ns is not None
    assert waited_ns >= late_ns


def ran_ns(one: Task) -> int:
    return read_times(one.directory, one.ticket).ran_ns()


def processes_of(ray: RayStandIn) -> list[int]:
    """Return the live processes of the node, those that outlive a job included."""
    home = f"OUTLAY_HOME={ray.environ['OUTLAY_HOME']}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if home in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


# -- refusals -------------------------------------------------------------------------------------


def test_without_storage_it_is_refused_costs_nothing_and_says_what_to_do(
    ray: RayStandIn, engine: RayEngine, root: Path, tmp_path: Path
) -> None:
    one = job(engine, ray, root, "", "touch", str(tmp_path / "ran"))
    engine.submit(one)
    outcome = end_of(engine, one)
    assert (outcome.how, outcome.elapsed_ns) == ("not_started", 0)
    assert f"does not see {one.directory}" in outcome.reason
    assert "`ship: s3://bucket/runs`" in outcome.reason
    assert not (tmp_path / "ran").exists()


def test_storage_that_the_node_does_not_share_is_refused(
    ray: RayStandIn, engine: RayEngine, root: Path
) -> None:
    one = job(engine, ray, root, f"file://{root}/kept", "true")
    engine.submit(one)
    outcome = end_of(engine, one)
    assert outcome.how == "not_started"
    assert "`ship` must be storage that this machine and the nodes reach" in outcome.reason


def test_a_secret_is_in_no_object_and_no_request_and_must_be_on_the_node(
    ray: RayStandIn, engine: RayEngine, root: Path, store: ObjectStoreStandIn
) -> None:
    script = shell('case "$0" in "$HF_TOKEN") ;; *) exit 1 ;; esac', "s3cr3t-value")
    refused = job(engine, ray, root, store.url, *script, HF_TOKEN="s3cr3t-value")
    engine.submit(refused)
    outcome = end_of(engine, refused)
    assert outcome.how == "not_started"
    assert outcome.reason.startswith("HF_TOKEN is secret")
    ray.environ["HF_TOKEN"] = "s3cr3t-value"
    taken = job(engine, ray, root, store.url, *script, HF_TOKEN="s3cr3t-value")
    engine.submit(taken)
    assert end_of(engine, taken).returncode == 0
    assert b"s3cr3t" not in b"".join(store.objects.values())
    assert "s3cr3t" not in str(ray.bodies)


# -- marks ----------------------------------------------------------------------------------------


def test_a_job_that_ignores_a_stop_is_killed_by_a_mark_in_storage(
    ray: RayStandIn, engine: RayEngine, root: Path, store: ObjectStoreStandIn
) -> None:
    one = job(engine, ray, root, store.url, *shell(f"trap '' TERM; {UP}"))
    engine.submit(one)
    until_said(engine, one, "up")
    store.is_down = True
    engine.cancel(one.ticket, force=True)
    assert "cannot be written" in engine.standing(one.ticket).text
    store.is_down = False  # It is tried again.
    outcome = end_of(engine, one)
    assert (outcome.returncode, outcome.asked) == (-9, True)


def test_a_job_that_was_cancelled_while_it_waited_runs_nothing(
    ray: RayStandIn, engine: RayEngine, root: Path, store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    ray.is_full = True
    one = job(engine, ray, root, store.url, "touch", str(tmp_path / "ran"))
    engine.submit(one)
    engine.cancel(one.ticket)
    outcome = end_of(engine, one)
    assert (outcome.how, outcome.asked, outcome.elapsed_ns) == ("exited", True, 0)
    ray.start_job(ray.bodies[-1])  # As Ray does as soon as there is room.
    assert ray.jobs[ray.bodies[-1]["submission_id"]].wait(PATIENCE_S) == 143
    assert not (tmp_path / "ran").exists()


# -- again ----------------------------------------------------------------------------------------


def test_a_run_goes_on_where_its_directory_is_and_nowhere_else(
    ray: RayStandIn, engine: RayEngine, root: Path, store: ObjectStoreStandIn
) -> None:
    script = shell('echo x >> "$OUTLAY_RUN_DIR/seen"; cat "$OUTLAY_RUN_DIR/seen"')
    for lines in (1, 2):
        one = job(engine, ray, root, store.url, *script)
        engine.submit(one)
        assert end_of(engine, one).returncode == 0
        assert ray.bodies[-1].get("entrypoint_label_selector") == (
            None if lines == 1 else {"ray.io/node-id": "n1"}
        )
    assert one.log.read_text() == "x\n" + "x\nx\n"
    ray.nodes.clear()
    gone = job(engine, ray, root, store.url, *script)
    engine.submit(gone)
    outcome = engine.poll(gone.ticket)
    assert outcome is not None
    assert (outcome.how, len(ray.bodies)) == ("not_started", 2)
    assert "is on a node that is gone" in outcome.reason


def test_a_run_that_lost_its_directory_is_not_begun_anew(
    ray: RayStandIn, engine: RayEngine, root: Path, store: ObjectStoreStandIn
) -> None:
    one = job(engine, ray, root, store.url, "true")
    engine.submit(one)
    assert end_of(engine, one).returncode == 0
    shutil.rmtree(own_directory(ray))
    again = job(engine, ray, root, store.url, "true")
    engine.submit(again)
    outcome = end_of(engine, again)
    assert (outcome.how, outcome.elapsed_ns) == ("not_started", 0)
    assert "has lost its directory" in outcome.reason
