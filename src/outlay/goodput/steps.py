"""Steps that are out of the ordinary: undone, slower than what is typical. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlay.account.columns import Column, Ints, cumulative

# Which executions of steps were undone: when step m runs, every earlier one numbered >= m is.
#
# A record may stand for several consecutive steps, of which a rollback may undo only the last
# ones.

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Undone:
    """The undone steps of one attempt.

    Attributes:
        first: From this record on every one is undone, when numbers only grow; else -1.
        mask: Which records are undone, when numbers do not only grow; else None.
        partly: Records of which only some steps are undone: (kept, of) by index.
    """

    first: int
    mask: NDArray[np.bool_] | None
    partly: dict[int, tuple[int, int]]

    def is_undone(self, index: int) -> bool:
        """Say whether a whole record is undone."""
        if self.mask is not None:
            return bool(self.mask[index])
        return index >= self.first

    def contains(self, indices: Ints) -> NDArray[np.bool_]:
        """Say for each record whether it is undone as a whole."""
        return indices >= self.first if self.mask is None else self.mask[indices]

    def kept(self, index: int) -> tuple[int, int]:
        """Return how many of a record's steps survived, of how many."""
        if self.is_undone(index):
            return 0, 1
        return self.partly.get(index, (1, 1))


class UndoneTime:
    """The own time of records that are undone as a whole, cumulated once and then looked up."""

    def __init__(self, undone: Undone, own_cumulative: Ints) -> None:
        self._first, self._own = undone.first, own_cumulative
        if undone.mask is not None:
            # Scattered ones: as if all records were undone, and those that are not took no time.
            own = np.where(undone.mask, np.diff(own_cumulative), 0)
            self._first, self._own = 0, cumulative(own)

    def before(self, index: int) -> int:
        """Return the nanoseconds before the record at ``index``."""
        return int(self._own[index] - self._own[min(self._first, index)])


def undone_steps(number: Ints, count: Ints, redone_from: int | None, *, only_grows: bool) -> Undone:
    """Return what was undone of records of ``count`` steps from ``number`` on, in their order.

    ``redone_from`` is the least number that was executed after all of these, if any was;
    ``only_grows`` says that no number goes back.
    """
    if only_grows:
        return _undone_tail(number, count, redone_from)
    later = np.append(number[1:], _NEVER if redone_from is None else redone_from)
    redone = np.minimum.accumulate(later[::-1])[::-1]
    partly = np.flatnonzero((redone > number) & (redone < number + count))
    return Undone(
        first=-1,
        mask=redone <= number,
        partly={int(i): (int(redone[i] - number[i]), int(count[i])) for i in partly},
    )


def _undone_tail(number: Ints, count: Ints, redone_from: int | None) -> Undone:
    if redone_from is None:
        return Undone(first=len(number), mask=None, partly={})
    first = int(np.searchsorted(number, redone_from))
    partly: dict[int, tuple[int, int]] = {}
    if first and number[first - 1] + count[first - 1] > redone_from:
        kept = redone_from - int(number[first - 1])
        partly[first - 1] = (kept, int(count[first - 1]))
    return Undone(first=first, mask=None, partly=partly)


# How long a step usually takes, and from when on it counts as stalled.
#
# *Typical* is the median own time of the steps that are not the first of their attempt. A step
# stalls beyond ``max(median + STALL_MADS * MAD, STALL_FLOOR * median)``: robust, and for steps of
# any length. With fewer than MIN_STEPS such steps nothing is typical.
#
# Times are kept in order because a monitor asks again and again: with a million steps, np.median
# and the MAD take about 60 ms at every look, and these a few new times, 0.2 ms.

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

    def merged_with(self, other: _Run) -> _Run:
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

    def extended_by(self, times: Ints) -> SortedTimes:
        """Return these times and others, in as few runs as more of them will need."""
        runs = [*self.beside(times).runs]
        while len(runs) > 1 and len(runs[-2].times) < _RATIO * len(runs[-1].times):
            runs[-2:] = [runs[-2].merged_with(runs[-1])]
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


# Which steps are slow, remembered while an attempt grows.

_MANY = 1024


class SlowSteps:
    """The places of an attempt's slow steps, while the attempt grows."""

    def __init__(self) -> None:
        self._least_ns = 0
        self._places = Column()
        self._seen = 0
        self._wasteful = True

    def beyond(self, bound_ns: int, own_before: Ints, count: Ints) -> Ints:
        """Return the places of the records whose own time per step exceeds a bound, in order.

        ``own_before`` is cumulative: entry i is before record i, which is of ``count[i]`` steps.
        """
        if self._wasteful or bound_ns < self._least_ns:
            self.forget_from(0)
            self._least_ns = bound_ns * 3 // 4
        first, self._seen = self._seen, len(count)
        slow = np.diff(own_before[first:]) // count[first:] >= self._least_ns
        self._places.extend(first + np.flatnonzero(slow))
        places = self._places.values
        own = own_before[places + 1] - own_before[places]
        # Divided, since a bound for all steps of a record may not fit in 64 bits.
        found = places[(own - 1) // count[places] >= bound_ns]
        self._wasteful = len(places) > 2 * len(found) + _MANY
        return found

    def forget_from(self, place: int) -> None:
        """Forget the steps from a place on: their own times have changed."""
        self._places.truncate(int(self._places.values.searchsorted(place)))
        self._seen = min(self._seen, place)
