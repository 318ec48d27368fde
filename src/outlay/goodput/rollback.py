"""Which executions of steps were undone: when step m runs, every earlier one numbered >= m is.

A record may stand for several consecutive steps, of which a rollback may undo only the last ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlay.account.columns import Ints, cumulative

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
    """Return what was undone of the steps in ``number``, in order of execution.

    Args:
        number: The first step number of each record.
        count: How many consecutive steps each record stands for.
        redone_from: The least number that was executed after all of these, if any was.
        only_grows: Whether no number goes back.
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
