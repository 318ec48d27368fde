"""Who a process is: its number *and* its start time; and a control group for one command."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outlay.clock import SYSTEM, Clock

# A control group of version 2 for one command, where one may be made.
#
# The kernel puts into it whatever a member starts, and kills all of it at once, forks under way
# included. Inside a Slurm job none is made: Slurm counts and ends a job by the groups that it
# made.

SWITCH: Final = "OUTLAY_CGROUP"
_OFF: Final = ("0", "false", "off", "no")
_TRIES, _PAUSE_S = 50, 0.01


class Cgroup:
    """One group, by its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def make(cls, name: str) -> Cgroup | None:
        """Make a group below our own; None where that is switched off or not allowed."""
        if os.environ.get(SWITCH, "").strip().lower() in _OFF or "SLURM_JOB_ID" in os.environ:
            return None
        parent = own_directory()
        if parent is None:
            return None
        try:
            (parent / name).mkdir()
        except OSError:
            return None
        made = cls(parent / name)
        if (made.directory / "cgroup.kill").exists():
            return made
        made.remove()
        return None

    def enter(self, pid: int) -> bool:
        """Move a process in; what it starts from now on is in as well."""
        return _write(self.directory / "cgroup.procs", pid)

    def leave(self, pid: int) -> bool:
        """Move a process out, to where the group was made."""
        return _write(self.directory.parent / "cgroup.procs", pid)

    def members(self) -> list[int]:
        """Return everything inside, in groups below it too."""
        found: list[int] = []
        for directory, _, files in os.walk(self.directory):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found += map(int, Path(directory, "cgroup.procs").read_text().split())
        return found

    def kill(self) -> None:
        """Kill everything inside."""
        _write(self.directory / "cgroup.kill", 1)

    def remove(self) -> None:
        """Remove the group and those below it; one with a living member stays.

        Who was just killed may take a moment to be gone.
        """
        for _ in range(_TRIES):
            for directory, _, _ in os.walk(self.directory, topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()
            if not self.directory.exists():
                return
            SYSTEM.sleep(_PAUSE_S)


def own_directory() -> Path | None:
    """Return the directory of the group that this process is in; None without version 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in lines if line.startswith("0::/")), None)
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        if path is not None and after.startswith("cgroup2 "):
            return Path(before.split()[4] + path)
    return None


def _write(path: Path, value: int) -> bool:
    try:
        path.write_text(str(value))
    except OSError:
        return False
    return True


# Who a process is: its number *and* its start time, for numbers are used again.
#
# Read from Linux's ``/proc``. Elsewhere nothing is seen here, and all that is left is a signal to
# a process group. The standard library alone: the keeper loads this in an interpreter of its own.

MARK_VARIABLE: Final = "OUTLAY_SUPERVISED"
"""Carried by everything that a command starts, unless it is taken out of its environment."""
_SET_PARENT_DEATH_SIGNAL, _SET_SUBREAPER, _GET_SUBREAPER = 1, 36, 37
_PROC: Final = Path("/proc")
PATIENCE_NS: Final = 10 * 10**9
"""How long a process that was killed is waited for; one that hangs in the kernel outlasts it."""
_FIRST_PAUSE_S: Final = 0.001
_LAST_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Process:
    """One process as it was at one look.

    Attributes:
        start: When it was started, in clock ticks since the machine's boot.
        state: ``Z`` and ``X`` are dead, ``T`` is stopped.
    """

    pid: int
    start: int
    parent: int = 0
    group: int = 0
    session: int = 0
    state: str = ""

    @property
    def is_dead(self) -> bool:
        """Whether it has ended, and at most waits to be reaped."""
        return self.state in ("Z", "X")


def read_process(pid: int) -> Process | None:
    """Return a process, a zombie too; None where there is none."""
    try:
        state, parent, group, session, *rest = _stat(pid)
        return Process(pid, int(rest[15]), int(parent), int(group), int(session), state)
    except (OSError, ValueError):
        return None


def _stat(pid: int) -> list[str]:
    descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The name of the program stands in parentheses, and may hold anything.
        return os.read(descriptor, 4096).decode(errors="replace").rpartition(")")[2].split()
    finally:
        os.close(descriptor)


def is_alive(pid: int, start: int) -> bool:
    """Return whether this very process runs; another one of the same number does not count."""
    found = read_process(pid)
    return found is not None and found.start == start and not found.is_dead


def all_processes() -> dict[int, Process]:
    """Return every process that can be seen, by its number."""
    found = (read_process(int(name)) for name in _numbers())
    return {process.pid: process for process in found if process is not None}


def _numbers() -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from filter(str.isdecimal, os.listdir(_PROC))  # noqa: PTH208 - names, fast


def own_children() -> list[int]:
    """Return the children of this process, those that it adopted and zombies included."""
    tasks = f"/proc/{os.getpid()}/task"
    try:
        threads = os.listdir(tasks)  # noqa: PTH208 - once for every command that ends
        return [pid for thread in threads for pid in _children(f"{tasks}/{thread}/children")]
    except OSError:  # A kernel without that file, or a thread that ended: the long way.
        me = os.getpid()
        return [process.pid for process in all_processes().values() if process.parent == me]


def _children(path: str) -> list[int]:
    with Path(path).open("rb", buffering=0) as stream:
        return list(map(int, stream.read().split()))


def below(table: Mapping[int, Process], roots: Iterable[int]) -> set[int]:
    """Return the roots and all their descendants, by number."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return found


def descendants() -> list[Process]:
    """Return what lives below this process, as far as it has adopted what was left behind."""
    children = own_children()
    if not children:
        return []  # The usual end, told without a look at every process of the machine.
    table = all_processes()
    found = below(table, children)
    return [table[pid] for pid in found if pid in table and not table[pid].is_dead]


def command_line(pid: int) -> list[str]:
    """Return the words that a process was started with, or that it has put in their place."""
    with contextlib.suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
        return words.rstrip("\0").split("\0")
    return [""]


def mark_of(pid: int) -> str:
    """Return the mark in the environment that a process was started with, or ""."""
    mark = f"{MARK_VARIABLE}=".encode()
    with contextlib.suppress(OSError):
        for item in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            if item.startswith(mark):
                return item.removeprefix(mark).decode(errors="replace")
    return ""


def marked(prefix: str) -> list[Process]:
    """Return the living processes whose mark begins with ``prefix``."""
    assert prefix, "an empty mark is everybody's"
    numbers = [int(name) for name in _numbers() if mark_of(int(name)).startswith(prefix)]
    found = [process for pid in numbers if (process := read_process(pid)) is not None]
    return [process for process in found if not process.is_dead]


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def send(process: Process, number: int) -> bool:
    """Signal this very process; False when it is gone or another user's.

    A descriptor of the process, where the kernel has them, cannot come to mean another one
    between the look at its start time and the signal.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, ProcessLookupError, PermissionError, OSError):
        return _send_by_number(process, number)
    try:
        found = read_process(process.pid)
        if found is None or found.start != process.start:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def _send_by_number(process: Process, number: int) -> bool:
    found = read_process(process.pid)
    if found is not None and found.start != process.start:
        return False
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_all(
    look: Callable[[], list[Process]],
    clock: Clock,
    kill: Callable[[list[Process]], object] | None = None,
) -> list[Process]:
    """Kill until two looks in a row find nothing, for a bounded time; return what is left.

    A process may be starting another one while we look; hence the second look.
    """
    until_ns, pause_s, quiet = clock.monotonic_ns() + PATIENCE_NS, _FIRST_PAUSE_S, 0
    left: list[Process] = []
    while quiet < 2:
        left = look()
        quiet = 0 if left else quiet + 1
        if left:
            if clock.monotonic_ns() >= until_ns:
                break
            (kill or _kill_each)(left)
            clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    return left


def _kill_each(found: list[Process]) -> None:
    for process in found:
        send(process, signal.SIGKILL)


def end_marked(prefix: str, clock: Clock = SYSTEM) -> list[Process]:
    """End everything that carries a mark; return what does not end. Nothing has an empty one."""
    return end_all(lambda: marked(prefix), clock) if prefix else []


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a group; False when nobody is left in it."""
    assert group > 1, "0 would be our own group, and 1 everybody"
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def set_subreaper(*, on: bool) -> bool:
    """Adopt, or no longer, what the processes below leave behind; return whether it was on."""
    was = ctypes.c_int(0)
    _prctl(_GET_SUBREAPER, ctypes.byref(was))
    _prctl(_SET_SUBREAPER, int(on))
    return bool(was.value)


def ask_for_signal_when_parent_dies(number: int) -> None:
    """Have the kernel signal this process when the one that started it ends."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, number)


def _prctl(option: int, argument: object) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Not Linux: nobody adopts anybody.
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)
