"""Locks of files, which end with their process: of ranks, sweeps, ports, logs.

Whether a file system's locks reach other machines is only reported (``local_locks``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from outlay.clock import SYSTEM, Clock
from outlay.files import open_own

_POLL_S: Final = 0.002
_STRUCT: Final = "hhqqi"
"""struct flock of Linux: l_type, l_whence, l_start, l_len, l_pid."""


class FileLocked(Exception):
    """Another process holds the lock, or another thread its turn; ``holder`` is the file's text."""

    def __init__(self, holder: str = "") -> None:
        super().__init__(holder)
        self.holder = holder


class FileLock:
    """A lock that this process has on a file until ``release``; the kernel frees it at its death.

    Forked children close their copy of the descriptor, which does not release the lock.

    Args:
        file: The descriptor, which is closed on release or if the lock is not granted.
        shared: Whether other shared locks may be held too.
        visible: Whether ``is_locked`` is to see it without locking. Then it is no ``flock``, but an
            exclusive open file description (OFD) lock, which network file systems support and
            which survives that other code opens and closes the file. Elsewhere than on Linux, a
            POSIX record lock, which does not exclude the process that holds it.
        patience_s: How long to wait while the file does not change; None waits without limit.
        holder: A text to store in the file while it is locked.

    Raises:
        FileLocked: Another holds it.
        OSError: Its file system has no locks.
    """

    def __init__(
        self, file: int, *, shared: bool = False, visible: bool = False,
        patience_s: float | None = 0, clock: Clock = SYSTEM, holder: str = "",
    ) -> None:  # fmt: skip
        self.file = file
        self._set = _set_visible_lock if visible else fcntl.flock
        self._named = bool(holder)
        _held.add(self)  # Before it is granted: another thread may fork meanwhile.
        try:
            self._acquire(fcntl.LOCK_SH if shared else fcntl.LOCK_EX, patience_s, clock)
        except BaseException:
            _held.discard(self)
            os.close(file)
            raise
        if holder:
            with contextlib.suppress(OSError):  # On a full disk the lock works without the name.
                os.ftruncate(file, 0)
                os.pwrite(file, holder.encode(), 0)

    def _acquire(self, kind: int, patience_s: float | None, clock: Clock) -> None:
        try:
            self._set(self.file, kind | (fcntl.LOCK_NB if patience_s is not None else 0))
        except (BlockingIOError, PermissionError):
            if not patience_s:
                text = os.pread(self.file, 300, 0).decode(errors="replace")
                raise FileLocked(text.strip()) from None
            _wait(self.file, kind, patience_s, clock)

    def release(self) -> None:
        """Unlock and close the file, unless that was done, or this is a fork of the holder."""
        if self not in _held:
            return
        _held.remove(self)
        if self._named:
            with contextlib.suppress(OSError):
                os.ftruncate(self.file, 0)
        with contextlib.suppress(OSError):  # A child may not have closed its copy yet.
            self._set(self.file, fcntl.LOCK_UN)
        os.close(self.file)

    def __enter__(self) -> Self:
        """Return the lock, which was taken on construction."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.release()


_held: set[FileLock] = set()


def _close_all() -> None:
    # The parent's locks last as long as any copy of their descriptors.
    for lock in _held:
        with contextlib.suppress(OSError):
            os.close(lock.file)
    _held.clear()


os.register_at_fork(after_in_child=_close_all)


def _set_visible_lock(file: int, kind: int) -> None:
    """Set or clear an exclusive lock without waiting."""
    if sys.platform == "linux":
        lock_type = fcntl.F_UNLCK if kind == fcntl.LOCK_UN else fcntl.F_WRLCK
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _whole_file(lock_type))
            return
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: a kernel or file system without OFD locks.
                raise
    fcntl.lockf(file, kind)


def is_locked(path: Path) -> bool | None:
    """Return whether a process has a visible lock on a file; None if that cannot be seen.

    Raises:
        OSError: The file cannot be opened.
    """
    if sys.platform != "linux":
        return None
    file = open_own(path, os.O_RDONLY)
    try:
        answer = fcntl.fcntl(file, fcntl.F_GETLK, _whole_file(fcntl.F_RDLCK))
    finally:
        os.close(file)
    return bool(struct.unpack(_STRUCT, answer)[0] != fcntl.F_UNLCK)


def _whole_file(lock_type: int) -> bytes:
    return struct.pack(_STRUCT, lock_type, os.SEEK_SET, 0, 0, 0)


def _wait(file: int, kind: int, patience_s: float, clock: Clock) -> None:
    """Wait for ``flock`` in the kernel, not by polling, so that no waiter starves.

    Raises:
        FileLocked: The lock was not free, nor the file changed, within ``patience_s``.
    """
    # A thread waits, since flock has no timeout, on a copy of the descriptor: the same lock. If it
    # is granted after the caller has given up and closed its own, closing the copy frees it.
    copy, ended, errors = os.dup(file), threading.Event(), list[OSError]()

    def wait() -> None:
        try:
            fcntl.flock(copy, kind)
        except OSError as error:
            errors.append(error)
        finally:
            os.close(copy)
            ended.set()

    try:
        threading.Thread(target=wait, name="outlay-flock", daemon=True).start()
    except RuntimeError:  # No thread can be started: at the limit, or the interpreter is ending.
        os.close(copy)
        _poll(file, kind, patience_s, clock)
        return
    before = _state(file)
    while not ended.wait(patience_s):
        if (now := _state(file)) == before:
            raise FileLocked
        before = now
    if errors:
        raise errors[0]


def _state(file: int) -> tuple[int, int]:
    stat = os.fstat(file)
    return stat.st_size, stat.st_mtime_ns


def _poll(file: int, kind: int, patience_s: float, clock: Clock) -> None:
    deadline_ns = clock.monotonic_ns() + round(patience_s * 1e9)
    while True:
        clock.sleep(_POLL_S)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic_ns() >= deadline_ns:
                raise FileLocked from None
        else:
            return


# Threads of one process queue in order of arrival; at most one of them waits for the file's lock.


class _Queue:
    """A FIFO queue of this process's threads that use one file."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._busy = False
        self._turns = 0

    def enter(self, patience_s: float) -> None:
        """Wait for this thread's turn."""
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
                    raise FileLocked
                turns = self._turns
        except BaseException:
            self._give_up(mine)
            raise

    def _give_up(self, mine: threading.Lock) -> None:
        with self._mutex:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return
        self.leave()  # The turn came just now: pass it on.

    def leave(self) -> None:
        """End this thread's turn."""
        with self._mutex:
            self._turns += 1
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._busy = False


_queues: dict[str, _Queue] = {}
# A forked process does not have the threads that queue.
os.register_at_fork(after_in_child=_queues.clear)


@contextlib.contextmanager
def turn_at(path: str, patience_s: float) -> Iterator[None]:
    """Exclude other threads of this process from a file for the block.

    Raises:
        FileLocked: No turn ended within ``patience_s``.
    """
    queue = _queues.get(path) or _queues.setdefault(path, _Queue())
    queue.enter(patience_s)
    try:
        yield
    finally:
        queue.leave()


# The reach of locks.

MOUNTS = Path("/proc/self/mountinfo")

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
    try:
        FileLock(open_own(path, os.O_RDONLY), shared=True).release()
    except FileLocked:
        return True
    return False
