"""Intervals that somebody wants left out: put in order, and measured against a range.

Works on any numbers, such as POSIX seconds. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in order, with those that touch or overlap as one; empty ones go."""
    kept: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if kept and begin <= kept[-1][1]:
            kept[-1] = (kept[-1][0], max(kept[-1][1], end))
        else:
            kept.append((begin, end))
    return kept


def overlap(begin: float, end: float, intervals: Sequence[Interval]) -> float:
    """Return how much of a range the intervals cover; where several do, it counts once."""
    parts = (min(end, b) - max(begin, a) for a, b in merged(intervals))
    return sum((part for part in parts if part > 0), start=0.0)
