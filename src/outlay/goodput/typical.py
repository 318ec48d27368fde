"""How long a step usually takes, and from when on it counts as stalled.

*Typical* is the median own time of the steps that are not the first of their attempt. A step stalls
beyond ``max(median + STALL_MADS * MAD, STALL_FLOOR * median)``: robust, and for steps of any
length. With fewer than MIN_STEPS such steps nothing is typical.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outlay.goodput.columns import Ints

MIN_STEPS = 3
STALL_MADS = 10
STALL_FLOOR = 2


@dataclass(frozen=True, slots=True)
class Typical:
    """The usual own time of a step, and the own time beyond which it stalled; nanoseconds."""

    step_ns: int
    stall_beyond_ns: int


class SortedTimes:
    """Own times in order; adding a few to many costs one copy, not one sort."""

    def __init__(self) -> None:
        self._sorted: Ints = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, times: Ints) -> None:
        """Add own times in any order."""
        if len(times) * 8 > len(self._sorted):
            self._sorted = np.concatenate([self._sorted, times])
            self._sorted.sort()
        elif len(times):
            new = np.sort(times)
            self._sorted = np.insert(self._sorted, np.searchsorted(self._sorted, new), new)

    def typical(self) -> Typical | None:
        """Return what is typical of these times, or None when there are too few."""
        if len(self._sorted) < MIN_STEPS:
            return None
        median = _median(self._sorted)
        spread = _median_distance(self._sorted, median)
        return Typical(median, max(median + STALL_MADS * spread, STALL_FLOOR * median))

    def longest(self) -> int:
        """Return the longest time; 0 when there is none."""
        return int(self._sorted[-1]) if len(self._sorted) else 0


def _median(ordered: Ints) -> int:
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return int(ordered[middle])
    return (int(ordered[middle - 1]) + int(ordered[middle])) // 2


def _median_distance(ordered: Ints, centre: int) -> int:
    """Return the median of |x - centre|, floored: found by bisection, without another sort."""
    middle = (len(ordered) + 1) // 2
    low, high = 0, max(centre - int(ordered[0]), int(ordered[-1]) - centre)
    while low < high:  # The least distance within which at least half of the times lie.
        distance = (low + high) // 2
        within = np.searchsorted(ordered, [centre - distance, centre + distance + 1])
        if int(within[1]) - int(within[0]) >= middle:
            high = distance
        else:
            low = distance + 1
    return low
