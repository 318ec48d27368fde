"""Free ports, each reserved for one run of this machine at a time.

A reservation is a lock on a file named after the port, held by this process while the run lasts.
The ports are below the ephemeral range. Another program may still bind one before the run does: the
harness then tries another.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import stat
import tempfile
import weakref
from pathlib import Path
from typing import Final

from outlay.errors import OutlayError
from outlay.files import open_own
from outlay.locks import FileLock, FileLocked

RANGE: Final = range(20_000, 32_000)
_TAIL_BYTES: Final = 1 << 18
"""How much of the end of a failed run's output is searched."""


class NoPortFree(OutlayError):
    """Every port of the range is in use."""

    def __init__(self) -> None:
        super().__init__(
            f"no free port from {RANGE.start} to {RANGE.stop - 1} on this machine; stop what "
            "listens there, and continue with `outlay sweep resume`"
        )


class Ports:
    """The ports reserved by this process; those of an object that is collected are released."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.gettempdir()) / f"outlay-ports-{os.getuid()}"
        self._first: int = random.choice(RANGE)  # noqa: S311 - spreads sweeps; not a secret
        self._held: dict[int, FileLock] = {}
        weakref.finalize(self, _release_all, self._held)

    def reserve(self) -> int:
        """Return a port that is free now and that no other sweep of this user reserves.

        One that was released is taken again: its lock file exists, and creating one can be slow.
        """
        if not _make_private(self._directory):
            self._directory = Path(tempfile.mkdtemp(prefix="outlay-ports-"))
        first = self._first
        for port in itertools.chain(range(first, RANGE.stop), range(RANGE.start, first)):
            if self._lock(port):
                if _is_free(port):
                    return port
                self.release(port)
        raise NoPortFree

    def release(self, port: int) -> None:
        """Release a port."""
        if (lock := self._held.pop(port, None)) is not None:
            lock.release()

    def _lock(self, port: int) -> bool:
        if port in self._held:
            return False
        file = open_own(self._directory / str(port), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            self._held[port] = FileLock(file)
        except FileLocked:
            return False
        return True


def _release_all(held: dict[int, FileLock]) -> None:
    for lock in held.values():
        lock.release()


def _make_private(directory: Path) -> bool:
    """Make a directory that only this user can write; False if the path is anything else."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
    found = directory.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_ours and not found.st_mode & 0o022


def lost_port(log: Path, since: int, port: int | None) -> bool:
    """Say whether an attempt failed because another program bound its port first.

    ``log`` is the run's output; this attempt's begins after ``since`` bytes.
    """
    printed = ""
    with contextlib.suppress(OSError), log.open("rb") as stream:
        stream.seek(max(since, log.stat().st_size - _TAIL_BYTES))
        printed = stream.read().decode(errors="replace")
    if port is None or "address already in use" not in printed.lower():
        return False
    # torch prints the port; other programs may not.
    return str(port) in printed or not _is_free(port)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
