"""Appends records to one process's segment; ``append`` returns after the ``write`` system call.

Never raises into training and never waits: a record that cannot be written is counted, logged once
as a warning, and recorded as a gap as soon as writing works again.
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
from outlay.files import make_private, mode_in, open_own, read_own
from outlay.ledger.codec import decode_block, encode_line
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
    """Why records are being lost, since when, and how many; its gap keeps one sequence number."""

    since_ns: int
    reason: str
    lost: int = 0
    torn: bool = False
    gap_seq: int | None = None


class _Ends(NamedTuple):
    """End offsets in bytes of the newline, the gap and the record of one write."""

    newline: int
    gap: int
    record: int


class SegmentWriter:
    """Appends records to one file, which it creates and nobody else writes.

    ``gap_numbers`` are the sequence numbers of the gaps that it wrote itself.

    The usual append takes no lock: a number from a counter and one ``write`` to a descriptor in
    append mode are each atomic, and readers sort records by number. The header is kept in memory,
    so that a deleted file can be recreated.
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
        self._trouble_lock = threading.RLock()  # Reentrant: a signal handler may append.
        self._retry_open_at_ns = 0
        self._silent = False
        self._warned = False
        _live_writers.add(self)

    @classmethod
    def resumed(cls, path: Path, clock: Clock) -> SegmentWriter:
        """Return a writer that appends to the segment of a dead process.

        Raises:
            OSError: The segment cannot be read or written, or has no header.
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
            readable = _is_usual(record) or not decode_block(line).complaints
        except Exception as error:  # noqa: BLE001 - the recorder's edge: counted, never raised
            # Only the error's type: its text may quote a secret.
            reason = f"a {kind_of(record)} cannot be encoded as JSON: {type(error).__name__}"
            self._lose(record, reason)
            return seq
        if not readable:
            self._lose(record, f"a {kind_of(record)} has a value that readers reject")
            return seq
        if self._trouble is None:
            try:
                written = os.write(self._fd, line)
                if written != len(line):
                    self._note_short_write(record, whole=written == len(line) - 1)
            except OSError as error:
                self._lose(record, _reason(error))
        elif not self._silent:
            self._append_after_failure(record, line)
        return seq

    def sync(self) -> None:
        """Fsync the file, then ``check_place``."""
        with self._trouble_lock:
            if self._fd == _CLOSED:
                return
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._warn(_reason(error))
            self.check_place()

    def check_place(self) -> None:
        """Start a new file if this one was deleted, or replaced by another."""
        with self._trouble_lock:
            if self._fd == _CLOSED:
                return
            ours = os.fstat(self._fd)
            try:
                there = self.path.stat()
            except OSError:  # Deleted, or moved with its directory: then it is still our file.
                if ours.st_nlink == 0:
                    reason = "the segment file was deleted while it was being written"
                    self._restart_file(reason, deleted=True)
                return
            if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
                # Not overwritten: the replacement may hold records that no other file has.
                self.path = self.path.with_name(f"{self.path.stem}-{os.urandom(4).hex()}.jsonl")
                reason = "the segment file was replaced while it was being written"
                self._restart_file(reason, deleted=False)

    def close(self) -> None:
        """Stop writing; later appends are dropped."""
        self._silent = True
        self._trouble = _Trouble(0, "closed")
        self._fd = _CLOSED

    def _open(self, t_ns: int) -> bool:
        """Create the file and write its header; if that fails, remove the file."""
        try:
            make_private(self.path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(self.path, flags, mode_in(self.path.parent))
        except OSError as error:
            self._open_failed(t_ns, _reason(error))
            return False
        # Closed only on finalization: a thread may be about to write to the descriptor, and after
        # a close its number could belong to another file.
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

    def _note_short_write(self, record: KnownRecord, *, whole: bool) -> None:
        """Note a partly written line; it is ``whole`` if only its newline is missing."""
        with self._trouble_lock:
            reason = "the disk took only part of a record"
            self._trouble = self._trouble or _Trouble(record.t_ns, reason)
            self._trouble.torn = True
            if not whole:
                self._lose(record, reason)

    def _lose(self, record: KnownRecord, reason: str) -> None:
        with self._trouble_lock:
            if self._silent:
                return  # Closed by another thread.
            self._trouble = self._trouble or _Trouble(record.t_ns, reason)
            self._trouble.lost += 1
            self.lost += 1
            self._warn(reason)

    def _append_after_failure(self, record: KnownRecord, line: bytes) -> None:
        """Write the pending gap and the record in one write; else count the record as lost."""
        with self._trouble_lock:
            if self._trouble is None:  # Another thread has just written the gap.
                self._trouble = _Trouble(record.t_ns, "another thread had trouble")
            trouble = self._trouble
            if not self._is_open(record.t_ns):
                self._lose(record, trouble.reason)
                return
            newline = b"\n" if trouble.torn else b""  # Ends a torn line, so that only it is bad.
            before = newline + self._gap_line(record, trouble)
            try:
                written = os.write(self._fd, before + line)
            except OSError as error:
                self._lose(record, _reason(error))
                return
            ends = _Ends(len(newline), len(before), len(before) + len(line))
            self._note_written(record, trouble, written, ends)

    def _note_written(
        self, record: KnownRecord, trouble: _Trouble, written: int, ends: _Ends
    ) -> None:
        """Update the state after a retry; the next one ends a line that lacks only its newline."""
        trouble.torn = written not in ends
        if written >= (ends.gap - 1 if ends.gap > ends.newline else ends.gap):
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

    def _restart_file(self, reason: str, *, deleted: bool) -> None:
        """Write to a new file from now on.

        All records of a deleted file are lost. Of a replaced one, readers find the records that are
        left and the holes between them.
        """
        self._fd = _CLOSED
        self._trouble = _Trouble(self._start_ns, reason)
        if deleted:
            gap_seq = self._trouble.gap_seq = self._gap_number()
            self.lost = self._trouble.lost = gap_seq - 1
        self._warn(reason)

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "cannot record to %s: %s. Training continues; lost records are counted.",
                self.path,
                reason,
            )

    def _abandon(self) -> None:
        """In a forked child: stop writing, since the segment is the parent's."""
        self._trouble_lock = threading.RLock()  # A thread of the parent may hold the old one.
        self.close()


def end_segment(path: Path, end: AttemptEnded) -> bool:
    """Append the end that a killed process could not write; False if there is one already.

    Only for segments whose writer is known to be dead.

    Raises:
        OSError: The file cannot be read or written.
    """
    return append_to_ended(path, end, unless=AttemptEnded)


def append_to_ended(
    path: Path, record: KnownRecord, *, unless: type[KnownRecord] | None = None
) -> bool:
    """Append a record to the segment of a dead process; False if it has one ``unless`` which.

    Raises:
        OSError: The file cannot be read or written.
    """
    content = read_own(path)
    whole = content[: content.rfind(b"\n") + 1]
    records = decode_block(whole).records if whole else ()
    if unless is not None and any(isinstance(each, unless) for each in records):
        return False
    newline = b"" if len(whole) == len(content) else b"\n"
    line = encode_line(record, 1 + max((each.seq for each in records), default=0))
    descriptor = open_own(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, newline + line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _is_usual(record: KnownRecord) -> bool:
    """Return whether a record is a step whose numbers are known to be readable: the hot path."""
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
