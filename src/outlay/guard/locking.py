"""Locks, durable files, head files, and which holding processes have ended."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import threading
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Self

from outlay.clock import Clock, utc_text, wall_ns_of
from outlay.files import make_private, open_own, write_whole
from outlay.guard.balance import Hold
from outlay.guard.chain import GENESIS, NO_SLOTS, SLOT_BYTES, Head, Slots, encode_slot, parse_slots
from outlay.guard.entries import parse_timestamp
from outlay.proc.identity import PidScope, pid_scope, read_process
from outlay.store import outlay_home

# Durable files and directories.


def read_from(file: int, start: int, end: int) -> bytes:
    """Return the bytes ``[start, end)`` of an open file; fewer if it is shorter."""
    chunks = []
    while start < end and (chunk := os.pread(file, end - start, start)):
        chunks.append(chunk)
        start += len(chunk)
    return b"".join(chunks)


def read_small(path: str) -> bytes | None:
    """Return a small file's content; None if there is no file."""
    try:
        file = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_from(file, 0, os.fstat(file).st_size)
    finally:
        os.close(file)


def file_exists(path: Path) -> bool:
    """Return whether a file exists; raises OSError if that can't be determined."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, and fsync each of them."""
    if not directory.is_dir():
        make_directory(directory.parent)
        make_private(directory)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Fsync a directory, so that a new file's name survives a power failure."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class HeadFile:
    """A file with the last acknowledged line of a log.

    While the log is locked it may stay open between a read and a write; ``release`` closes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = os.fspath(path)
        self._file: int | None = None
        self._parsed = (b"", NO_SLOTS)

    def read(self, *, keep: bool = False) -> Slots:
        """Return the slots, empty if there is no file; ``keep`` leaves it open for writing."""
        raw = (self._read_and_keep() if keep else read_small(self._name)) or b""
        known, slots = self._parsed
        if raw != known:
            slots = parse_slots(raw)
            self._parsed = (raw, slots)
        return slots

    def _read_and_keep(self) -> bytes | None:
        self.release()
        try:
            self._file = open_own(self._name, os.O_RDWR)
        except FileNotFoundError:
            return None
        except OSError:
            return read_small(self._name)
        return read_from(self._file, 0, os.fstat(self._file).st_size)

    def open(self) -> None:
        """Open it for writing unless it is open; create it if needed."""
        if self._file is None:
            self._file = open_own(self._name, os.O_WRONLY | os.O_CREAT)

    def release(self) -> None:
        """Close it if it is open."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def write(self, head: Head, after: Slots) -> None:
        """Write one slot, at the offset that ``after``, the last read, names."""
        self.open()
        assert self._file is not None
        at, new = after.next_at, encode_slot(head)
        os.pwrite(self._file, new, at)
        raw, known = self._parsed
        if known == after and (after.head is None or after.head.offset < head.offset):
            # Cache what the next read returns, unless another process writes.
            raw = raw[:at] + new + raw[at + SLOT_BYTES :]
            self._parsed = (raw, Slots(head, SLOT_BYTES - at, readable=True))

    def begin(self) -> Slots:
        """Write and fsync the head of an empty log; from now on a missing head is an error."""
        self.write(Head(0, GENESIS), NO_SLOTS)
        assert self._file is not None
        os.fsync(self._file)
        return Slots(Head(0, GENESIS), SLOT_BYTES, readable=True)

    def replace(self, head: Head) -> None:
        """Replace the file by this head alone."""
        write_whole(self.path, encode_slot(head), synced=True, private=True)


