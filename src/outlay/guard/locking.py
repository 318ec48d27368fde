"""Durable files, head files, and which holding processes have ended."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Self

from outlay.clock import utc_text, wall_ns_of
from outlay.files import make_private, open_own, write_whole
from outlay.guard.balance import Hold
from outlay.guard.chain import GENESIS, NO_SLOTS, SLOT_BYTES, Head, Slots, encode_slot, parse_slots
from outlay.guard.entries import parse_timestamp
from outlay.proc.identity import PidScope, pid_scope, read_process
from outlay.store import outlay_home

# Durable files and directories.


def read_from(file: int, start: int, end: int) -> bytes:
    """Return the bytes ``[start, end)`` of an open file; fewer if it is shorter."""
    chunks = []
    while start < end and (chunk := os.pread(file, end - start, start)):
        chunks.append(chunk)
        start += len(chunk)
    return b"".join(chunks)


def read_small(path: str) -> bytes | None:
    """Return a small file's content; None if there is no file."""
    try:
        file = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_from(file, 0, os.fstat(file).st_size)
    finally:
        os.close(file)


def file_exists(path: Path) -> bool:
    """Return whether a file exists; raises OSError if that can't be determined."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, and fsync each of them."""
    if not directory.is_dir():
        make_directory(directory.parent)
        make_private(directory)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Fsync a directory, so that a new file's name survives a power failure."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class HeadFile:
    """A file with the last acknowledged line of a log.

    While the log is locked it may stay open between a read and a write; ``release`` closes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = os.fspath(path)
        self._file: int | None = None
        self._parsed = (b"", NO_SLOTS)

    def read(self, *, keep: bool = False) -> Slots:
        """Return the slots, empty if there is no file; ``keep`` leaves it open for writing."""
        raw = (self._read_and_keep() if keep else read_small(self._name)) or b""
        known, slots = self._parsed
        if raw != known:
            slots = parse_slots(raw)
            self._parsed = (raw, slots)
        return slots

    def _read_and_keep(self) -> bytes | None:
        self.release()
        try:
            self._file = open_own(self._name, os.O_RDWR)
        except FileNotFoundError:
            return None
        except OSError:
            return read_small(self._name)
        return read_from(self._file, 0, os.fstat(self._file).st_size)

    def open(self) -> None:
        """Open it for writing unless it is open; create it if needed."""
        if self._file is None:
            self._file = open_own(self._name, os.O_WRONLY | os.O_CREAT)

    def release(self) -> None:
        """Close it if it is open."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def write(self, head: Head, after: Slots) -> None:
        """Write one slot, at the offset that ``after``, the last read, names."""
        self.open()
        assert self._file is not None
        at, new = after.next_at, encode_slot(head)
        os.pwrite(self._file, new, at)
        raw, known = self._parsed
        if known == after and (after.head is None or after.head.offset < head.offset):
            # Cache what the next read returns, unless another process writes.
            raw = raw[:at] + new + raw[at + SLOT_BYTES :]
            self._parsed = (raw, Slots(head, SLOT_BYTES - at, readable=True))

    def begin(self) -> Slots:
        """Write and fsync the head of an empty log; from now on a missing head is an error."""
        self.write(Head(0, GENESIS), NO_SLOTS)
        assert self._file is not None
        os.fsync(self._file)
        return Slots(Head(0, GENESIS), SLOT_BYTES, readable=True)

    def replace(self, head: Head) -> None:
        """Replace the file by this head alone."""
        write_whole(self.path, encode_slot(head), synced=True, private=True)


class RememberedHead(HeadFile):
    """The last line of a log that this machine has seen, kept in the outlay home.

    A lower bound like the log's own head, written after the answer and without fsync. If the home
    can't be read or written, nothing is remembered.
    """

    def __init__(self, log_path: Path) -> None:
        digest = hashlib.sha256(os.fsencode(log_path)).hexdigest()[:16]
        super().__init__(outlay_home() / "heads" / f"{log_path.stem}-{digest}.head")

    def seen(self, *, keep: bool = False) -> Slots:
        """Return the slots; empty if they can't be read."""
        try:
            return self.read(keep=keep)
        except OSError:
            return NO_SLOTS

    def remember(self, head: Head, known: Slots, *, given_up: Collection[str] = ()) -> None:
        """Store a line if it is beyond the known one, or the known one is in ``given_up``."""
        if known.head is not None and known.head.hash in given_up:
            self.replace(head)
        elif known.head is None or known.head.offset < head.offset:
            with suppress(OSError):
                if known.head is None:
                    make_private(self.path.parent)
                self.write(head, known)

    def replace(self, head: Head) -> None:
        """Replace the file by this head, which a person has accepted."""
        with suppress(OSError):
            make_private(self.path.parent)
            write_whole(self.path, encode_slot(head), private=True)


