"""Orphaned process trees: commands whose supervisor and keeper were both killed.

Each process tree has a record file while it runs. If its supervisor and its keeper are both gone,
it is found by its first processes, cgroup, session and mark.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outlay.clock import SYSTEM, Clock
from outlay.files import make_private, write_whole
from outlay.proc.cgroup import Cgroup
from outlay.proc.identity import (
    PidScope,
    Process,
    all_processes,
    below,
    end_all,
    is_alive,
    is_outliving,
    marked,
    pid_scope,
    read_process,
    send,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRecord:
    """The supervisor and keeper of a process tree, and how to find it without them.

    Attributes:
        machine: Where its pids are valid, the fields of ``PidScope``; the last one may be missing.
        about: What it is: ``kind``, and what that kind needs to deal with an orphaned one.
        spared: As in ``KeeperTerms``.
    """

    machine: tuple[str, ...]
    session: str
    supervisor: Process
    keeper: Process
    commands: tuple[Process, ...] = ()
    cgroup: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    spared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OrphanedTree:
    """A process tree without supervisor and keeper, and its live processes."""

    path: Path
    record: TreeRecord
    alive: tuple[Process, ...]

    def end(self, clock: Clock = SYSTEM) -> list[Process]:
        """Kill all its processes, within a timeout; return what is left."""
        if self.record.cgroup:
            cgroup, ours = Cgroup(Path(self.record.cgroup)), {p.pid for p in survivors(self.record)}
            for pid in cgroup.members():
                if pid not in ours:
                    cgroup.leave(pid)
            cgroup.kill()
        return end_all(lambda: survivors(self.record), clock)

    def forget(self) -> None:
        """Remove its record and cgroup."""
        if self.record.cgroup:
            Cgroup(Path(self.record.cgroup)).remove()
        with contextlib.suppress(OSError):
            self.path.unlink()


def write_record(path: Path, record: TreeRecord) -> None:
    """Write a process tree's record."""
    with contextlib.suppress(OSError):  # Without it an orphaned tree is not found.
        make_private(path.parent)
        write_whole(path, json.dumps(asdict(record)).encode() + b"\n", private=True)


def find_orphaned_trees(directory: Path) -> Iterator[OrphanedTree]:
    """Yield this machine's orphaned process trees; the records of ended ones are removed."""
    for path in sorted(directory.glob("*.json")):
        orphaned = _read(path)
        if orphaned is None or _is_kept(orphaned.record):
            continue
        if orphaned.alive:
            yield orphaned
        else:
            orphaned.forget()


def running_trees(directory: Path) -> Iterator[TreeRecord]:
    """Yield this machine's process trees that have a live supervisor, keeper or process."""
    for path in sorted(directory.glob("*.json")):
        found = _read(path)
        if found is not None and (found.alive or _is_kept(found.record)):
            yield found.record


def survivors(record: TreeRecord) -> list[Process]:
    """Return the live processes of a process tree."""
    table = all_processes()
    roots = {p.pid for p in record.commands if is_alive(p.pid, p.start)}
    if record.session:
        roots |= {process.pid for process in marked(record.session)}
    if record.keeper.pid not in table:  # Else the pid was reused, and the session is gone.
        roots |= {p.pid for p in table.values() if p.session == record.keeper.pid}
    if record.cgroup:
        roots |= set(Cgroup(Path(record.cgroup)).members())
    found = below(table, roots) - {os.getpid()}
    found -= below(table, [pid for pid in found if is_outliving(record.spared, pid)])
    return [table[pid] for pid in sorted(found) if pid in table and not table[pid].is_dead]


def _is_kept(record: TreeRecord) -> bool:
    if is_alive(record.supervisor.pid, record.supervisor.start):
        return True
    keeper = read_process(record.keeper.pid)
    if keeper is None or keeper.start != record.keeper.start or keeper.is_dead:
        return False
    if keeper.state == "T":  # Stopped, and its supervisor is dead: woken, it ends its commands.
        send(keeper, signal.SIGCONT)
    return True


def _read(path: Path) -> OrphanedTree | None:
    from outlay.decoding import BadDocument, read_document  # Here: as in read_exit.

    try:
        record, here = read_document(path, TreeRecord), pid_scope()
        if record.machine not in (here, here[:-1]):
            if len(record.machine) == len(here) and here.is_later_boot_of(
                PidScope(*record.machine)
            ):
                path.unlink()
            return None
    except (OSError, BadDocument):
        return None
    alive = () if _is_kept(record) else tuple(survivors(record))
    return OrphanedTree(path, record, alive)
