"""One harness per sweep: a lock that goes with its process, and says who holds it."""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outlay.files import open_own
from outlay.sweep.errors import SweepInUse

NAME: Final = ".sweep.lock"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that runs a sweep, and its machine, which may share but a disk with ours."""

    pid: int
    host: str

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        return f"process {self.pid}" + ("" if self.is_here else f" on {self.host}")


class SweepLock:
    """Holds a sweep's directory for this process.

    Raises:
        SweepInUse: Another process holds it.
    """

    def __init__(self, root: Path) -> None:
        self._descriptor = open_own(root / NAME, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _read(self._descriptor)
            os.close(self._descriptor)
            raise SweepInUse(str(root), str(holder or "another process")) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}".encode(), 0)

    def release(self) -> None:
        """Let go; whoever comes next finds no name in it."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def holder_of(root: Path) -> Holder | None:
    """Return who runs a sweep now, or None."""
    try:
        descriptor = open_own(root / NAME, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return _read(descriptor)
    finally:
        os.close(descriptor)
    return None


def _read(descriptor: int) -> Holder | None:
    pid, _, host = os.read(descriptor, 300).decode(errors="replace").partition(" ")
    return Holder(int(pid), host or socket.gethostname()) if pid.isdecimal() else None
