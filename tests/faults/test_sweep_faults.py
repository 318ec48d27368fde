"""A harness that is killed again and again: every run completes once, none is lost, no orphan."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from command_line import outlay
from outlay.clock import SYSTEM
from outlay.proc.identity import marked
from outlay.sweep.engines.ports import Ports
from outlay.sweep.grid.files import plan_file
from outlay.sweep.run.harness import SweepOptions
from outlay.sweep.run.sweeps import start
from outlay.sweep.state.manifest import NAME, read_events, read_manifest
from outlay.sweep.state.outcomes import Event
from outlay.sweep.state.setup import holder_of
from waiting import until

RUNS = 24


def write_grid(tmp_path: Path) -> Path:
    script = 'cd "$MFCL_SWEEP_RUN_DIR"; echo >> started; sleep 0.1; echo >> done'
    grid = {
        "engine": "process",
        "arguments": "none",
        "entrypoint": ["sh", "-c", script],
        "output_dir": str(tmp_path / "sweep"),
        "price": "1 USD/h",
        "timeout": "60s",
        "ceiling": "5 USD",
        "grid": [{"params": {"x": list(range(RUNS))}}],
    }
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(grid))
    return path


def command(grid: Path, root: Path) -> list[str]:
    begun = (root / NAME).exists()
    what = ["resume", str(root)] if begun else ["run", "--yes", str(grid)]
    return [sys.executable, "-m", "outlay", "sweep", *what, "--jobs", "3"]


def kill_after(process: subprocess.Popen[bytes], root: Path, events: int) -> None:
    """Kill the harness after it has written this many more events, or let it end."""
    target = len(read_events(root)) + events
    while process.poll() is None and len(read_events(root)) < target:
        SYSTEM.sleep(0.005)
    process.kill()
    process.wait()


def test_a_harness_killed_at_random_points_loses_and_repeats_nothing(tmp_path: Path) -> None:
    grid, root = write_grid(tmp_path), tmp_path / "sweep"
    chance = random.Random(7)
    for _ in range(4):
        process = subprocess.Popen(command(grid, root), stdout=subprocess.DEVNULL)
        kill_after(process, root, chance.randint(1, 12))
        tickets = [e.ticket for e in read_events(root) if e.ticket]
        session = tickets[-1].split("/")[0] + "/" if tickets else "none/"
        until(partial(_is_unmarked, session), "a run outlived its harness")
        until(lambda: holder_of(root) is None, "the lock outlived its harness")
    done = subprocess.run(command(grid, root), stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
    manifest = read_manifest(root)
    assert len(manifest.runs) == RUNS
    assert {state.status for state in manifest.states.values()} == {"completed"}
    _each_completed_once(read_events(root))
    for run in manifest.runs:
        assert (root / run / "done").exists()
    _assert_every_hold_is_settled(root)


def _is_unmarked(mark: str) -> bool:
    return not marked(mark)


def _each_completed_once(events: list[Event]) -> None:
    """A completed run is never touched again, and every attempt began after the last had ended."""
    completed: set[str] = set()
    for event in events:
        assert event.run not in completed
        if event.status == "completed":
            completed.add(event.run)
    assert len(completed) == RUNS


def _assert_every_hold_is_settled(root: Path) -> None:
    entries = [json.loads(line) for line in (root / "spend.jsonl").read_text().splitlines()]
    held = {entry["hold"] for entry in entries if entry.get("kind") == "hold"}
    closed = [e["hold"] for e in entries if e.get("kind") in ("capture", "void")]
    assert held == set(closed)
    assert len(closed) == len(set(closed))


def test_the_manifest_agrees_with_the_journal_after_the_harness_was_killed(tmp_path: Path) -> None:
    grid, root = write_grid(tmp_path), tmp_path / "sweep"
    process = subprocess.Popen(command(grid, root), stdout=subprocess.DEVNULL)
    until(lambda: len(read_events(root)) >= 12, "nothing happened")
    process.kill()
    process.wait()

    def agrees() -> bool:
        written = json.loads((root / NAME).read_text())["runs"]
        known = read_manifest(root)
        return all(run["status"] == known.state(run["id"]).status for run in written)

    until(agrees, "the manifest stayed behind the journal")


def test_a_second_harness_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    path, root = write_grid(tmp_path), tmp_path / "sweep"
    wait = "cd $MFCL_SWEEP_RUN_DIR/..; touch up; until [ -e go ]; do sleep 0.05; done"
    grid = json.loads(path.read_text())
    grid |= {"entrypoint": ["sh", "-c", wait], "grid": [{"params": {"x": [1, 2]}}]}
    path.write_text(json.dumps(grid))
    first = subprocess.Popen(command(path, root), stdout=subprocess.DEVNULL)
    try:
        until((root / "up").exists, "the first run did not start")
        refused = outlay("sweep", "resume", root)
        (root / "go").touch()
        assert first.wait() == 0
    finally:
        first.kill()
        first.wait()
    assert refused.code == 1
    assert str(first.pid) in refused.err
    assert [event.status for event in read_events(root)].count("running") == 2


def test_a_run_that_is_killed_is_an_error_and_the_rest_continues(tmp_path: Path) -> None:
    grid = json.loads(write_grid(tmp_path).read_text())
    grid["entrypoint"] = ["sh", "-c", "test {x} != 1 || kill -9 $$"]
    grid["grid"] = [{"params": {"x": [0, 1, 2]}}]
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    start(plan_file(tmp_path / "grid.json"), None, SweepOptions(jobs=3))
    states = read_manifest(tmp_path / "sweep").states
    assert [s.status for _, s in sorted(states.items())] == ["completed", "error", "completed"]
    assert states["002_group00_01"].reason == "killed by SIGKILL"


class PortTaker:
    """Binds ports right after they were reserved, before the run can."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.taken: list[socket.socket] = []
        self.given: list[int] = []

    def reserve(self, ports: Ports) -> int:
        port = reserve(ports)
        self.given.append(port)
        if len(self.taken) < self.times:
            taker = socket.socket()
            taker.bind(("", port))
            taker.listen()
            self.taken.append(taker)
        return port


