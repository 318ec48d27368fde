"""What a test leaves in its process: threads, children, handlers, variables, locks, settings.

What starts something for all later tests, and is not a fixture, does so in a block of ``wider``.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Hashable, Iterator
from pathlib import Path

import pytest

from outlay.clock import SYSTEM
from outlay.proc.identity import command_line, own_children
from process_trees import alive

Kind = dict[Hashable, object]
Picture = dict[str, Kind]
"""What a process has, by kind, as a name and a value."""

SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM})
"""All that can be handled, except that of the limit of a test."""

IS_LINUX = sys.platform == "linux"
"""Elsewhere there is no /proc to look at, and tests are not checked."""

ENDS_BY_ITSELF = frozenset({"thread", "child", "lock"})
"""Kinds of which less than before is no trouble, and more may be about to end."""

_open: list[Picture] = []
"""What each present block of ``nothing_stays`` found, and what wider fixtures started since."""


def picture() -> Picture:
    """Return what this process has now; takes a fraction of a millisecond."""
    return {
        "thread": {thread: thread.name for thread in threading.enumerate()},
        "child": dict.fromkeys(own_children()),
        "lock": dict.fromkeys(own_locks()),
        "handler": {number: signal.getsignal(number) for number in SIGNALS},
        "variable": {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
        "setting": settings(),
    }


def own_locks() -> list[str]:
    """Return the device and inode of each file that this process locked.

    A lock of ``flock`` that a forked child inherited is listed for the process that took it.
    """
    me = str(os.getpid())
    rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [f"{row[1]} {row[5]}" for row in rows if row[4] == me]


def picture_before() -> Picture:
    """Return what this process has before a test.

    The kernel lists all locks a page at a time, and leaves one out where another process unlocks
    between two pages. Those of open files are listed with each file, all of them.
    """
    found = picture()
    found["lock"] |= dict.fromkeys([*locks_of_open_files(), *own_locks()])
    return found


def locks_of_open_files() -> Iterator[str]:
    """Yield the locks of the files that this process has open."""
    for about in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # That of the directory itself.
            for line in about.read_text().splitlines():
                if line.startswith("lock:"):
                    row = line.split()
                    yield f"{row[2]} {row[6]}"


def settings() -> Kind:
    """Return what holds for the whole process."""
    root = logging.getLogger()
    status = Path("/proc/self/status").read_text()
    return {
        "directory": os.readlink("/proc/self/cwd"),  # noqa: PTH115 - may be deleted
        "umask": status.partition("Umask:")[2].split(None, 1)[0],
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "threading.excepthook": threading.excepthook,
        "sys.path": tuple(sys.path),
        "logging.disable": logging.root.manager.disable,
        "level of the root logger": root.level,
        "level of outlay's logger": logging.getLogger("outlay").level,
        "handlers of the root logger": tuple(root.handlers),
        "handlers of outlay's logger": tuple(logging.getLogger("outlay").handlers),
    }


@contextlib.contextmanager
def wider() -> Iterator[None]:
    """Count what the block starts as there before the present test."""
    before = picture()
    yield
    for kind, name in left(before, after := picture()):
        for found in _open:
            found[kind].pop(name, None)
            found[kind] |= {name: after[kind][name]} if name in after[kind] else {}


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object],
) -> Generator[None, object, object]:
    """Let fixtures that outlive a test keep what they start, also where a test asks late."""
    if fixturedef.scope == "function" or not IS_LINUX:
        return (yield)
    with wider():
        return (yield)


def differs(before: Kind, name: Hashable, value: object) -> bool:
    return name not in before or before[name] != value


def left(before: Picture, after: Picture) -> list[tuple[str, Hashable]]:
    """Return the kind and name of what is there now, or is not as it was before."""
    found = []
    for kind, now in after.items():
        was = before[kind]
        found += [(kind, name) for name, value in now.items() if differs(was, name, value)]
        if kind not in ENDS_BY_ITSELF:
            found += [(kind, name) for name in was if name not in now]
    return found


def describe(kind: str, name: Hashable, before: Picture) -> str:
    """Return one thing that stayed, as a line for whoever reads the failure."""
    match kind, name:
        case "child", int(pid):
            ended = "" if alive(pid) else "ended, and nobody waited for it"
            return f"child {pid}: {ended or ' '.join(command_line(pid))}"
        case "lock", str(lock):
            return f"lock {lock} {locked_file(lock)}"
        case "thread", threading.Thread(name=called):
            return f"thread {called}"
        case "handler", signal.Signals(name=called) as number:
            return f"handler of {called}: {signal.getsignal(number)}"
        case "variable" | "setting", _:
            now = picture()[kind].get(name, "not set")
            return f"{kind} {name}: {now}, was {before[kind].get(name, 'not set')}"
        case _:
            return f"{kind} {name}"


def locked_file(lock: str) -> str:
    """Return the path of a locked file that this process has open, else who else may hold it."""
    inode = int(lock.rpartition(":")[2])
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if link.stat().st_ino == inode:
                return str(link.readlink())
    return "of a file that is closed here: a forked child inherited it"


@contextlib.contextmanager
def nothing_stays(patience_s: float = 60) -> Iterator[None]:
    """Fail if the block leaves something; what is about to end may take its time."""
    before = picture_before()
    _open.append(before)
    try:
        yield
    finally:
        _open.remove(before)
    deadline_ns = SYSTEM.monotonic_ns() + int(patience_s * 10**9)
    stayed = left(before, picture())
    if any(kind == "lock" for kind, _ in stayed):
        gc.collect()
    while stayed and all(kind in ENDS_BY_ITSELF for kind, _ in stayed):
        stayed = left(before, picture())
        if SYSTEM.monotonic_ns() > deadline_ns:
            break
        SYSTEM.sleep(0.005)
    assert not stayed, "left behind: " + "; ".join(describe(*each, before) for each in stayed)
