"""Steps that were undone or are unusually slow. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlay.account.columns import Column, Ints, cumulative

# Undone steps: when step m runs, every earlier execution of a step numbered >= m is undone.
#
# Of a record of several consecutive steps a rollback may undo only the last ones.

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Undone:
    """The undone steps of one attempt.

    Attributes:
        first: If numbers only grow: all records from this one on are undone; else -1.
        mask: If numbers do not only grow: which records are undone; else None.
        partly: Records of which only some steps are undone: (kept, total) by index.
    """

    first: int
    mask: NDArray[np.bool_] | None
    partly: dict[int, tuple[int, int]]

    def is_undone(self, index: int) -> bool:
        """Return whether a whole record is undone."""
        if self.mask is not None:
            return bool(self.mask[index])
        return index >= self.first

    def contains(self, indices: Ints) -> NDArray[np.bool_]:
        """Return for each record whether it is undone as a whole."""
        return indices >= self.first if self.mask is None else self.mask[indices]

    def kept(self, index: int) -> tuple[int, int]:
        """Return the share of a record's steps that survived, as (kept, total)."""
        if self.is_undone(index):
            return 0, 1
        return self.partly.get(index, (1, 1))


class UndoneTime:
    """Cumulative own time of the records that are undone as a whole."""

    def __init__(self, undone: Undone, own_cumulative: Ints) -> None:
        self._first, self._own = undone.first, own_cumulative
        if undone.mask is not None:
            # Scattered: treat all records as undone, and let the others take no time.
            own = np.where(undone.mask, np.diff(own_cumulative), 0)
            self._first, self._own = 0, cumulative(own)

    def before(self, index: int) -> int:
        """Return the undone nanoseconds before the record at ``index``."""
        return int(self._own[index] - self._own[min(self._first, index)])


