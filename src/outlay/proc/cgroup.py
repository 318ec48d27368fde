"""A control group of version 2 for one command, where one may be made.

The kernel puts into it whatever a member starts, and kills all of it at once, forks under way
included. Inside a Slurm job none is made: Slurm counts and ends a job by the groups that it made.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from outlay.clock import SYSTEM

SWITCH: Final = "OUTLAY_CGROUP"
_OFF: Final = ("0", "false", "off", "no")
_TRIES, _PAUSE_S = 50, 0.01


class Cgroup:
    """One group, by its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def make(cls, name: str) -> Cgroup | None:
        """Make a group below our own; None where that is switched off or not allowed."""
        if os.environ.get(SWITCH, "").strip().lower() in _OFF or "SLURM_JOB_ID" in os.environ:
            return None
        parent = own_directory()
        if parent is None:
            return None
        try:
            (parent / name).mkdir()
        except OSError:
            return None
        made = cls(parent / name)
        if (made.directory / "cgroup.kill").exists():
            return made
        made.remove()
        return None

    def enter(self, pid: int) -> bool:
        """Move a process in; what it starts from now on is in as well."""
        return _write(self.directory / "cgroup.procs", pid)

    def leave(self, pid: int) -> bool:
        """Move a process out, to where the group was made."""
        return _write(self.directory.parent / "cgroup.procs", pid)

    def members(self) -> list[int]:
        """Return everything inside, in groups below it too."""
        found: list[int] = []
        for directory, _, files in os.walk(self.directory):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found += map(int, Path(directory, "cgroup.procs").read_text().split())
        return found

    def kill(self) -> None:
        """Kill everything inside."""
        _write(self.directory / "cgroup.kill", 1)

    def remove(self) -> None:
        """Remove the group and those below it; one with a living member stays.

        Who was just killed may take a moment to be gone.
        """
        for _ in range(_TRIES):
            for directory, _, _ in os.walk(self.directory, topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()
            if not self.directory.exists():
                return
            SYSTEM.sleep(_PAUSE_S)


def own_directory() -> Path | None:
    """Return the directory of the group that this process is in; None without version 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in lines if line.startswith("0::/")), None)
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        if path is not None and after.startswith("cgroup2 "):
            return Path(before.split()[4] + path)
    return None


def _write(path: Path, value: int) -> bool:
    try:
        path.write_text(str(value))
    except OSError:
        return False
    return True
