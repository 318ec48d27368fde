"""``outlay sweep stop``: single runs of a sweep are ended for good, and the others go on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_line import in_process, outlay
from halving_on_disk import HalvedSweep, decided_search
from outlay.budget.terms import Budget
from outlay.sweep.run.stops import requested_stops
from outlay.sweep.search.halving import Contest, decide
from outlay.sweep.search.search_options import Halving
from outlay.sweep.state.manifest import read_events, read_manifest
from outlay.sweep.state.outcomes import STOPPED_BY_PERSON, RungReport, RunState
from waiting import until

WAITS = "test -e {x}.again && exit 0; touch {x}.again; echo up; exec sleep 600"
"""A program that waits when it is started first."""


def write_grid(directory: Path, **more: object) -> Path:
    """Write a grid of three runs, of which the first waits until it is told to end."""
    grid = {
        "engine": "process", "arguments": "none", "output_dir": str(directory / "sweep"),
        "entrypoint": ["sh", "-c", f"test {{x}} = 1 || exit 0; {WAITS}"],
        "work_dir": str(directory), "grid": [{"params": {"x": [1, 2, 3]}}],
    }  # fmt: skip
    (directory / "grid.json").write_text(json.dumps(grid | more))
    return directory / "grid.json"


@contextmanager
def running(directory: Path, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run the sweep in a process of its own until its first run waits."""
    command = [sys.executable, "-m", "outlay", "sweep", "run", "--yes", "--json"]
    log = directory / "sweep" / "001_group00_00" / "sweep.log"
    with subprocess.Popen(
        [*command, str(write_grid(directory, **more))], stdout=subprocess.DEVNULL
    ) as harness:
        try:
            until(lambda: log.exists() and log.read_text() == "up\n", "it did not begin")
            yield harness
        finally:
            if harness.poll() is None:
                harness.kill()


def outcomes(root: Path) -> list[tuple[str, str]]:
    """Return the status of every run, and the reason for it."""
    manifest = read_manifest(root)
    return [(manifest.state(run).status, manifest.state(run).reason) for run in manifest.runs]


def starts(root: Path) -> list[str]:
    return [event.run for event in read_events(root) if event.status == "running"]


STOPPED, DONE = ("cancelled", STOPPED_BY_PERSON), ("completed", "")


def test_one_run_is_stopped_and_the_others_complete(tmp_path: Path) -> None:
    with running(tmp_path, price="36 USD/h", timeout="10m", ceiling="20 USD") as harness:
        assert outlay("sweep", "stop", tmp_path / "sweep", "001_group00_00").code == 0
        assert harness.wait() == 0
    assert outcomes(tmp_path / "sweep") == [STOPPED, DONE, DONE]
    assert read_manifest(tmp_path / "sweep").state("001_group00_00").cost_micros
    assert requested_stops(tmp_path / "sweep") == []


def test_a_stopped_run_is_resumed_only_if_asked(tmp_path: Path) -> None:
    root = tmp_path / "sweep"
    with running(tmp_path, retries=2) as harness:
        assert outlay("sweep", "stop", root, "001_group00_00").code == 0
        harness.wait()
    assert outlay("sweep", "resume", root, "--retry-failed").code == 0
    assert starts(root).count("001_group00_00") == 1
    assert outlay("sweep", "resume", root, "--retry-stopped").code == 0
    assert outcomes(root) == [DONE, DONE, DONE]


def test_a_run_that_waits_for_its_turn_is_not_started(tmp_path: Path) -> None:
    root = tmp_path / "sweep"
    with running(tmp_path) as harness:
        assert outlay("sweep", "stop", root, "002_group00_01").code == 0
        until(lambda: outcomes(root)[1] == STOPPED, "it is not stopped")
        assert outlay("sweep", "stop", root, "001_group00_00").code == 0
        assert harness.wait() == 0
    assert starts(root) == ["001_group00_00", "003_group00_02"]


def test_a_run_whose_harness_was_killed_stays_stopped(tmp_path: Path) -> None:
    root = tmp_path / "sweep"
    with running(tmp_path) as harness:
        harness.send_signal(signal.SIGKILL)
    assert outlay("sweep", "stop", root, "001_group00_00").code == 0
    assert outlay("sweep", "resume", root).code == 0
    assert outcomes(root) == [STOPPED, DONE, DONE]
    assert starts(root).count("001_group00_00") == 1


def test_a_paused_run_is_stopped_without_a_harness(tmp_path: Path) -> None:
    HalvedSweep(tmp_path).run(1, (0, "paused", 1, 0.5))
    shown = in_process("sweep", "stop", tmp_path, "001_a")
    assert (shown.code, "1 cancelled" in shown.out) == (0, True)
    assert outcomes(tmp_path) == [STOPPED]


def test_a_run_that_has_ended_cannot_be_stopped(tmp_path: Path) -> None:
    decided_search(tmp_path)
    shown = outlay("sweep", "stop", tmp_path, "003_a", "002_a")
    assert shown.code == 2
    assert "it is pruned" in shown.err
    assert requested_stops(tmp_path) == []


def test_stopping_a_run_that_a_sweep_does_not_have_names_those_it_has(tmp_path: Path) -> None:
    decided_search(tmp_path)
    shown = outlay("sweep", "stop", tmp_path, "nothing")
    assert (shown.code, "001_a" in shown.err) == (2, True)


def test_cancelling_a_single_local_run_names_the_command_that_can(tmp_path: Path) -> None:
    with running(tmp_path) as harness:
        shown = outlay("sweep", "cancel", tmp_path / "sweep", "001_group00_00", columns=200)
        assert (shown.code, "outlay sweep stop" in shown.err) == (2, True)
        harness.send_signal(signal.SIGINT)
        harness.wait()


def test_a_stopped_configuration_takes_no_place_in_the_next_rung() -> None:
    budgets = tuple(Budget.of("iso_tokens", {"max_tokens": each}) for each in (50, 100))
    runs = {name: [name] for name in ("a", "b")}
    contest = Contest(halving=Halving(rungs=budgets, factor=2), size=2, runs=runs, metric="loss")
    waiting = RunState(status="paused", reports={0: RungReport(metric=0.5, saved=True)})
    better = RunState(
        status="cancelled", reason=STOPPED_BY_PERSON,
        reports={0: RungReport(metric=0.1, saved=True)},
    )  # fmt: skip
    found = decide(contest, {"a": better, "b": waiting})
    assert (found.promoted, found.pruned) == ({"b": 1}, {})
