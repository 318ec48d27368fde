"""Exit records of commands, and stray families: commands whose supervisor and keeper were killed.

Each family has a record file while it runs. If its supervisor and its keeper are both gone, it is
found by its first processes, cgroup, session and mark.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from outlay.clock import SYSTEM, Clock
from outlay.files import make_private, write_whole
from outlay.proc.identity import (
    Cgroup,
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

# How a command ended: written before it is reported, for the next supervisor if this one dies.

NAME: Final = "sweep_exit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """The end of one attempt.

    Attributes:
        asked: Whether it was signalled to end.
        ended_ns: When its last process was reaped, UTC nanoseconds; 0 if unknown.
        reason: Why it ended, if the exit code does not tell.
        restart: How often a cluster had restarted the attempt.
    """

    ticket: str
    returncode: int
    asked: bool = False
    elapsed_ns: int = 0
    ended_ns: int = 0
    reason: str = ""
    restart: int = 0


def shell_code(returncode: int) -> int:
    """Return a shell's exit code: 128 plus the signal's number for a killed process."""
    return returncode if returncode >= 0 else 128 - returncode


def exit_path(directory: Path, node: int = 0) -> Path:
    """Return the path of the exit record of one node."""
    return directory / (NAME if node == 0 else f"sweep_exit.node{node}.json")


def write_exit(path: Path, record: ExitRecord) -> bool:
    """Write an exit record atomically; False if that fails."""
    try:
        write_whole(
            path, json.dumps(asdict(record), separators=(",", ":")).encode() + b"\n", private=True
        )
    except OSError:
        return False
    return True


def read_exit(directory: Path, ticket: str, *, node: int = 0) -> ExitRecord | None:
    """Return the exit record of an attempt, or None if there is none."""
    # Here: the keeper, which only writes, runs without third-party packages.
    from outlay.decoding import MEBIBYTE, BadDocument, read_document

    try:
        record = read_document(exit_path(directory, node), ExitRecord, largest=MEBIBYTE)
    except (OSError, BadDocument):
        return None
    return record if record.ticket == ticket else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRecord:
    """The supervisor and keeper of a family, and how to find it without them.

    Attributes:
        machine: Where its pids are valid, the fields of ``PidScope``; the last one may be missing.
        about: What it is: ``kind``, and what that kind needs to deal with a stray.
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
class StrayFamily:
    """A family without supervisor and keeper, and its live processes."""

    path: Path
    record: FamilyRecord
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


def write_record(path: Path, record: FamilyRecord) -> None:
    """Write a family's record."""
    with contextlib.suppress(OSError):  # Without it a stray of this family is not found.
        make_private(path.parent)
        write_whole(path, json.dumps(asdict(record)).encode() + b"\n", private=True)


def find_strays(directory: Path) -> Iterator[StrayFamily]:
    """Yield this machine's stray families; the records of ended ones are removed."""
    for path in sorted(directory.glob("*.json")):
        stray = _read(path)
        if stray is None or _is_kept(stray.record):
            continue
        if stray.alive:
            yield stray
        else:
            stray.forget()


def survivors(record: FamilyRecord) -> list[Process]:
    """Return the live processes of a family."""
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


def _is_kept(record: FamilyRecord) -> bool:
    if is_alive(record.supervisor.pid, record.supervisor.start):
        return True
    keeper = read_process(record.keeper.pid)
    if keeper is None or keeper.start != record.keeper.start or keeper.is_dead:
        return False
    if keeper.state == "T":  # Stopped, and its supervisor is dead: woken, it ends its commands.
        send(keeper, signal.SIGCONT)
    return True


def _read(path: Path) -> StrayFamily | None:
    from outlay.decoding import BadDocument, read_document  # Here: as in read_exit.

    try:
        record, here = read_document(path, FamilyRecord), pid_scope()
        if record.machine not in (here, here[:-1]):
            if len(record.machine) == len(here) and here.is_later_boot_of(
                PidScope(*record.machine)
            ):
                path.unlink()
            return None
    except (OSError, BadDocument):
        return None
    alive = () if _is_kept(record) else tuple(survivors(record))
    return StrayFamily(path, record, alive)
