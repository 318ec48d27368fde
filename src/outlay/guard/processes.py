"""Ending everything that a command started: its process group, and whoever left the group.

Launchers such as torchrun put their workers into sessions of their own, where a signal to the
group does not reach them. They still carry the environment that the command was started with, and
a mark in it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MARK_VARIABLE = "OUTLAY_SUPERVISED"


def marked(prefix: str) -> list[int]:
    """Return the processes whose mark begins with ``prefix``; empty where there is no /proc."""
    mark = f"{MARK_VARIABLE}={prefix}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if any(item.startswith(mark) for item in entry.read_bytes().split(b"\0")):
                found.append(int(entry.parent.name))
    return found


def group_alive(group: int) -> bool:
    """Return whether any process of a group is left, zombies not counted."""
    members = Path("/proc").glob("[0-9]*/stat")
    if not Path("/proc/self/stat").exists():
        return signal_group(group, 0)
    for member in members:
        with contextlib.suppress(OSError):
            state, _, group_id = member.read_text().rpartition(")")[2].split()[:3]
            if int(group_id) == group and state != "Z":
                return True
    return False


def anything_left(group: int | None, mark: str) -> bool:
    """Return whether anything that the command started still runs."""
    return bool(marked(mark)) or (group is not None and group_alive(group))


def signal_all(number: int, group: int | None, mark: str) -> None:
    """Send a signal to the group and to everything else that carries the mark."""
    if group is not None:
        signal_group(group, number)
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group is None or os.getpgid(pid) != group:
                os.kill(pid, number)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a group; False when nobody is left in it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
