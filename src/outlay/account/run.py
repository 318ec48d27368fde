"""A run's account: what every process recorded, as columns and tables, folded incrementally.

Folding a prefix and then the rest equals folding all. Only totals are computed here; phases, money
and limits are computed from the account, in other packages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray

from outlay.account.columns import (
    NO_STEP,
    STEP_FIELDS,
    BulkRecords,
    Column,
    Ints,
    MetricColumns,
    SpanInterval,
    Spans,
    StepColumns,
    Work,
    total,
)
from outlay.account.payloads import PayloadTranslator
from outlay.errors import Finding
from outlay.ledger import (
    Attempt,
    BudgetEvent,
    CheckpointCommitted,
    Chunk,
    Heartbeat,
    Metric,
    Note,
    Payload,
    Record,
    SegmentId,
    SegmentLife,
    SpanBegun,
    SpanEnded,
    Step,
    derive_attempts,
    energy_of,
)

_MOST_CACHED: Final = 4_000_000
"""Points of metrics that are cached as columns, 24 bytes each."""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of a metric."""

    t_ns: int
    rank: int
    value: float
    step: int | None = None


def points_of(columns: MetricColumns, rank: int, most: int | None = None) -> list[MetricPoint]:
    """Return values as points; about ``most`` of them, evenly spaced, with the last."""
    every = 1 if most is None else -(-len(columns.t_ns) // most) or 1
    last = len(columns.t_ns) - 1
    return [
        MetricPoint(
            columns.t_ns[at], rank, columns.value[at],
            None if columns.step[at] == NO_STEP else columns.step[at],
        )
        for at in range(last % every if last > 0 else 0, last + 1, every)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class MetricCurve:
    """The finite values of one metric by column, those of its lowest rank, in order of time.

    Attributes:
        step: The steps of the training; where none was stated, the number of the value.
    """

    t_ns: NDArray[np.int64]
    step: NDArray[np.int64]
    value: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.t_ns)

    def at(self, chosen: NDArray[Any]) -> MetricCurve:
        """Return the chosen values."""
        return MetricCurve(self.t_ns[chosen], self.step[chosen], self.value[chosen])


def _with_steps(curve: MetricCurve) -> MetricCurve:
    """Return the values that state a step; if none does, all of them, by number."""
    stated = curve.step != NO_STEP
    if not stated.any():
        return MetricCurve(curve.t_ns, np.arange(len(curve)), curve.value)
    return curve if stated.all() else curve.at(stated)


_NO_CURVE: Final = MetricCurve(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


class SegmentAccount:
    """One process: its life, its steps by column, its spans, and everything else it recorded.

    Attributes:
        spans: Closed spans of the stepping thread; ``overlapped``: those beside training.
        open: Spans whose end has not been recorded, by the number of their begin.
        beat_energy_mj: Energy outside of steps, from heartbeats; so is ``gpu_busy_ns``.
        revision: Incremented by every fold, as a cache key.
    """

    def __init__(self, segment: SegmentId) -> None:
        self.life = SegmentLife(segment)
        self.spans, self.overlapped = Spans(), Spans()
        self.open: dict[int, SpanBegun] = {}
        self.checkpoints: list[CheckpointCommitted] = []
        self.metrics: defaultdict[str, MetricColumns] = defaultdict(MetricColumns)
        self.budget_events: list[BudgetEvent] = []
        self.notes: list[Note] = []
        self.beat_energy_mj = self.gpu_busy_ns = 0
        self.work = Work()
        self.revision = 0
        self._columns = tuple(Column() for _ in STEP_FIELDS)
        self._end = self._columns[STEP_FIELDS.index("end")]
        self._steps: StepColumns | None = None
        self._unmatched_ends: dict[int, int] = {}
        self._first_decrease: int | None = None
        self._rewritten_from = 0

    def fold(self, records: Sequence[Record]) -> None:
        """Add more records of the segment."""
        self.revision += 1
        if isinstance(records, BulkRecords):
            self._add_bulk(records)
            records = records.others
        steps = [record for record in records if type(record) is Step]
        if len(steps) != len(records):
            others = [record for record in records if type(record) is not Step]
            self.life.fold(others)
            for record in others:
                if type(record) is Metric:
                    self.metrics[record.name].append(record)
                else:
                    self._fold_one(record)
        if steps:
            self.add_steps(StepColumns.of(steps))

    def _add_bulk(self, records: BulkRecords) -> None:
        """Add what is by column."""
        if len(records.steps.end):
            self.add_steps(records.steps)
        for name, columns in records.metrics.items():
            self.metrics[name].extend(columns)
            self.life.last_sign_ns = max(self.life.last_sign_ns, max(columns.t_ns))

    def add_steps(self, steps: StepColumns) -> None:
        """Add steps; late ones are merged in by their end."""
        self.work += steps.work
        steps = steps.in_order()
        unchanged = int(np.searchsorted(self._end.values, steps.end[0]))
        if unchanged < self.step_count:
            later = self.steps.take(slice(unchanged, None))
            steps = StepColumns.joined([later, steps]).in_order()
            for column in self._columns:
                column.truncate(unchanged)
            self._rewritten_from = min(self._rewritten_from, unchanged)
        for column, values in zip(self._columns, steps.all(), strict=True):
            column.extend(values)
        self._steps = None
        self._find_first_decrease(unchanged)
        self.life.last_sign_ns = max(self.life.last_sign_ns, int(steps.end[-1]))

    @property
    def steps(self) -> StepColumns:
        """A snapshot of the steps so far."""
        if self._steps is None:
            self._steps = StepColumns(*[column.values for column in self._columns])
        return self._steps

    @property
    def step_count(self) -> int:
        """How many step records there are."""
        return len(self._end)

    @property
    def energy_mj(self) -> int:
        """Energy of the steps and of the time outside of them."""
        return self.work.energy_mj + self.beat_energy_mj

    def tokens_between(self, start_ns: int, end_ns: int) -> int:
        """Return the tokens of the steps that ended in ``(start_ns, end_ns]``."""
        steps = self.steps
        first, beyond = np.searchsorted(steps.end, [start_ns, end_ns], side="right")
        return total(steps.tokens[first:beyond])

    @property
    def only_grows(self) -> bool:
        """Whether every record's step numbers are above those of the record before."""
        return self._first_decrease is None

    @property
    def least_number(self) -> int | None:
        """The lowest step number; None without steps."""
        if not self.step_count:
            return None
        number = self.steps.number
        return int(number[0] if self.only_grows else number.min())

    @property
    def last_number(self) -> int:
        """The number of the last executed step; -1 without steps."""
        if not self.step_count:
            return -1
        return int(self.steps.number[-1] + self.steps.count[-1]) - 1

    def open_spans(self, end_ns: int) -> list[SpanInterval]:
        """Return the spans of the stepping thread without a recorded end, as ending at one."""
        return [
            SpanInterval(span.t_ns, order, end_ns, span.name)
            for order, span in self.open.items()
            if not span.overlapped
        ]

    def pop_rewritten_from(self) -> int:
        """Return the first record whose times changed since the last call, for a cache of them."""
        rewritten, self._rewritten_from = self._rewritten_from, self.step_count
        return rewritten

    def clipped(self, end_ns: int) -> SegmentAccount:
        """Return a copy without anything after ``end_ns``."""
        cut = SegmentAccount(self.life.segment)
        slices = [change for change in self.life.slices if change.t_ns < end_ns]
        cut.life = replace(self.life, slices=slices)
        cut.spans, cut.overlapped, cut.open = self.spans, self.overlapped, self.open
        cut.checkpoints = [c for c in self.checkpoints if c.t_ns < end_ns]
        _, starts, _ = self.steps.bounds(self.life.start_ns, 0, self.step_count)
        steps = self.steps.take(slice(int(np.searchsorted(starts, end_ns))))
        if len(steps.end):
            cut.add_steps(replace(steps, end=np.minimum(steps.end, end_ns)))
        cut.life.last_sign_ns = min(self.life.last_sign_ns, end_ns)
        return cut

    def moved(self, ns: int) -> SegmentAccount:
        """Return a copy of what makes the timeline, ``ns`` later (negative: earlier)."""
        copy = SegmentAccount(self.life.segment)
        copy.life = self.life.moved(ns)
        copy.spans, copy.overlapped = self.spans.moved(ns), self.overlapped.moved(ns)
        copy.open = {
            seq: replace_fields(span, t_ns=span.t_ns + ns) for seq, span in self.open.items()
        }
        copy.checkpoints = [replace_fields(c, t_ns=c.t_ns + ns) for c in self.checkpoints]
        if self.step_count:
            steps = self.steps
            copy.add_steps(replace(steps, start=steps.start + ns, end=steps.end + ns))
        return copy

    def _find_first_decrease(self, new_from: int) -> None:
        """Find the first record whose number goes back, among those from ``new_from`` on."""
        if self._first_decrease is None or self._first_decrease >= new_from:
            seen = max(new_from - 1, 0)
            steps = self.steps
            decreases = find_decreases(steps.number[seen:], steps.count[seen:])
            self._first_decrease = seen + int(decreases[0]) if len(decreases) else None

    def _fold_one(self, record: Record) -> None:
        match record:
            case SpanBegun():
                self.open[record.seq] = record
                self._invalidate_after(record, record.t_ns)
                if record.seq in self._unmatched_ends:
                    self._close(record.seq, self._unmatched_ends.pop(record.seq))
            case SpanEnded() if record.begun in self.open:
                self._close(record.begun, record.t_ns)
            case SpanEnded():
                self._unmatched_ends[record.begun] = record.t_ns
            case Heartbeat():
                self.beat_energy_mj += record.energy_mj
                self.gpu_busy_ns += record.gpu_busy_ns
            case CheckpointCommitted():
                self.checkpoints.append(record)
            case BudgetEvent():
                self.budget_events.append(record)
            case Note():
                self.notes.append(record)
            case _:
                pass

    def _close(self, seq: int, end_ns: int) -> None:
        span = self.open.pop(seq)
        interval = SpanInterval(span.t_ns, seq, end_ns, span.name)
        (self.overlapped if span.overlapped else self.spans).append(interval)
        self._invalidate_after(span, end_ns)

    def _invalidate_after(self, span: SpanBegun, t_ns: int) -> None:
        """Mark own times as changed for steps that end after a span's begin or end at ``t_ns``."""
        if span.overlapped or not self._rewritten_from:
            return
        end = self._end.values
        if len(end) and end[-1] > t_ns:
            later = int(np.searchsorted(end, t_ns, side="right"))
            self._rewritten_from = min(self._rewritten_from, later)


def find_decreases(number: Ints, count: Ints) -> Ints:
    """Return the indices of the records whose number is not above those of the record before."""
    return 1 + np.flatnonzero(number[1:] < number[:-1] + count[:-1])


class RunAccount:
    """A run's segments by column; each attempt found in payloads becomes a segment of its own."""

    def __init__(self) -> None:
        self.segments: dict[SegmentId, SegmentAccount] = {}
        self._translators: dict[SegmentId, PayloadTranslator] = {}
        self._attempts: list[Attempt] | None = None
        self._curves: dict[str, MetricCurve] = {}

    def add(self, chunks: Iterable[Chunk]) -> RunAccount:
        """Fold a reader's chunks, and return this account."""
        for chunk in chunks:
            self.fold(chunk.segment, chunk.records)
        return self

    def fold(self, segment: SegmentId, records: Sequence[Record]) -> None:
        """Add more records of one segment; a segment without a valid record is not added."""
        if not records:
            return
        self._attempts = None
        self._curves.clear()
        self._segment(segment).fold(records)
        others = records.others if isinstance(records, BulkRecords) else records
        payloads = [record.data for record in others if type(record) is Payload]
        if payloads:
            for chunk in self._translator(segment).translate(payloads):
                self._segment(chunk.segment).fold(chunk.records)

    def _segment(self, segment: SegmentId) -> SegmentAccount:
        if segment not in self.segments:
            self.segments[segment] = SegmentAccount(segment)
        return self.segments[segment]

    def shown(self) -> list[SegmentAccount]:
        """Return the segments that count.

        Segments translated from payloads replace the segment that holds the payloads, unless the
        process also recorded steps itself: then the payloads are ignored.
        """
        if not self._translators:
            return list(self.segments.values())
        hidden = {segment for segment, by in self._translators.items() if by.segments}
        for segment in self._recorded_twice():
            hidden |= {segment, *self._translators[segment].segments}
        return [account for segment, account in self.segments.items() if segment not in hidden]

    def attempts(self) -> list[Attempt]:
        """Return the run's attempts, oldest first; cached until the next fold."""
        if self._attempts is None:
            self._attempts = derive_attempts([account.life for account in self.shown()])
        return self._attempts

    def of(self, attempt: Attempt) -> SegmentAccount:
        """Return the account of an attempt's lowest rank, moved and clipped as the attempt is."""
        account = self.segments[attempt.segment]
        if attempt.moved_ns:
            account = account.moved(attempt.moved_ns)
        return account.clipped(attempt.last_sign_ns) if attempt.is_clipped else account

    def moves(self) -> dict[SegmentId, int]:
        """Return how far each segment of a moved attempt is moved."""
        return {
            segment: attempt.moved_ns
            for attempt in self.attempts()
            if attempt.moved_ns
            for segment in attempt.ranks
        }

    def findings(self) -> list[Finding]:
        """Return findings on the payloads."""
        found = [f for translator in self._translators.values() for f in translator.findings()]
        message = "its process also recorded steps itself; those count, and the payloads do not"
        return found + [
            Finding(source=segment.file_name, message=message, severity="warning")
            for segment in self._recorded_twice()
        ]

    def _translator(self, segment: SegmentId) -> PayloadTranslator:
        if segment not in self._translators:
            # Another host name: an attempt may start at the same instant as this segment.
            writer = replace(segment, host=f"{segment.host}+payloads")
            header = self.segments[segment].life.header
            self._translators[segment] = PayloadTranslator(segment.file_name, writer, header)
        return self._translators[segment]

    def _recorded_twice(self) -> list[SegmentId]:
        """Return the segments with payloads whose process also recorded steps itself."""
        translated = {s for translator in self._translators.values() for s in translator.segments}
        native = {
            (segment.host, segment.pid)
            for segment, account in self.segments.items()
            if account.step_count and segment not in translated
        }
        return [s for s in self._translators if (s.host, s.pid) in native]

    # Totals of all processes

    @property
    def work(self) -> Work:
        """The totals of all processes; repeated work counts each time."""
        return sum((account.work for account in self.shown()), start=Work())

    @property
    def gpu_busy_ns(self) -> int:
        """How long GPUs were busy, as sampled."""
        return sum(account.gpu_busy_ns for account in self.shown())

    def energy_mj(self, attempts: Sequence[Attempt]) -> int:
        """Return the energy of the run, each millijoule counted once."""
        energies = {segment: account.energy_mj for segment, account in self.segments.items()}
        return energy_of(attempts, energies)

    def budget_events(self) -> list[BudgetEvent]:
        """Return the run's budget events, oldest first."""
        events = [event for account in self.shown() for event in account.budget_events]
        return sorted(events, key=lambda event: event.t_ns)

    def metric_names(self) -> list[str]:
        """Return the names of the run's metrics, in the order of their first report."""
        return list(dict.fromkeys(name for account in self.shown() for name in account.metrics))

    def series(self, *names: str, most: int | None = None) -> list[MetricPoint]:
        """Return the finite points of the first of ``names`` that was reported, in order of time.

        Ranks report the same curve: only the lowest rank's is returned. ``most`` bounds the points
        of each process (approximately), for charts.
        """
        found = next(filter(None, (self._points(name, most) for name in names)), [])
        finite = [point for point in found if math.isfinite(point.value)]
        lowest = min((point.rank for point in finite), default=0)
        return sorted((p for p in finite if p.rank == lowest), key=lambda point: point.t_ns)

    def curve(self, name: str) -> MetricCurve:
        """Return the points of ``series`` as columns, for charts; cached until the next fold.

        Where some points state a step, those that do not are left out.
        """
        if name not in self._curves:
            found = _with_steps(self.recorded(name))
            if len(found) + sum(map(len, self._curves.values())) > _MOST_CACHED:
                self._curves.clear()
            self._curves[name] = found
        return self._curves[name]

    def recorded(self, *names: str) -> MetricCurve:
        """Return the points of ``series`` as columns, with ``NO_STEP`` where none was stated."""
        moves, found, shown = self.moves(), dict[int, list[MetricCurve]](), self.shown()
        name = next((n for n in names if any(n in each.metrics for each in shown)), "")
        for account in shown:
            if name in account.metrics:
                columns, segment = account.metrics[name], account.life.segment
                value = np.array(columns.value)
                t_ns = np.array(columns.t_ns) + moves.get(segment, 0)
                whole = MetricCurve(t_ns, np.array(columns.step), value)
                if len(finite := whole.at(np.isfinite(value))):
                    found.setdefault(segment.rank, []).append(finite)
        if not found:
            return _NO_CURVE
        parts = found[min(found)]
        columns_of = zip(*((each.t_ns, each.step, each.value) for each in parts), strict=True)
        joined = MetricCurve(*map(np.concatenate, columns_of))
        if (np.diff(joined.t_ns) < 0).any():
            joined = joined.at(np.argsort(joined.t_ns, kind="stable"))
        return joined

    def values(self, *names: str) -> NDArray[np.float64]:
        """Return the values of the same points, in any order, without a point for each."""
        shown = self.shown()
        name = next((n for n in names if any(n in each.metrics for each in shown)), "")
        columns = [
            (each.life.segment.rank, np.array(each.metrics[name].value))
            for each in shown
            if name in each.metrics
        ]
        finite = [(rank, values[np.isfinite(values)]) for rank, values in columns]
        lowest = min((rank for rank, values in finite if len(values)), default=0)
        return np.concatenate([np.empty(0), *(each for rank, each in finite if rank == lowest)])

    def _points(self, name: str, most: int | None) -> list[MetricPoint]:
        moves = self.moves()
        return [
            replace(point, t_ns=point.t_ns + moved_ns) if moved_ns else point
            for account in self.shown()
            if name in account.metrics
            for moved_ns in [moves.get(account.life.segment, 0)]
            for point in points_of(account.metrics[name], account.life.segment.rank, most)
        ]
