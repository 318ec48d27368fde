"""Free ports that no two runs of this machine get at the same time.

A port is reserved by locking a file named after it for as long as the run lasts; the lock goes with
the process that holds it. They lie below the range from which systems hand out ports themselves.
Another program may take one all the same, before the run does: the harness then tries another.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import socket
import stat
import tempfile
from pathlib import Path
from typing import Final

from outlay.errors import OutlayError

RANGE: Final = range(20_000, 32_000)


class NoPortFree(OutlayError):
    """Every port of the range is taken."""

    def __init__(self) -> None:
        super().__init__(
            f"no free port from {RANGE.start} to {RANGE.stop - 1} on this machine; end what "
            "listens there, and continue with `outlay sweep resume`"
        )


class Ports:
    """The ports that this process has reserved."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.gettempdir()) / f"outlay-ports-{os.getuid()}"
        self._held: dict[int, int] = {}

    def reserve(self) -> int:
        """Return a port that is free now and that no other outlay gives away."""
        self._prepare()
        first: int = random.choice(RANGE)  # noqa: S311 - spreads attempts; keeps nothing secret
        for port in itertools.chain(range(first, RANGE.stop), range(RANGE.start, first)):
            if self._lock(port):
                if _is_free(port):
                    return port
                self.release(port)
        raise NoPortFree

    def _prepare(self) -> None:
        """Make the directory; one that another user put there first is not used."""
        if _make_private(self._directory):
            return
        self._directory = Path(tempfile.mkdtemp(prefix="outlay-ports-"))

    def release(self, port: int) -> None:
        """Give a port back."""
        descriptor = self._held.pop(port, None)
        if descriptor is not None:
            os.close(descriptor)

    def _lock(self, port: int) -> bool:
        if port in self._held:
            return False
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._directory / str(port), flags | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._held[port] = descriptor
        return True


def _make_private(directory: Path) -> bool:
    """Make a directory that is ours alone; False where something else stands in its place."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
    found = directory.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_ours and not found.st_mode & 0o022


def was_taken(printed: str, port: int) -> bool:
    """Say whether a run failed because another program took its port after it was reserved."""
    if "address already in use" not in printed.lower():
        return False
    # torch names the port; other programs may not.
    return str(port) in printed or not _is_free(port)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
