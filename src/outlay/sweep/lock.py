"""One harness per sweep: a lock that goes with its process, and says who holds it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from outlay.sweep.errors import SweepInUse

NAME: Final = ".sweep.lock"


class SweepLock:
    """Holds a sweep's directory for this process.

    Raises:
        SweepInUse: Another process holds it.
    """

    def __init__(self, root: Path) -> None:
        self._descriptor = os.open(root / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._descriptor, 64).decode(errors="replace")
            os.close(self._descriptor)
            raise SweepInUse(str(root), f"process {holder}") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let go."""
        os.close(self._descriptor)


def holder_of(root: Path) -> int | None:
    """Return the process that runs a sweep now, or None."""
    try:
        descriptor = os.open(root / NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        text = os.read(descriptor, 64).decode(errors="replace")
        return int(text) if text.isdecimal() else None
    finally:
        os.close(descriptor)
    return None
