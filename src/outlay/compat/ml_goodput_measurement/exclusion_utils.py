"""``exclusion_utils``: excluded intervals."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

__all__ = ["get_exclusion_overlap", "normalize_intervals"]

_log = logging.getLogger("outlay")
Interval = tuple[float, float]


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
    return _merged(kept)


def get_exclusion_overlap(start: float, end: float, exclusions: Sequence[Interval]) -> float:
    """Return the number of seconds of a range that the intervals cover."""
    parts = (min(end, b) - max(start, a) for a, b in _merged(exclusions))
    return sum((part for part in parts if part > 0), start=0.0)


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in order; those that touch or overlap are merged, empty ones dropped."""
    kept: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if kept and begin <= kept[-1][1]:
            kept[-1] = (kept[-1][0], max(kept[-1][1], end))
        else:
            kept.append((begin, end))
    return kept
