"""A lock per rank, released when its process dies, and whether an attempt is alive."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from outlay.errors import RunInUse
from outlay.files import open_own
from outlay.ledger import AttemptStarted, RunIdentity, claim_identity, ledger_dir
from outlay.locks import FileLock, FileLocked, is_locked
from outlay.machine import boot_id

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


_held_here: dict[Path, FileLock] = {}
os.register_at_fork(after_in_child=_held_here.clear)


class RankLock:
    """Holds one rank of one run for this process; ``holder`` is named in ``RunInUse``.

    ``_held_here`` is for systems whose locks do not exclude the process that holds them.

    Raises:
        RunInUse: Another process, or this one, records that rank already.
        OSError: The lock file cannot be created, or its file system has no locks.
    """

    def __init__(self, ledger: Path, rank: int, *, holder: str) -> None:
        self._path = _lock_path(ledger, rank)
        if self._path in _held_here:
            raise RunInUse(str(ledger.parent), rank, "this process")
        file = open_own(self._path, os.O_RDWR | os.O_CREAT)
        try:
            _held_here[self._path] = FileLock(file, visible=True, holder=f"{holder}\n")
        except FileLocked as error:
            other = error.holder or "another process"
            raise RunInUse(str(ledger.parent), rank, other) from None

    def release(self) -> None:
        """Let another process record this rank."""
        if self._path in _held_here:
            _held_here.pop(self._path).release()


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
    return path in _held_here or is_locked(path)


def _lock_path(ledger: Path, rank: int) -> Path:
    return ledger.resolve() / f"rank-{rank}.lock"
