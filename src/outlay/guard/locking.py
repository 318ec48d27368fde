"""One use of a file at a time: threads in the order in which they came, processes by ``flock``.

At most one thread of a process waits for the file's lock, in the kernel and not by polling: whoever
waits is answered, however many wait. What is done with the file is the subject of ``filelog``.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from outlay.clock import Clock
from outlay.files import open_own

MOUNTS = Path("/proc/self/mountinfo")
_POLL_S = 0.002

# Where ``flock`` is kept from other machines: by which mount options, or always. From nfs(5),
# mount.cifs(8), mount.lustre(8), gfs2(5) and the pages of the FUSE file systems.
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
    """Nobody let go of the lock, and nothing happened to the file, for as long as we wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted file system: its kind, and its options."""

    kind: str
    options: frozenset[str]

    def local_by(self) -> str | None:
        """Return what keeps ``flock`` from other machines; None where nothing does."""
        local = _LOCAL.get(self.kind, frozenset())
        if local is _ALWAYS:
            return self.kind
        found = sorted(local & self.options)
        return f"{self.kind} mounted with {', '.join(found)}" if found else None


def parse_mounts(text: str) -> dict[str, Mount]:
    """Return the mounts that ``/proc/self/mountinfo`` lists, by ``major:minor`` of the device."""
    mounts = {}
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if dash and len(fields) >= 6 and len(rest) >= 3:
            options = frozenset((*fields[5].split(","), *rest[2].split(",")))
            mounts[fields[2]] = Mount(kind=rest[0], options=options)
    return mounts


def local_locks(directory: Path) -> str | None:
    """Return why a lock in a directory says nothing to other machines; None where it does."""
    try:
        text, device = MOUNTS.read_text(), directory.stat().st_dev
    except OSError:
        return None  # not Linux, or no such directory: whoever opens the file will say so
    mount = parse_mounts(text).get(f"{os.major(device)}:{os.minor(device)}")
    return None if mount is None else mount.local_by()


def excludes(path: Path) -> bool:
    """Return whether a second descriptor is refused the lock that another one has, as it must be.

    To be asked while the file is locked exclusively.
    """
    other = open_own(path, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(other)
    return False


class _Queue:
    """The threads of this process that want one file, in the order in which they came."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._busy = False
        self._turns = 0

    @contextmanager
    def turn(self, patience_s: float) -> Iterator[None]:
        """Wait for one's turn; others wait until the block ends.

        Raises:
            LockStuck: Nobody else's turn ended for ``patience_s``.
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
        self._leave()  # the turn came at this very moment: the next one's

    def _leave(self) -> None:
        with self._mutex:
            self._turns += 1
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._busy = False


_queues: dict[str, _Queue] = {}
# The threads that wait, or have their turn, are not in a forked process.
os.register_at_fork(after_in_child=_queues.clear)


def turn_at(path: str, patience_s: float) -> AbstractContextManager[None]:
    """Return what waits until no other thread of this process uses a file.

    It raises LockStuck when one of them did not let go of it for ``patience_s``.
    """
    queue = _queues.get(path) or _queues.setdefault(path, _Queue())
    return queue.turn(patience_s)


def lock(file: int, kind: int, *, patience_s: float, clock: Clock) -> None:
    """Wait for ``flock`` in the kernel's queue; it frees what a dead process held.

    Raises:
        LockStuck: The lock was not free, nor the file changed by whoever had it, for
            ``patience_s``.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        return
    try:
        waiter = _Waiter(file, kind)
    except RuntimeError:  # no thread can be started: none are left, or the interpreter ends
        _poll(file, kind, patience_s, clock)
        return
    before = _state(file)
    while not waiter.wait(patience_s):
        if (now := _state(file)) == before:
            raise LockStuck
        before = now


def unlock(file: int) -> None:
    """Free the lock, also of copies of the descriptor that a process forked meanwhile has."""
    fcntl.flock(file, fcntl.LOCK_UN)


def _state(file: int) -> tuple[int, int]:
    stat = os.fstat(file)
    return stat.st_size, stat.st_mtime_ns


class _Waiter:
    """A thread that waits in ``flock``, which has no timeout; who asked can give up.

    It waits on a copy of the descriptor. Both mean the same lock; should the asker have closed its
    own when the lock comes, closing the copy frees it.
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
        """Return whether the lock came in time."""
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
