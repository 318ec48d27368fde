"""Spans that are over, by column: appended one by one, looked at all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlay.account.steps import Column, Ints

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
    ACCELERATOR_INIT,
    TRAINING_PREP,
    DATA_LOADING,
    CHECKPOINT_SAVE,
    CHECKPOINT_RESTORE,
    EVALUATION,
    ELASTIC_SLICE_DOWN,
    ELASTIC_SCALE_UP,
    ELASTIC_REINITIALIZATION,
)
"""The names of spans that have a meaning of their own; any other is a user's."""


@dataclass(frozen=True, slots=True, order=True)
class SpanInterval:
    """A span during ``[begin_ns, end_ns)``; ``order`` is its place in the log."""

    begin_ns: int
    order: int
    end_ns: int
    name: str


@dataclass(frozen=True, slots=True)
class SpanColumns:
    """Some spans: when each began and ended, and which of ``names`` it has, by place."""

    names: tuple[str, ...]
    begin: Ints
    order: Ints
    end: Ints
    name: Ints

    @classmethod
    def of(cls, intervals: Sequence[SpanInterval]) -> SpanColumns:
        """Return the columns of some spans."""
        spans = Spans()
        for interval in intervals:
            spans.append(interval)
        return spans.columns()

    def within(self, start_ns: int, end_ns: int) -> SpanColumns:
        """Return what of them lies in a window, in order of their begins."""
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
        """Return some of them."""
        columns = (self.begin, self.order, self.end, self.name)
        return SpanColumns(self.names, *(column[wanted] for column in columns))

    def by(self, key: Callable[[str], str]) -> Iterator[tuple[str, SpanColumns]]:
        """Yield the spans whose names have the same key, for each key that there is."""
        keys = [key(name) for name in self.names]
        for wanted in dict.fromkeys(keys):
            places = [place for place, found in enumerate(keys) if found == wanted]
            chosen = self.where(np.isin(self.name, places))
            if len(chosen.begin):
                yield wanted, chosen


class Spans:
    """The spans of one process; columns are made of those that are new when they are looked at."""

    def __init__(self) -> None:
        self._intervals: list[SpanInterval] = []
        self._columns = tuple(Column() for _ in range(4))
        self._names: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._intervals)

    def __iter__(self) -> Iterator[SpanInterval]:
        return iter(self._intervals)

    def append(self, span: SpanInterval) -> None:
        """Add a span that is over."""
        self._intervals.append(span)

    def columns(self, more: Sequence[SpanInterval] = ()) -> SpanColumns:
        """Return all spans, and some more behind them."""
        done = len(self._columns[0])
        for column, values in zip(self._columns, self._rows(self._intervals[done:]), strict=True):
            column.extend(np.array(values, dtype=np.int64))
        every = [column.values for column in self._columns]
        if more:
            every = [
                np.concatenate([column, np.array(values, dtype=np.int64)])
                for column, values in zip(every, self._rows(more), strict=True)
            ]
        return SpanColumns(tuple(self._names), *every)

    def _rows(self, spans: Sequence[SpanInterval]) -> tuple[list[int], ...]:
        places = [self._names.setdefault(span.name, len(self._names)) for span in spans]
        return (
            [span.begin_ns for span in spans],
            [span.order for span in spans],
            [span.end_ns for span in spans],
            places,
        )
