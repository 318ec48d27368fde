"""Payloads of ml-goodput-measurement as ledger records, batch by batch; nothing is folded here.

A goodput log has step *starts* only. A step lasts until the next start in its attempt, else until
the job's end, else it has no duration; from step p to step c are c - p steps. A new attempt begins
at a job start, at a step number that is not above the last one, or at a span that begins after the
job's end. Duplicates count once. The result does not depend on how payloads are batched.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, assert_never

import msgspec
import numpy as np
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray

from outlay.account import columns as names
from outlay.account.columns import DATA_LOADING, BulkRecords, Column, Ints, StepColumns
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

Payload = Mapping[str, Any]

# Payloads other than step starts: one payload is one event.
#
# The keys are those that ml-goodput-measurement 0.2.3 and Orbax's checkpoint logger write. A
# malformed payload raises a ValueError that says why.


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job was started or restarted."""

    t_ns: int


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job completed."""

    t_ns: int


@dataclass(frozen=True, slots=True)
class SpanStart:
    """A span began."""

    t_ns: int
    span: str


@dataclass(frozen=True, slots=True)
class SpanEnd:
    """A span ended."""

    t_ns: int
    span: str


@dataclass(frozen=True, slots=True)
class TimedSpan:
    """A span recorded at its end; without ``begin_ns`` it began at the last sign of life."""

    begin_ns: int | None
    duration_ns: int
    span: str


_Kept = CheckpointCommitted | SlicesChanged
"""Records of the ledger say the same."""
Event = JobStarted | JobEnded | SpanStart | SpanEnd | TimedSpan | _Kept

_SPANS = {
    "tpu_init": names.ACCELERATOR_INIT,
    "training_prep": names.TRAINING_PREP,
    "data_loading": names.DATA_LOADING,
    "elastic_reinit": names.ELASTIC_REINITIALIZATION,
}
_BEGINS = {f"{stem}_start_time": span for stem, span in _SPANS.items()}
_ENDS = {f"{stem}_end_time": span for stem, span in _SPANS.items()}


def parse_event(payload: Payload) -> Event:
    """Return the event of a payload.

    Raises:
        ValueError: The payload is of no known kind, or a value in it is malformed.
    """
    if not isinstance(payload, Mapping):
        raise ValueError("is no JSON object")
    for key in payload:
        if key in _BEGINS:
            return SpanStart(_instant(payload, key), _BEGINS[key])
        if key in _ENDS:
            return SpanEnd(_instant(payload, key), _ENDS[key])
    match payload:
        case {"job_start_time": _}:
            return JobStarted(_instant(payload, "job_start_time"))
        case {"job_end_time": _}:
            return JobEnded(_instant(payload, "job_end_time"))
        case {"custom_badput_event_type": kind}:
            return _edge(payload, "custom_badput_event", f"custom:{_text(kind)}")
        case {"elastic_wait_event_type": kind}:
            is_scale_up = "scale_up" in _text(kind).lower()
            span = names.ELASTIC_SCALE_UP if is_scale_up else names.ELASTIC_SLICE_DOWN
            return _edge(payload, "elastic_wait", span)
        case {"elastic_slice_counts_timestamp": _}:
            return _slices(payload)
        case {"checkpoint_start_time": _, "checkpoint_step": step}:
            t_ns = _instant(payload, "checkpoint_start_time")
            return CheckpointCommitted(t_ns=t_ns, step=_whole(step, "step"))
        case {"event_type": "save" | "restore" | "emergency_restore" as kind}:
            return _checkpoint(payload, kind)
        case _:
            raise ValueError("is of no known kind")


def instant_of(event: Event) -> int | None:
    """Return when an event happened, or its span began; None if the payload has no instant."""
    return event.begin_ns if isinstance(event, TimedSpan) else event.t_ns


def _edge(payload: Payload, stem: str, span: str) -> SpanStart | SpanEnd:
    if f"{stem}_start_time" in payload:
        return SpanStart(_instant(payload, f"{stem}_start_time"), span)
    return SpanEnd(_instant(payload, f"{stem}_end_time"), span)


def _slices(payload: Payload) -> SlicesChanged:
    t_ns = _instant(payload, "elastic_slice_counts_timestamp")
    keys = ("active_slices", "total_slices", "available_slices")
    active, total, available = (_whole(payload.get(key), key) for key in keys)
    if total < 1 or active > total:
        raise ValueError("says that more slices train than there are")
    return SlicesChanged(t_ns=t_ns, active=active, total=total, available=available)


def _checkpoint(payload: Payload, kind: str) -> TimedSpan:
    """Return how long a checkpoint blocked training; of a save, the part that blocks."""
    parts = (
        ("checkpoint_manager_blocking", "checkpointer_blocking")
        if kind == "save"
        else ("checkpoint_manager", "checkpointer")
    )
    span = names.CHECKPOINT_SAVE if kind == "save" else names.CHECKPOINT_RESTORE
    for part in parts:
        if payload.get(f"{part}_duration_secs") is not None:
            begin = payload.get(f"{part}_start_time")
            begin_ns = None if begin is None else _instant(payload, f"{part}_start_time")
            return TimedSpan(begin_ns, _instant(payload, f"{part}_duration_secs"), span)
    raise ValueError(f"is a {kind} without a duration: it was not finished")


def _instant(payload: Payload, key: str) -> int:
    if key not in payload:
        raise ValueError(f"has no {key}")
    try:
        return ns_of_seconds(payload[key])
    except ValueError as error:
        raise ValueError(f"{key} {error}") from None


def _whole(value: Any, name: str) -> int:
    if not is_count(value):
        raise ValueError(f"{name} is not a count")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("its event type is not text")
    return value


# Step starts by column, without an object per step.
#
# A million payloads become two vectors in a few passes in C. Only if one is malformed are they
# checked one by one.

_LATEST_S = 4_600_000_000
LATEST_NS = _LATEST_S * 1_000_000_000
"""In 2115; a run log refuses instants a little later than that."""
_BEYOND_COUNTS = 1 << 53  # Doubles are exact below it.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepStarts:
    """Step starts: their indices in the batch, step numbers, and instants in nanoseconds."""

    place: Ints
    number: Ints
    t_ns: Ints

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, chosen: slice | NDArray[np.bool_]) -> StepStarts:
        return StepStarts(self.place[chosen], self.number[chosen], self.t_ns[chosen])

    def between_places(self, first: int, beyond: int) -> StepStarts:
        """Return the steps at indices ``[first, beyond)`` of the batch."""
        start, stop = np.searchsorted(self.place, [first, beyond])
        return self[int(start) : int(stop)]

    def after(self, number: int, t_ns: int) -> NDArray[np.bool_]:
        """Return which steps are later than step ``number`` at ``t_ns`` and than all before them.

        Steps are ordered by instant, then by number.
        """
        keys = _keys(np.append(number, self.number), np.append(t_ns, self.t_ns))
        later: NDArray[np.bool_] = keys[1:] > np.maximum.accumulate(keys)[:-1]
        return later

    def are_in(self, number: Ints, t_ns: Ints) -> NDArray[np.bool_]:
        """Return which steps are among others, which are sorted by instant and then by number."""
        start, stop = np.searchsorted(t_ns, [self.t_ns.min(), self.t_ns.max() + 1])
        if start == stop:
            return np.zeros(len(self), dtype=np.bool_)
        others, keys = _keys(number[start:stop], t_ns[start:stop]), _keys(self.number, self.t_ns)
        nearest = others[np.minimum(np.searchsorted(others, keys), len(others) - 1)]
        same: NDArray[np.bool_] = nearest == keys
        return same


def _keys(number: Ints, t_ns: Ints) -> NDArray[np.complex128]:
    """Return one sort key per step: by instant, then by number.

    NumPy sorts complex numbers by real, then by imaginary part. Both are exact: instants are whole
    microseconds, and a double holds 285 years of them.
    """
    keys = np.empty(len(number), dtype=np.complex128)
    keys.real, keys.imag = t_ns // 1000, number
    return keys


def ns_of_seconds(seconds: float) -> int:
    """Return POSIX seconds as nanoseconds, to the microsecond.

    A double resolves a quarter of a microsecond today, a datetime one microsecond: rounding
    restores exactly what was recorded.

    Raises:
        ValueError: It is not a number, negative, or too large.
    """
    if type(seconds) not in (int, float):
        raise ValueError("is not a number of seconds")
    if not 0 <= seconds < _LATEST_S:
        raise ValueError(f"is not from 0 to {_LATEST_S} seconds")
    whole = int(seconds)
    return whole * 1_000_000_000 + round((seconds - whole) * 1e6) * 1000


def is_count(value: Any) -> bool:
    """Return whether a value is a count; 7.0 is one, since JSON may turn 7 into it."""
    return (
        type(value) in (int, float) and 0 <= value < _BEYOND_COUNTS and value == math.floor(value)
    )


def split_steps(
    payloads: Sequence[Payload], complain: Callable[[int, str], None]
) -> tuple[StepStarts, list[int]]:
    """Return the step starts among payloads, and the indices of the other payloads.

    ``complain`` is called with the index of each malformed step and what is wrong with it.
    """
    times, numbers = _fields(payloads)
    bad: set[int] = set()
    columns = _columns(times, numbers)
    if columns is None:
        bad = _blank_malformed(times, numbers, complain)
        columns = _columns(times, numbers)
        assert columns is not None, "each was checked"
    seconds, number = columns
    are_steps = ~np.isnan(seconds)
    places = np.flatnonzero(are_steps)
    steps = StepStarts(places, number[are_steps].astype(np.int64), _ns(seconds[are_steps]))
    others = np.flatnonzero(~are_steps).tolist()
    return steps, [place for place in others if place not in bad]


def _fields(payloads: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    try:
        times = [payload.get("step_start_time") for payload in payloads]
        return times, [payload.get("step_count") for payload in payloads]
    except AttributeError:  # Not all of them are mappings.
        return _fields([p if isinstance(p, Mapping) else {} for p in payloads])


def _columns(times: list[Any], numbers: list[Any]) -> tuple[Floats, Floats] | None:
    """Return times and numbers as vectors, NaN for None; None if one is malformed."""
    if not set(map(type, times)) <= {float, int, type(None)}:
        return None
    if not set(map(type, numbers)) <= {int, float, type(None)}:
        return None
    try:
        seconds = np.array(times, dtype=np.float64)
        number = np.array(numbers, dtype=np.float64)
    except OverflowError:
        return None
    absent = np.isnan(seconds)
    good = (seconds >= 0) & (seconds < _LATEST_S) & (number >= 0) & (number < _BEYOND_COUNTS)
    good &= number == np.floor(number)
    is_whole = np.count_nonzero(absent) == times.count(None) == numbers.count(None)
    return (seconds, number) if is_whole and bool((good | absent).all()) else None


def _blank_malformed(
    times: list[Any], numbers: list[Any], complain: Callable[[int, str], None]
) -> set[int]:
    """Replace every malformed step by None, and return their indices."""
    bad = set()
    for place, (time, number) in enumerate(zip(times, numbers, strict=True)):
        if time is None and number is None:
            continue
        if (problem := _problem(time, number)) is not None:
            complain(place, problem)
            times[place] = numbers[place] = None
            bad.add(place)
    return bad


def _problem(time: Any, number: Any) -> str | None:
    if not is_count(number):
        return "step_count is not a step number"
    try:
        ns_of_seconds(time)
    except ValueError as error:
        return f"step_start_time {error}"
    return None


def _ns(seconds: Floats) -> Ints:
    whole = np.floor(seconds)
    micros = np.rint((seconds - whole) * 1e6).astype(np.int64)
    return whole.astype(np.int64) * 1_000_000_000 + micros * 1000


# Attempts of the job, and the records of each.

_LATE = "comes after a later one and is not counted"
_NOT_BEGUN = "ended and had not begun"
_START_UP = (names.ACCELERATOR_INIT, names.TRAINING_PREP)
_OVERLAPPED = 0  # In place of a span's number: its records are written when it ends.
_END = 2**62

_JobEvent = JobStarted | JobEnded
_SpanEdge = SpanStart | SpanEnd
_IndexedEvent = tuple[int, Event]
"""An event with its index in the batch."""


class _JobAttempt:
    """One attempt of the job: the state that later payloads depend on, and its new records.

    Attributes:
        last_sign_ns: The latest instant in its records.
        has_job_start: Its job start was seen; some programs record spans before that.
        ended_ns: The job's end, once it was seen.
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
        self._within: set[str] = set()
        self._reinitialised = (0, 0)  # Begin and end of the last that ended.
        self._spans = self._loads = 0
        self._last_load_ns = -1
        self._records: list[Record] = [header]
        self._steps: list[StepColumns] = []
        if earlier is not None and earlier.segment == segment:  # They fold into one segment.
            self.last_sign_ns, self._spans = earlier.last_sign_ns, earlier._spans

    @property
    def last_step(self) -> tuple[int, int] | None:
        """The number and instant of the last step start."""
        if not len(self._number):
            return None
        return int(self._number.values[-1]), int(self._t_ns.values[-1])

    @property
    def awaits_job_start(self) -> bool:
        """Whether a job start belongs to this attempt: so far it has only spans."""
        return not self.has_job_start and self.last_step is None and self.ended_ns is None

    def contains(self, steps: StepStarts) -> NDArray[np.bool_]:
        """Return which step starts were added to this attempt."""
        return steps.are_in(self._number.values, self._t_ns.values)

    def pop_records(self) -> Chunk:
        """Return the records added since the last call."""
        records, steps = self._records, self._steps
        self._records, self._steps = [], []
        bulk = BulkRecords(StepColumns.joined(steps), records) if steps else records
        return Chunk(self.segment, bulk)

    def add(self, record: Record) -> None:
        """Add a record; its instant is a sign of life."""
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
        """End the job and its running step."""
        if self.last_step is not None and self.ended_ns is None:
            number, start_ns = np.array([self.last_step]).T
            self._steps.append(StepColumns.timed(number, start_ns, np.array([t_ns]), np.array([1])))
        self.ended_ns = t_ns
        self.add(AttemptEnded(t_ns=t_ns, status="completed"))

    def add_span(self, begin_ns: int, duration_ns: int, span: str) -> str | None:
        """Add a closed span; return a complaint, if any."""
        end_ns = begin_ns + duration_ns
        if end_ns > LATEST_NS:
            return f"{span} took too long to be true and is not counted"
        self.add(SpanEnded(t_ns=end_ns, begun=self._record_begin(begin_ns, span)))
        return None

    def begin_span(self, t_ns: int, span: str) -> str | None:
        """Begin a span; return a complaint, if any.

        The first data loading of an attempt blocks training; later ones overlap the steps. What is
        initialised while an elastic job starts anew is part of that.
        """
        if span == DATA_LOADING:
            if t_ns <= self._last_load_ns or t_ns < self.start_ns:
                return None  # A duplicate; loads are too many to remember each.
            self._last_load_ns = t_ns
        if t_ns < self.start_ns:
            return f"the begin of {span} {_LATE}"
        if span == DATA_LOADING and self._loads:
            self._begun[span] = (t_ns, _OVERLAPPED)
            return None
        if span in _START_UP and self._is_reinitialised_at(t_ns):
            self._within.add(span)
            return None
        complaint = None
        if span in self._begun:
            complaint = f"{span} began again before it ended; the first is taken to end there"
            self._end_begun(t_ns, span)
        self._begun[span] = (t_ns, self._record_begin(t_ns, span))
        return complaint

    def end_span(self, t_ns: int, span: str, place: int, steps: StepStarts) -> str | None:
        """End a span at index ``place``, among ``steps`` not added yet; return a complaint."""
        if span in self._within:
            self._within.remove(span)
            self.last_sign_ns = max(self.last_sign_ns, t_ns)
            return self._add_rest(t_ns, span)
        if span not in self._begun:
            delivered_ns = self.seen_ns(place, steps) if self._loads else self.start_ns
            twice = span == DATA_LOADING and t_ns <= delivered_ns
            return None if twice else f"{span} {_NOT_BEGUN}"
        if t_ns < self._begun[span][0]:
            return f"the end of {span} {_LATE}"
        self._end_begun(t_ns, span)
        self._loads += span == DATA_LOADING
        return None

    def _is_reinitialised_at(self, t_ns: int) -> bool:
        """Whether ``t_ns`` lies in a reinitialisation that goes on, or in the last that ended."""
        begin_ns, end_ns = self._reinitialised
        return names.ELASTIC_REINITIALIZATION in self._begun or begin_ns <= t_ns < end_ns

    def _add_rest(self, t_ns: int, span: str) -> str | None:
        """Add what a span took after the reinitialisation in which it began."""
        rest_ns = t_ns - self._reinitialised[1]
        if names.ELASTIC_REINITIALIZATION in self._begun or rest_ns <= 0:
            return None
        return self.add_span(self._reinitialised[1], rest_ns, span)

    def seen_ns(self, place: int, steps: StepStarts) -> int:
        """Return the last sign of life before index ``place``, among ``steps`` not added yet."""
        before: list[int] = steps.between_places(0, place).t_ns[-1:].tolist()
        return max([self.last_sign_ns, *before])

    def _end_begun(self, t_ns: int, span: str) -> None:
        begin_ns, number = self._begun.pop(span)
        if number == _OVERLAPPED:
            number = self._record_begin(begin_ns, span, overlapped=True)
        self.add(SpanEnded(t_ns=t_ns, begun=number))
        if span == names.ELASTIC_REINITIALIZATION:  # What it contained goes on without it.
            self._reinitialised = (begin_ns, t_ns)
            for inner in sorted(self._within):
                self._begun[inner] = (t_ns, self._record_begin(t_ns, inner))
            self._within.clear()

    def _record_begin(self, t_ns: int, span: str, *, overlapped: bool = False) -> int:
        self._spans += 1
        self.add(SpanBegun(seq=self._spans, t_ns=t_ns, name=span, overlapped=overlapped))
        return self._spans


