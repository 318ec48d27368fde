"""Where a run left off, found from the end of its log: its last checkpoint, its last statements.

Nothing before what is looked for is decoded, but for the first record of each segment.
"""

from __future__ import annotations

import mmap
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outlay.decoding import open_regular
from outlay.ledger.codec import decode_block
from outlay.ledger.records import AttemptStarted, BudgetStatement, CheckpointCommitted, Record
from outlay.ledger.segments import SegmentId, id_from_name, segment_paths

_CHECKPOINT: Final = b'"kind":"checkpoint_committed"'
_STATEMENT: Final = b'"kind":"budget_statement"'
_SEQ: Final = re.compile(rb'^\{"v":1,"seq":(\d+),.*\n', re.MULTILINE)

NEAR_BYTES: Final = 1 << 16
FAR_BYTES: Final = 1 << 22
"""How far before a statement threads may have written what is numbered after it."""


def last_committed_step(run_dir: Path) -> int | None:
    """Return the step of the run's latest committed checkpoint, or None if there is none.

    Of several ranks the lowest decides, as it does for the timeline: another one may have died
    before it could say the same.
    """
    newest_first = segment_paths(run_dir)[::-1]
    for path in sorted(newest_first, key=_rank):
        try:
            with _mapped(path) as log:
                found = _find_last(log, _CHECKPOINT, _is_checkpoint)
        except (OSError, ValueError):  # An empty file cannot be mapped.
            continue
        if found is not None:
            assert isinstance(found.record, CheckpointCommitted)
            return found.record.step
    return None


@dataclass(frozen=True, slots=True)
class Stated:
    """A segment's last statement, and where the records begin that it does not cover.

    Attributes:
        offset: Where the line after the statement begins, in bytes.
        swapped: Records beyond the statement that stand before it, because threads swapped them.
    """

    segment: SegmentId
    header: AttemptStarted
    statement: BudgetStatement
    offset: int
    swapped: tuple[Record, ...] = ()

    @property
    def line(self) -> int:
        """How many lines stand before the offset, unless some are missing."""
        return self.statement.seq + 1


def find_statements(
    run_dir: Path, believe: Callable[[BudgetStatement], bool], *, back_bytes: int = NEAR_BYTES
) -> dict[str, Stated]:
    """Return the last good statement of each segment file that has one, by the file's name.

    A file has none that can be used where its first record is damaged, or where another file is a
    copy of the same segment. Where ``believe`` refuses a statement an earlier one is looked for.
    ``back_bytes`` is how far before a statement to look for records beyond it.
    """
    found: dict[str, Stated] = {}
    owners: Counter[SegmentId] = Counter()
    for path in segment_paths(run_dir):
        try:
            with _mapped(path) as log:
                header = _header(log)
                if header is None:
                    continue
                segment = SegmentId.of(header)
                owners[segment] += 1
                if stated := _stated(log, segment, header, believe, back_bytes=back_bytes):
                    found[path.name] = stated
        except (OSError, ValueError):
            continue
    return {name: stated for name, stated in found.items() if owners[stated.segment] == 1}


def _stated(
    log: mmap.mmap,
    segment: SegmentId,
    header: AttemptStarted,
    believe: Callable[[BudgetStatement], bool],
    *,
    back_bytes: int,
) -> Stated | None:
    found = _find_last(
        log, _STATEMENT, lambda record: isinstance(record, BudgetStatement) and believe(record)
    )
    if found is None:
        return None
    statement = found.record
    assert isinstance(statement, BudgetStatement)
    before = log[max(0, found.begin - back_bytes) : found.begin]
    beyond = [line[0] for line in _SEQ.finditer(before) if int(line[1]) >= statement.covers]
    swapped = tuple(decode_block(b"".join(beyond)).records)
    return Stated(segment, header, statement, found.end, swapped)


@dataclass(frozen=True, slots=True)
class _Found:
    """A record, and the bytes of its line."""

    record: Record
    begin: int
    end: int


def _find_last(log: mmap.mmap, mark: bytes, wanted: Callable[[Record], bool]) -> _Found | None:
    at = log.rfind(mark)
    while at >= 0:
        begin, end = log.rfind(b"\n", 0, at) + 1, log.find(b"\n", at) + 1
        for record in decode_block(log[begin:end]).records if end else ():
            if wanted(record):
                return _Found(record, begin, end)
        at = log.rfind(mark, 0, begin)
    return None


def _header(log: mmap.mmap) -> AttemptStarted | None:
    first = decode_block(log[: log.find(b"\n") + 1]).records
    return first[0] if first and isinstance(first[0], AttemptStarted) else None


def _is_checkpoint(record: Record) -> bool:
    return isinstance(record, CheckpointCommitted)


def _rank(path: Path) -> int:
    segment = id_from_name(path)
    return segment.rank if segment else 0


def _mapped(path: Path) -> mmap.mmap:
    with os.fdopen(open_regular(path), "rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
