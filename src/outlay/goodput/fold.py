"""Folding records into what a timeline needs, incrementally.

Folding a prefix and then the rest equals folding all: every fact goes into a column or a table, and
what depends on all of them is computed when asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from outlay.goodput.columns import Column, Ints, total
from outlay.goodput.cover import Cover, cover_of
from outlay.goodput.phases import phase_of_span
from outlay.goodput.rollback import where_numbers_go_back
from outlay.goodput.spans import SpanInterval, Spans
from outlay.goodput.stalls import SlowSteps
from outlay.goodput.step_blocks import StepBlock
from outlay.goodput.steps import StepColumns, Usage
from outlay.ledger import (
    CheckpointCommitted,
    Record,
    SegmentId,
    SegmentLife,
    SlicesChanged,
    SpanBegun,
    SpanEnded,
    Step,
)

_BLOCK_STEPS = 1 << 17  # Bounds what a vector pass needs beside the columns.


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span whose end has not been recorded."""

    begin_ns: int
    name: str
    overlapped: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint: everything up to and including ``step`` was safe at ``t_ns``."""

    t_ns: int
    step: int


class SegmentFold:
    """One process's records as columns, tables and its life."""

    def __init__(self, segment: SegmentId) -> None:
        self.life = SegmentLife(segment)
        self.number, self.start, self.end = Column(), Column(), Column()
        self.wait, self.count, self.tokens = Column(), Column(), Column()
        self.spans, self.beside = Spans(), Spans()
        self.open: dict[int, OpenSpan] = {}
        self.checkpoints: list[Committed] = []
        self.slices: list[SlicesChanged] = []
        self.usage = Usage()
        self.revision = 0  # Changes when own times that were computed before are computed anew.
        self.slow = SlowSteps()
        self._unmatched_ends: dict[int, int] = {}
        self._goes_back_at: int | None = None
        self._own, self._waited = Column([0]), Column([0])

    def fold(self, records: Sequence[Record]) -> None:
        """Add more records of the segment."""
        if isinstance(records, StepBlock):
            self.add_steps(records.steps)
            self.usage += records.usage
            records = records.others
        steps = [record for record in records if type(record) is Step]
        if len(steps) != len(records):
            others = [record for record in records if type(record) is not Step]
            self.life.fold(others)
            for record in others:
                self._fold_one(record)
        if steps:
            self.add_steps(StepColumns.of(steps))
            self.usage += Usage.of(steps)

    def add_steps(self, steps: StepColumns) -> None:
        """Add steps; those that are older than some already here are merged in."""
        steps = steps.in_order()
        in_place = int(np.searchsorted(self.end.values, steps.end[0]))
        if in_place < len(self.end):
            later = StepColumns(*(column.values[in_place:] for column in self._columns()))
            steps = StepColumns.joined([later, steps]).in_order()
            for column in self._columns():
                column.truncate(in_place)
            self._forget_from(in_place)
        for column, values in zip(self._columns(), steps.all(), strict=True):
            column.extend(values)
        self._look_back(in_place)
        self.life.last_sign_ns = max(self.life.last_sign_ns, int(steps.end[-1]))

    @property
    def steps(self) -> StepColumns:
        """The steps so far; what is added later does not change them."""
        return StepColumns(*(column.values for column in self._columns()))

    def tokens_between(self, start_ns: int, end_ns: int) -> int:
        """Return the tokens of the steps that ended after ``start_ns`` and until ``end_ns``."""
        first, beyond = np.searchsorted(self.end.values, [start_ns, end_ns], side="right")
        return total(self.tokens.values[first:beyond])

    def _look_back(self, new_from: int) -> None:
        """Take note of where numbers go back, of which only the first place matters."""
        if self._goes_back_at is None or self._goes_back_at >= new_from:
            seen = max(new_from - 1, 0)
            back = where_numbers_go_back(self.number.values[seen:], self.count.values[seen:])
            self._goes_back_at = seen + int(back[0]) if len(back) else None

    @property
    def only_grows(self) -> bool:
        """Whether each step's number is beyond that of the step before."""
        return self._goes_back_at is None

    @property
    def least_number(self) -> int | None:
        """The least step number; None without steps."""
        if not len(self.number):
            return None
        return int(self.number.values[0] if self.only_grows else self.number.values.min())

    def own_before(self) -> tuple[Ints, Ints]:
        """Return cumulative own time of steps and of waits: entry i is before step i."""
        done = len(self._own) - 1
        if done < len(self.end):
            cover = self.cover(self.life.segment.start_ns, self.life.last_sign_ns)
            for first in range(done, len(self.end), _BLOCK_STEPS):
                self._extend_own(cover, first, min(first + _BLOCK_STEPS, len(self.end)))
        return self._own.values, self._waited.values

    def _extend_own(self, cover: Cover, first: int, beyond: int) -> None:
        waits, starts, ends = self.steps.bounds(self.life.segment.start_ns, first, beyond)
        held_at_start = cover.before(starts)
        own = ends - starts - (cover.before(ends) - held_at_start)
        waited = starts - waits - (held_at_start - cover.before(waits))
        self._own.extend(self._own.values[-1] + np.cumsum(own))
        self._waited.extend(self._waited.values[-1] + np.cumsum(waited))

    def clipped(self, end_ns: int) -> SegmentFold:
        """Return what the fold would be if everything after ``end_ns`` had not happened."""
        cut = SegmentFold(self.life.segment)
        cut.life = replace(self.life)
        cut.spans, cut.beside, cut.open = self.spans, self.beside, self.open
        cut.checkpoints = [c for c in self.checkpoints if c.t_ns < end_ns]
        cut.slices = [change for change in self.slices if change.t_ns < end_ns]
        _, starts, _ = self.steps.bounds(self.life.segment.start_ns, 0, len(self.end))
        steps = self.steps.first_ones(int(np.searchsorted(starts, end_ns)))
        if len(steps.end):
            cut.add_steps(replace(steps, end=np.minimum(steps.end, end_ns)))
        cut.life.last_sign_ns = min(self.life.last_sign_ns, end_ns)
        return cut

    def _columns(self) -> tuple[Column, ...]:
        return self.number, self.start, self.end, self.wait, self.count, self.tokens

    def cover(self, start_ns: int, end_ns: int) -> Cover:
        """Return which span holds each instant of a window; open spans last until its end."""
        still_open = [
            SpanInterval(span.begin_ns, order, end_ns, phase_of_span(span.name))
            for order, span in self.open.items()
            if not span.overlapped
        ]
        return cover_of(self.spans, still_open, start_ns, end_ns)

    def _fold_one(self, record: Record) -> None:
        match record:
            case SpanBegun():
                span = OpenSpan(record.t_ns, record.name, record.overlapped)
                self.open[record.seq] = span
                self._forget_after(record.t_ns)
                if record.seq in self._unmatched_ends:
                    self._close(record.seq, self._unmatched_ends.pop(record.seq))
            case SpanEnded() if record.begun in self.open:
                self._close(record.begun, record.t_ns)
            case SpanEnded():
                self._unmatched_ends[record.begun] = record.t_ns
            case CheckpointCommitted():
                self.checkpoints.append(Committed(record.t_ns, record.step))
            case SlicesChanged():
                self.slices.append(record)
            case _:
                pass

    def _close(self, seq: int, end_ns: int) -> None:
        span = self.open.pop(seq)
        interval = SpanInterval(span.begin_ns, seq, end_ns, phase_of_span(span.name))
        (self.beside if span.overlapped else self.spans).append(interval)
        self._forget_after(end_ns)

    def _forget_after(self, t_ns: int) -> None:
        """A span edge at ``t_ns`` changes the own time of steps that end later."""
        self._forget_from(int(np.searchsorted(self.end.values, t_ns, side="right")))

    def _forget_from(self, index: int) -> None:
        self.slow.forget_from(index)
        if index + 1 < len(self._own):
            self._own.truncate(index + 1)
            self._waited.truncate(index + 1)
            self.revision += 1


SegmentFolds = dict[SegmentId, SegmentFold]


def fold_of(segments: SegmentFolds, segment: SegmentId) -> SegmentFold:
    """Return the fold of one segment, begun when it is new."""
    if segment not in segments:
        segments[segment] = SegmentFold(segment)
    return segments[segment]
