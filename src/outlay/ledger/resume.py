"""Where a run left off: its last committed checkpoint, found without decoding the log."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from outlay.decoding import open_regular
from outlay.ledger.codec import decode_block
from outlay.ledger.records import CheckpointCommitted
from outlay.ledger.segments import id_from_name, segment_paths

_MARK = b'"kind":"checkpoint_committed"'


def last_committed_step(run_dir: Path) -> int | None:
    """Return the step of the run's latest committed checkpoint, or None if there is none.

    Of several ranks the lowest decides, as it does for the timeline: another one may have died
    before it could say the same.
    """
    newest_first = segment_paths(run_dir)[::-1]
    for path in sorted(newest_first, key=_rank):
        try:
            with os.fdopen(open_regular(path), "rb") as stream:
                step = _last_in(stream.fileno())
        except (OSError, ValueError):  # An empty file cannot be mapped.
            continue
        if step is not None:
            return step
    return None


def _rank(path: Path) -> int:
    segment = id_from_name(path)
    return segment.rank if segment else 0


def _last_in(descriptor: int) -> int | None:
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as log:
        found = log.rfind(_MARK)
        while found >= 0:
            start, end = log.rfind(b"\n", 0, found) + 1, log.find(b"\n", found) + 1
            for record in decode_block(log[start:end]).records if end else ():
                if isinstance(record, CheckpointCommitted):
                    return record.step
            found = log.rfind(_MARK, 0, start)
    return None
