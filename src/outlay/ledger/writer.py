"""One process's append-only segment: a record is in the kernel's hands when ``append`` returns.

It never raises into training and never blocks on its own account: what cannot be written is
counted, said once, and recorded as a gap as soon as writing works again.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from outlay.clock import Clock
from outlay.files import open_own, read_own
from outlay.ledger.codec import decode_block, encode_line, is_readable
from outlay.ledger.records import (
    LARGEST,
    AttemptEnded,
    AttemptStarted,
    Gap,
    KnownRecord,
    Step,
    kind_of,
)

_log = logging.getLogger("outlay")

_CLOSED = -1
_RETRY_OPEN_NS = 1_000_000_000


@dataclass(slots=True)
class _Trouble:
    """Why records are being lost, since when, and how many; its gap keeps one number."""

    since_ns: int
    reason: str
    lost: int = 0
    torn: bool = False
    gap_seq: int | None = None


class _Ends(NamedTuple):
    """Where a seal, a gap and a record end that are written at once, in bytes."""

    seal: int
    gap: int
    record: int


class SegmentWriter:
    """Appends records to one file, which it creates and nobody else writes.

    ``gap_numbers`` are the sequence numbers of the gaps that it wrote on its own account.

    The usual append takes no lock: a number from a counter and one ``write`` to a descriptor in
    append mode are each atomic, and readers put records in order by their number. The header is
    kept, so that a deleted file can be begun anew.
    """

    def __init__(self, path: Path, header: AttemptStarted, clock: Clock) -> None:
        self._set_up(path, header, clock, next_seq=1)
        self._open(header.t_ns)

    def _set_up(self, path: Path, header: AttemptStarted, clock: Clock, *, next_seq: int) -> None:
        self.path = path
        self.lost = 0
        self.gap_numbers: set[int] = set()
        self._header = encode_line(header, 0)
        self._start_ns = header.t_ns
        self._clock = clock
        self._numbers = itertools.count(next_seq)
        self._fd = _CLOSED
        self._trouble: _Trouble | None = None
        self._trouble_lock = threading.RLock()  # Reentrant: a signal handler may append, too.
        self._retry_open_at_ns = 0
        self._silent = False
        self._warned = False
        _live_writers.add(self)

    @classmethod
    def resumed(cls, path: Path, clock: Clock) -> SegmentWriter:
        """Go on with the segment of a process that is dead, behind its last record.

        Raises:
            OSError: It cannot be read or written, or holds no header.
        """
        content = read_own(path)
        records = decode_block(content[: content.rfind(b"\n") + 1]).records
        header = next((r for r in records if isinstance(r, AttemptStarted)), None)
        if header is None:
            raise OSError(errno.ENODATA, "no header", str(path))
        writer = cls.__new__(cls)
        writer._set_up(path, header, clock, next_seq=max(record.seq for record in records) + 1)
        writer._fd = open_own(path, os.O_WRONLY | os.O_APPEND)
        weakref.finalize(writer, os.close, writer._fd).atexit = False
        if not content.endswith(b"\n"):
            reason = "its writer was killed within a record"
            writer._trouble = _Trouble(header.t_ns, reason, torn=True)
        return writer

    def append(self, record: KnownRecord) -> int:
        """Write one record and return its sequence number; on failure it is counted as lost."""
        seq = next(self._numbers)
        try:
            line = encode_line(record, seq)
            readable = _is_usual(record) or is_readable(line)
        except Exception as error:  # noqa: BLE001 - the recorder's edge: counted, never raised
            # Of the error only its type: its text may quote what was not meant to be written.
            reason = f"a {kind_of(record)} holds what JSON cannot: {type(error).__name__}"
            self._lose(record, reason)
            return seq
        if not readable:
            self._lose(record, f"a {kind_of(record)} holds a value that no reader would take")
            return seq
        if self._trouble is None:
            try:
                written = os.write(self._fd, line)
                if written != len(line):
                    self._fall_short(record, whole=written == len(line) - 1)
            except OSError as error:
                self._lose(record, _reason(error))
        elif not self._silent:
            self._append_in_trouble(record, line)
        return seq

    def sync(self) -> None:
        """Make everything appended so far survive a power loss, where the disk allows it."""
        with self._trouble_lock:
            if self._fd == _CLOSED:
                return
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._warn(_reason(error))
            self.check_place()

    def check_place(self) -> None:
        """Begin the file anew where it was deleted, or another was put in its place."""
        with self._trouble_lock:
            if self._fd == _CLOSED:
                return
            ours = os.fstat(self._fd)
            try:
                there = self.path.stat()
            except OSError:  # Gone; or moved with its directory, and then it still is the file.
                if ours.st_nlink == 0:
                    gone = "the segment file was deleted while it was being written"
                    self._begin_anew(gone, lost=None)
                return
            if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
                # Beside it: what was put there may hold records that ours has, and others do not.
                self.path = self.path.with_name(f"{self.path.stem}-{os.urandom(4).hex()}.jsonl")
                self._begin_anew("the segment file was replaced while it was being written", lost=0)

    def close(self) -> None:
        """Stop writing; what is appended afterwards is dropped."""
        self._silent = True
        self._trouble = _Trouble(0, "closed")
        self._fd = _CLOSED

    def _open(self, t_ns: int) -> bool:
        """Create the file with its header; a file without one is not left behind."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(self.path, flags, 0o644)
        except OSError as error:
            self._open_failed(t_ns, _reason(error))
            return False
        # Closed when nobody can use it any more: a thread may be about to write to it, and a
        # number that was freed could by then be another file's.
        weakref.finalize(self, os.close, descriptor).atexit = False
        with contextlib.suppress(OSError):
            if os.write(descriptor, self._header) == len(self._header):
                self._fd = descriptor
                return True
        with contextlib.suppress(OSError):
            self.path.unlink()
        self._open_failed(t_ns, "no space for the first record")
        return False

    def _open_failed(self, t_ns: int, reason: str) -> None:
        self._trouble = self._trouble or _Trouble(t_ns, reason)
        self._retry_open_at_ns = self._clock.monotonic_ns() + _RETRY_OPEN_NS
        self._warn(reason)

    def _fall_short(self, record: KnownRecord, *, whole: bool) -> None:
        """The disk took part of a line; one that lacks only its newline is whole once sealed."""
        with self._trouble_lock:
            reason = "the disk took only part of a record"
            self._trouble = self._trouble or _Trouble(record.t_ns, reason)
            self._trouble.torn = True
            if not whole:
                self._lose(record, reason)

    def _lose(self, record: KnownRecord, reason: str) -> None:
        with self._trouble_lock:
            if self._silent:
                return  # Closed while a thread was about to write.
            self._trouble = self._trouble or _Trouble(record.t_ns, reason)
            self._trouble.lost += 1
            self.lost += 1
            self._warn(reason)

    def _append_in_trouble(self, record: KnownRecord, line: bytes) -> None:
        """Try to write what was lost and then the record, in one write; else count it too."""
        with self._trouble_lock:
            if self._trouble is None:  # Another thread has just written what was lost.
                self._trouble = _Trouble(record.t_ns, "another thread had trouble")
            trouble = self._trouble
            if not self._is_open(record.t_ns):
                self._lose(record, trouble.reason)
                return
            seal = b"\n" if trouble.torn else b""  # Ends a torn line, so that only that is bad.
            before = seal + self._gap_line(record, trouble)
            try:
                written = os.write(self._fd, before + line)
            except OSError as error:
                self._lose(record, _reason(error))
                return
            ends = _Ends(len(seal), len(before), len(before) + len(line))
            self._settle(record, trouble, written, ends)

    def _settle(self, record: KnownRecord, trouble: _Trouble, written: int, ends: _Ends) -> None:
        """Take note of how much was written; what lacks only its newline the next seal will end."""
        trouble.torn = written not in ends
        if written >= (ends.gap - 1 if ends.gap > ends.seal else ends.gap):
            rest = _Trouble(record.t_ns, trouble.reason, torn=True)
            self._trouble = rest if trouble.torn else None
        if written < ends.record - 1:
            self._lose(record, trouble.reason)

    def _gap_line(self, record: KnownRecord, trouble: _Trouble) -> bytes:
        if not trouble.lost:
            return b""
        if trouble.gap_seq is None:
            trouble.gap_seq = self._gap_number()
        gap = Gap(
            t_ns=record.t_ns, lost=trouble.lost, since_ns=trouble.since_ns, reason=trouble.reason
        )
        return encode_line(gap, trouble.gap_seq)

    def _gap_number(self) -> int:
        number = next(self._numbers)
        self.gap_numbers.add(number)
        return number

    def _is_open(self, t_ns: int) -> bool:
        if self._fd != _CLOSED:
            return True
        return self._clock.monotonic_ns() >= self._retry_open_at_ns and self._open(t_ns)

    def _begin_anew(self, reason: str, *, lost: int | None) -> None:
        """The file was taken from under us; ``lost`` is None where nothing that was in it is left.

        What of a file that was replaced is left, and where the holes are, readers see.
        """
        self._fd = _CLOSED
        if lost is None:
            gap_seq = self._gap_number()
            self.lost = gap_seq - 1
            self._trouble = _Trouble(self._start_ns, reason, lost=self.lost, gap_seq=gap_seq)
        else:
            self._trouble = _Trouble(self._start_ns, reason, lost=lost)
        self._warn(reason)

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "cannot record to %s: %s. Training goes on; what is missing is counted.",
                self.path,
                reason,
            )

    def _abandon(self) -> None:
        """In a forked child: the segment stays the parent's, and this copy falls silent."""
        self._trouble_lock = threading.RLock()  # The parent's may be held by a thread not here.
        self.close()


def end_segment(path: Path, end: AttemptEnded) -> bool:
    """Append the end that a process did not live to write; False where it has one already.

    For segments whose writer is known to be dead: nobody else may append to them.

    Raises:
        OSError: The file cannot be read or written.
    """
    content = read_own(path)
    whole = content[: content.rfind(b"\n") + 1]
    records = decode_block(whole).records if whole else ()
    if any(isinstance(record, AttemptEnded) for record in records):
        return False
    seal = b"" if len(whole) == len(content) else b"\n"
    line = encode_line(end, 1 + max((record.seq for record in records), default=0))
    descriptor = open_own(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, seal + line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _is_usual(record: KnownRecord) -> bool:
    """Say whether a record is a step with usual numbers, of which there may be millions."""
    return (
        type(record) is Step
        and record.step <= LARGEST
        and record.tokens <= LARGEST
        and record.count == 1
        and record.samples + record.flops + record.comm_bytes + record.energy_mj <= LARGEST
    )


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


_live_writers: weakref.WeakSet[SegmentWriter] = weakref.WeakSet()


def _abandon_all() -> None:
    for writer in list(_live_writers):
        writer._abandon()


os.register_at_fork(after_in_child=_abandon_all)