reserve = Ports.reserve


@pytest.fixture
def port_taker(monkeypatch: pytest.MonkeyPatch) -> Iterator[PortTaker]:
    one = PortTaker(times=1)
    monkeypatch.setattr(Ports, "reserve", lambda self: one.reserve(self))
    yield one
    for taker in one.taken:
        taker.close()


def test_a_port_taken_before_torchrun_gets_it_costs_no_retry(
    tmp_path: Path, port_taker: PortTaker
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("import os\nos.write(1, f'rank {os.environ[\"RANK\"]}\\n'.encode())\n")
    grid = {
        "entrypoint": [str(worker)], "arguments": "none", "output_dir": str(tmp_path / "sweep"),
        "grid": [{"nnodes": 1, "params": {"world_size": 2}}],
    }  # fmt: skip
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    result = start(plan_file(tmp_path / "grid.json"), None, SweepOptions())
    log = (tmp_path / "sweep" / "001_group00" / "sweep.log").read_text()
    assert result.counts == {"completed": 1}, log
    assert {"rank 0", "rank 1"} <= set(log.splitlines())
    first, failure, second, _ = read_events(result.root)
    assert first.env["MASTER_PORT"] == str(port_taker.given[0])
    assert failure.reason == f"its port {port_taker.given[0]} was taken (exit code 1)"
    assert second.env["MASTER_PORT"] == str(port_taker.given[1]) != first.env["MASTER_PORT"]


BIND = """
import os, socket
with socket.socket() as one:
    one.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
"""


@pytest.mark.parametrize(("times", "status"), [(3, "completed"), (9, "error")])
def test_a_run_is_tried_on_at_most_four_ports(
    tmp_path: Path, port_taker: PortTaker, times: int, status: str
) -> None:
    port_taker.times = times
    grid = json.loads(write_grid(tmp_path).read_text())
    grid |= {"entrypoint": [sys.executable, "-c", BIND], "grid": [{}]}
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    result = start(plan_file(tmp_path / "grid.json"), None, SweepOptions())
    assert result.counts == {status: 1}
    assert len(port_taker.given) == len(set(port_taker.given)) == 4
    _assert_every_hold_is_settled(result.root)


def test_a_failure_unrelated_to_the_port_is_not_retried(
    tmp_path: Path, port_taker: PortTaker
) -> None:
    port_taker.times = 0
    grid = json.loads(write_grid(tmp_path).read_text())
    grid |= {"entrypoint": ["sh", "-c", "echo address already in use: 80; exit 1"], "grid": [{}]}
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    result = start(plan_file(tmp_path / "grid.json"), None, SweepOptions())
    assert result.counts == {"error": 1}
    assert len(port_taker.given) == 1


def test_a_disk_that_fills_up_stops_the_sweep_and_loses_nothing(tmp_path: Path) -> None:
    """A file size limit instead of a full disk: the journal reaches it in the middle of a line."""
    limit = "import resource, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); "
    ignore = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    run = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    grid, root = write_grid(tmp_path), tmp_path / "sweep"
    stated = json.loads(grid.read_text())
    stated["grid"][0]["params"]["x"] = [0, 1, 2, 3, 4, 5, 6, 7]
    del stated["ceiling"]
    grid.write_text(json.dumps(stated))
    small = [sys.executable, "-c", limit + ignore + run, *command(grid, root)[1:]]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(small, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    again = subprocess.run(command(grid, root), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert {state.status for state in read_manifest(root).states.values()} == {"completed"}
