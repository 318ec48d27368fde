"""Families whose supervisor and keeper were killed at once: how they ended, and who finds them.

Each family is named in a file of its own while it lives. One whose supervisor and keeper are both
gone is looked for by the processes that it was started with, its control group, session and mark.
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
from outlay.files import write_whole
from outlay.proc.identity import (
    Cgroup,
    Process,
    all_processes,
    below,
    end_all,
    is_alive,
    marked,
    read_process,
    send,
)

# How a command ended, written down by whoever saw it end, before anybody is told.
#
# Whoever started it may be dead by then; the next one reads it here.

NAME: Final = "sweep_exit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """The end of one attempt.

    Attributes:
        asked: Whether it was asked to end before it did.
        ended_ns: When the last of it was reaped, UTC nanoseconds; 0 where nobody noted it.
        reason: Why, where the exit code does not say.
        restart: How often a cluster had started the attempt before.
    """

    ticket: str
    returncode: int
    asked: bool = False
    elapsed_ns: int = 0
    ended_ns: int = 0
    reason: str = ""
    restart: int = 0


def shell_code(returncode: int) -> int:
    """Return an exit code as a shell gives it: 128 plus the signal for a process it killed."""
    return returncode if returncode >= 0 else 128 - returncode


def exit_path(directory: Path, node: int = 0) -> Path:
    """Return where the end is written, as seen from one node of several."""
    return directory / (NAME if node == 0 else f"sweep_exit.node{node}.json")


def write_exit(path: Path, record: ExitRecord) -> bool:
    """Put the record in place whole; False when the disk refuses."""
    try:
        write_whole(path, json.dumps(asdict(record), separators=(",", ":")).encode() + b"\n")
    except OSError:
        return False
    return True


def read_exit(directory: Path, ticket: str, *, node: int = 0) -> ExitRecord | None:
    """Return how this very attempt ended, or None where that was not written."""
    # Here: the keeper, which only writes, runs without packages.
    from outlay.decoding import MEBIBYTE, BadDocument, read_document

    try:
        record = read_document(exit_path(directory, node), ExitRecord, largest=MEBIBYTE)
    except (OSError, BadDocument):
        return None
    return record if record.ticket == ticket else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRecord:
    """Who keeps a family, and how to find it without them.

    Attributes:
        machine: Within which its process numbers mean something: see ``this_machine``.
        about: What it is, for whoever deals with it: ``kind`` and what that kind needs.
    """

    machine: tuple[str, ...]
    session: str
    supervisor: Process
    keeper: Process
    commands: tuple[Process, ...] = ()
    cgroup: str = ""
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StrayFamily:
    """A family that nobody keeps any more, and what lives of it."""

    path: Path
    record: FamilyRecord
    alive: tuple[Process, ...]

    def end(self, clock: Clock = SYSTEM) -> list[Process]:
        """Kill until two looks in a row find nothing, for a bounded time; return what is left."""
        if self.record.cgroup:
            Cgroup(Path(self.record.cgroup)).kill()
        return end_all(lambda: survivors(self.record), clock)

    def forget(self) -> None:
        """Name it no longer."""
        if self.record.cgroup:
            Cgroup(Path(self.record.cgroup)).remove()
        with contextlib.suppress(OSError):
            self.path.unlink()


def write_record(path: Path, record: FamilyRecord) -> None:
    """Name a family; where that cannot be written, only a kill of both at once is not seen."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(record)).encode() + b"\n")


def find_strays(directory: Path) -> Iterator[StrayFamily]:
    """Yield the families of this machine that nobody keeps; those that are gone are forgotten."""
    for path in sorted(directory.glob("*.json")):
        stray = _read(path)
        if stray is None or _is_kept(stray.record):
            continue
        if stray.alive:
            yield stray
        else:
            stray.forget()


def survivors(record: FamilyRecord) -> list[Process]:
    """Return what lives of a family, however it hides."""
    table = all_processes()
    roots = {p.pid for p in record.commands if is_alive(p.pid, p.start)}
    if record.session:
        roots |= {process.pid for process in marked(record.session)}
    if record.keeper.pid not in table:  # Else the number is used again, and the session is gone.
        roots |= {p.pid for p in table.values() if p.session == record.keeper.pid}
    if record.cgroup:
        roots |= set(Cgroup(Path(record.cgroup)).members())
    found = below(table, roots) - {os.getpid()}
    return [table[pid] for pid in sorted(found) if pid in table and not table[pid].is_dead]


def _is_kept(record: FamilyRecord) -> bool:
    if is_alive(record.supervisor.pid, record.supervisor.start):
        return True
    keeper = read_process(record.keeper.pid)
    if keeper is None or keeper.start != record.keeper.start or keeper.is_dead:
        return False
    if keeper.state == "T":  # Stopped, and its supervisor is dead: it ends what it keeps.
        send(keeper, signal.SIGCONT)
    return True


def this_machine() -> tuple[str, ...]:
    """Return what a process number means something within: a host, one boot, one namespace."""
    parts = [os.uname().nodename]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return tuple(parts)


def _read(path: Path) -> StrayFamily | None:
    from outlay.decoding import BadDocument, read_document  # Here: as in read_exit.

    try:
        record, here = read_document(path, FamilyRecord), this_machine()
        if record.machine != here:  # Another machine's; or from before this one was started again.
            if record.machine[:1] == here[:1] and record.machine[1:2] != here[1:2]:
                path.unlink()
            return None
    except (OSError, BadDocument):
        return None
    alive = () if _is_kept(record) else tuple(survivors(record))
    return StrayFamily(path, record, alive)
