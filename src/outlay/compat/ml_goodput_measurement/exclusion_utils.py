"""``exclusion_utils``: excluded intervals."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from outlay.goodput.calculator import Interval, merge_intervals, overlap

__all__ = ["get_exclusion_overlap", "normalize_intervals"]

_log = logging.getLogger("outlay")


def normalize_intervals(intervals: Iterable[tuple[datetime, datetime]]) -> list[Interval]:
    """Return UTC intervals as POSIX seconds, sorted and merged; invalid ones are logged."""
    kept = []
    for start, end in intervals:
        if start.tzinfo != UTC or end.tzinfo != UTC:
            _log.warning("the interval from %s to %s is ignored: it is not in UTC", start, end)
        elif start >= end:
            _log.warning("the interval from %s to %s is ignored: it is empty", start, end)
        else:
            kept.append((start.timestamp(), end.timestamp()))
    return merge_intervals(kept)


def get_exclusion_overlap(start: float, end: float, exclusions: Sequence[Interval]) -> float:
    """Return the number of seconds of a range that the intervals cover."""
    return overlap(start, end, exclusions)
