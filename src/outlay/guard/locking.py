"""One use of a file at a time, files that survive a power failure, and holders that are gone."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from outlay.clock import Clock, utc_text, wall_ns_of
from outlay.files import open_own, write_whole
from outlay.guard.balance import Hold
from outlay.guard.chain import GENESIS, NO_SLOTS, SLOT_BYTES, Head, Slots, parse, record
from outlay.guard.entries import parse_timestamp
from outlay.proc.identity import read_process
from outlay.store import outlay_home

# Files and directories whose names survive a power failure, and reading them without doubt.


def read_from(file: int, start: int, end: int) -> bytes:
    """Return the bytes of an open file in ``[start, end)``; fewer where it ends before."""
    chunks = []
    while start < end and (chunk := os.pread(file, end - start, start)):
        chunks.append(chunk)
        start += len(chunk)
    return b"".join(chunks)


def read_small(path: str) -> bytes | None:
    """Return a small file's content, at the least cost; None where there is none."""
    try:
        file = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_from(file, 0, os.fstat(file).st_size)
    finally:
        os.close(file)


def is_there(path: Path) -> bool:
    """Return whether a file exists; raises where that can't be said."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, each of them to survive a power failure."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make a new file's name survive a power failure as well."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class HeadFile:
    """A file that holds the furthest line known of a log.

    While the log is locked it may be kept open between reading and writing; ``release`` ends that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = os.fspath(path)
        self._file: int | None = None
        self._parsed = (b"", NO_SLOTS)

    def read(self, *, keep: bool = False) -> Slots:
        """Return what the file says, if it is there; ``keep`` leaves it open for writing."""
        raw = (self._read_and_keep() if keep else read_small(self._name)) or b""
        known, slots = self._parsed
        if raw != known:
            slots = parse(raw)
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
        """Open it for writing, unless it is; it is made if need be."""
        if self._file is None:
            self._file = open_own(self._name, os.O_WRONLY | os.O_CREAT)

    def release(self) -> None:
        """Close it, if it was kept open."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def write(self, head: Head, after: Slots) -> None:
        """Write one record where ``after``, which was read before, leaves room for it."""
        self.open()
        assert self._file is not None
        at, new = after.next_at, record(head)
        os.pwrite(self._file, new, at)
        raw, known = self._parsed
        if known == after and (after.head is None or after.head.offset < head.offset):
            # What the next look will find, unless somebody else writes: no need to parse it.
            raw = raw[:at] + new + raw[at + SLOT_BYTES :]
            self._parsed = (raw, Slots(head, SLOT_BYTES - at, readable=True))

    def begin(self) -> Slots:
        """Write the head of a log without a line, to disk: from here on no head is never right."""
        self.write(Head(0, GENESIS), NO_SLOTS)
        assert self._file is not None
        os.fsync(self._file)
        return Slots(Head(0, GENESIS), SLOT_BYTES, readable=True)

    def replace(self, head: Head) -> None:
        """Forget what was known, and know only this."""
        write_whole(self.path, record(head), synced=True)


class RememberedHead(HeadFile):
    """What this machine has seen of one log, kept in the outlay home, after the answer.

    It is a lower bound like the log's own head, written without a sync. Where the home can't be
    read or written, nothing is remembered.
    """

    def __init__(self, log_path: Path) -> None:
        digest = hashlib.sha256(os.fsencode(log_path)).hexdigest()[:16]
        super().__init__(outlay_home() / "heads" / f"{log_path.stem}-{digest}.head")

    def seen(self, *, keep: bool = False) -> Slots:
        """Return what was seen; nothing where that can't be read."""
        try:
            return self.read(keep=keep)
        except OSError:
            return NO_SLOTS

    def remember(self, head: Head, known: Slots, *, given_up: Collection[str] = ()) -> None:
        """Keep a line if it is further than what is known, or that was given up."""
        if known.head is not None and known.head.hash in given_up:
            self.replace(head)
        elif known.head is None or known.head.offset < head.offset:
            with suppress(OSError):
                if known.head is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                self.write(head, known)

    def replace(self, head: Head) -> None:
        """Forget what was seen: a person has accepted what is there now."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, record(head))


# One use of a file at a time: threads in the order in which they came, processes by ``flock``.
#
# At most one thread of a process waits for the file's lock, in the kernel and not by polling:
# whoever waits is answered, however many wait.

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


# Holds that nobody may be left to settle: something to look at, never a release.
#
# A process is known by its host, its number and its start time: numbers are used again.

OLD_NS = 24 * 3600 * 10**9


def this_process() -> str:
    """Return this process as holds and notes name one: host, number and start time."""
    return _name_of(os.getpid())


@cache
def _name_of(pid: int) -> str:
    found = read_process(pid)
    started = "" if found is None else f":{found.start}"
    return f"{os.uname().nodename}:{pid}{started}"


os.register_at_fork(after_in_child=_name_of.cache_clear)


def has_ended(process: str) -> bool:
    """Return whether a process is known to have ended; of another host nothing is known."""
    host, pid, start = _parts(process)
    if host != os.uname().nodename or not pid.isdigit():
        return False
    found = read_process(int(pid))
    if found is not None:
        return found.is_dead or bool(start and found.start != int(start))
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def is_here(process: str) -> bool:
    """Return whether a process is known to run on this machine."""
    host, _, _ = _parts(process)
    return host == os.uname().nodename and not has_ended(process)


def _parts(process: str) -> tuple[str, str, str]:
    """Return host, number and start time; lines of earlier versions have no start time."""
    host, _, last = process.rpartition(":")
    before, _, number = host.rpartition(":")
    return (before, number, last) if before and number.isdigit() else (host, last, "")


def why_unattended(hold: Hold, now_ns: int) -> str:
    """Return why a rental that lives is an error, or nothing: it is overdue, or unwatched."""
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
    """Return why a hold wants looking at, or nothing."""
    if hold.rental is not None:
        return why_unattended(hold, now_ns)
    if has_ended(hold.by):
        return f"{hold.by} opened it and is gone"
    if now_ns - wall_ns_of(parse_timestamp(hold.ts)) > OLD_NS:
        return "it is older than a day"
    return ""
