"""``exclusion_utils``: intervals that are left out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

__all__ = ["get_exclusion_overlap", "normalize_intervals"]

_log = logging.getLogger("outlay")

Interval = tuple[float, float]
"""A range of POSIX seconds."""


def normalize_intervals(intervals: Iterable[tuple[datetime, datetime]]) -> list[Interval]:
    """Return UTC intervals as POSIX seconds, in order, merged; others are said and left out."""
    kept = []
    for start, end in intervals:
        if start.tzinfo != UTC or end.tzinfo != UTC:
            _log.warning("the interval from %s to %s is left out: it is not in UTC", start, end)
        elif start >= end:
            _log.warning("the interval from %s to %s is left out: it is empty", start, end)
        else:
            kept.append((start.timestamp(), end.timestamp()))
    return _merged(kept)


def get_exclusion_overlap(start: float, end: float, exclusions: Sequence[Interval]) -> float:
    """Return how many seconds of a range the intervals cover; where several do, they count once."""
    parts = (min(end, b) - max(start, a) for a, b in _merged(exclusions))
    return sum((part for part in parts if part > 0), start=0.0)


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in order, with those that touch or overlap as one; empty ones go."""
    kept: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if kept and begin <= kept[-1][1]:
            kept[-1] = (kept[-1][0], max(kept[-1][1], end))
        else:
            kept.append((begin, end))
    return kept
