"""Reads a run log: every good record once, and findings for the rest.

The reader follows growing files from where it stopped, in blocks of bounded size. It never raises
on bad bytes, and its result does not depend on the order or the names of the files. The last
checkpoint and the last statements are found from the end of a file, without decoding it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from outlay.decoding import BadDocument, open_regular
from outlay.errors import Finding, NotARun
from outlay.ledger.codec import Decoded, decode_block
from outlay.ledger.records import (
    AttemptEnded,
    AttemptStarted,
    BudgetStatement,
    CheckpointCommitted,
    Gap,
    Record,
)
from outlay.ledger.segments import SegmentId, id_from_name, order_of_starts, segment_paths

BLOCK_BYTES = 1 << 21
LONGEST_LINE = 64 << 20
"""How many bytes are searched for the end of a line."""
_END = b'"kind":"attempt_ended"'
_IN_FLIGHT = 256
"""How many sequence numbers before the last one a thread may have been writing at a kill."""


@dataclass(frozen=True, slots=True)
class LastStatement:
    """A segment's last budget statement, and where the records that it does not cover begin.

    Attributes:
        offset: Byte offset of the line after the statement.
        swapped: Records before the statement that it does not cover: threads swapped their lines.
    """

    segment: SegmentId
    header: AttemptStarted
    statement: BudgetStatement
    offset: int
    swapped: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records of one segment, in the order of the file."""

    segment: SegmentId
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class RunLog:
    """All good records of a run log, by segment, and findings.

    Attributes:
        unplaced: How many lines of a segment could not be read and correspond to no hole in its
            sequence, so that they may have been at its end.
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
    """How far one file has been read, and the length of the unfinished line after that."""

    inode: int
    offset: int = 0
    tail: int = 0
    line: int = 0
    segment: SegmentId | None = None


@dataclass(slots=True)
class _Sequence:
    """Which records of a segment were seen; copies of its file may each hold some of them."""

    next_seq: int = 0
    missing: list[range] = field(default_factory=list)
    damaged: int = 0
    lost: int = 0
    ended: bool = False

    def is_new(self, seq: int) -> bool:
        """Return whether ``seq`` was not seen before, and mark it as seen."""
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
        """How many records are missing beyond those known to be damaged or not written."""
        return sum(hole.stop - hole.start for hole in self.missing) - self.damaged - self.lost

    @property
    def in_flight(self) -> int:
        """How many records are missing among the last ones.

        A thread takes its record's number and then writes it. A kill in between leaves a hole of
        one unacknowledged record, after which other threads may have written. After a process has
        recorded its end, nothing is in flight.
        """
        if self.ended:
            return 0
        recent = self.next_seq - _IN_FLIGHT
        return sum(hole.stop - hole.start for hole in self.missing if hole.start >= recent)


class LedgerReader:
    """Follows one run's log; each record is returned once, by the first poll that can see it.

    ``decode`` replaces the codec's ``decode_block``. ``statements``, by file name, are where to
    start reading; other files are read from the beginning.
    """

    def __init__(
        self,
        run_dir: Path,
        decode: Callable[[bytes], Decoded] = decode_block,
        statements: Mapping[str, LastStatement] | None = None,
    ) -> None:
        self.run_dir = run_dir
        self._statements = statements or {}
        self._decode = decode
        self._files: dict[str, _File] = {}
        self._sequences: dict[SegmentId, _Sequence] = {}
        self._findings: dict[Finding, None] = {}  # A set that keeps the order of discovery.

    def poll(self) -> Iterator[Chunk]:
        """Yield the records appended since the last poll, oldest segment first."""
        for path in segment_paths(self.run_dir):
            yield from self._poll_file(path)

    def findings(self) -> list[Finding]:
        """Return all findings so far, including unfinished last lines."""
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
                file = self._position_in(path.name, os.fstat(stream.fileno()).st_ino)
                if chunk := self._skip_to_statement(path.name, file):
                    yield chunk
                stream.seek(file.offset)
                while block := self._next_block(stream, file):
                    yield self._decode_chunk(path, file, block)
        except OSError as error:
            self._add_finding(path, 0, f"cannot be read: {error.strerror}")
        except BadDocument as error:
            self._add_finding(path, 0, f"cannot be read: {error}")

    def _has_not_grown(self, path: Path) -> bool:
        """Return whether a file's inode and size are unchanged: cheaper than opening it."""
        file = self._files.get(path.name)
        if file is None:
            return False
        status = path.stat()
        return (status.st_ino, status.st_size) == (file.inode, file.offset + file.tail)

    def _position_in(self, name: str, inode: int) -> _File:
        """Return where to read on: from the beginning if the file was recreated."""
        file = self._files.get(name)
        if file is None or file.inode != inode:
            file = self._files[name] = _File(inode)
        return file

    def _skip_to_statement(self, name: str, file: _File) -> Chunk | None:
        """Start a file after its statement; return the uncovered records before it."""
        last = self._statements.get(name)
        if last is None or file.segment is not None:
            return None
        # A segment has one line per record, unless some are missing.
        file.offset, file.line, file.segment = last.offset, last.statement.seq + 1, last.segment
        sequence = self._sequences[last.segment] = _Sequence(next_seq=last.statement.covers)
        sequence.is_new(last.statement.seq)
        new = [record for record in last.swapped if sequence.is_new(record.seq)]
        return Chunk(last.segment, new)

    def _next_block(self, stream: BinaryIO, file: _File) -> bytes:
        block = stream.read(BLOCK_BYTES)
        lines = _whole_lines(block, stream)
        file.offset += len(lines)
        file.tail = 0 if lines else len(block)
        return lines

    def _decode_chunk(self, path: Path, file: _File, block: bytes) -> Chunk:
        decoded = self._decode(block)
        if file.segment is None:
            file.segment = identify(path, decoded.records)
        sequence = self._sequences.setdefault(file.segment, _Sequence())
        for index, complaint in decoded.complaints:
            self._add_finding(path, file.line + index + 1, complaint)
        sequence.damaged += len(decoded.complaints)
        if decoded.first_seq is None:
            sequence.ended |= _END in block
        else:
            sequence.ended |= any(type(record) is AttemptEnded for record in decoded.rare)
        if decoded.first_seq == sequence.next_seq:  # One record per line, and all are new.
            sequence.next_seq += len(decoded.records)
            file.line += len(decoded.records)
            return Chunk(file.segment, decoded.records)
        file.line += block.count(b"\n")
        return Chunk(file.segment, self._new_records(path, sequence, decoded.records))

    def _new_records(
        self, path: Path, sequence: _Sequence, records: Sequence[Record]
    ) -> Sequence[Record]:
        if _are_consecutive(records, sequence.next_seq):
            # The usual case needs no lookup per record.
            sequence.next_seq += len(records)
            new: Sequence[Record] = records
        else:
            new = [record for record in records if sequence.is_new(record.seq)]
        for gap in [record for record in new if type(record) is Gap]:
            sequence.lost += gap.lost
            self._add_finding(path, 0, f"{gap.lost} records were not written: {gap.reason}")
        return new

    def _missing_records(self) -> Iterator[Finding]:
        holed = [each for each in self._sequences.items() if each[1].unexplained > 0]
        for segment, sequence in sorted(holed):
            if sequence.unexplained <= sequence.in_flight:
                message = (
                    f"{sequence.unexplained} of its last records were not completely written: "
                    "threads were writing when the process was killed, or still are"
                )
                yield Finding(source=segment.file_name, message=message, severity="warning")
            else:
                message = f"{sequence.unexplained} records are missing in the middle"
                yield Finding(source=segment.file_name, message=message)

    def _torn_tails(self) -> Iterator[Finding]:
        for name, file in sorted(each for each in self._files.items() if each[1].tail):
            message = f"the last line is torn: {file.tail} bytes without an end"
            yield Finding(source=name, line=file.line + 1, message=message)

    def _add_finding(self, path: Path, line: int, message: str) -> None:
        self._findings[Finding(source=path.name, line=line, message=message)] = None


