"""Finding and ending whatever a run left behind: its group, and processes that left the group.

Each run carries its ticket in its environment, and so does everything that it starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

from outlay.clock import SYSTEM, Clock
from outlay.guard.processes import MARK_VARIABLE

_PATIENCE_NS: Final = 10 * 10**9
_FIRST_PAUSE_S: Final = 0.001
_LAST_PAUSE_S: Final = 0.1


def carrying(prefix: str) -> list[int]:
    """Return the processes whose mark begins with ``prefix``; empty where there is no /proc."""
    mark = f"{MARK_VARIABLE}={prefix}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if any(item.startswith(mark) for item in entry.read_bytes().split(b"\0")):
                found.append(int(entry.parent.name))
    return found


def listeners(prefix: str, number: int) -> list[int]:
    """Return the processes that carry the mark and have a handler for a signal."""
    return [pid for pid in carrying(prefix) if _catches(pid, number)]


def _catches(pid: int, number: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a group; False when nobody is left in it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_marked(prefix: str, number: int) -> list[int]:
    """Send a signal to every process that carries the mark; return which they were."""
    return _signalled(carrying(prefix), number)


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