class RememberedHead(HeadFile):
    """The last line of a log that this machine has seen, kept in the outlay home.

    A lower bound like the log's own head, written after the answer and without fsync. If the home
    can't be read or written, nothing is remembered.
    """

    def __init__(self, log_path: Path) -> None:
        digest = hashlib.sha256(os.fsencode(log_path)).hexdigest()[:16]
        super().__init__(outlay_home() / "heads" / f"{log_path.stem}-{digest}.head")

    def seen(self, *, keep: bool = False) -> Slots:
        """Return the slots; empty if they can't be read."""
        try:
            return self.read(keep=keep)
        except OSError:
            return NO_SLOTS

    def remember(self, head: Head, known: Slots, *, given_up: Collection[str] = ()) -> None:
        """Store a line if it is beyond the known one, or the known one is in ``given_up``."""
        if known.head is not None and known.head.hash in given_up:
            self.replace(head)
        elif known.head is None or known.head.offset < head.offset:
            with suppress(OSError):
                if known.head is None:
                    make_private(self.path.parent)
                self.write(head, known)

    def replace(self, head: Head) -> None:
        """Replace the file by this head, which a person has accepted."""
        with suppress(OSError):
            make_private(self.path.parent)
            write_whole(self.path, encode_slot(head), private=True)


# Locks: threads queue in order of arrival, processes with ``flock``.
#
# At most one thread of a process waits for the file's lock, in the kernel and not by polling, so
# that no waiter starves.

MOUNTS = Path("/proc/self/mountinfo")
_POLL_S = 0.002

# The mount options with which ``flock`` does not reach other machines; ``_ALWAYS`` if none does.
# From nfs(5), mount.cifs(8), mount.lustre(8), gfs2(5) and the pages of the FUSE file systems.
_ALWAYS = frozenset({""})
_NFS = frozenset({"nolock", "local_lock=all", "local_lock=flock"})
_LOCAL: dict[str, frozenset[str]] = {
    "nfs": _NFS,
    "nfs4": _NFS,
    "cifs": frozenset({"nobrl"}),
    "smb3": frozenset({"nobrl"}),
    "lustre": frozenset({"localflock"}),
    "gfs2": frozenset({"localflocks", "lockproto=lock_nolock"}),
    "ocfs2": frozenset({"localflocks"}),
    **dict.fromkeys(
        [
            "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.goofys",
            "fuse.mountpoint-s3", "fuse.blobfuse", "fuse.blobfuse2",
        ],
        _ALWAYS,
    ),
}  # fmt: skip


class LockStuck(Exception):
    """The lock was not released, and the file did not change, within the timeout."""


def local_locks(directory: Path) -> str | None:
    """Return why locks in a directory do not reach other machines; None if they do."""
    try:
        mounts, number = MOUNTS.read_text().splitlines(), directory.stat().st_dev
    except OSError:
        return None  # not Linux, or no such directory: opening the file will fail
    device, kind, options = f"{os.major(number)}:{os.minor(number)}", "", set[str]()
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) >= 6 and len(rest) >= 3 and fields[2] == device:
            kind, options = rest[0], {*fields[5].split(","), *rest[2].split(",")}
    local = _LOCAL.get(kind, frozenset())
    if local is _ALWAYS:
        return kind
    found = sorted(local & options)
    return f"{kind} mounted with {', '.join(found)}" if found else None


