"""A test that leaves something behind fails, and the failure says what."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import leftovers
from foster_parent import FosterParent
from outlay.proc.identity import command_line, own_children, set_subreaper
from papers import ROOT
from process_trees import alive
from waiting import until

Leave = Callable[[ExitStack], object]
"""Leaves something behind, and says in the stack how it is removed."""


def thread(cleanup: ExitStack) -> None:
    end = threading.Event()
    stays = threading.Thread(target=end.wait, name="alert-rounds", daemon=True)
    stays.start()
    cleanup.callback(stays.join)
    cleanup.callback(end.set)


def child(cleanup: ExitStack) -> None:
    process = subprocess.Popen(["sleep", "1000"])
    cleanup.callback(process.wait)
    cleanup.callback(process.kill)
    until(lambda: "sleep" in command_line(process.pid), "it did not start")


def zombie(cleanup: ExitStack) -> None:
    process = subprocess.Popen(["true"])
    cleanup.callback(process.wait)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def handler(cleanup: ExitStack) -> None:
    cleanup.callback(signal.signal, signal.SIGUSR1, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, lambda *_: None)


def new_variable(cleanup: ExitStack) -> None:
    cleanup.callback(os.environ.pop, "OUTLAY_LEFT")
    os.environ["OUTLAY_LEFT"] = "yes"


def removed_variable(cleanup: ExitStack) -> None:
    cleanup.callback(os.environ.__setitem__, "OUTLAY_HOME", os.environ.pop("OUTLAY_HOME"))


def lock(cleanup: ExitStack) -> None:
    number = os.open("locked", os.O_CREAT | os.O_RDWR)
    cleanup.callback(os.close, number)
    fcntl.flock(number, fcntl.LOCK_EX)


def inherited_lock(cleanup: ExitStack) -> None:
    """A child that was forked under a lock holds it after this process closed the file."""
    reading, writing = os.pipe()
    with Path("locked").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if (pid := os.fork()) == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    os.close(reading)
    cleanup.callback(os.waitpid, pid, 0)
    cleanup.callback(os.close, writing)


def directory(cleanup: ExitStack) -> None:
    cleanup.callback(os.chdir, Path.cwd())
    os.chdir("/")


def umask(cleanup: ExitStack) -> None:
    cleanup.callback(os.umask, os.umask(0o057))


def hook(cleanup: ExitStack) -> None:
    cleanup.callback(setattr, threading, "excepthook", threading.excepthook)
    threading.excepthook = lambda _: None


def level(cleanup: ExitStack) -> None:
    cleanup.callback(logging.disable, logging.NOTSET)
    logging.disable(logging.CRITICAL)


@pytest.mark.parametrize(
    ("leave", "named"),
    [
        (thread, "thread alert-rounds"),
        (child, "child [0-9]+: sleep 1000"),
        (zombie, "child [0-9]+: ended, and nobody waited for it"),
        (handler, "handler of SIGUSR1: <function"),
        (new_variable, "variable OUTLAY_LEFT: yes, was not set"),
        (removed_variable, "variable OUTLAY_HOME: not set, was /"),
        (lock, "lock FLOCK [0-9a-f:]+ .*locked"),
        (inherited_lock, "lock FLOCK [0-9a-f:]+"),
        (directory, "setting directory: /, was /."),
        (umask, "setting umask: 0057, was 0"),
        (hook, "setting threading.excepthook: "),
        (level, "setting logging.disable: 50, was 0"),
    ],
)
def test_what_stays_is_named(
    leave: Leave, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        ExitStack() as cleanup,
        pytest.raises(AssertionError, match=f"left behind: .*{named}"),
        leftovers.nothing_stays(patience_s=0),
    ):
        leave(cleanup)


def test_what_is_about_to_end_may_take_its_time() -> None:
    begun = threading.Event()

    def end_late() -> None:
        begun.wait()
        subprocess.run(["sleep", "0.2"], check=True)

    with leftovers.nothing_stays():
        threading.Thread(target=end_late, daemon=True).start()
        begun.set()


def test_a_daemon_s_orphans_are_not_adopted_by_a_test_that_supervises(tmp_path: Path) -> None:
    """slurmd disowns each slurmstepd at its start, and a killed one its programs."""
    parent, said = FosterParent(), tmp_path / "said"
    was = set_subreaper(on=True)
    try:
        pid = parent.start("sh", "-c", "sleep 1000 & echo $!", env=os.environ, output=said)
        until(lambda: said.exists() and said.read_text().endswith("\n"), "nothing was said")
        until(lambda: not alive(pid), "the daemon does not end")
        orphan = int(said.read_text())
        assert orphan not in own_children()
        os.kill(orphan, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{orphan}").exists(), "it was not reaped")
    finally:
        set_subreaper(on=was)
        parent.end()


def test_what_a_wider_fixture_starts_may_stay() -> None:
    with ExitStack() as cleanup, leftovers.nothing_stays(patience_s=0), leftovers.wider():
        thread(cleanup)
        child(cleanup)


LEAKS = """
import os, pytest

@pytest.fixture(scope="module")
def of_module():
    os.environ["OF_MODULE"] = "1"
    yield
    del os.environ["OF_MODULE"]

@pytest.fixture(scope="session")
def of_session():
    os.environ["OF_SESSION"] = "1"
    yield
    del os.environ["OF_SESSION"]

@pytest.mark.parametrize("wide", ["of_module", "of_session"])
def test_asks_late(request, wide):
    request.getfixturevalue(wide)

def test_leaves_a_variable():
    os.environ["NARROW"] = "1"

def test_is_not_blamed_for_it():
    pass

def test_of_monkeypatch(monkeypatch):
    monkeypatch.setenv("RESTORED", "1")
"""


def test_the_check_is_part_of_every_test(tmp_path: Path) -> None:
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-c", "pyproject.toml"]
    environ = os.environ | {"PYTHONPATH": "tests"}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(tmp_path)],
        cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "5 passed, 1 error" in done.stdout
    assert "test_leaks.py::test_leaves_a_variable - AssertionError: left behind" in done.stdout
    assert "left behind: variable NARROW: 1, was not set" in done.stdout
