"""Signalling and ending whatever a run left behind, whichever group it is in by now.

Each run carries its ticket in its environment, and so does everything that it starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

from outlay.clock import SYSTEM, Clock
from outlay.guard.processes import marked

_PATIENCE_NS: Final = 10 * 10**9
_FIRST_PAUSE_S: Final = 0.001
_LAST_PAUSE_S: Final = 0.1


def listeners(prefix: str, number: int) -> list[int]:
    """Return the processes that carry the mark and have a handler for a signal."""
    return [pid for pid in marked(prefix) if _catches(pid, number)]


def _catches(pid: int, number: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def signal_marked(prefix: str, number: int) -> list[int]:
    """Send a signal to every process that carries the mark; return which they were."""
    return _signalled(marked(prefix), number)


def signal_listeners(prefix: str, number: int) -> list[int]:
    """Send a signal to those of them that have a handler for it; return which they were."""
    return _signalled(listeners(prefix, number), number)


def _signalled(found: list[int], number: int) -> list[int]:
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return found


def kill_marked(prefix: str, clock: Clock = SYSTEM) -> list[int]:
    """Kill every process that carries the mark, and what those started meanwhile.

    Returns those that are still there after a while: a process that hangs in the kernel dies when
    the kernel lets go of it, and nobody can hurry that.
    """
    until_ns, pause_s = clock.monotonic_ns() + _PATIENCE_NS, _FIRST_PAUSE_S
    while left := signal_marked(prefix, signal.SIGKILL):
        if clock.monotonic_ns() >= until_ns:
            break
        clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    return left
