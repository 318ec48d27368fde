"""The processes of a test, seen from outside: which are alive, and their keepers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from outlay.proc.identity import own_children


@contextlib.contextmanager
def reaping() -> Iterator[None]:
    """Wait for the children that the block leaves, also adopted ones whose parent was killed."""
    before = own_children()
    yield
    for pid in set(own_children()) - set(before):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def keepers_of(supervisor: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == supervisor and b"outlay.proc.keeper" in command:
            found.append(int(stat.parent.name))
    return found
