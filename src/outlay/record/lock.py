"""A lock per rank, released when its process dies, and whether an attempt is alive."""

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
from outlay.ledger import AttemptStarted, RunIdentity, claim_identity, ledger_dir
from outlay.record.facts import boot_id

if TYPE_CHECKING:
    from outlay.ledger import Attempt  # Would load the modules that read logs.


def seems_alive(run_dir: Path, attempt: Attempt) -> bool | None:
    """Return whether a live process records the attempt; None if this host cannot tell.

    A held lock proves that it is alive. A free one proves that it is dead only on the host that
    recorded: locks of other hosts are not always visible here.
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

    An open file description (OFD) lock on Linux: the kernel releases it when the process dies,
    network file systems support it, and it survives other code in the process opening and closing
    the file, such as a copy of the run's directory. Forked children close their descriptor, which
    does not release the lock. Elsewhere a POSIX record lock, which does not exclude the process
    that holds it: ``_held_here`` covers that case. ``holder`` is named in ``RunInUse``.

    Raises:
        RunInUse: Another process, or this one, records that rank already.
        OSError: The lock file cannot be created, or its file system has no locks.
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
        with contextlib.suppress(OSError):  # On a full disk the lock works without the name.
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
    run_dir: Path, proposal: RunIdentity, about: AttemptStarted, *, exclusive: bool = True
) -> tuple[str, RankLock | None]:
    """Claim a run's directory for a rank; return the run's id and the rank's lock.

    The lock is None if the directory cannot be written or the claim is not ``exclusive``.

    Raises:
        RunInUse: A live process records this rank already.
    """
    run_id, lock = proposal.run_id, None
    holder = f"pid {about.pid}" + (f" on {about.host}" if about.host else "")
    with contextlib.suppress(OSError):  # The segment writer gets the same error and reports it.
        run_id = claim_identity(run_dir, proposal).run_id
        if exclusive:
            lock = RankLock(ledger_dir(run_dir), about.rank, holder=holder)
    return run_id, lock


def is_held(ledger: Path, rank: int) -> bool | None:
    """Return whether a live process holds the rank's lock, without taking it; None if unknown."""
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
    """Lock or unlock the whole file without waiting; raises OSError."""
    if sys.platform == "linux":
        whole_file = struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whole_file)
            return
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: a kernel or file system without OFD locks.
                raise
    fcntl.lockf(
        descriptor, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
    )


def _lock_path(ledger: Path, rank: int) -> Path:
    return ledger.resolve() / f"rank-{rank}.lock"


def _close_all() -> None:
    # The parent's locks last as long as any copy of their descriptors.
    for descriptor in _held_here.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held_here.clear()


os.register_at_fork(after_in_child=_close_all)
