"""How long a step usually takes, and from when on it counts as stalled.

*Typical* is the median own time of the steps that are not the first of their attempt. A step stalls
beyond ``max(median + STALL_MADS * MAD, STALL_FLOOR * median)``: robust, and for steps of any
length. With fewer than MIN_STEPS such steps nothing is typical.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from outlay.account.columns import Ints

MIN_STEPS = 3
STALL_MADS = 10
STALL_FLOOR = 2
_RATIO = 4  # How many times longer each run is than the next, at least.


@dataclass(frozen=True, slots=True)
class Typical:
    """The usual own time of a step, and the own time beyond which it stalled; nanoseconds."""

    step_ns: int
    stall_beyond_ns: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Some times in order, and their sum."""

    times: Ints
    total: int

    def and_all_of(self, other: _Run) -> _Run:
        times = np.sort(np.concatenate([self.times, other.times]), kind="stable")
        return _Run(times, self.total + other.total)

    def total_below(self, bound: int) -> int:
        # Bounds are far above the median: what lies beyond is little, and quickly added up.
        return self.total - int(self.times[self.times.searchsorted(bound) :].sum())


@dataclass(frozen=True, slots=True)
class SortedTimes:
    """Own times in order, as a few sorted runs, each much longer than the next.

    Adding a few times to many sorts the few; a run is merged with its neighbour only when it has
    grown, so that each time is moved about as often as the number has digits.
    """

    runs: tuple[_Run, ...] = ()

    def __len__(self) -> int:
        return sum(len(run.times) for run in self.runs)

    def beside(self, times: Ints) -> SortedTimes:
        """Return these times and others, which may be in any order."""
        if not len(times):
            return self
        return SortedTimes((*self.runs, _Run(np.sort(times), int(times.sum()))))

    def and_more(self, times: Ints) -> SortedTimes:
        """Return these times and others, in as few runs as more of them will need."""
        runs = [*self.beside(times).runs]
        while len(runs) > 1 and len(runs[-2].times) < _RATIO * len(runs[-1].times):
            runs[-2:] = [runs[-2].and_all_of(runs[-1])]
        return SortedTimes(tuple(runs))

    def typical(self) -> Typical | None:
        """Return what is typical of these times, or None when there are too few."""
        if len(self) < MIN_STEPS:
            return None
        median = sum(self.middle()) // 2
        spread = self._nth_distance((len(self) + 1) // 2, 2 * median) // 2
        return Typical(median, max(median + STALL_MADS * spread, STALL_FLOOR * median))

    def longest(self) -> int:
        """Return the longest time; 0 when there is none."""
        return max((int(run.times[-1]) for run in self.runs), default=0)

    def middle(self) -> tuple[int, int]:
        """Return the two times in the middle, of an odd number of times the same one twice."""
        # They lie between the least and the greatest of what is in the middle of each run.
        low = min(int(run.times[(len(run.times) - 1) // 2]) for run in self.runs)
        high = max(int(run.times[len(run.times) // 2]) for run in self.runs)
        lower = _least(lambda time: self.below(time + 1) >= (len(self) + 1) // 2, low, high)
        return lower, _least(lambda time: self.below(time + 1) > len(self) // 2, lower, high)

    def middle_distances(self, twice_centre: int) -> tuple[int, int]:
        """Return the two distances from a centre that are in the middle; both twice as large."""
        lower = self._nth_distance((len(self) + 1) // 2, twice_centre)
        return lower, self._nth_distance(len(self) // 2 + 1, twice_centre)

    def below(self, bound: int) -> int:
        """Return how many times are less than a bound."""
        return sum(int(run.times.searchsorted(bound)) for run in self.runs)

    def total_below(self, bound: int) -> int:
        """Return the sum of the times that are less than a bound."""
        return sum(run.total_below(bound) for run in self.runs)

    def _nth_distance(self, place: int, twice_centre: int) -> int:
        """Return the least distance within which ``place`` times lie; doubled, as the centre is."""

        def holds(distance: int) -> bool:
            first, last = -((distance - twice_centre) // 2), (twice_centre + distance) // 2
            return self.below(last + 1) - self.below(first) >= place

        shortest = min(int(run.times[0]) for run in self.runs)
        farthest = max(twice_centre - 2 * shortest, 2 * self.longest() - twice_centre)
        return _least(holds, 0, farthest)


def _least(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number for which something holds that holds for all above it."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
