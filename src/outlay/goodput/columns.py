"""Growable columns of 64-bit integers: a few bytes a step, and views without copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]


def cumulative(values: Ints) -> Ints:
    """Return sums, one more than there are values: entry i is of those before value i."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values)])


def total(values: Ints) -> int:
    """Return the sum of values, however large it is."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


class Column:
    """An append-only vector of int64 whose capacity grows by half."""

    __slots__ = ("_data", "_length")

    def __init__(self, first: Sequence[int] = ()) -> None:
        self._data: Ints = np.array(first, dtype=np.int64)
        self._length = len(self._data)

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> Ints:
        """The column as a view, which stays as it is whatever happens to the column."""
        return self._data[: self._length]

    def extend(self, values: ArrayLike) -> None:
        """Append values."""
        new = np.asarray(values, dtype=np.int64)
        needed = self._length + len(new)
        if needed > len(self._data):
            grown = np.empty(max(needed, len(self._data) * 3 // 2, 64), dtype=np.int64)
            grown[: self._length] = self.values
            self._data = grown
        self._data[self._length : needed] = new
        self._length = needed

    def truncate(self, length: int) -> None:
        """Forget everything from ``length`` on."""
        # No room is left behind: the next append copies, and views of what was here stay right.
        self._data = self._data[:length]
        self._length = length
