"""Steps by column: growable columns of integers, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import overload

import numpy as np
from numpy.typing import NDArray

from outlay.ledger import Record, Step

# Growable columns of integers: a few bytes a step, and views without copies.

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


def _distinct(values: Ints) -> Ints:
    """Return one value of a vector that has no other, else the vector."""
    return values[:1] if values.strides == (0,) else values


def _concatenated(parts: Sequence[Ints]) -> Ints:
    """Return vectors one after another; where all have the same one value, so has this."""
    first = parts[0][:1]
    if all(part.strides == (0,) and part[0] == first[0] for part in parts):
        return _repeated(first, sum(map(len, parts)))
    return np.concatenate(parts)


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
    """An append-only vector of int64 whose capacity is tripled.

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
            first = self._data[0] if self._length else values[0]
            if values.dtype != object and (_distinct(values) == first).all():
                self._data = self._data if self._length else np.array(values[:1])
                self._length += len(values)
                return
            self._data, self._uniform = np.array(self.values), False
        if not self._length:  # The first values are kept as they are: nobody changes them.
            self._data, self._length = values, len(values)
            return
        if values.dtype == object and self._data.dtype != object:
            self._data = self._data.astype(object)
        needed = self._length + len(values)
        if needed > len(self._data):
            room = max(needed, len(self._data) * 3, 64)  # What is not used takes no memory.
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


# Steps by column, and what they add up to.


@dataclass(frozen=True, slots=True)
class Work:
    """What some steps were and used, in all; repeated work counts each time."""

    steps: int = 0
    tokens: int = 0
    samples: int = 0
    energy_mj: int = 0
    comm_bytes: int = 0
    flops: int = 0
    step_ns: int = 0
    wait_ns: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.samples + other.samples,
            self.energy_mj + other.energy_mj,
            self.comm_bytes + other.comm_bytes,
            self.flops + other.flops,
            self.step_ns + other.step_ns,
            self.wait_ns + other.wait_ns,
        )


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Steps by column: numbers, begin and end instants, waits before, how many each, their use."""

    number: Ints
    start: Ints
    end: Ints
    wait: Ints
    count: Ints
    tokens: Ints
    samples: Ints
    energy_mj: Ints
    comm_bytes: Ints
    flops: Ints

    @classmethod
    def of(cls, steps: Sequence[Step]) -> StepColumns:
        """Return the columns of step records."""
        return cls.read(lambda name: integers([*map(attrgetter(name), steps)]))

    @classmethod
    def read(cls, values: Callable[[str], Ints]) -> StepColumns:
        """Return columns, given what returns the values of a field of ``Step``."""
        end, others = values("t_ns"), map(values, STEP_FIELDS[4:])  # Called as in a record.
        return cls(values("step"), end - values("dur_ns"), end, values("wait_ns"), *others)

    @classmethod
    def timed(cls, number: Ints, start: Ints, end: Ints, count: Ints) -> StepColumns:
        """Return steps of which nothing but number and time is known."""
        none = uniform(0, len(number))
        return cls(number, start, end, none, count, none, none, none, none, none)

    @classmethod
    def joined(cls, parts: Sequence[StepColumns]) -> StepColumns:
        """Return the steps of all parts, one part after another."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part.all() for part in parts), strict=True)
        return cls(*(_concatenated(column) for column in columns))

    @property
    def work(self) -> Work:
        """What the steps add up to."""
        return Work(
            steps=total(self.count),
            tokens=total(self.tokens),
            samples=total(self.samples),
            energy_mj=total(self.energy_mj),
            comm_bytes=total(self.comm_bytes),
            flops=total(self.flops),
            step_ns=total(self.end - self.start),
            wait_ns=total(self.wait),
        )

    def in_order(self) -> StepColumns:
        """Return the same steps in order of their ends.

        Of those that end together the lower number comes first: an order that does not depend on
        how the records arrived.
        """
        if (np.diff(self.end) > 0).all():
            return self
        decides = (self.number, self.start, self.wait, self.count, self.tokens, self.samples)
        keys = [column for column in reversed(decides) if column.dtype != object]
        return self.at(np.lexsort((*keys, self.end)))

    def first_ones(self, length: int) -> StepColumns:
        """Return the first steps."""
        return StepColumns(*(column[:length] for column in self.all()))

    def bounds(self, begin_ns: int, first: int, beyond: int) -> tuple[Ints, Ints, Ints]:
        """Return wait starts, starts and ends of some steps of a process begun at ``begin_ns``.

        Steps of one thread do not overlap; where a log says they do, the earlier keeps its time.
        """
        ends = np.maximum(self.end[first:beyond], begin_ns)
        before_first = self.end[first - 1] if first else begin_ns
        previous = np.concatenate([[max(before_first, begin_ns)], ends[:-1]])
        starts = np.minimum(np.maximum(self.start[first:beyond], previous), ends)
        waits = self.start[first:beyond] - self.wait[first:beyond]
        return np.minimum(np.maximum(waits, previous), starts), starts, ends

    def at(self, places: Ints) -> StepColumns:
        """Return the steps at some places, in that order."""
        return StepColumns(*(column[places] for column in self.all()))

    def all(self) -> tuple[Ints, ...]:
        """Return every column, as they are given to the constructor."""
        return _all(self)

    def records(self) -> list[Step]:
        """Return the steps one by one: what ``of`` makes these columns of."""
        rows = zip(*(column.tolist() for column in self.all()), strict=True)
        return [
            Step(
                t_ns=end, step=number, dur_ns=end - start, wait_ns=wait, count=count,
                tokens=tokens, samples=samples, energy_mj=energy, comm_bytes=moved, flops=flops,
            )
            for number, start, end, wait, count, tokens, samples, energy, moved, flops in rows
        ]  # fmt: skip


STEP_FIELDS = tuple(field.name for field in fields(StepColumns))
_all = attrgetter(*STEP_FIELDS)


class BulkRecords(Sequence[Record]):
    """Records of one segment, the steps by column; as a sequence, each is made when looked at."""

    def __init__(self, steps: StepColumns, others: Sequence[Record]) -> None:
        self.steps = steps
        self.others = others

    def __len__(self) -> int:
        return len(self.steps.end) + len(self.others)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self._first() if index == 0 else self._each()[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._each())

    def _each(self) -> Sequence[Record]:
        return [*self.others, *self.steps.records()]

    def _first(self) -> Record:
        return self._each()[0]
