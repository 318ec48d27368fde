"""Processes by pid *and* start time, since pids are reused: lookup, names in files, signals.

Read from Linux's ``/proc``. Elsewhere no process is found, and only process groups can be
signalled. Standard library only: the keeper loads this in its own interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

from outlay.clock import SYSTEM, Clock
from outlay.files import make_private
from outlay.machine import boot_id, machine_digest, read_stat

MARK_VARIABLE: Final = "OUTLAY_SUPERVISED"
"""The environment variable with a command's mark, which its descendants inherit."""
_SET_PARENT_DEATH_SIGNAL, _SET_SUBREAPER, _GET_SUBREAPER = 1, 36, 37
_PROC: Final = Path("/proc")
PATIENCE_NS: Final = 10 * 10**9
"""How long to wait for killed processes; one that hangs in the kernel may outlast it."""
_FIRST_PAUSE_S: Final = 0.001
_LAST_PAUSE_S: Final = 0.1
_HOST_NAMESPACE: Final = "4026531836"
"""The pid namespace of every Linux host, outside all containers."""


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
        """Return whether this is the same machine after a reboot: no process of then is alive.

        Unknown to containers, whose machine id is that of their image: two hosts may run it.
        """
        is_same_machine = self.host == other.host and self.machine == other.machine != ""
        is_container = any(_HOST_NAMESPACE not in each.namespace for each in (self, other))
        return is_same_machine and not is_container and "" != self.boot != other.boot != ""


def pid_scope() -> PidScope:
    """Return the scope of this process's pids."""
    return PidScope(os.uname().nodename, boot_id(), _pid_namespace(), machine_digest())


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
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = b""
        while more := os.read(file, 1 << 16):
            found += more
        return list(map(int, found.split()))
    finally:
        os.close(file)


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


def descendants(spared: Iterable[str] = ()) -> list[Process]:
    """Return the live descendants of this process, adopted ones included.

    Without those that are registered in the directories ``spared`` as outliving.
    """
    children = own_children()
    if not children:
        return []  # The usual case, without a scan of all processes.
    table = all_processes()
    found = below(table, children)
    alive = [table[pid] for pid in found if pid in table and not table[pid].is_dead]
    return [each for each in alive if not (spared and is_outliving(spared, each.pid))]


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


@contextlib.contextmanager
def ending_leftovers(prefix: str) -> Iterator[None]:
    """Have all processes with a mark ended when this process dies, however it does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:  # Not a descendant, so that it is not ended like one.
            os.dup2(reading, 0)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # Also other pipes, whose ends are awaited.
            if not os.read(0, 1):  # The other end was closed by the end of its process.
                end_marked(prefix)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(reading)
    yield
    os.write(writing, b".")
    os.close(writing)


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


# The name of a process in files: host, pid and start time, and the pid namespace, boot and machine,
# since a container or a host of the same name has other processes.


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process as holds and notes name it: ``HOST:PID:START:NAMESPACE-BOOT-MACHINE``.

    Lines of earlier versions end after the start time or the pid: ``scope`` is then None, and
    ``start`` may be 0.
    """

    host: str
    pid: int
    start: int = 0
    scope: PidScope | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the process that a text names; None if it names none."""
        match = _PROCESS.fullmatch(text)
        if match is None:
            return None
        host, pid, start, scope = match.groups()
        namespace, boot, machine = (scope or "--").split("-")
        known = PidScope(host, boot, namespace, machine) if scope else None
        return cls(host, int(pid), int(start or 0), known)

    def __str__(self) -> str:
        text = f"{self.host}:{self.pid}"
        if self.start:
            text += f":{self.start}"
            if self.scope is not None:
                text += f":{self.scope.namespace}-{self.scope.boot}-{self.scope.machine}"
        return text


_PROCESS = re.compile(
    "(.*?):([0-9]{1,10})(?::([0-9]{1,20})(?::([0-9]*-[0-9a-f]*-[0-9a-f]*))?)?", re.DOTALL
)


def this_process() -> str:
    """Return this process's name in holds and notes."""
    return _name_of(os.getpid())


@cache
def _name_of(pid: int) -> str:
    found, scope = read_process(pid), _short_scope()
    return str(ProcessName(scope.host, pid, 0 if found is None else found.start, scope))


os.register_at_fork(after_in_child=_name_of.cache_clear)


def _short_scope() -> PidScope:
    """Return the scope of this process's pids as a name has it."""
    scope = pid_scope()
    namespace = "".join(filter(str.isdigit, scope.namespace))
    return scope._replace(boot=scope.boot[:8], namespace=namespace)


def state_of_process(process: str) -> Literal["alive", "ended", "unknown"]:
    """Return whether a process runs; unknown on another host or in another pid namespace."""
    named, here = ProcessName.parse(process), _short_scope()
    if named is None or named.host != here.host:
        return "unknown"
    if named.scope is None:
        # An earlier version's. Inside a container its pid may be that of a process outside.
        if here.namespace not in ("", _HOST_NAMESPACE):
            return "unknown"
    elif named.scope != here:
        return "ended" if here.is_later_boot_of(named.scope) else "unknown"
    return "ended" if _is_gone(named) else "alive"


def _is_gone(named: ProcessName) -> bool:
    found = read_process(named.pid)
    if found is not None:
        return found.is_dead or bool(named.start and found.start != named.start)
    try:
        os.kill(named.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def has_ended(process: str) -> bool:
    """Return whether a process is known to have ended."""
    return state_of_process(process) == "ended"


def has_ended_here(process: str) -> bool:
    """Return whether a process of this very boot and pid namespace is known to have ended.

    Another machine, even one with the same name and machine id, has booted at another time.
    """
    named = ProcessName.parse(process)
    return named is not None and named.scope == _short_scope() and has_ended(process)


def is_here(process: str) -> bool:
    """Return whether a process is known to run on this machine."""
    return state_of_process(process) == "alive"
