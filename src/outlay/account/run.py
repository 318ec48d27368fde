"""A run's account: what every process recorded, as columns and tables, folded incrementally.

Folding a prefix and then the rest equals folding all. Nothing here is computed from the facts but
sums that only grow; phases, money and limits are computed from this, elsewhere.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from outlay.account.payloads import PayloadTranslator
from outlay.account.spans import SpanInterval, Spans
from outlay.account.steps import STEP_FIELDS, BulkRecords, Column, Ints, StepColumns, Work, total
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
    SlicesChanged,
    SpanBegun,
    SpanEnded,
    Step,
    derive_attempts,
    energy_of,
)

_NO_STEP = -(2**62)


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


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One reported number, when it was reported, by which rank, and of which step."""

    t_ns: int
    rank: int
    value: float
    step: int | None = None


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
        self.step.append(_NO_STEP if metric.step is None else metric.step)

    def points(self, rank: int, most: int | None = None) -> list[MetricPoint]:
        """Return the values of a rank one by one; at most about so many, evenly, with the last."""
        every = 1 if most is None else -(-len(self.t_ns) // most) or 1
        last = len(self.t_ns) - 1
        return [
            MetricPoint(
                self.t_ns[at], rank, self.value[at],
                None if self.step[at] == _NO_STEP else self.step[at],
            )
            for at in range(last % every if last > 0 else 0, last + 1, every)
        ]  # fmt: skip


class SegmentAccount:
    """One process: its life, its steps by column, its spans, and everything else it recorded.

    Attributes:
        spans: Spans that are over; ``beside`` those that overlap training.
        work: What the steps add up to.
        beat_energy_mj: Energy that no step accounts for; ``gpu_busy_ns`` likewise from heartbeats.
        revision: Changes with every fold, for a cache of what is computed from the account.
    """

    def __init__(self, segment: SegmentId) -> None:
        self.life = SegmentLife(segment)
        self.spans, self.beside = Spans(), Spans()
        self.open: dict[int, OpenSpan] = {}
        self.checkpoints: list[Committed] = []
        self.metrics: dict[str, MetricColumns] = {}
        self.budget_events: list[BudgetEvent] = []
        self.notes: list[Note] = []
        self.beat_energy_mj = self.gpu_busy_ns = 0
        self.work = Work()
        self.revision = 0
        self._columns = tuple(Column() for _ in STEP_FIELDS)
        self._end = self._columns[STEP_FIELDS.index("end")]
        self._steps: StepColumns | None = None
        self._unmatched_ends: dict[int, int] = {}
        self._goes_back_at: int | None = None
        self._rewritten_from = 0

    def fold(self, records: Sequence[Record]) -> None:
        """Add more records of the segment."""
        self.revision += 1
        if isinstance(records, BulkRecords):
            self.add_steps(records.steps)
            records = records.others
        steps = [record for record in records if type(record) is Step]
        if len(steps) != len(records):
            others = [record for record in records if type(record) is not Step]
            self.life.fold(others)
            for record in others:
                self._fold_one(record)
        if steps:
            self.add_steps(StepColumns.of(steps))

    def add_steps(self, steps: StepColumns) -> None:
        """Add steps; those that are older than some already here are merged in."""
        self.work += steps.work
        steps = steps.in_order()
        in_place = int(np.searchsorted(self._end.values, steps.end[0]))
        if in_place < self.step_count:
            later = StepColumns(*(column[in_place:] for column in self.steps.all()))
            steps = StepColumns.joined([later, steps]).in_order()
            for column in self._columns:
                column.truncate(in_place)
            self._rewritten_from = min(self._rewritten_from, in_place)
        for column, values in zip(self._columns, steps.all(), strict=True):
            column.extend(values)
        self._steps = None
        self._look_back(in_place)
        self.life.last_sign_ns = max(self.life.last_sign_ns, int(steps.end[-1]))

    @property
    def steps(self) -> StepColumns:
        """The steps so far; what is added later does not change them."""
        if self._steps is None:
            self._steps = StepColumns(*[column.values for column in self._columns])
        return self._steps

    @property
    def step_count(self) -> int:
        """How many step records there are."""
        return len(self._end)

    @property
    def slices(self) -> list[SlicesChanged]:
        """How many slices of an elastic run trained, from when on."""
        return self.life.slices

    @property
    def energy_mj(self) -> int:
        """Energy of the steps, and of the time beside them."""
        return self.work.energy_mj + self.beat_energy_mj

    def tokens_between(self, start_ns: int, end_ns: int) -> int:
        """Return the tokens of the steps that ended after ``start_ns`` and until ``end_ns``."""
        steps = self.steps
        first, beyond = np.searchsorted(steps.end, [start_ns, end_ns], side="right")
        return total(steps.tokens[first:beyond])

    @property
    def only_grows(self) -> bool:
        """Whether each step's number is beyond that of the step before."""
        return self._goes_back_at is None

    @property
    def least_number(self) -> int | None:
        """The least step number; None without steps."""
        if not self.step_count:
            return None
        number = self.steps.number
        return int(number[0] if self.only_grows else number.min())

    @property
    def last_number(self) -> int:
        """The number of the step that was done last; -1 without steps."""
        if not self.step_count:
            return -1
        return int(self.steps.number[-1] + self.steps.count[-1]) - 1

    def take_rewritten(self) -> int:
        """Return from which step on times have changed since the last call, for a cache of them."""
        rewritten, self._rewritten_from = self._rewritten_from, self.step_count
        return rewritten

    def clipped(self, end_ns: int) -> SegmentAccount:
        """Return what the account would be if everything after ``end_ns`` had not happened."""
        cut = SegmentAccount(self.life.segment)
        slices = [change for change in self.life.slices if change.t_ns < end_ns]
        cut.life = replace(self.life, slices=slices)
        cut.spans, cut.beside, cut.open = self.spans, self.beside, self.open
        cut.checkpoints = [c for c in self.checkpoints if c.t_ns < end_ns]
        _, starts, _ = self.steps.bounds(self.life.segment.start_ns, 0, self.step_count)
        steps = self.steps.first_ones(int(np.searchsorted(starts, end_ns)))
        if len(steps.end):
            cut.add_steps(replace(steps, end=np.minimum(steps.end, end_ns)))
        cut.life.last_sign_ns = min(self.life.last_sign_ns, end_ns)
        return cut

    def _look_back(self, new_from: int) -> None:
        """Take note of where numbers go back, of which only the first place matters."""
        if self._goes_back_at is None or self._goes_back_at >= new_from:
            seen = max(new_from - 1, 0)
            steps = self.steps
            back = where_numbers_go_back(steps.number[seen:], steps.count[seen:])
            self._goes_back_at = seen + int(back[0]) if len(back) else None

    def _fold_one(self, record: Record) -> None:
        match record:
            case SpanBegun():
                span = OpenSpan(record.t_ns, record.name, record.overlapped)
                self.open[record.seq] = span
                self._rewrite_after(span, record.t_ns)
                if record.seq in self._unmatched_ends:
                    self._close(record.seq, self._unmatched_ends.pop(record.seq))
            case SpanEnded() if record.begun in self.open:
                self._close(record.begun, record.t_ns)
            case SpanEnded():
                self._unmatched_ends[record.begun] = record.t_ns
            case Metric():
                self.metrics.setdefault(record.name, MetricColumns()).append(record)
            case Heartbeat():
                self.beat_energy_mj += record.energy_mj
                self.gpu_busy_ns += record.gpu_busy_ns
            case CheckpointCommitted():
                self.checkpoints.append(Committed(record.t_ns, record.step))
            case BudgetEvent():
                self.budget_events.append(record)
            case Note():
                self.notes.append(record)
            case _:
                pass

    def _close(self, seq: int, end_ns: int) -> None:
        span = self.open.pop(seq)
        interval = SpanInterval(span.begin_ns, seq, end_ns, span.name)
        (self.beside if span.overlapped else self.spans).append(interval)
        self._rewrite_after(span, end_ns)

    def _rewrite_after(self, span: OpenSpan, t_ns: int) -> None:
        """An edge at ``t_ns`` changes the own time of steps that end later; not if overlapped."""
        if span.overlapped or not self._rewritten_from:
            return
        end = self._end.values
        if len(end) and end[-1] > t_ns:
            later = int(np.searchsorted(end, t_ns, side="right"))
            self._rewritten_from = min(self._rewritten_from, later)


def where_numbers_go_back(number: Ints, count: Ints) -> Ints:
    """Return the places of the records that do not go beyond the record before."""
    return 1 + np.flatnonzero(number[1:] < number[:-1] + count[:-1])


class RunAccount:
    """A run's segments, by column; payloads among their records become segments of their own."""

    def __init__(self) -> None:
        self.segments: dict[SegmentId, SegmentAccount] = {}
        self._translators: dict[SegmentId, PayloadTranslator] = {}
        self._attempts: list[Attempt] | None = None

    def add(self, chunks: Iterable[Chunk]) -> RunAccount:
        """Add what a reader found, and return this account."""
        for chunk in chunks:
            self.fold(chunk.segment, chunk.records)
        return self

    def fold(self, segment: SegmentId, records: Sequence[Record]) -> None:
        """Add more records of one segment; a file without a single good one adds nothing."""
        if not records:
            return
        self._attempts = None
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
        """Return the segments that take part.

        Payloads replace the segment that holds them; where their process also recorded steps
        itself, it is those that count.
        """
        if not self._translators:
            return list(self.segments.values())
        hidden = {segment for segment, by in self._translators.items() if by.segments}
        for segment in self._recorded_twice():
            hidden |= {segment, *self._translators[segment].segments}
        return [account for segment, account in self.segments.items() if segment not in hidden]

    def lives(self) -> list[SegmentLife]:
        """Return how each process lived."""
        return [account.life for account in self.shown()]

    def attempts(self) -> list[Attempt]:
        """Return the run's attempts, oldest first; derived once until more is folded."""
        if self._attempts is None:
            self._attempts = derive_attempts(self.lives())
        return self._attempts

    def of(self, attempt: Attempt) -> SegmentAccount:
        """Return the records of an attempt's timeline, without those after its end."""
        account = self.segments[attempt.segment]
        return account.clipped(attempt.last_sign_ns) if attempt.is_clipped else account

    def findings(self) -> list[Finding]:
        """Return what is wrong with the payloads."""
        found = [f for translator in self._translators.values() for f in translator.findings()]
        message = "its process also recorded steps itself; those count, and the payloads do not"
        return found + [
            Finding(source=segment.file_name, message=message, severity="warning")
            for segment in self._recorded_twice()
        ]

    def _translator(self, segment: SegmentId) -> PayloadTranslator:
        if segment not in self._translators:
            # An attempt may begin at the very instant at which its segment does.
            writer = replace(segment, host=f"{segment.host}+payloads")
            header = self.segments[segment].life.header
            self._translators[segment] = PayloadTranslator(segment.file_name, writer, header)
        return self._translators[segment]

    def _recorded_twice(self) -> list[SegmentId]:
        """Return the segments with payloads whose process also recorded steps of its own."""
        translated = {s for translator in self._translators.values() for s in translator.segments}
        native = {
            (segment.host, segment.pid)
            for segment, account in self.segments.items()
            if account.step_count and segment not in translated
        }
        return [s for s in self._translators if (s.host, s.pid) in native]

    # What all processes add up to

    @property
    def work(self) -> Work:
        """What all processes did together; repeated work counts each time."""
        return sum((account.work for account in self.shown()), start=Work())

    @property
    def gpu_busy_ns(self) -> int:
        """How long GPUs were seen busy."""
        return sum(account.gpu_busy_ns for account in self.shown())

    def energy_mj(self, attempts: Sequence[Attempt]) -> int:
        """Return the energy of the run, each millijoule counted once."""
        energies = {segment: account.energy_mj for segment, account in self.segments.items()}
        return energy_of(attempts, energies)

    def budget_events(self) -> list[BudgetEvent]:
        """Return everything that happened to the run's budget, oldest first."""
        events = [event for account in self.shown() for event in account.budget_events]
        return sorted(events, key=lambda event: event.t_ns)

    def metric_names(self) -> list[str]:
        """Return the names of what the training reported, in the order of their first report."""
        return list(dict.fromkeys(name for account in self.shown() for name in account.metrics))

    def series(self, *names: str, most: int | None = None) -> list[MetricPoint]:
        """Return the finite points of the first of some names that was reported, in time.

        Ranks that train together report the same curve: of several, that of the lowest counts. At
        ``most`` about so many of each process are returned, for a picture.
        """
        found = next(filter(None, (self._points(name, most) for name in names)), [])
        finite = [point for point in found if math.isfinite(point.value)]
        lowest = min((point.rank for point in finite), default=0)
        return sorted((p for p in finite if p.rank == lowest), key=lambda point: point.t_ns)

    def _points(self, name: str, most: int | None) -> list[MetricPoint]:
        return [
            point
            for account in self.shown()
            if name in account.metrics
            for point in account.metrics[name].points(account.life.segment.rank, most)
        ]
