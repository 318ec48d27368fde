"""Runs that ship themselves, on nodes that are killed: what comes home, and what the books say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import scripts
from command_line import in_process as outlay
from object_store_stand_in import ObjectStoreStandIn, object_store
from outlay import run as outlay_run
from outlay.clock import SYSTEM
from outlay.ledger import segment_paths
from outlay.proc.identity import all_processes, below, command_line
from outlay.record.lock import RankLock
from outlay.runs.reading import read_figures
from outlay.shipping.shipper import ShippingProcess, ShippingTask
from outlay.shipping.storage import FetchedRun, NothingShipped, fetch_runs
from outlay.store.run_row import RunRow
from process_trees import alive, reaping
from waiting import PATIENCE_S, until

TRAIN = """
    import sys
    import outlay
    directory, start, stop, waits = sys.argv[1], *map(int, sys.argv[2:])
    with outlay.run("m", dir=directory, price="2 USD/h", gpus=4, budget="iso_tokens=1e6") as run:
        for step in run.steps(range(start, stop), tokens=10, start=start):
            run.metric("loss", 1 / (step + 1))
        if waits:
            print("trained", flush=True)
            sys.stdin.readline()
"""


@pytest.fixture
def store() -> Iterator[ObjectStoreStandIn]:
    with object_store() as opened:
        opened.is_write_only = True
        yield opened


def fetched(store: ObjectStoreStandIn, tmp_path: Path) -> FetchedRun | None:
    """Fetch the only run, as a machine that may read; None if nothing is there yet."""
    store.is_write_only = False
    try:
        found = fetch_runs(store.url, tmp_path / "home")
    except NothingShipped:
        return None
    finally:
        store.is_write_only = True
    assert found.findings == []
    return found.runs[0]


def is_home(store: ObjectStoreStandIn, tmp_path: Path, node: Path | None = None) -> bool:
    """Return whether all that was shipped is home; of a ``node``, all of its log."""
    run = fetched(store, tmp_path)
    if run is None or not run.is_complete:
        return False
    return node is None or sizes(run.dir) == sizes(node)


def sizes(run_dir: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in segment_paths(run_dir)}


def shippers(pid: int) -> list[int]:
    """Return the processes that ship for a training."""
    return [
        each
        for each in below(all_processes(), [pid])
        if "outlay.shipping" in str(command_line(each))
    ]


def figures(run_dir: Path, now_ns: int) -> RunRow:
    """Return all figures of a run, as if it were in the same place."""
    return msgspec.structs.replace(read_figures(run_dir, now_ns), dir="")


def train_in(
    directory: Path, store: ObjectStoreStandIn, *steps: int, every: str
) -> subprocess.Popen[str]:
    variables = {"OUTLAY_SHIP_TO": store.url, "OUTLAY_SHIP_EVERY": every}
    return scripts.start(TRAIN, directory, *steps, **variables)


def test_a_killed_training_comes_home_whole_and_so_does_its_next_attempt(
    store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    first = train_in(node, store, 0, 200, 1, every="100ms")
    scripts.wait_for(first, "trained")
    first.kill()
    first.communicate()
    until(lambda: is_home(store, tmp_path), "what the killed training left did not come home")
    second = train_in(node, store, 150, 300, 0, every="100ms")
    assert second.wait(PATIENCE_S) == 0
    second.communicate()
    until(lambda: is_home(store, tmp_path, node), "the next attempt did not come home")
    run = fetched(store, tmp_path)
    assert run is not None
    now_ns = SYSTEM.wall_ns()
    assert figures(run.dir, now_ns) == figures(node, now_ns)
    assert figures(node, now_ns).attempts == 2
    for path in segment_paths(node):
        assert (run.dir / "ledger" / path.name).read_bytes() == path.read_bytes()
    assert {method for method, _ in store.requests if method != "GET"} == {"PUT"}


def test_a_node_that_dies_loses_at_most_an_interval_and_the_books_say_so(
    store: ObjectStoreStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = tmp_path / "node"
    training = train_in(node, store, 0, 50, 1, every="1h")
    scripts.wait_for(training, "trained")
    until(lambda: any(path.endswith(".part") for path in store.objects), "nothing was shipped")
    (shipper,) = shippers(training.pid)
    os.kill(shipper, signal.SIGKILL)
    training.kill()
    training.communicate()
    until(lambda: not alive(shipper), "the shipper was not killed")
    with (node / "ledger" / segment_paths(node)[0].name).open("ab") as stream:
        stream.write(b"torn")
    store.is_write_only = False
    later_ns = SYSTEM.wall_ns() + 10**13
    monkeypatch.setattr("outlay.cli.importing.SYSTEM.wall_ns", lambda: later_ns, raising=False)
    said = outlay("import", "runs", store.url, "--to", tmp_path / "home", "--json").json
    (run,) = said["shipped"]
    assert not run["is_complete"]
    assert ["at most the last 3600 s" in found["message"] for found in said["findings"]] == [True]
    home, there = segment_paths(Path(run["dir"]))[0], segment_paths(node)[0]
    assert there.read_bytes().startswith(home.read_bytes())
    # The same node, started again, ships the rest of what was recorded then.
    again = train_in(node, store, 50, 60, 0, every="1h")
    assert again.wait(PATIENCE_S) == 0
    again.communicate()
    until(lambda: is_home(store, tmp_path), "the rest did not come home")
    assert home.read_bytes() == there.read_bytes()
    now_ns = SYSTEM.wall_ns()
    assert figures(home.parents[1], now_ns) == figures(node, now_ns)


def test_a_killed_shipper_is_replaced_by_that_of_the_next_attempt_without_its_state(
    store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    training = train_in(node, store, 0, 50, 1, every="50ms")
    scripts.wait_for(training, "trained")
    until(lambda: any(path.endswith(".part") for path in store.objects), "nothing was shipped")
    for pid in shippers(training.pid):
        os.kill(pid, signal.SIGKILL)
    training.communicate("\n")
    (node / "ledger" / "shipping.json").unlink(missing_ok=True)
    again = train_in(node, store, 50, 60, 0, every="50ms")
    assert again.wait(PATIENCE_S) == 0
    again.communicate()
    until(lambda: is_home(store, tmp_path), "the rest did not come home")
    now_ns = SYSTEM.wall_ns()
    run = fetched(store, tmp_path)
    assert run is not None
    assert figures(run.dir, now_ns) == figures(node, now_ns)


def test_the_end_of_a_run_waits_until_all_of_it_is_home(
    store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    training = train_in(tmp_path / "node", store, 0, 20, 0, every="1h")
    assert training.wait(PATIENCE_S) == 0
    was_home = is_home(store, tmp_path)
    _, said = training.communicate()
    assert was_home or "goes on for up to 300 s" in said  # The machine is busy.
    until(lambda: is_home(store, tmp_path), "it did not come home")


def test_a_storage_that_is_down_does_not_disturb_the_training(
    store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    store.is_down = True
    training = train_in(tmp_path / "node", store, 0, 20, 1, every="50ms")
    scripts.wait_for(training, "trained")
    until(lambda: len(store.requests) > 2, "nothing was tried")
    pids = shippers(training.pid)
    assert training.stdin is not None
    training.stdin.write("\n")
    training.stdin.flush()
    assert training.wait(PATIENCE_S) == 0
    store.is_down = False  # The process goes on without the run.
    until(lambda: is_home(store, tmp_path), "it did not go on")
    until(lambda: not any(map(alive, pids)), "it did not end")
    _, said = training.communicate()
    assert "cannot ship to" in said
    assert "goes on for up to 300 s" in said


RECORDING = "import outlay; outlay.run('m').close()"


@pytest.mark.parametrize("command", [["true"], [sys.executable, "-c", RECORDING]])
def test_a_command_of_exec_is_shipped_with_the_supervisors_end(
    store: ObjectStoreStandIn, tmp_path: Path, command: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "outlay", "exec", "--dir", tmp_path / "node", "--", *command],
        env=os.environ | {"OUTLAY_SHIP_TO": store.url}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    until(lambda: is_home(store, tmp_path), "it did not come home")
    now_ns = SYSTEM.wall_ns()
    run = fetched(store, tmp_path)
    assert run is not None
    assert figures(run.dir, now_ns).status == "completed"


def test_a_rank_that_goes_on_is_shipped_to_its_end(
    store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    training = train_in(node, store, 0, 5, 1, every="50ms")
    scripts.wait_for(training, "trained")
    lock = RankLock(node / "ledger", 1, holder="a test")
    pids = shippers(training.pid)
    training.communicate("\n")
    other = node / "ledger" / "00000000000000000009-h-9-r1.jsonl"
    other.write_bytes(b"recorded after rank 0 had ended\n")
    lock.release()
    until(lambda: not any(map(alive, pids)), "the shipper did not end")
    run = fetched(store, tmp_path)
    assert run is not None
    assert (run.dir / "ledger" / other.name).read_bytes() == other.read_bytes()


def test_the_end_of_a_run_does_not_wait_for_others_that_record_it(
    store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    outlay_run("m", dir=node).close()
    lock = RankLock(node / "ledger", 1, holder="a test")
    with reaping():
        shipping = ShippingProcess(ShippingTask(to=store.url), node)
        (pid,) = shippers(os.getpid())
        shipping.finish(PATIENCE_S)
        assert is_home(store, tmp_path)
        assert alive(pid)
        lock.release()


def test_without_a_destination_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    program = """
        import sys, threading
        import outlay
        with outlay.run("m", dir=sys.argv[1]) as run:
            for _ in run.steps(range(3)):
                pass
            assert threading.active_count() == 1
        assert not [name for name in sys.modules if "shipping" in name or "fsspec" in name]
    """
    done = scripts.finish(program, tmp_path / "run")
    assert done.returncode == 0, done.stderr
