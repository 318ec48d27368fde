"""Steps, spans and metrics of a process by column: growable vectors of numbers."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import add, attrgetter
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from outlay.ledger import Metric, Record, Step

# Growable columns: a few bytes per step, and views without copies.

Ints = NDArray[np.int64]


def integers(values: Sequence[int]) -> Ints:
    """Return a vector of int64, or of Python integers if one does not fit."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(values, dtype=object)


def uniform(value: int, length: int) -> Ints:
    """Return a vector of one repeated value, with stride 0: it takes no memory."""
    return _broadcast(np.array([value], dtype=np.int64), length)


def _broadcast(value: Ints, length: int) -> Ints:
    # Ten times faster than np.broadcast_to, which matters for short logs.
    return np.ndarray((length,), value.dtype, value, 0, (0,))


def _distinct(values: Ints) -> Ints:
    """Return the one value of a broadcast vector, else the vector."""
    return values[:1] if values.strides == (0,) else values


def _concatenated(parts: Sequence[Ints]) -> Ints:
    """Concatenate vectors; the result is broadcast if all are, of the same value."""
    first = parts[0][:1]
    if all(part.strides == (0,) and part[0] == first[0] for part in parts):
        return _broadcast(first, sum(map(len, parts)))
    return np.concatenate(parts)


def cumulative(values: Ints) -> Ints:
    """Return cumulative sums, one more than values: entry i sums the values before i."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values)])


def total(values: Ints) -> int:
    """Return the sum as a Python integer: it does not overflow."""
    if values.dtype == object:
        return int(values.sum()) if len(values) else 0
    if values.strides == (0,) and len(values):  # Broadcast.
        return int(values[0]) * len(values)
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


class Column:
    """An append-only vector of int64 that triples its capacity when full.

    While all values are equal it stores only one: most steps have the same number of tokens, and
    no energy. A value beyond 64 bits turns it into a vector of Python integers.
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
        """The column as a view; later changes of the column do not affect it."""
        if self._uniform and self._length:
            return _broadcast(self._data, self._length)
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
        if not self._length:  # Nothing writes to the first values: no copy.
            self._data, self._length = values, len(values)
            return
        if values.dtype == object and self._data.dtype != object:
            self._data = self._data.astype(object)
        needed = self._length + len(values)
        if needed > len(self._data):
            room = max(needed, len(self._data) * 3, 64)  # Untouched pages take no memory.
            grown = np.empty(room, dtype=self._data.dtype)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
        self._data[self._length : needed] = values
        self._length = needed

    def truncate(self, length: int) -> None:
        """Drop everything from ``length`` on."""
        # Without spare capacity the next append copies, and existing views stay valid.
        if not self._uniform:
            self._data = self._data[:length]
        self._length = length


# Steps by column, and their totals.


@dataclass(frozen=True, slots=True)
class Work:
    """Totals of some steps; repeated work counts each time."""

    steps: int = 0
    tokens: int = 0
    samples: int = 0
    energy_mj: int = 0
    comm_bytes: int = 0
    flops: int = 0
    step_ns: int = 0
    wait_ns: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*map(add, _totals(self), _totals(other)))


_totals = attrgetter(*(field.name for field in fields(Work)))


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Step records by column; ``wait`` is the data wait before, ``count`` the steps per record."""

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
        """Return columns, given a function from a field name of ``Step`` to its values."""
        end, others = values("t_ns"), map(values, STEP_FIELDS[4:])  # Named as in ``Step``.
        return cls(values("step"), end - values("dur_ns"), end, values("wait_ns"), *others)

    @classmethod
    def timed(cls, number: Ints, start: Ints, end: Ints, count: Ints) -> StepColumns:
        """Return steps of which only number and time are known."""
        none = uniform(0, len(number))
        return cls(number, start, end, none, count, none, none, none, none, none)

    @classmethod
    def joined(cls, parts: Sequence[StepColumns]) -> StepColumns:
        """Concatenate parts."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part.all() for part in parts), strict=True)
        return cls(*(_concatenated(column) for column in columns))

    @property
    def work(self) -> Work:
        """The totals of the steps."""
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
        """Return the steps sorted by end, then by number and the other columns.

        The order does not depend on how the records arrived.
        """
        if (np.diff(self.end) > 0).all():
            return self
        columns = (self.number, self.start, self.wait, self.count, self.tokens, self.samples)
        keys = [column for column in reversed(columns) if column.dtype != object]
        return self.take(np.lexsort((*keys, self.end)))

    def bounds(self, begin_ns: int, first: int, beyond: int) -> tuple[Ints, Ints, Ints]:
        """Return wait starts, starts and ends of records ``[first, beyond)``, without overlaps.

        Nothing is before ``begin_ns``, the start of the process. Where two steps of a log overlap,
        the earlier one keeps the time.
        """
        ends = np.maximum(self.end[first:beyond], begin_ns)
        before_first = self.end[first - 1] if first else begin_ns
        previous = np.concatenate([[max(before_first, begin_ns)], ends[:-1]])
        starts = np.minimum(np.maximum(self.start[first:beyond], previous), ends)
        waits = self.start[first:beyond] - self.wait[first:beyond]
        return np.minimum(np.maximum(waits, previous), starts), starts, ends

    def take(self, indices: Ints | slice) -> StepColumns:
        """Return the records at ``indices``, in that order."""
        return StepColumns(*(column[indices] for column in self.all()))

    def all(self) -> tuple[Ints, ...]:
        """Return every column, in the order of the constructor."""
        return _all(self)

    def records(self) -> list[Step]:
        """Return the records: the inverse of ``of``."""
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


# Metrics by column.