class PayloadTranslator:
    """Translates the payloads of one log, in order; each attempt becomes a segment.

    Args:
        source: The log's name in findings.
        writer: The segment of the log; the segments of attempts differ from it in their start.
        header: The header of the process: its price, its machine and so on.
    """

    def __init__(
        self, source: str, writer: SegmentId | None = None, header: AttemptStarted | None = None
    ) -> None:
        self._source = source
        self._writer = writer or SegmentId(0)
        # The caller's times are not on the clock that the process recorded at its start.
        self._header = replace_fields(header or AttemptStarted(t_ns=0), since_boot_ns=0)
        self._attempts: list[_JobAttempt] = []
        self._seen: set[Event] = set()  # All but steps and loads, which are too many.
        self._delivered = 0
        self._complaints: dict[str, tuple[int, int]] = {}

    @property
    def segments(self) -> list[SegmentId]:
        """The attempts so far, as segments of a run."""
        return [attempt.segment for attempt in self._attempts]

    def findings(self) -> list[Finding]:
        """Return the findings so far: each message once, with the line of its first payload."""
        by_line = sorted(self._complaints.items(), key=itemgetter(1, 0))
        return [
            Finding(
                source=self._source,
                line=first,
                message=message if count == 1 else f"{message} (and {count - 1} more like it)",
                severity="warning",
            )
            for message, (first, count) in by_line
        ]

    def translate(self, payloads: Sequence[Payload]) -> list[Chunk]:
        """Return the records of more payloads, by attempt.

        Nothing raises: a malformed payload is a finding.
        """
        current = max(len(self._attempts) - 1, 0)
        steps, others = split_steps(payloads, self._complain)
        events = list(self._parse(payloads, others))
        begin, done = 0, 0
        for index, (place, event) in enumerate(events):
            if isinstance(event, _JobEvent):
                self._add_between(steps.between_places(begin, place), events[done:index])
                self._apply_job_event(place, event)
                begin, done = place, index + 1
        self._add_between(steps.between_places(begin, len(payloads)), events[done:])
        self._delivered += len(payloads)
        chunks = [attempt.pop_records() for attempt in self._attempts[current:]]
        return [chunk for chunk in chunks if chunk.records]

    def _parse(self, payloads: Sequence[Payload], places: Sequence[int]) -> Iterator[_IndexedEvent]:
        """Yield the well-formed events, without duplicates."""
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

    def _apply_job_event(self, place: int, event: _JobEvent) -> None:
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
        elif attempt.awaits_job_start and t_ns >= attempt.start_ns:
            attempt.has_job_start = True
            attempt.add(Heartbeat(t_ns=t_ns))
        elif t_ns <= attempt.start_ns:
            self._complain(place, f"the job's start {_LATE}")
        else:
            if attempt.ended_ns is not None:
                self._complain(place, "the job started again after its end; was its name re-used?")
            self._open(t_ns, has_job_start=True)

    def _add_between(self, steps: StepStarts, events: Sequence[_IndexedEvent]) -> None:
        """Add steps and events between two job events; the first may open an attempt."""
        done = 0
        if not self._is_open():
            in_order = steps[self._are_in_order(steps)]
            opening = int(in_order.place[0]) if len(in_order) else _END
            while done < len(events) and events[done][0] < opening:
                place, event = events[done]
                self._add_event(place, event, steps[:0])
                done += 1
            if not self._is_open() and len(in_order):
                self._open(int(in_order.t_ns[0]))
            self._drop_late(steps.between_places(0, opening))
            steps = steps.between_places(opening, _END)
        self._add_to_open(steps, events[done:])

    def _add_to_open(self, steps: StepStarts, events: Sequence[_IndexedEvent]) -> None:
        """Add to the running attempt; each step number that goes back opens another attempt."""
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

    def _add_part(self, steps: StepStarts, events: Sequence[_IndexedEvent]) -> None:
        """Add events and steps of one attempt; steps do not depend on events in between."""
        for place, event in events:
            self._add_event(place, event, steps)
        if len(steps):
            self._attempts[-1].add_steps(steps)

    def _add_event(self, place: int, event: Event, steps: StepStarts) -> None:
        """Add an event among ``steps`` not added yet."""
        attempt = self._attempt
        match event:
            case SpanStart(t_ns, span):
                if attempt is None or (attempt.ended_ns is not None and t_ns > attempt.ended_ns):
                    attempt = self._open(t_ns)
                self._complain(place, attempt.begin_span(t_ns, span))
            case SpanEnd(_, span) if attempt is None:
                self._complain(place, f"{span} {_NOT_BEGUN}")
            case SpanEnd(t_ns, span):
                assert attempt is not None
                self._complain(place, attempt.end_span(t_ns, span, place, steps))
            case TimedSpan(None, _, span) if attempt is None:
                self._complain(place, f"{span} has no begin and comes before everything else")
            case TimedSpan(begin_ns, duration_ns, span):
                if begin_ns is None:
                    assert attempt is not None
                    begin_ns = attempt.seen_ns(place, steps)
                attempt = attempt or self._open(begin_ns)
                self._complain(place, attempt.add_span(begin_ns, duration_ns, span))
            case CheckpointCommitted() | SlicesChanged():
                (attempt or self._open(event.t_ns)).add(event)
            case JobStarted() | JobEnded():
                raise AssertionError("job events are handled by _apply_job_event")
            case _:
                assert_never(event)

    @property
    def _attempt(self) -> _JobAttempt | None:
        return self._attempts[-1] if self._attempts else None

    def _is_open(self) -> bool:
        return bool(self._attempts) and self._attempts[-1].ended_ns is None

    def _open(self, t_ns: int, *, has_job_start: bool = False) -> _JobAttempt:
        segment = replace(self._writer, start_ns=t_ns)
        # The attempt starts at t_ns, not with the process that recorded its payloads.
        header = msgspec.structs.replace(
            self._header, t_ns=t_ns, process_start_ns=0, agent_start_ns=0
        )
        attempt = _JobAttempt(segment, header, self._attempt, has_job_start=has_job_start)
        self._attempts.append(attempt)
        return attempt

    def _restarts(self, steps: StepStarts) -> list[int]:
        """Return the indices of steps whose number is not above the one before."""
        attempt = self._attempt
        last = -1 if attempt is None or attempt.last_step is None else attempt.last_step[0]
        previous = np.concatenate([[last], steps.number[:-1]])[: len(steps)]
        return [int(index) for index in np.flatnonzero(steps.number <= previous)]

    def _are_in_order(self, steps: StepStarts) -> NDArray[np.bool_]:
        """Return which steps are later than every step before them."""
        if self._attempt is None:
            return steps.after(-1, int(steps.t_ns[0]) if len(steps) else 0)
        return steps.after(*(self._attempt.last_step or (-1, self._attempt.start_ns)))

    def _drop_late(self, late: StepStarts, kept: StepStarts | None = None) -> None:
        """Complain about late steps that are not duplicates."""
        if not len(late):
            return
        duplicates = np.zeros(len(late), dtype=np.bool_)
        if kept is not None:
            duplicates |= late.are_in(kept.number, kept.t_ns)
        for attempt in self._attempts:
            duplicates |= attempt.contains(late)
        for place in late.place[~duplicates].tolist():
            self._complain(place, f"the start of a step {_LATE}")

    def _complain(self, place: int, message: str | None) -> None:
        if message is None:
            return
        first, count = self._complaints.get(message, (self._delivered + place + 1, 0))
        self._complaints[message] = (first, count + 1)