def lock_excludes(path: Path) -> bool:
    """Return whether a second descriptor is denied the lock of an exclusively locked file."""
    other = open_own(path, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(other)
    return False


class _Queue:
    """A FIFO queue of this process's threads that use one file."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._busy = False
        self._turns = 0

    @contextmanager
    def turn(self, patience_s: float) -> Iterator[None]:
        """Wait for this thread's turn, which lasts until the block ends.

        Raises:
            LockStuck: No turn ended within ``patience_s``.
        """
        self._enter(patience_s)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, patience_s: float) -> None:
        with self._mutex:
            if not self._busy:
                self._busy = True
                return
            mine, turns = threading.Lock(), self._turns
            mine.acquire()
            self._waiting.append(mine)
        try:
            while not mine.acquire(timeout=patience_s):
                if turns == self._turns:
                    raise LockStuck
                turns = self._turns
        except BaseException:
            self._give_up(mine)
            raise

    def _give_up(self, mine: threading.Lock) -> None:
        with self._mutex:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return
        self._leave()  # The turn came just now: pass it on.

    def _leave(self) -> None:
        with self._mutex:
            self._turns += 1
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._busy = False


_queues: dict[str, _Queue] = {}
# A forked process does not have the threads that queue.
os.register_at_fork(after_in_child=_queues.clear)


def turn_at(path: str, patience_s: float) -> AbstractContextManager[None]:
    """Return a context manager that excludes other threads of this process from a file.

    Entering raises LockStuck when no turn ended within ``patience_s``.
    """
    queue = _queues.get(path) or _queues.setdefault(path, _Queue())
    return queue.turn(patience_s)


def lock(file: int, kind: int, *, patience_s: float, clock: Clock) -> None:
    """Wait for ``flock`` in the kernel, which frees the locks of dead processes.

    Raises:
        LockStuck: The lock was not free, nor the file changed, within ``patience_s``.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        return
    try:
        waiter = _Waiter(file, kind)
    except RuntimeError:  # No thread can be started: at the limit, or the interpreter is ending.
        _poll(file, kind, patience_s, clock)
        return
    before = _state(file)
    while not waiter.wait(patience_s):
        if (now := _state(file)) == before:
            raise LockStuck
        before = now


def _state(file: int) -> tuple[int, int]:
    stat = os.fstat(file)
    return stat.st_size, stat.st_mtime_ns


class _Waiter:
    """A thread that waits in ``flock``, which has no timeout of its own.

    It uses a duplicate of the descriptor, which means the same lock. If the caller has given up and
    closed its own when the lock is granted, closing the duplicate frees it.
    """

    def __init__(self, file: int, kind: int) -> None:
        self._file = os.dup(file)
        self._kind = kind
        self._ended = threading.Event()
        self._error: OSError | None = None
        try:
            threading.Thread(target=self._run, name="outlay-flock", daemon=True).start()
        except RuntimeError:
            os.close(self._file)
            raise

    def _run(self) -> None:
        try:
            fcntl.flock(self._file, self._kind)
        except OSError as error:
            self._error = error
        finally:
            os.close(self._file)
            self._ended.set()

    def wait(self, timeout_s: float) -> bool:
        """Return whether the lock was granted in time."""
        if not self._ended.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True


def _poll(file: int, kind: int, patience_s: float, clock: Clock) -> None:
    deadline_ns = clock.monotonic_ns() + round(patience_s * 1e9)
    while True:
        clock.sleep(_POLL_S)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic_ns() >= deadline_ns:
                raise LockStuck from None
        else:
            return


# Stale holds and unattended rentals: reported, never released.
#
# A process is named by host, pid and start time, since pids are reused, and by the pid namespace,
# boot and machine, since a container or a host of the same name has other processes.

OLD_NS = 24 * 3600 * 10**9


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
_HOST_NAMESPACE = "4026531836"
"""The pid namespace of every Linux host, outside all containers."""


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


def standing_of(process: str) -> Literal["alive", "ended", "unknown"]:
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
    return standing_of(process) == "ended"


def is_here(process: str) -> bool:
    """Return whether a process is known to run on this machine."""
    return standing_of(process) == "alive"


def why_unattended(hold: Hold, now_ns: int) -> str:
    """Return why a live rental is an error, overdue or unwatched; "" if it is not."""
    if hold.rental is None or hold.state == "gone":
        return ""
    why = []
    deadline_ns = wall_ns_of(parse_timestamp(hold.rental.deadline))
    if now_ns > deadline_ns:
        why.append(f"it is past its deadline of {utc_text(deadline_ns)}")
    if has_ended(hold.watcher or hold.by):
        why.append(
            f"its watcher {hold.watcher} is dead" if hold.watcher else "it never had a watcher"
        )
    return " and ".join(why)


def why_stale(hold: Hold, now_ns: int) -> str:
    """Return why a hold may be abandoned; "" if nothing suggests that."""
    if hold.rental is not None:
        return why_unattended(hold, now_ns)
    if has_ended(hold.by):
        return f"{hold.by}, which opened it, has ended"
    if now_ns - wall_ns_of(parse_timestamp(hold.ts)) > OLD_NS:
        return "it is older than a day"
    return ""
