"""One live writer per rank: a lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from outlay.errors import RunInUse

_held_here: set[Path] = set()


class RankLock:
    """Holds one rank of one run for this process.

    A POSIX record lock: the kernel drops it when the process dies, forked children do not inherit
    it, and network file systems know it. Since it does not exclude the process that holds it, that
    case is looked up here.

    Raises:
        RunInUse: Another process, or this one, records that rank already.
        OSError: The lock file cannot be made.
    """

    def __init__(self, ledger: Path, rank: int) -> None:
        self._path = ledger.resolve() / f"rank-{rank}.lock"
        if self._path in _held_here:
            raise RunInUse(str(ledger.parent), rank, "this process")
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.read(self._fd, 200).decode(errors="replace").strip()
            os.close(self._fd)
            raise RunInUse(str(ledger.parent), rank, holder or "another process") from None
        _held_here.add(self._path)
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"pid {os.getpid()} on {os.uname().nodename}\n".encode())

    def release(self) -> None:
        """Let another process record this rank."""
        if self._path in _held_here:
            _held_here.discard(self._path)
            os.close(self._fd)


def _forget_all() -> None:
    # A forked child holds none of its parent's locks, whatever it inherited.
    _held_here.clear()


os.register_at_fork(after_in_child=_forget_all)
