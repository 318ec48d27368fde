"""A version 2 cgroup for one command, where one can be created.

The kernel adds every child of a member, and kills all members at once, forks in progress included.
None is created inside a Slurm job, which Slurm accounts and ends by its own cgroups. Standard
library only, as in ``identity``.
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
    """A cgroup, by its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def make(cls, name: str) -> Cgroup | None:
        """Create a cgroup below this process's; None where that is switched off or not allowed."""
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
        """Move a process in; its later children are members as well."""
        return _write(self.directory / "cgroup.procs", pid)

    def leave(self, pid: int) -> bool:
        """Move a process out, to the parent cgroup."""
        return _write(self.directory.parent / "cgroup.procs", pid)

    def members(self) -> list[int]:
        """Return the pids of all members, those of nested cgroups included."""
        found: list[int] = []
        for directory, _, files in os.walk(self.directory):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found += map(int, Path(directory, "cgroup.procs").read_text().split())
        return found

    def kill(self) -> None:
        """Kill all members."""
        _write(self.directory / "cgroup.kill", 1)

    def remove(self) -> None:
        """Remove the cgroup and nested ones, unless one has a live member.

        Retries, since killed processes take a moment to exit.
        """
        for _ in range(_TRIES):
            for directory, _, _ in os.walk(self.directory, topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()
            if not self.directory.exists():
                return
            SYSTEM.sleep(_PAUSE_S)


def own_directory() -> Path | None:
    """Return the directory of this process's cgroup; None without version 2."""
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
