"""Growable columns of integers: a few bytes a step, and views without copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def integers(values: Sequence[int]) -> Ints:
    """Return whole numbers as a vector; of Python's own where one does not fit in 64 bits."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(values, dtype=object)


def uniform(value: int, length: int) -> Ints:
    """Return a vector of one value, which takes no room."""
    return _repeated(np.array([value], dtype=np.int64), length)


def _repeated(value: Ints, length: int) -> Ints:
    # Ten times faster than np.broadcast_to, which a short log would notice.
    return np.ndarray((length,), value.dtype, value, 0, (0,))


def cumulative(values: Ints) -> Ints:
    """Return sums, one more than there are values: entry i is of those before value i."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values)])


def total(values: Ints) -> int:
    """Return the sum of values, however large it is."""
    if values.dtype == object:
        return int(values.sum()) if len(values) else 0
    if values.strides == (0,) and len(values):  # A column of one value.
        return int(values[0]) * len(values)
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


class Column:
    """An append-only vector of int64 whose capacity grows by half.

    While all of its values are the same it takes no room: most steps have as many tokens as the one
    before, and no energy. Values beyond 64 bits make it a vector of Python's integers.
    """

    __slots__ = ("_data", "_length", "_uniform")

    def __init__(self, first: Sequence[int] = ()) -> None:
        self._data: Ints = np.array(first, dtype=np.int64)
        self._length = len(self._data)
        self._uniform = not self._length

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> Ints:
        """The column as a view, which stays as it is whatever happens to the column."""
        if self._uniform and self._length:
            return _repeated(self._data, self._length)
        return self._data[: self._length]

    def extend(self, values: Ints) -> None:
        """Append values."""
        if not len(values):
            return
        if self._uniform:
            if not self._length:
                self._data = np.array(values[:1])
            if values.dtype != object and (values == self._data[0]).all():
                self._length += len(values)
                return
            self._data = np.array(self.values)
            self._uniform = False
        if values.dtype == object and self._data.dtype != object:
            self._data = self._data.astype(object)
        needed = self._length + len(values)
        if needed > len(self._data):
            room = max(needed, len(self._data) * 3 // 2, 64)
            grown = np.empty(room, dtype=self._data.dtype)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
        self._data[self._length : needed] = values
        self._length = needed

    def truncate(self, length: int) -> None:
        """Forget everything from ``length`` on."""
        # No room is left behind: the next append copies, and views of what was here stay right.
        if not self._uniform:
            self._data = self._data[:length]
        self._length = length
