"""Processes by pid *and* start time: lookup, signals and prctl; and a cgroup for one command."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from outlay.clock import SYSTEM, Clock
from outlay.files import first_line, make_private
from outlay.machine import boot_id, read_stat

# A version 2 cgroup for one command, where one can be created.
#
# The kernel adds every child of a member, and kills all members at once, forks in progress
# included. None is created inside a Slurm job, which Slurm accounts and ends by its own cgroups.

SWITCH: Final = "OUTLAY_CGROUP"
_OFF: Final = ("0", "false", "off", "no")
_TRIES, _PAUSE_S = 50, 0.01


class Cgroup:
    """A cgroup, by its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def make(cls, name: str) -> Cgroup | None:
        """Create a cgroup below this process's; None where that is switched off or not allowed."""
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
        """Move a process in; its later children are members as well."""
        return _write(self.directory / "cgroup.procs", pid)

    def leave(self, pid: int) -> bool:
        """Move a process out, to the parent cgroup."""
        return _write(self.directory.parent / "cgroup.procs", pid)

    def members(self) -> list[int]:
        """Return the pids of all members, those of nested cgroups included."""
        found: list[int] = []
        for directory, _, files in os.walk(self.directory):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found += map(int, Path(directory, "cgroup.procs").read_text().split())
        return found

    def kill(self) -> None:
        """Kill all members."""
        _write(self.directory / "cgroup.kill", 1)

    def remove(self) -> None:
        """Remove the cgroup and nested ones, unless one has a live member.

        Retries, since killed processes take a moment to exit.
        """
        for _ in range(_TRIES):
            for directory, _, _ in os.walk(self.directory, topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()
            if not self.directory.exists():
                return
            SYSTEM.sleep(_PAUSE_S)


def own_directory() -> Path | None:
    """Return the directory of this process's cgroup; None without version 2."""
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


# Processes by pid *and* start time, since pids are reused.
#
# Read from Linux's ``/proc``. Elsewhere no process is found, and only process groups can be
# signalled. Standard library only: the keeper loads this in its own interpreter.

MARK_VARIABLE: Final = "OUTLAY_SUPERVISED"
"""The environment variable with a command's mark, which its descendants inherit."""
_SET_PARENT_DEATH_SIGNAL, _SET_SUBREAPER, _GET_SUBREAPER = 1, 36, 37
_PROC: Final = Path("/proc")
PATIENCE_NS: Final = 10 * 10**9
"""How long to wait for killed processes; one that hangs in the kernel may outlast it."""
_FIRST_PAUSE_S: Final = 0.001
_LAST_PAUSE_S: Final = 0.1


class PidScope(NamedTuple):
    """Where a pid means the same process; a field that cannot be read is empty.

    Two hosts may have one name, a host has another boot id after a reboot, and the containers of a
    host share its boot id but not its pids.

    Attributes:
        namespace: The pid namespace, as its link in ``/proc`` reads.
        machine: A digest of the machine id, which must not be published.
    """

    host: str
    boot: str
    namespace: str
    machine: str = ""

    def is_later_boot_of(self, other: PidScope) -> bool:
        """Return whether this is the same machine after a reboot: no process of then is alive."""
        is_same_machine = self.host == other.host and self.machine == other.machine != ""
        return is_same_machine and "" != self.boot != other.boot != ""


def pid_scope() -> PidScope:
    """Return the scope of this process's pids."""
    machine = first_line("/etc/machine-id")
    digest = hashlib.sha256(machine.encode()).hexdigest()[:8] if machine else ""
    return PidScope(os.uname().nodename, boot_id(), _pid_namespace(), digest)


def _pid_namespace() -> str:
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


@dataclass(frozen=True, slots=True)
class Process:
    """A snapshot of one process.

    Attributes:
        start: The start time, in clock ticks since boot.
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
        """Whether it has ended, reaped or not."""
        return self.state in ("Z", "X")


def read_process(pid: int) -> Process | None:
    """Return a process, zombies included; None if there is none."""
    try:
        state, parent, group, session, *rest = read_stat(pid)
        return Process(pid, int(rest[15]), int(parent), int(group), int(session), state)
    except (OSError, ValueError):
        return None


def is_alive(pid: int, start: int) -> bool:
    """Return whether a process runs; a later one with the same pid does not count."""
    found = read_process(pid)
    return found is not None and found.start == start and not found.is_dead


def all_processes() -> dict[int, Process]:
    """Return all visible processes, by pid."""
    found = (read_process(int(name)) for name in _numbers())
    return {process.pid: process for process in found if process is not None}


def _numbers() -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from filter(str.isdecimal, os.listdir(_PROC))  # noqa: PTH208 - names, fast


def own_children() -> list[int]:
    """Return this process's children, adopted ones and zombies included."""
    tasks = f"/proc/{os.getpid()}/task"
    try:
        threads = os.listdir(tasks)  # noqa: PTH208 - once for every command that ends
        return [pid for thread in threads for pid in _children(f"{tasks}/{thread}/children")]
    except OSError:  # A kernel without that file, or a thread that ended: scan all processes.
        me = os.getpid()
        return [process.pid for process in all_processes().values() if process.parent == me]


def _children(path: str) -> list[int]:
    with Path(path).open("rb", buffering=0) as stream:
        return list(map(int, stream.read().split()))


def below(table: Mapping[int, Process], roots: Iterable[int]) -> set[int]:
    """Return the pids of the roots and all their descendants."""
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
    """Return the live descendants of this process, adopted ones included."""
    children = own_children()
    if not children:
        return []  # The usual case, without a scan of all processes.
    table = all_processes()
    found = below(table, children)
    return [table[pid] for pid in found if pid in table and not table[pid].is_dead]


# Processes of outlay that outlive the command in which they were started: each is registered by an
# empty file, named after its pid, start time and pid namespace.


def register_outliving(directory: Path, pid: int) -> bool:
    """Register a process; False if that fails. Those that have ended are removed."""
    with contextlib.suppress(OSError):
        make_private(directory)
        for file in directory.iterdir():
            named = _OUTLIVING.fullmatch(file.name)
            if named and named[3] == _namespace_number() and _outliving(int(named[1])) != file.name:
                file.unlink(missing_ok=True)
        if name := _outliving(pid):
            (directory / name).touch(mode=0o600)
            return True
    return False


def is_outliving(directories: Iterable[str], pid: int) -> bool:
    """Return whether a process is registered in one of some directories."""
    name = _outliving(pid)
    return bool(name) and any(Path(directory, name).exists() for directory in directories)


_OUTLIVING: Final = re.compile("([0-9]{1,10})-([0-9]{1,20})-([0-9]*)")


def _outliving(pid: int) -> str:
    """Return the name of the file that registers a process; "" if there is no such process."""
    found = read_process(pid)
    if found is None or found.is_dead:
        return ""
    return f"{pid}-{found.start}-{_namespace_number()}"


def _namespace_number() -> str:
    return "".join(filter(str.isdigit, _pid_namespace()))


def command_line(pid: int) -> list[str]:
    """Return a process's arguments, which it may have overwritten."""
    with contextlib.suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
        return words.rstrip("\0").split("\0")
    return [""]


def mark_of(pid: int) -> str:
    """Return the mark in a process's initial environment, or ""."""
    mark = f"{MARK_VARIABLE}=".encode()
    with contextlib.suppress(OSError):
        for item in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            if item.startswith(mark):
                return item.removeprefix(mark).decode(errors="replace")
    return ""


def marked(prefix: str) -> list[Process]:
    """Return the live processes whose mark begins with ``prefix``."""
    assert prefix, "an empty prefix would match every process"
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
    """Signal a process; False if it has ended or is another user's.

    A pidfd, where the kernel has them, cannot refer to another process between the check of the
    start time and the signal.
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
    """Kill until ``look`` finds nothing twice in a row, or a timeout; return what is left.

    Twice, since a process may be forking during the first.
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
    """Kill all processes with a mark; return what does not end. Nothing has an empty mark."""
    return end_all(lambda: marked(prefix), clock) if prefix else []


def signal_group(group: int, number: int) -> bool:
    """Signal a process group; False if it is empty."""
    assert group > 1, "0 is our own group, and 1 means all processes"
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def set_subreaper(*, on: bool) -> bool:
    """Make this process a child subreaper, or no longer; return whether it was one."""
    was = ctypes.c_int(0)
    _prctl(_GET_SUBREAPER, ctypes.byref(was))
    _prctl(_SET_SUBREAPER, int(on))
    return bool(was.value)


def set_parent_death_signal(number: int) -> None:
    """Have the kernel signal this process when its parent ends."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, number)


def _prctl(option: int, argument: object) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Not Linux: no subreapers.
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)