def read_run(run_dir: Path, statements: Mapping[str, LastStatement] | None = None) -> RunLog:
    """Read a whole run log at once, or what follows these statements.

    Raises:
        NotARun: There is no run log in ``run_dir``.
    """
    if not segment_paths(run_dir):
        raise NotARun(str(run_dir))
    reader = LedgerReader(run_dir, statements=statements)
    segments: dict[SegmentId, list[Record]] = {}
    for chunk in reader.poll():
        segments.setdefault(chunk.segment, []).extend(chunk.records)
    for records in segments.values():
        # Threads write slightly out of order, and a copy of a file may fill another's holes.
        records.sort(key=attrgetter("seq"))
    return RunLog(segments, reader.findings(), reader.unplaced())


def first_records(path: Path, most_bytes: int) -> Sequence[Record]:
    """Return the records in the first bytes of a segment; none if it cannot be read."""
    with contextlib.suppress(OSError, BadDocument), os.fdopen(open_regular(path), "rb") as stream:
        block = stream.read(most_bytes)
        return decode_block(block[: block.rfind(b"\n") + 1]).records
    return ()


def header_of(path: Path) -> AttemptStarted | None:
    """Return the first record of a segment, without reading the rest; None if damaged."""
    with contextlib.suppress(OSError, ValueError), _map(path) as log:  # ValueError: it is empty.
        return _header(log)
    return None