def undone_steps(number: Ints, count: Ints, redone_from: int | None, *, only_grows: bool) -> Undone:
    """Return the undone steps of records of ``count`` steps from ``number`` on, in order.

    ``redone_from`` is the lowest number that was executed after these records, if any;
    ``only_grows`` means that no number goes back.
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


# The typical step, and the threshold of a stall.
#
# *Typical* is the median own time of all steps but the first of each attempt. A step stalls above
# ``max(median + STALL_MADS * MAD, STALL_FLOOR * median)``, which is robust for steps of any length.
# With fewer than MIN_STEPS such steps there is no typical one.
#
# Times are kept sorted for monitors, which poll: with a million steps np.median and the MAD take
# about 60 ms per poll, an update with a few new times 0.2 ms.

MIN_STEPS = 3
STALL_MADS = 10
STALL_FLOOR = 2
_RATIO = 4  # Each sorted run is at least this many times longer than the next.


@dataclass(frozen=True, slots=True)
class Typical:
    """The median own time of a step, and the threshold of a stall, in nanoseconds."""

    step_ns: int
    stall_beyond_ns: int


@dataclass(frozen=True, slots=True)
class _SortedRun:
    """Sorted times and their sum."""

    times: Ints
    total: int

    def merged_with(self, other: _SortedRun) -> _SortedRun:
        times = np.sort(np.concatenate([self.times, other.times]), kind="stable")
        return _SortedRun(times, self.total + other.total)

    def total_below(self, bound: int) -> int:
        # Bounds are far above the median: few times are above them, and quick to sum.
        return self.total - int(self.times[self.times.searchsorted(bound) :].sum())


@dataclass(frozen=True, slots=True)
class SortedTimes:
    """Own times as a few sorted runs, each much longer than the next.

    Only new times are sorted; a run is merged with its neighbour when it has grown, so that each
    time is moved a logarithmic number of times.
    """

    runs: tuple[_SortedRun, ...] = ()

    def __len__(self) -> int:
        return sum(len(run.times) for run in self.runs)

    def with_run(self, times: Ints) -> SortedTimes:
        """Return these times and unsorted others as one more run."""
        if not len(times):
            return self
        return SortedTimes((*self.runs, _SortedRun(np.sort(times), int(times.sum()))))

    def extended_by(self, times: Ints) -> SortedTimes:
        """Return these times and unsorted others, with runs merged to stay few."""
        runs = [*self.with_run(times).runs]
        while len(runs) > 1 and len(runs[-2].times) < _RATIO * len(runs[-1].times):
            runs[-2:] = [runs[-2].merged_with(runs[-1])]
        return SortedTimes(tuple(runs))

    def typical(self) -> Typical | None:
        """Return the typical step, or None if there are too few times."""
        if len(self) < MIN_STEPS:
            return None
        median = sum(self.middle()) // 2
        spread = self._nth_distance((len(self) + 1) // 2, 2 * median) // 2
        return Typical(median, max(median + STALL_MADS * spread, STALL_FLOOR * median))

    def longest(self) -> int:
        """Return the longest time; 0 without times."""
        return max((int(run.times[-1]) for run in self.runs), default=0)

    def middle(self) -> tuple[int, int]:
        """Return the lower and the upper median; equal for an odd number of times."""
        # They are between the lowest and the highest median of a run.
        low = min(int(run.times[(len(run.times) - 1) // 2]) for run in self.runs)
        high = max(int(run.times[len(run.times) // 2]) for run in self.runs)
        lower = _least(lambda time: self.below(time + 1) >= (len(self) + 1) // 2, low, high)
        return lower, _least(lambda time: self.below(time + 1) > len(self) // 2, lower, high)

    def middle_distances(self, twice_centre: int) -> tuple[int, int]:
        """Return the lower and upper median of twice the distances from a centre."""
        lower = self._nth_distance((len(self) + 1) // 2, twice_centre)
        return lower, self._nth_distance(len(self) // 2 + 1, twice_centre)

    def below(self, bound: int) -> int:
        """Return how many times are below a bound."""
        return sum(int(run.times.searchsorted(bound)) for run in self.runs)

    def total_below(self, bound: int) -> int:
        """Return the sum of the times below a bound."""
        return sum(run.total_below(bound) for run in self.runs)

    def _nth_distance(self, rank: int, twice_centre: int) -> int:
        """Return the least distance that ``rank`` times are within; doubled, as the centre is."""

        def holds(distance: int) -> bool:
            first, last = -((distance - twice_centre) // 2), (twice_centre + distance) // 2
            return self.below(last + 1) - self.below(first) >= rank

        shortest = min(int(run.times[0]) for run in self.runs)
        farthest = max(twice_centre - 2 * shortest, 2 * self.longest() - twice_centre)
        return _least(holds, 0, farthest)


def _least(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Bisect for the least number that satisfies a monotonic predicate."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


# Slow steps, cached while an attempt grows.

_SLACK = 1024


class SlowSteps:
    """The candidates for slow steps of an attempt: those above 3/4 of the last bound."""

    def __init__(self) -> None:
        self._least_ns = 0
        self._candidates = Column()
        self._seen = 0
        self._has_too_many = True

    def beyond(self, bound_ns: int, own_before: Ints, count: Ints) -> Ints:
        """Return the indices of the records whose own time per step exceeds a bound, in order.

        ``own_before`` is cumulative: entry i is before record i, which has ``count[i]`` steps.
        """
        if self._has_too_many or bound_ns < self._least_ns:
            self.forget_from(0)
            self._least_ns = bound_ns * 3 // 4
        first, self._seen = self._seen, len(count)
        slow = np.diff(own_before[first:]) // count[first:] >= self._least_ns
        self._candidates.extend(first + np.flatnonzero(slow))
        indices = self._candidates.values
        own = own_before[indices + 1] - own_before[indices]
        # Divided: a bound times a count may overflow 64 bits.
        found = indices[(own - 1) // count[indices] >= bound_ns]
        self._has_too_many = len(indices) > 2 * len(found) + _SLACK
        return found

    def forget_from(self, index: int) -> None:
        """Forget the records from ``index`` on: their own times changed."""
        self._candidates.truncate(int(self._candidates.values.searchsorted(index)))
        self._seen = min(self._seen, index)
