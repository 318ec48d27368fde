"""Reading a run log: every good record once, and findings for the rest.

The reader follows growing files from where it stopped, in blocks of bounded size. It never raises
on bad bytes, and what it returns does not depend on the order or the names of the files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from outlay.decoding import BadDocument, open_regular
from outlay.errors import Finding, NotARun
from outlay.ledger.codec import Decoded, decode_block
from outlay.ledger.records import AttemptEnded, AttemptStarted, Gap, Record
from outlay.ledger.resume import Stated
from outlay.ledger.segments import SegmentId, id_from_name, segment_paths

BLOCK_BYTES = 1 << 21
LONGEST_LINE = 64 << 20
"""How many bytes are looked through for the end of a line."""
_END = b'"kind":"attempt_ended"'
_IN_FLIGHT = 256
"""So many numbers before its last may lack a record that a thread was writing at a kill."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records of one segment, in sequence unless the disk held them otherwise."""

    segment: SegmentId
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class RunLog:
    """Everything that was good in a run log, by segment, and what was not.

    Attributes:
        unplaced: How many lines of a segment could not be read and are missing nowhere in its
            sequence, so that they may have stood at its end.
    """

    segments: dict[SegmentId, list[Record]]
    findings: list[Finding]
    unplaced: dict[SegmentId, int] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        """All records, segment after segment, oldest first."""
        return [record for segment in sorted(self.segments) for record in self.segments[segment]]


@dataclass(slots=True)
class _File:
    """How far one file has been read, and how many bytes without an end stood behind that."""

    inode: int
    offset: int = 0
    tail: int = 0
    line: int = 0
    segment: SegmentId | None = None


@dataclass(slots=True)
class _Sequence:
    """Which records of a segment were seen; a segment may be spread over copies of its file."""

    next_seq: int = 0
    missing: list[range] = field(default_factory=list)
    damaged: int = 0
    lost: int = 0
    ended: bool = False

    def is_new(self, seq: int) -> bool:
        """Say whether ``seq`` was not seen before, and take note of it."""
        if seq >= self.next_seq:
            if seq > self.next_seq:
                self.missing.append(range(self.next_seq, seq))
            self.next_seq = seq + 1
            return True
        for index, hole in enumerate(self.missing):
            if seq in hole:
                halves = (range(hole.start, seq), range(seq + 1, hole.stop))
                self.missing[index : index + 1] = [half for half in halves if half]
                return True
        return False

    @property
    def unexplained(self) -> int:
        """How many records are missing beyond those known to be damaged or lost in writing."""
        return sum(hole.stop - hole.start for hole in self.missing) - self.damaged - self.lost

    @property
    def in_flight(self) -> int:
        """How many single records are missing among the last ones.

        A thread takes its record's number and then writes it. A kill in between leaves a hole of
        one record, which was not acknowledged, behind which other threads may have written. Before
        a process records its end, nothing is in flight any more.
        """
        if self.ended:
            return 0
        recent = self.next_seq - _IN_FLIGHT
        return sum(hole.stop - hole.start for hole in self.missing if hole.start >= recent)


