"""Payloads of a goodput log into ledger records, batch by batch.

Such a log has step *starts* only. A step lasts until the next start in its attempt, else until the
job's end, else it has no duration; from step p to step c are c - p steps. A job start opens an
attempt; without one so does a step number that is not beyond the last, or a span that begins after
the job's end. A payload that is delivered twice counts once. Batches make no difference: their
records fold to the same account as those of all payloads at once. Nothing is folded here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import assert_never

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlay.account.payload_parsing import (
    LATEST_NS,
    Began,
    Event,
    JobEnded,
    JobStarted,
    Payload,
    PayloadEnded,
    Saved,
    Slices,
    StepStarts,
    Took,
    parse_event,
    split_steps,
)
from outlay.account.spans import DATA_LOADING
from outlay.account.steps import BulkRecords, Column, StepColumns
from outlay.errors import Finding
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    CheckpointCommitted,
    Chunk,
    Heartbeat,
    Record,
    SegmentId,
    SlicesChanged,
    SpanBegun,
    SpanEnded,
)

_LATE = "comes after a later one and is not counted"
_NOT_BEGUN = "ended and had not begun"
_OVERLAPPED = 0  # In place of a span's number: its records are made when it ends.
_NOWHERE = 2**62

_Mark = JobStarted | JobEnded
_SpanEdge = Began | PayloadEnded
_Placed = tuple[int, Event]
"""An event, and its place in the batch."""


class _JobAttempt:
    """One start of the job: the state that later payloads depend on, and its new records.

    Attributes:
        last_sign_ns: The latest instant that its records name.
        has_job_start: A job start was delivered for it; some programs record spans before that.
        ended_ns: The job's end, once it was delivered.
    """

    def __init__(
        self,
        segment: SegmentId,
        header: AttemptStarted,
        earlier: _JobAttempt | None,
        *,
        has_job_start: bool,
    ) -> None:
        self.segment = segment
        self.start_ns = self.last_sign_ns = segment.start_ns
        self.has_job_start = has_job_start
        self.ended_ns: int | None = None
        self._number, self._t_ns = Column(), Column()  # Of every step start.
        self._begun: dict[str, tuple[int, int]] = {}
        self._spans = self._loads = 0
        self._last_load_ns = -1
        self._records: list[Record] = [header]
        self._steps: list[StepColumns] = []
        if earlier is not None and earlier.segment == segment:  # They are one to whoever folds.
            self.last_sign_ns, self._spans = earlier.last_sign_ns, earlier._spans

    @property
    def last_step(self) -> tuple[int, int] | None:
        """The number and instant of the last step start; the step runs until the next one."""
        if not len(self._number):
            return None
        return int(self._number.values[-1]), int(self._t_ns.values[-1])

    @property
    def is_bare(self) -> bool:
        """Whether only what some programs record before their job start was delivered."""
        return not self.has_job_start and self.last_step is None and self.ended_ns is None

    def had(self, steps: StepStarts) -> NDArray[np.bool_]:
        """Return which of some step starts were delivered to this attempt."""
        return steps.are_in(self._number.values, self._t_ns.values)

    def take_records(self) -> Chunk:
        """Return the records that are new since the last call."""
        records, steps = self._records, self._steps
        self._records, self._steps = [], []
        bulk = BulkRecords(StepColumns.joined(steps), records) if steps else records
        return Chunk(self.segment, bulk)

    def add(self, record: Record) -> None:
        """Record something; its instant is a sign of life."""
        self._records.append(record)
        self.last_sign_ns = max(self.last_sign_ns, record.t_ns)

    def add_steps(self, steps: StepStarts) -> None:
        """Add step starts; a step is recorded when its end is known."""
        known = max(len(self._number) - 1, 0)
        self._number.extend(steps.number)
        self._t_ns.extend(steps.t_ns)
        number, t_ns = self._number.values[known:], self._t_ns.values[known:]
        if len(number) > 1:
            ended = StepColumns.timed(number[:-1], t_ns[:-1], t_ns[1:], np.diff(number))
            self._steps.append(ended)
        self.add(Heartbeat(t_ns=int(t_ns[-1])))

    def finish(self, t_ns: int) -> None:
        """End the job, and with it the step that runs."""
        if self.last_step is not None and self.ended_ns is None:
            number, start_ns = np.array([self.last_step]).T
            self._steps.append(StepColumns.timed(number, start_ns, np.array([t_ns]), np.array([1])))
        self.ended_ns = t_ns
        self.add(AttemptEnded(t_ns=t_ns, status="completed"))

    def add_span(self, begin_ns: int, duration_ns: int, span: str) -> str | None:
        """Add a span that is over; returns what is wrong with that, if anything is."""
        end_ns = begin_ns + duration_ns
        if end_ns > LATEST_NS:
            return f"{span} took too long to be true and is not counted"
        self.add(SpanEnded(t_ns=end_ns, begun=self._record_begin(begin_ns, span)))
        return None

    def begin_span(self, t_ns: int, span: str) -> str | None:
        """Begin a span; returns what is wrong with that, if anything is.

        The first load of an attempt blocks training; later ones run beside the steps.
        """
        if span == DATA_LOADING:
            if t_ns <= self._last_load_ns or t_ns < self.start_ns:
                return None  # Delivered twice; loads are too many to remember each.
            self._last_load_ns = t_ns
        if t_ns < self.start_ns:
            return f"the begin of {span} {_LATE}"
        if span == DATA_LOADING and self._loads:
            self._begun[span] = (t_ns, _OVERLAPPED)
            return None
        complaint = None
        if span in self._begun:
            complaint = f"{span} began again before it ended; the first is taken to end there"
            self._end_begun(t_ns, span)
        self._begun[span] = (t_ns, self._record_begin(t_ns, span))
        return complaint

    def end_span(self, t_ns: int, span: str, place: int, steps: StepStarts) -> str | None:
        """End a span, at a place among new steps; returns what is wrong with that, if anything."""
        if span not in self._begun:
            delivered_ns = self.seen_ns(place, steps) if self._loads else self.start_ns
            twice = span == DATA_LOADING and t_ns <= delivered_ns
            return None if twice else f"{span} {_NOT_BEGUN}"
        if t_ns < self._begun[span][0]:
            return f"the end of {span} {_LATE}"
        self._end_begun(t_ns, span)
        self._loads += span == DATA_LOADING
        return None

    def seen_ns(self, place: int, steps: StepStarts) -> int:
        """Return the last sign of life before a place among steps that are not added yet."""
        before: list[int] = steps.between_places(0, place).t_ns[-1:].tolist()
        return max([self.last_sign_ns, *before])

    def _end_begun(self, t_ns: int, span: str) -> None:
        begin_ns, number = self._begun.pop(span)
        if number == _OVERLAPPED:
            number = self._record_begin(begin_ns, span, overlapped=True)
        self.add(SpanEnded(t_ns=t_ns, begun=number))

    def _record_begin(self, t_ns: int, span: str, *, overlapped: bool = False) -> int:
        self._spans += 1
        self.add(SpanBegun(seq=self._spans, t_ns=t_ns, name=span, overlapped=overlapped))
        return self._spans


class PayloadTranslator:
    """Translates the payloads of one log, in order; each attempt becomes a segment.

    Args:
        source: The log's name in findings.
        writer: Who wrote the log; its attempts differ from it, and from each other, in their start.
        header: What is known about the process: its price, its machine and so on.
    """

    def __init__(
        self, source: str, writer: SegmentId | None = None, header: AttemptStarted | None = None
    ) -> None:
        self._source = source
        self._writer = writer or SegmentId(0)
        self._header = header or AttemptStarted(t_ns=0)
        self._attempts: list[_JobAttempt] = []
        self._seen: set[Event] = set()  # Everything but steps and loads, of which there are many.
        self._delivered = 0
        self._complaints: dict[str, tuple[int, int]] = {}

    @property
    def segments(self) -> list[SegmentId]:
        """The attempts so far, as segments of a run."""
        return [attempt.segment for attempt in self._attempts]

    def findings(self) -> list[Finding]:
        """Return what has been found wrong so far: each kind once, with its first place."""
        by_place = sorted(self._complaints.items(), key=itemgetter(1, 0))
        return [
            Finding(
                source=self._source,
                line=first,
                message=message if count == 1 else f"{message} (and {count - 1} more like it)",
                severity="warning",
            )
            for message, (first, count) in by_place
        ]

    def translate(self, payloads: Sequence[Payload]) -> list[Chunk]:
        """Return what more payloads record, by attempt.

        None raises: what is wrong with one is a finding.
        """
        current = max(len(self._attempts) - 1, 0)
        steps, others = split_steps(payloads, self._complain)
        events = list(self._parsed(payloads, others))
        begin, done = 0, 0
        for index, (place, event) in enumerate(events):
            if isinstance(event, _Mark):
                self._add_between(steps.between_places(begin, place), events[done:index])
                self._mark(place, event)
                begin, done = place, index + 1
        self._add_between(steps.between_places(begin, len(payloads)), events[done:])
        self._delivered += len(payloads)
        chunks = [attempt.take_records() for attempt in self._attempts[current:]]
        return [chunk for chunk in chunks if chunk.records]

    def _parsed(self, payloads: Sequence[Payload], places: Sequence[int]) -> Iterator[_Placed]:
        """Yield the events that are new and well-formed, with their places."""
        for place in places:
            try:
                event = parse_event(payloads[place])
            except ValueError as error:
                self._complain(place, f"an entry {error}")
                continue
            if isinstance(event, _SpanEdge) and event.span == DATA_LOADING:
                yield place, event
            elif event not in self._seen:
                self._seen.add(event)
                yield place, event

    def _mark(self, place: int, event: _Mark) -> None:
        attempt = self._attempt
        if isinstance(event, JobStarted):
            self._start_job(place, event.t_ns)
        elif attempt is None:
            self._complain(place, f"the job {_NOT_BEGUN}")
        elif event.t_ns < attempt.last_sign_ns:
            self._complain(place, f"the job's end {_LATE}")
        else:
            attempt.finish(event.t_ns)

    def _start_job(self, place: int, t_ns: int) -> None:
        attempt = self._attempt
        if attempt is None:
            self._open(t_ns, has_job_start=True)
        elif attempt.is_bare and t_ns >= attempt.start_ns:
            attempt.has_job_start = True
            attempt.add(Heartbeat(t_ns=t_ns))
        elif t_ns <= attempt.start_ns:
            self._complain(place, f"the job's start {_LATE}")
        else:
            if attempt.ended_ns is not None:
                self._complain(place, "the job started again after its end; was its name re-used?")
            self._open(t_ns, has_job_start=True)

    def _add_between(self, steps: StepStarts, events: Sequence[_Placed]) -> None:
        """Add what lies between two marks of the job; the first of it may open an attempt."""
        done = 0
        if not self._is_open():
            in_order = steps[self._are_in_order(steps)]
            opening = int(in_order.place[0]) if len(in_order) else _NOWHERE
            while done < len(events) and events[done][0] < opening:
                place, event = events[done]
                self._add_event(place, event, steps[:0])
                done += 1
            if not self._is_open() and len(in_order):
                self._open(int(in_order.t_ns[0]))
            self._drop_late(steps.between_places(0, opening))
            steps = steps.between_places(opening, _NOWHERE)
        self._add_to_open(steps, events[done:])

    def _add_to_open(self, steps: StepStarts, events: Sequence[_Placed]) -> None:
        """Add to an attempt that has not ended; steps that go back open further ones."""
        are_in_order = self._are_in_order(steps)
        if not are_in_order.all():
            kept = steps[are_in_order]
            self._drop_late(steps[~are_in_order], kept)
            steps = kept
        added, done = 0, 0
        for restart in self._restarts(steps):
            beyond = bisect_right(events, int(steps.place[restart]), key=itemgetter(0))
            self._add_part(steps[added:restart], events[done:beyond])
            self._open(int(steps.t_ns[restart]))
            added, done = restart, beyond
        self._add_part(steps[added:], events[done:])

    def _add_part(self, steps: StepStarts, events: Sequence[_Placed]) -> None:
        """Add events and steps of one attempt; steps do not depend on the events among them."""
        for place, event in events:
            self._add_event(place, event, steps)
        if len(steps):
            self._attempts[-1].add_steps(steps)

    def _add_event(self, place: int, event: Event, steps: StepStarts) -> None:
        """Add an event that lies among some steps, which are not added yet."""
        attempt = self._attempt
        match event:
            case Began(t_ns, span):
                if attempt is None or (attempt.ended_ns is not None and t_ns > attempt.ended_ns):
                    attempt = self._open(t_ns)
                self._complain(place, attempt.begin_span(t_ns, span))
            case PayloadEnded(_, span) if attempt is None:
                self._complain(place, f"{span} {_NOT_BEGUN}")
            case PayloadEnded(t_ns, span):
                assert attempt is not None
                self._complain(place, attempt.end_span(t_ns, span, place, steps))
            case Took(None, _, span) if attempt is None:
                self._complain(place, f"{span} has no begin and comes before everything else")
            case Took(begin_ns, duration_ns, span):
                if begin_ns is None:
                    assert attempt is not None
                    begin_ns = attempt.seen_ns(place, steps)
                attempt = attempt or self._open(begin_ns)
                self._complain(place, attempt.add_span(begin_ns, duration_ns, span))
            case Saved(t_ns, step):
                (attempt or self._open(t_ns)).add(CheckpointCommitted(t_ns=t_ns, step=step))
            case Slices(t_ns, active, total, available):
                change = SlicesChanged(t_ns=t_ns, active=active, total=total, available=available)
                (attempt or self._open(t_ns)).add(change)
            case JobStarted() | JobEnded():
                raise AssertionError("marks of the job are added by themselves")
            case _:
                assert_never(event)

    @property
    def _attempt(self) -> _JobAttempt | None:
        return self._attempts[-1] if self._attempts else None

    def _is_open(self) -> bool:
        return bool(self._attempts) and self._attempts[-1].ended_ns is None

    def _open(self, t_ns: int, *, has_job_start: bool = False) -> _JobAttempt:
        segment = replace(self._writer, start_ns=t_ns)
        # It begins where its payloads say, not with the process that recorded them.
        header = msgspec.structs.replace(
            self._header, t_ns=t_ns, process_start_ns=0, agent_start_ns=0
        )
        attempt = _JobAttempt(segment, header, self._attempt, has_job_start=has_job_start)
        self._attempts.append(attempt)
        return attempt

    def _restarts(self, steps: StepStarts) -> list[int]:
        """Return which steps are not beyond the one before them: there an attempt began."""
        attempt = self._attempt
        last = -1 if attempt is None or attempt.last_step is None else attempt.last_step[0]
        previous = np.concatenate([[last], steps.number[:-1]])[: len(steps)]
        return [int(index) for index in np.flatnonzero(steps.number <= previous)]

    def _are_in_order(self, steps: StepStarts) -> NDArray[np.bool_]:
        """Return which steps are not older than what was delivered before them."""
        if self._attempt is None:
            return steps.after(-1, int(steps.t_ns[0]) if len(steps) else 0)
        return steps.after(*(self._attempt.last_step or (-1, self._attempt.start_ns)))

    def _drop_late(self, late: StepStarts, kept: StepStarts | None = None) -> None:
        """Complain about late steps that are not copies of some that were delivered before."""
        if not len(late):
            return
        copies = np.zeros(len(late), dtype=np.bool_)
        if kept is not None:
            copies |= late.are_in(kept.number, kept.t_ns)
        for attempt in self._attempts:
            copies |= attempt.had(late)
        for place in late.place[~copies].tolist():
            self._complain(place, f"the start of a step {_LATE}")

    def _complain(self, place: int, message: str | None) -> None:
        if message is None:
            return
        first, count = self._complaints.get(message, (self._delivered + place + 1, 0))
        self._complaints[message] = (first, count + 1)
