"""One live writer per rank: a lock that dies with its process; whether an attempt runs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outlay.errors import RunInUse
from outlay.files import open_own
from outlay.ledger import RunIdentity, claim_identity, ledger_dir
from outlay.record.facts import Facts, boot_id

if TYPE_CHECKING:
    from outlay.ledger import Attempt  # Loads what reads logs.

# Whether an attempt still runs, as far as this host can tell.


def seems_alive(run_dir: Path, attempt: Attempt) -> bool | None:
    """Say whether a process records the attempt; None where this host cannot tell.

    A lock that is held proves life. One that is free proves death only on the host that recorded:
    the locks of other hosts are not always visible here.
    """
    if attempt.end is not None:
        return False
    try:
        held = is_held(ledger_dir(run_dir), attempt.segment.rank)
    except OSError:
        return None
    recorded_here = attempt.header.boot_id != "" and attempt.header.boot_id == boot_id()
    return held if held or recorded_here else None


_FLOCK: Final = "hhqqi"
"""struct flock of Linux: l_type, l_whence, l_start, l_len, l_pid."""
_held_here: dict[Path, int] = {}


class RankLock:
    """Holds one rank of one run for this process.

    A lock of the open file (OFD) where the system has them: the kernel drops it when the process
    dies, network file systems know it, and it outlives whoever else in the process opens and closes
    the file, such as a copy of the run's directory. Forked children close theirs, which releases
    nothing. Elsewhere a POSIX record lock, which does not exclude the process that holds it: that
    case is looked up here. ``holder`` is named in the error that the next one gets.

    Raises:
        RunInUse: Another process, or this one, records that rank already.
        OSError: The lock file cannot be made, or its file system knows no locks.
    """

    def __init__(self, ledger: Path, rank: int, *, holder: str) -> None:
        self._path = _lock_path(ledger, rank)
        if self._path in _held_here:
            raise RunInUse(str(ledger.parent), rank, "this process")
        self._fd = open_own(self._path, os.O_RDWR | os.O_CREAT)
        try:
            _set_lock(self._fd, fcntl.F_WRLCK)
        except (BlockingIOError, PermissionError):
            other = os.read(self._fd, 200).decode(errors="replace").strip()
            os.close(self._fd)
            raise RunInUse(str(ledger.parent), rank, other or "another process") from None
        except OSError:
            os.close(self._fd)
            raise
        _held_here[self._path] = self._fd
        with contextlib.suppress(OSError):  # On a full disk the lock holds without a name in it.
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{holder}\n".encode())

    def release(self) -> None:
        """Let another process record this rank."""
        if self._path in _held_here:
            descriptor = _held_here.pop(self._path)
            with contextlib.suppress(OSError):  # A child may not have closed its copy yet.
                _set_lock(descriptor, fcntl.F_UNLCK)
            os.close(descriptor)


def claim_rank(
    run_dir: Path, proposal: RunIdentity, about: Facts, *, exclusive: bool = True
) -> tuple[str, RankLock | None]:
    """Take a run's directory for a rank; return the run's id, and what holds the rank.

    There is no lock where the directory cannot be written, or none is wanted.

    Raises:
        RunInUse: A live process records this rank already.
    """
    run_id, lock = proposal.run_id, None
    holder = f"pid {about.pid}" + (f" on {about.host}" if about.host else "")
    with contextlib.suppress(OSError):  # The segment writer meets the same trouble, and says so.
        run_id = claim_identity(run_dir, proposal).run_id
        if exclusive:
            lock = RankLock(ledger_dir(run_dir), about.rank, holder=holder)
    return run_id, lock


def is_held(ledger: Path, rank: int) -> bool | None:
    """Say whether a live process holds the rank, without taking it; None where nobody can tell."""
    path = _lock_path(ledger, rank)
    if path in _held_here:
        return True
    if sys.platform != "linux":
        return None
    descriptor = open_own(path, os.O_RDONLY)
    try:
        question = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
    finally:
        os.close(descriptor)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _set_lock(descriptor: int, kind: int) -> None:
    """Take the whole file for this open file alone, or let go of it; raises OSError."""
    if sys.platform == "linux":
        whole_file = struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whole_file)
            return
        except OSError as error:
            if error.errno != errno.EINVAL:  # A kernel or file system without them.
                raise
    fcntl.lockf(
        descriptor, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
    )


def _lock_path(ledger: Path, rank: int) -> Path:
    return ledger.resolve() / f"rank-{rank}.lock"


def _forget_all() -> None:
    # The parent's locks live as long as one copy of their descriptors does.
    for descriptor in _held_here.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held_here.clear()


os.register_at_fork(after_in_child=_forget_all)
