"""Locks: threads queue in order of arrival, processes with ``flock``."""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from outlay.clock import Clock
from outlay.files import open_own

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
