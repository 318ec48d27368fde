"""Processes that try to escape their keeper while supervisor or keeper are killed: all are real."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import Background, in_process, outlay, start_outlay
from outlay.guard.budget_guard import BudgetGuard
from outlay.ledger import AttemptEnded, AttemptStarted, Heartbeat, Record, read_run
from process_trees import alive, keepers_of, reaping
from waiting import until

PROGRAM = Path(__file__).parent.parent / "programs" / "escape.py"
ESCAPES = ("empty-environment", "renamed", "double-fork", "chain")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="child subreapers are Linux's")


@pytest.fixture(params=["with a control group", "without a control group"])
def cgroup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with a control group, where one may be made here, and once without."""
    if request.param == "without a control group":
        monkeypatch.setenv("OUTLAY_CGROUP", "0")


class Escape:
    """One command that tries to escape, and the supervisor that started it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = directory / "lock"
        self.ready = directory / "ready"
        self.supervisor: Background | None = None

    def command(self, mode: str, *more: str) -> list[str]:
        return [sys.executable, str(PROGRAM), mode, str(self.lock), str(self.ready), *more]

    def start(self, *words: str) -> Background:
        """Start outlay in the background; return once the command has detached."""
        # In a session of its own: a stopped member of an orphaned group makes the kernel hang up
        # the whole group.
        self.supervisor = start_outlay(*words)
        until(lambda: self.ready.exists() and self.ready.read_text(), "the command to start")
        return self.supervisor

    def keeper(self) -> int:
        assert self.supervisor is not None
        (keeper,) = keepers_of(self.supervisor.pid)
        return keeper

    def is_gone(self) -> bool:
        """Whether everything that shares the lock is dead."""
        if not self.lock.exists():
            return True
        with self.lock.open() as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True


@pytest.fixture
def escape(tmp_path: Path) -> Iterator[Escape]:
    one = Escape(tmp_path)
    yield one
    if one.supervisor is not None:
        one.supervisor.send_signal(signal.SIGKILL)
        one.supervisor.wait()
    if not one.is_gone():  # A test failed: leave nothing behind that it started.
        for stat in Path("/proc").glob("[0-9]*/fd/*"):
            try:
                if stat.readlink() == one.lock:
                    os.kill(int(stat.parts[2]), signal.SIGKILL)
            except OSError:
                continue


def guard_run(tmp_path: Path, *more: str) -> tuple[str, ...]:
    log = str(tmp_path / "spend.jsonl")
    terms = ("--rate", "3600 USD/h", "--notice", "200ms", "--slice", "60s", "--ceiling", "1000")
    return ("guard", "run", "--label", "lab02", *terms, "--log", log, *more, "--")


@pytest.mark.usefixtures("cgroup")
@pytest.mark.parametrize("mode", ESCAPES)
def test_what_a_command_leaves_behind_ends_with_it(
    escape: Escape, tmp_path: Path, mode: str
) -> None:
    done = in_process(*guard_run(tmp_path), *escape.command(mode))
    assert done.code == 0, done.err
    assert escape.is_gone()
    assert "left processes behind" in done.err


@pytest.mark.usefixtures("cgroup")
@pytest.mark.parametrize("mode", ESCAPES)
def test_no_process_escapes_when_the_supervisor_is_killed(
    escape: Escape, tmp_path: Path, mode: str
) -> None:
    supervisor = escape.start(*guard_run(tmp_path), *escape.command(mode, "stay"))
    supervisor.send_signal(signal.SIGKILL)
    until(escape.is_gone, "the escaped process to die")
    guard = BudgetGuard(1000, tmp_path / "spend.jsonl", environ={})
    assert (guard.held, guard.total_spent) == (60.2, 0.0)


@pytest.mark.usefixtures("cgroup")
def test_a_stopped_keeper_is_woken_when_the_supervisor_dies(escape: Escape, tmp_path: Path) -> None:
    supervisor = escape.start(*guard_run(tmp_path), *escape.command("double-fork", "stay"))
    supervisor.send_signal(signal.SIGSTOP)  # So that it is not the supervisor who wakes it.
    os.kill(escape.keeper(), signal.SIGSTOP)
    supervisor.send_signal(signal.SIGKILL)
    until(escape.is_gone, "the command to die")


def test_a_keeper_that_is_killed_leaves_its_command_to_the_supervisor(
    escape: Escape, tmp_path: Path
) -> None:
    supervisor = escape.start(*guard_run(tmp_path), *escape.command("double-fork", "stay"))
    first = escape.keeper()
    os.kill(first, signal.SIGKILL)
    until(lambda: set(keepers_of(supervisor.pid)) - {first}, "another keeper")
    assert not escape.is_gone()
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait() == 128 + signal.SIGTERM
    assert escape.is_gone()
    guard = BudgetGuard(1000, tmp_path / "spend.jsonl", environ={})
    assert guard.total_spent > 0
    assert guard.held == 0.0


@pytest.mark.usefixtures("cgroup")
def test_a_word_in_a_command_line_spares_no_process(escape: Escape, tmp_path: Path) -> None:
    """Here the name of the module that watches rentals."""
    done = in_process(*guard_run(tmp_path), *escape.command("named-like-a-watcher"))
    assert done.code == 0, done.err
    assert escape.is_gone()


@pytest.mark.usefixtures("cgroup")
def test_a_registered_process_outlives_the_command_with_its_own_children(
    escape: Escape, tmp_path: Path
) -> None:
    with reaping():
        done = in_process(*guard_run(tmp_path), *escape.command("registered"))
        assert done.code == 0, done.err
        watcher, child = map(int, escape.ready.read_text().split())
        assert alive(watcher)
        assert alive(child)
        for pid in (watcher, child):
            os.kill(pid, signal.SIGKILL)


def kill_both(escape: Escape) -> None:
    """Kill supervisor and keeper a few microseconds apart, so that neither deals with the other.

    Neither is stopped before: the kernel hangs up an orphaned group of which one is stopped.
    """
    assert escape.supervisor is not None
    keeper, supervisor = escape.keeper(), escape.supervisor
    with contextlib.suppress(PermissionError):  # Where we may: nobody who wakes goes before us.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.kill(keeper, signal.SIGKILL)
    os.kill(supervisor.pid, signal.SIGKILL)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    supervisor.wait()
    until(lambda: not alive(keeper), "the keeper to die")


@pytest.mark.usefixtures("cgroup")
def test_the_next_command_names_ends_and_bills_an_orphaned_command(
    escape: Escape, tmp_path: Path
) -> None:
    escape.start(*guard_run(tmp_path), *escape.command("plain"))
    kill_both(escape)
    assert not escape.is_gone()
    shown = outlay("guard", "status", "--log", tmp_path / "spend.jsonl")
    assert escape.ready.read_text() in shown.err
    assert "its supervisor and its keeper were killed" in shown.err
    assert escape.is_gone()
    guard = BudgetGuard(1000, tmp_path / "spend.jsonl", environ={})
    assert guard.total_spent > 0
    assert guard.holds() == ()


# -- outlay exec: training is not disturbed, and still recorded -------------------------------

WAITS = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
WAITS += "while not os.path.exists(sys.argv[2]): time.sleep(0.02)\nsys.exit(7)"


def records(run: Path, kind: type[Record]) -> list[Record]:
    return [record for record in read_run(run).records if isinstance(record, kind)]


def start_exec(escape: Escape, tmp_path: Path) -> int:
    """Start a command that ends with 7 once a file is there; return its number."""
    command = (sys.executable, "-c", WAITS, str(escape.ready), str(tmp_path / "go"))
    escape.start("exec", "--dir", str(tmp_path / "r"), "--price", "3600 USD/h", "--", *command)
    return int(escape.ready.read_text())


def test_the_budget_of_an_orphaned_exec_is_enforced_once_it_is_found(
    escape: Escape, tmp_path: Path
) -> None:
    command = (sys.executable, "-c", WAITS, str(escape.ready), str(tmp_path / "go"))
    budget = ("--budget", "iso_time=3s", "--notice", "1s")
    escape.start("exec", "--dir", str(tmp_path / "r"), *budget, "--", *command)
    kill_both(escape)
    pid = int(escape.ready.read_text())
    outlay("runs", tmp_path / "r")
    until(lambda: records(tmp_path / "r", AttemptEnded), "its end to be recorded")
    (end,) = records(tmp_path / "r", AttemptEnded)
    assert isinstance(end, AttemptEnded)
    assert (end.status, end.reason[:12]) == ("terminated", "budget: time")
    assert not alive(pid)


def row(tmp_path: Path) -> dict[str, object]:
    (found,) = outlay("runs", tmp_path / "r", "--json").json["runs"]
    return dict(found)


def test_a_command_continues_and_is_recorded_when_exec_is_killed(
    escape: Escape, tmp_path: Path
) -> None:
    pid = start_exec(escape, tmp_path)
    assert escape.supervisor is not None
    escape.supervisor.send_signal(signal.SIGKILL)
    until(lambda: records(tmp_path / "r", Heartbeat), "the successor to record")
    assert alive(pid)
    assert row(tmp_path)["status"] == "running"
    (tmp_path / "go").touch()
    until(lambda: records(tmp_path / "r", AttemptEnded), "its end to be recorded")
    (end,) = records(tmp_path / "r", AttemptEnded)
    assert isinstance(end, AttemptEnded)
    assert (end.status, end.exit_code) == ("failed", 7)
    assert len(records(tmp_path / "r", AttemptStarted)) == 1
    assert read_run(tmp_path / "r").findings == []


def test_a_command_keeps_its_exit_code_when_its_keeper_is_killed(
    escape: Escape, tmp_path: Path
) -> None:
    pid = start_exec(escape, tmp_path)
    os.kill(escape.keeper(), signal.SIGKILL)
    assert escape.supervisor is not None
    assert alive(pid)
    (tmp_path / "go").touch()
    assert escape.supervisor.wait() == 7


def test_a_commands_end_is_recorded_when_its_keeper_and_later_exec_are_killed(
    escape: Escape, tmp_path: Path, private_home: Path
) -> None:
    pid, first = start_exec(escape, tmp_path), escape.keeper()
    (record,) = (private_home / "kept").iterdir()
    os.kill(first, signal.SIGKILL)
    until(lambda: json.loads(record.read_text())["keeper"]["pid"] != first, "another keeper")
    assert escape.supervisor is not None
    escape.supervisor.send_signal(signal.SIGKILL)
    until(lambda: records(tmp_path / "r", Heartbeat), "the successor to record")
    assert alive(pid)
    (tmp_path / "go").touch()
    until(lambda: records(tmp_path / "r", AttemptEnded), "its end to be recorded")
    (end,) = records(tmp_path / "r", AttemptEnded)
    assert isinstance(end, AttemptEnded)
    assert (end.status, end.exit_code) == ("failed", None)


def test_the_next_command_names_an_orphaned_exec_and_records_it_again(
    escape: Escape, tmp_path: Path
) -> None:
    pid = start_exec(escape, tmp_path)
    kill_both(escape)
    shown = outlay("runs", tmp_path / "r")
    assert f"process {pid} ({sys.executable}) is still running" in shown.err
    until(lambda: records(tmp_path / "r", Heartbeat), "the successor to record")
    assert alive(pid)
    assert row(tmp_path)["status"] == "running"
    (tmp_path / "go").touch()
    until(lambda: records(tmp_path / "r", AttemptEnded), "its end to be recorded")
    assert len(records(tmp_path / "r", AttemptStarted)) == 1
    assert outlay("runs", tmp_path / "r").err == ""