# Stale holds and unattended rentals: reported, never released.
#
# A process is named by host, pid and start time, since pids are reused, and by the pid namespace,
# boot and machine, since a container or a host of the same name has other processes.

OLD_NS = 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process as holds and notes name it: ``HOST:PID:START:NAMESPACE-BOOT-MACHINE``.

    Lines of earlier versions end after the start time or the pid: ``scope`` is then None, and
    ``start`` may be 0.
    """

    host: str
    pid: int
    start: int = 0
    scope: PidScope | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the process that a text names; None if it names none."""
        match = _PROCESS.fullmatch(text)
        if match is None:
            return None
        host, pid, start, scope = match.groups()
        namespace, boot, machine = (scope or "--").split("-")
        known = PidScope(host, boot, namespace, machine) if scope else None
        return cls(host, int(pid), int(start or 0), known)

    def __str__(self) -> str:
        text = f"{self.host}:{self.pid}"
        if self.start:
            text += f":{self.start}"
            if self.scope is not None:
                text += f":{self.scope.namespace}-{self.scope.boot}-{self.scope.machine}"
        return text


_PROCESS = re.compile(
    "(.*?):([0-9]{1,10})(?::([0-9]{1,20})(?::([0-9]*-[0-9a-f]*-[0-9a-f]*))?)?", re.DOTALL
)
_HOST_NAMESPACE = "4026531836"
"""The pid namespace of every Linux host, outside all containers."""


def this_process() -> str:
    """Return this process's name in holds and notes."""
    return _name_of(os.getpid())


@cache
def _name_of(pid: int) -> str:
    found, scope = read_process(pid), _short_scope()
    return str(ProcessName(scope.host, pid, 0 if found is None else found.start, scope))


os.register_at_fork(after_in_child=_name_of.cache_clear)


def _short_scope() -> PidScope:
    """Return the scope of this process's pids as a name has it."""
    scope = pid_scope()
    namespace = "".join(filter(str.isdigit, scope.namespace))
    return scope._replace(boot=scope.boot[:8], namespace=namespace)


def standing_of(process: str) -> Literal["alive", "ended", "unknown"]:
    """Return whether a process runs; unknown on another host or in another pid namespace."""
    named, here = ProcessName.parse(process), _short_scope()
    if named is None or named.host != here.host:
        return "unknown"
    if named.scope is None:
        # An earlier version's. Inside a container its pid may be that of a process outside.
        if here.namespace not in ("", _HOST_NAMESPACE):
            return "unknown"
    elif named.scope != here:
        return "ended" if here.is_later_boot_of(named.scope) else "unknown"
    return "ended" if _is_gone(named) else "alive"


def _is_gone(named: ProcessName) -> bool:
    found = read_process(named.pid)
    if found is not None:
        return found.is_dead or bool(named.start and found.start != named.start)
    try:
        os.kill(named.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def has_ended(process: str) -> bool:
    """Return whether a process is known to have ended."""
    return standing_of(process) == "ended"


def is_here(process: str) -> bool:
    """Return whether a process is known to run on this machine."""
    return standing_of(process) == "alive"


def why_unattended(hold: Hold, now_ns: int) -> str:
    """Return why a live rental is an error, overdue or unwatched; "" if it is not."""
    if hold.rental is None or hold.state == "gone":
        return ""
    why = []
    deadline_ns = wall_ns_of(parse_timestamp(hold.rental.deadline))
    if now_ns > deadline_ns:
        why.append(f"it is past its deadline of {utc_text(deadline_ns)}")
    if has_ended(hold.watcher or hold.by):
        why.append(
            f"its watcher {hold.watcher} is dead" if hold.watcher else "it never had a watcher"
        )
    return " and ".join(why)


def why_stale(hold: Hold, now_ns: int) -> str:
    """Return why a hold may be abandoned; "" if nothing suggests that."""
    if hold.rental is not None:
        return why_unattended(hold, now_ns)
    if has_ended(hold.by):
        return f"{hold.by}, which opened it, has ended"
    if now_ns - wall_ns_of(parse_timestamp(hold.ts)) > OLD_NS:
        return "it is older than a day"
    return ""