NO_STEP: Final = -(2**62)
"""Stands for the step of a value that stated none."""


@dataclass(slots=True)
class MetricColumns:
    """The values of one metric, in the order in which they were recorded."""

    t_ns: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))
    step: array[int] = field(default_factory=lambda: array("q"))

    def append(self, metric: Metric) -> None:
        """Add a value."""
        self.t_ns.append(metric.t_ns)
        self.value.append(metric.number)
        self.step.append(NO_STEP if metric.step is None else metric.step)

    def extend(self, more: MetricColumns) -> None:
        """Add values."""
        self.t_ns.extend(more.t_ns)
        self.value.extend(more.value)
        self.step.extend(more.step)


class BulkRecords(Sequence[Record]):
    """Records of one segment, the steps and metrics by column; as a sequence, built on access.

    ``metrics`` are by name, in the order of their first values. A sequence that is not a block of
    a log has none: they are among the ``others``.
    """

    def __init__(
        self,
        steps: StepColumns,
        others: Sequence[Record],
        metrics: Mapping[str, MetricColumns] | None = None,
    ) -> None:
        self.steps = steps
        self.others = others
        self.metrics = metrics or {}

    def __len__(self) -> int:
        logged = sum(len(each.value) for each in self.metrics.values())
        return len(self.steps.end) + logged + len(self.others)

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


# Spans by column.

ACCELERATOR_INIT = "accelerator_init"
TRAINING_PREP = "training_prep"
DATA_LOADING = "data_loading"
CHECKPOINT_SAVE = "checkpoint_save"
CHECKPOINT_RESTORE = "checkpoint_restore"
EVALUATION = "evaluation"
ELASTIC_SLICE_DOWN = "elastic_slice_down"
ELASTIC_SCALE_UP = "elastic_scale_up"
ELASTIC_REINITIALIZATION = "elastic_reinitialization"

NAMES = (
    ACCELERATOR_INIT, TRAINING_PREP, DATA_LOADING, CHECKPOINT_SAVE, CHECKPOINT_RESTORE, EVALUATION,
    ELASTIC_SLICE_DOWN, ELASTIC_SCALE_UP, ELASTIC_REINITIALIZATION,
)  # fmt: skip
"""Span names with a meaning of their own; any other is custom."""


@dataclass(frozen=True, slots=True, order=True)
class SpanInterval:
    """A span during ``[begin_ns, end_ns)``; ``order`` is its position in the log."""

    begin_ns: int
    order: int
    end_ns: int
    name: str


@dataclass(frozen=True, slots=True)
class SpanColumns:
    """Spans by column; ``name`` is an index into ``names``."""

    names: tuple[str, ...]
    begin: Ints
    order: Ints
    end: Ints
    name: Ints

    @classmethod
    def of(cls, intervals: Sequence[SpanInterval]) -> SpanColumns:
        """Return the columns of intervals."""
        spans = Spans()
        for interval in intervals:
            spans.append(interval)
        return spans.columns()

    def within(self, start_ns: int, end_ns: int) -> SpanColumns:
        """Return the spans clipped to ``[start_ns, end_ns)``, sorted by begin."""
        in_order = np.lexsort((self.end, self.order, self.begin))
        cut = SpanColumns(
            self.names,
            np.maximum(self.begin, start_ns)[in_order],
            self.order[in_order],
            np.minimum(self.end, end_ns)[in_order],
            self.name[in_order],
        )
        return cut.where(cut.begin < cut.end)

    def where(self, wanted: NDArray[np.bool_]) -> SpanColumns:
        """Return the spans that a mask selects."""
        columns = (self.begin, self.order, self.end, self.name)
        return SpanColumns(self.names, *(column[wanted] for column in columns))

    def by(self, key: Callable[[str], str]) -> Iterator[tuple[str, SpanColumns]]:
        """Group spans by a key of their names; empty groups are left out."""
        keys = [key(name) for name in self.names]
        for wanted in dict.fromkeys(keys):
            indices = [index for index, found in enumerate(keys) if found == wanted]
            chosen = self.where(np.isin(self.name, indices))
            if len(chosen.begin):
                yield wanted, chosen


class Spans:
    """The closed spans of one process; new ones are added to the columns on access."""

    def __init__(self) -> None:
        self._intervals: list[SpanInterval] = []
        self._columns = tuple(Column() for _ in range(4))
        self._names: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._intervals)

    def __iter__(self) -> Iterator[SpanInterval]:
        return iter(self._intervals)

    def append(self, span: SpanInterval) -> None:
        """Add a closed span."""
        self._intervals.append(span)

    def moved(self, ns: int) -> Spans:
        """Return the same spans, ``ns`` later (negative: earlier)."""
        copy = Spans()
        for span in self._intervals:
            copy.append(replace(span, begin_ns=span.begin_ns + ns, end_ns=span.end_ns + ns))
        return copy

    def columns(self, more: Sequence[SpanInterval] = ()) -> SpanColumns:
        """Return all spans, followed by ``more``."""
        done = len(self._columns[0])
        for column, values in zip(self._columns, self._rows(self._intervals[done:]), strict=True):
            column.extend(values)
        every = [column.values for column in self._columns]
        if more:
            added = self._rows(more)
            every = [np.concatenate(both) for both in zip(every, added, strict=True)]
        return SpanColumns(tuple(self._names), *every)

    def _rows(self, spans: Sequence[SpanInterval]) -> list[Ints]:
        names = [self._names.setdefault(span.name, len(self._names)) for span in spans]
        columns = (map(attrgetter(name), spans) for name in ("begin_ns", "order", "end_ns"))
        return [np.fromiter(values, dtype=np.int64) for values in (*columns, names)]
