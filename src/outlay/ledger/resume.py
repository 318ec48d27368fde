"""Where a run left off: its last committed checkpoint, found without decoding the log."""

from __future__ import annotations

import mmap
from pathlib import Path

from outlay.ledger.codec import decode_block
from outlay.ledger.records import CheckpointCommitted
from outlay.ledger.segments import segment_paths

_MARK = b'"kind":"checkpoint_committed"'


def last_committed_step(run_dir: Path) -> int | None:
    """Return the step of the run's latest committed checkpoint, or None if there is none."""
    for path in reversed(segment_paths(run_dir)):
        try:
            with path.open("rb") as stream:
                step = _last_in(stream.fileno())
        except (OSError, ValueError):  # An empty file cannot be mapped.
            continue
        if step is not None:
            return step
    return None


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