def _whole_lines(block: bytes, stream: BinaryIO) -> bytes:
    """Return the block's whole lines; if it has none, read on to the end of its line."""
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
    """Return a file's segment by its first record; by its name if that is damaged."""
    first = records[0] if records else None
    if isinstance(first, AttemptStarted):
        return SegmentId.of(first)
    return id_from_name(path) or SegmentId(start_ns=first.t_ns if first else 0, host=path.name)


# Lookups from the end of a file

_CHECKPOINT: Final = b'"kind":"checkpoint_committed"'
_STATEMENT: Final = b'"kind":"budget_statement"'
_SEQ: Final = re.compile(rb'^\{"v":1,"seq":(\d+),.*\n', re.MULTILINE)

NEAR_BYTES: Final = 1 << 16
FAR_BYTES: Final = 1 << 22
"""How far before a statement to look for records that it does not cover."""


def last_committed_step(run_dir: Path) -> int | None:
    """Return the step of the run's latest committed checkpoint, or None if there is none.

    Of several ranks the lowest decides, as it does for the timeline: another one may have died
    before it recorded the checkpoint.
    """
    for path in sorted(_newest_first(segment_paths(run_dir)), key=_rank):
        try:
            with _map(path) as log:
                for found in _find_backwards(log, _CHECKPOINT):
                    if isinstance(found.record, CheckpointCommitted):
                        return found.record.step
        except (OSError, ValueError):  # An empty file cannot be mapped.
            continue
    return None


def unsaved_steps(committed_step: int | None, last_step: int | None) -> range:
    """Return the steps after the last committed checkpoint, up to the last one of a run."""
    first = 0 if committed_step is None else committed_step + 1
    return range(first, first if last_step is None else last_step + 1)


def unsaved_text(unsaved: range) -> str:
    """Return in words that these steps are in no checkpoint; empty without steps."""
    if len(unsaved) < 2:
        return "".join(f"step {step:,} is in no checkpoint" for step in unsaved)
    return f"steps {unsaved[0]:,}\N{EN DASH}{unsaved[-1]:,} are in no checkpoint"


def _newest_first(paths: Sequence[Path]) -> list[Path]:
    begins: list[tuple[int, AttemptStarted | None]] = []
    for path in paths:
        segment = id_from_name(path)
        begins.append((0 if segment is None else segment.start_ns, header_of(path)))
    return [paths[place] for place in reversed(order_of_starts(begins))]


def find_statements(
    run_dir: Path, is_valid: Callable[[BudgetStatement], bool], *, back_bytes: int = NEAR_BYTES
) -> dict[str, LastStatement]:
    """Return the last valid statement of each segment file that has one, by file name.

    A file whose first record is damaged, or of whose segment there is another file, counts as
    having none. ``back_bytes`` is how far before a statement to look for records it does not cover.
    """
    found: dict[str, LastStatement] = {}
    owners: Counter[SegmentId] = Counter()
    for path in segment_paths(run_dir):
        try:
            with _map(path) as log:
                header = _header(log)
                if header is None:
                    continue
                owners[SegmentId.of(header)] += 1
                if last := _last_statement(log, header, is_valid, back_bytes=back_bytes):
                    found[path.name] = last
        except (OSError, ValueError):
            continue
    return {name: last for name, last in found.items() if owners[last.segment] == 1}


def _last_statement(
    log: mmap.mmap,
    header: AttemptStarted,
    is_valid: Callable[[BudgetStatement], bool],
    *,
    back_bytes: int,
) -> LastStatement | None:
    for found in _find_backwards(log, _STATEMENT):
        statement = found.record
        if not isinstance(statement, BudgetStatement) or not is_valid(statement):
            continue
        before = log[max(0, found.begin - back_bytes) : found.begin]
        uncovered = [line[0] for line in _SEQ.finditer(before) if int(line[1]) >= statement.covers]
        swapped = tuple(decode_block(b"".join(uncovered)).records)
        return LastStatement(SegmentId.of(header), header, statement, found.end, swapped)
    return None


class _Found(NamedTuple):
    """A record, and the byte range of its line."""

    record: Record
    begin: int
    end: int


def _find_backwards(log: mmap.mmap, mark: bytes) -> Iterator[_Found]:
    """Yield the records of lines with a mark, the last line first."""
    at = log.rfind(mark)
    while at >= 0:
        begin, end = log.rfind(b"\n", 0, at) + 1, log.find(b"\n", at) + 1
        for record in decode_block(log[begin:end]).records if end else ():
            yield _Found(record, begin, end)
        at = log.rfind(mark, 0, begin)


def _header(log: mmap.mmap) -> AttemptStarted | None:
    first = decode_block(log[: log.find(b"\n") + 1]).records
    return first[0] if first and isinstance(first[0], AttemptStarted) else None


def _rank(path: Path) -> int:
    segment = id_from_name(path)
    return segment.rank if segment else 0


def _map(path: Path) -> mmap.mmap:
    with os.fdopen(open_regular(path), "rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