class LedgerReader:
    """Follows one run's log; each record is returned once, by the first poll that can see it.

    ``decode`` makes records of a block of whole lines, in the codec's stead. ``stated`` has, by
    file name, the statement after which a segment is read; others are read whole.
    """

    def __init__(
        self,
        run_dir: Path,
        decode: Callable[[bytes], Decoded] = decode_block,
        stated: Mapping[str, Stated] | None = None,
    ) -> None:
        self.run_dir = run_dir
        self._stated = stated or {}
        self._decode = decode
        self._files: dict[str, _File] = {}
        self._sequences: dict[SegmentId, _Sequence] = {}
        self._findings: dict[Finding, None] = {}  # A set that keeps the order of discovery.

    def poll(self) -> Iterator[Chunk]:
        """Yield what was appended since the last poll, oldest segment first."""
        for path in segment_paths(self.run_dir):
            yield from self._poll_file(path)

    def findings(self) -> list[Finding]:
        """Return what has been found wrong so far, the present tails included."""
        return [*self._findings, *self._missing_records(), *self._torn_tails()]

    def unplaced(self) -> dict[SegmentId, int]:
        """Return how many unreadable lines of each segment no hole in its sequence explains."""
        torn = Counter(file.segment for file in self._files.values() if file.tail)
        return {
            segment: lines
            for segment, sequence in self._sequences.items()
            if (lines := torn[segment] - sequence.unexplained) > 0
        }

    def _poll_file(self, path: Path) -> Iterator[Chunk]:
        try:
            if self._has_not_grown(path):
                return
            with os.fdopen(open_regular(path), "rb") as stream:
                file = self._place_in(path.name, os.fstat(stream.fileno()).st_ino)
                if chunk := self._swapped(path.name, file):
                    yield chunk
                stream.seek(file.offset)
                while block := self._next_block(stream, file):
                    yield self._take(path, file, block)
        except OSError as error:
            self._complain(path, 0, f"cannot be read: {error.strerror}")
        except BadDocument as error:
            self._complain(path, 0, f"cannot be read: {error}")

    def _has_not_grown(self, path: Path) -> bool:
        """Say whether a file is as it was when it was read: cheaper than to open it."""
        file = self._files.get(path.name)
        if file is None:
            return False
        status = path.stat()
        return (status.st_ino, status.st_size) == (file.inode, file.offset + file.tail)

    def _place_in(self, name: str, inode: int) -> _File:
        """Return where to read on: from the start where a deleted file was begun anew."""
        file = self._files.get(name)
        if file is None or file.inode != inode:
            file = self._files[name] = _File(inode)
        return file

    def _swapped(self, name: str, file: _File) -> Chunk | None:
        """Begin a file after its statement; return what threads wrote too early for that."""
        stated = self._stated.get(name)
        if stated is None or file.segment is not None:
            return None
        file.offset, file.line, file.segment = stated.offset, stated.line, stated.segment
        sequence = self._sequences[stated.segment] = _Sequence(next_seq=stated.statement.covers)
        sequence.is_new(stated.statement.seq)
        new = [record for record in stated.swapped if sequence.is_new(record.seq)]
        return Chunk(stated.segment, new)

    def _next_block(self, stream: BinaryIO, file: _File) -> bytes:
        block = stream.read(BLOCK_BYTES)
        lines = _whole_lines(block, stream)
        file.offset += len(lines)
        file.tail = 0 if lines else len(block)
        return lines

    def _take(self, path: Path, file: _File, block: bytes) -> Chunk:
        decoded = self._decode(block)
        if file.segment is None:
            file.segment = identify(path, decoded.records)
        sequence = self._sequences.setdefault(file.segment, _Sequence())
        for index, complaint in decoded.complaints:
            self._complain(path, file.line + index + 1, complaint)
        sequence.damaged += len(decoded.complaints)
        if decoded.first_seq is None:
            sequence.ended |= _END in block
        else:
            sequence.ended |= any(type(record) is AttemptEnded for record in decoded.rare)
        if decoded.first_seq == sequence.next_seq:  # A record for every line, and all of them new.
            sequence.next_seq += len(decoded.records)
            file.line += len(decoded.records)
            return Chunk(file.segment, decoded.records)
        file.line += block.count(b"\n")
        return Chunk(file.segment, self._new_records(path, sequence, decoded.records))

    def _new_records(
        self, path: Path, sequence: _Sequence, records: Sequence[Record]
    ) -> Sequence[Record]:
        if _are_consecutive(records, sequence.next_seq):
            # The usual case, without a look at each record's place.
            sequence.next_seq += len(records)
            new: Sequence[Record] = records
        else:
            new = [record for record in records if sequence.is_new(record.seq)]
        for gap in [record for record in new if type(record) is Gap]:
            sequence.lost += gap.lost
            self._complain(path, 0, f"{gap.lost} records were not written: {gap.reason}")
        return new

    def _missing_records(self) -> Iterator[Finding]:
        holed = [each for each in self._sequences.items() if each[1].unexplained > 0]
        for segment, sequence in sorted(holed):
            if sequence.unexplained <= sequence.in_flight:
                message = (
                    f"{sequence.unexplained} of its last records were not written to their end: "
                    "threads were recording when the process was killed, or still are"
                )
                yield Finding(source=segment.file_name, message=message, severity="warning")
            else:
                message = f"{sequence.unexplained} records are missing in the middle"
                yield Finding(source=segment.file_name, message=message)

    def _torn_tails(self) -> Iterator[Finding]:
        for name, file in sorted(each for each in self._files.items() if each[1].tail):
            message = f"the last line is torn: {file.tail} bytes without an end"
            yield Finding(source=name, line=file.line + 1, message=message)

    def _complain(self, path: Path, line: int, message: str) -> None:
        self._findings[Finding(source=path.name, line=line, message=message)] = None


def read_run(run_dir: Path, stated: Mapping[str, Stated] | None = None) -> RunLog:
    """Read a whole run log at once, or what follows the statements in it.

    Raises:
        NotARun: There is no run log in ``run_dir``.
    """
    if not segment_paths(run_dir):
        raise NotARun(str(run_dir))
    reader = LedgerReader(run_dir, stated=stated)
    segments: dict[SegmentId, list[Record]] = {}
    for chunk in reader.poll():
        segments.setdefault(chunk.segment, []).extend(chunk.records)
    for records in segments.values():
        # Threads write a little out of order, and a copy of a file may fill another one's holes.
        records.sort(key=attrgetter("seq"))
    return RunLog(segments, reader.findings(), reader.unplaced())


def _whole_lines(block: bytes, stream: BinaryIO) -> bytes:
    """Return the block's whole lines; where a line is longer than the block, read on to its end."""
    end = block.rfind(b"\n") + 1
    if end or not block:
        stream.seek(end - len(block), 1)
        return block[:end]
    rest = stream.readline(LONGEST_LINE)
    return block + rest if rest.endswith(b"\n") else b""


def _are_consecutive(records: Sequence[Record], next_seq: int) -> bool:
    if not records or records[0].seq != next_seq:
        return False
    return [record.seq for record in records] == list(range(next_seq, next_seq + len(records)))


def identify(path: Path, records: Sequence[Record]) -> SegmentId:
    """Return who wrote a file, by its first records; by its name where they are damaged."""
    first = records[0] if records else None
    if isinstance(first, AttemptStarted):
        return SegmentId.of(first)
    return id_from_name(path) or SegmentId(start_ns=first.t_ns if first else 0, host=path.name)
