"""When the processes of a run began and ended, read without decoding their steps.

Of a long segment only its first record, its changes of price or size, and its tail are decoded: the
rest can neither move its begin or end nor change what an hour costs.
"""

from __future__ import annotations

import os
from pathlib import Path

from outlay.files import open_own
from outlay.ledger.attempts import SegmentLife
from outlay.ledger.codec import decode_block
from outlay.ledger.reader import LedgerReader
from outlay.ledger.records import AttemptStarted, Record
from outlay.ledger.segments import SegmentId, segment_paths

WHOLE_BYTES = 1 << 18
"""Segments up to this size are decoded whole."""
TAIL_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 23
_CHANGE = b'_changed","'
"""Ends the kind of every record that changes a price or a number of slices."""


def read_lives(run_dir: Path) -> list[SegmentLife]:
    """Return the life of every segment of a run; empty where there is no log.

    They are those that a fold of the whole log gives. Where a segment is spread over several files,
    or its first or last lines are damaged, that fold is what is done.
    """
    lives: dict[SegmentId, SegmentLife] = {}
    for path in segment_paths(run_dir):
        try:
            records = _telling_records(path)
        except OSError:
            continue
        header = records[0] if records else None
        if not isinstance(header, AttemptStarted):
            return _fold_whole(run_dir)
        segment = SegmentId(header.t_ns, header.rank, header.host, header.pid)
        if segment in lives:
            return _fold_whole(run_dir)
        life = lives[segment] = SegmentLife(segment)
        life.fold(records)
    return list(lives.values())


def _fold_whole(run_dir: Path) -> list[SegmentLife]:
    lives: dict[SegmentId, SegmentLife] = {}
    for chunk in LedgerReader(run_dir).poll():
        lives.setdefault(chunk.segment, SegmentLife(chunk.segment)).fold(chunk.records)
    return list(lives.values())


def _telling_records(path: Path) -> list[Record]:
    """Return the records that say when a process began and ended and what it paid, in order.

    Empty where the begin or the end of the file cannot be read as it should.
    """
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as stream:
        size = stream.seek(0, 2)
        if size <= WHOLE_BYTES:
            stream.seek(0)
            return _decoded(stream.read())
        stream.seek(0)
        head = _decoded(stream.readline())
        stream.seek(size - TAIL_BYTES)
        tail_block = stream.read().partition(b"\n")[2]
        tail = _decoded(tail_block)
        if not head or not tail:
            return []
        stream.seek(0)
        changes: list[Record] = []
        rest = b""
        left = size - len(tail_block)
        while left > 0 and (block := stream.read(min(_BLOCK_BYTES, left))):
            left -= len(block)
            rest = _take_changes(rest + block, changes)
    return [*head, *changes, *tail]


def _take_changes(block: bytes, changes: list[Record]) -> bytes:
    """Decode a block's lines that hold a change; return what follows its last whole line."""
    end = block.rfind(b"\n") + 1
    found = block.find(_CHANGE, 0, end)
    while found >= 0:
        start, stop = block.rfind(b"\n", 0, found) + 1, block.find(b"\n", found) + 1
        changes += _decoded(block[start:stop])
        found = block.find(_CHANGE, stop, end)
    return block[end:]


def _decoded(block: bytes) -> list[Record]:
    """Return the records of a block's whole lines, in the order of their numbers."""
    whole = block[: block.rfind(b"\n") + 1]
    return sorted(decode_block(whole).records, key=lambda record: record.seq) if whole else []
