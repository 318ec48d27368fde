"""Finding and ending whatever a run left behind: its group, and processes that left the group.

Each run carries its ticket in its environment, and so does everything that it starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from outlay.guard.processes import MARK_VARIABLE


def carrying(prefix: str) -> list[int]:
    """Return the processes whose mark begins with ``prefix``; empty where there is no /proc."""
    mark = f"{MARK_VARIABLE}={prefix}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if any(item.startswith(mark) for item in entry.read_bytes().split(b"\0")):
                found.append(int(entry.parent.name))
    return found


def catching(prefix: str, number: int) -> list[int]:
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
    found = carrying(prefix)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return found


def kill_marked(prefix: str) -> None:
    """Kill every process that carries the mark, and what those started meanwhile."""
    while signal_marked(prefix, signal.SIGKILL):
        pass
