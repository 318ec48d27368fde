"""Payloads into the fold that the native log feeds, as they arrive.

Such a log has step *starts* only. A step lasts until the next start in its attempt, else until the
job's end, else it has no duration; from step p to step c are c - p steps. A job start opens an
attempt; without one so does a step number that is not beyond the last, or anything that begins
after the job's end. An entry that was delivered twice counts once.
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

from outlay.account.columns import Ints
from outlay.account.payload_attempt import LATE, JobAttempt
from outlay.account.payload_events import (
    Began,
    Ended,
    Event,
    JobEnded,
    JobStarted,
    Saved,
    Slices,
    Took,
    understand,
)
from outlay.account.payload_steps import Payload, StepStarts, tell_apart
from outlay.account.segment import SegmentAccounts, account_of
from outlay.account.spans import DATA_LOADING
from outlay.errors import Finding
from outlay.ledger import (
    AttemptStarted,
    CheckpointCommitted,
    SegmentId,
    SlicesChanged,
)


class PayloadTranslator:
    """Folds the payloads of one log, in order, into a run's attempts.

    Args:
        segments: The run to fold into; each attempt becomes a segment of it.
        source: What the log is called in findings.
        writer: Who wrote the log; its attempts are told apart by their starts.
        header: What is known about the process: its price, its machine and so on.
    """

    def __init__(
        self,
        segments: SegmentAccounts,
        source: str,
        writer: SegmentId | None = None,
        header: AttemptStarted | None = None,
    ) -> None:
        self._attempts: list[JobAttempt] = []
        self._segments = segments
        self._source = source
        self._writer = writer or SegmentId(0)
        self._header = header or AttemptStarted(t_ns=0)
        self._attempt: JobAttempt | None = None
        self._told: set[Event] = set()  # Everything but steps and loads, of which there are many.
        self._taken = 0
        self._complaints: dict[str, tuple[int, int]] = {}

    def findings(self) -> list[Finding]:
        """Return what has been found wrong so far: each kind once, with its first place."""
        return [
            Finding(
                source=self._source,
                line=first,
                message=message if count == 1 else f"{message} (and {count - 1} more like it)",
                severity="warning",
            )
            for message, (first, count) in self._complaints.items()
        ]

    @property
    def segments(self) -> list[SegmentId]:
        """The attempts that were told, as segments of the run."""
        return [attempt.fold.life.segment for attempt in self._attempts]

    def take(self, payloads: Sequence[Payload]) -> None:
        """Fold more payloads; none raises, and what is wrong with one is a finding."""
        found = tell_apart(payloads, self._complain)
        events = list(self._understood(payloads, found.others))
        begin, told = 0, 0
        for index, (place, event) in enumerate(events):
            if isinstance(event, JobStarted | JobEnded):
                steps = found.steps.between_places(begin, place)
                self._take_between(steps, events[told:index])
                self._mark(place, event)
                begin, told = place, index + 1
        self._take_between(found.steps.between_places(begin, len(payloads)), events[told:])
        self._taken += len(payloads)

    def _understood(
        self, payloads: Sequence[Payload], places: Sequence[int]
    ) -> Iterator[tuple[int, Event]]:
        """Yield what is new and makes sense."""
        for place in places:
            try:
                event = understand(payloads[place])
            except ValueError as error:
                self._complain(place, f"an entry {error}")
                continue
            if isinstance(event, Began | Ended) and event.span == DATA_LOADING:
                yield place, event
            elif event not in self._told:
                self._told.add(event)
                yield place, event

    def _mark(self, place: int, event: JobStarted | JobEnded) -> None:
        attempt = self._attempt
        if isinstance(event, JobStarted):
            self._start_job(place, event.t_ns)
        elif attempt is None:
            self._complain(place, "the job ended and had not begun")
        elif event.t_ns < attempt.fold.life.last_sign_ns:
            self._complain(place, f"the job's end {LATE}")
        else:
            attempt.finish(event.t_ns)

    def _start_job(self, place: int, t_ns: int) -> None:
        attempt = self._attempt
        if attempt is None:
            self._open(t_ns, has_job_start=True)
        elif attempt.is_bare and t_ns >= attempt.start_ns:
            attempt.has_job_start = True
            attempt.see(t_ns)
        elif t_ns <= attempt.start_ns:
            self._complain(place, f"the job's start {LATE}")
        else:
            if attempt.ended_ns is not None:
                self._complain(place, "the job started again after its end; was its name re-used?")
            self._open(t_ns, has_job_start=True)

    def _take_between(self, steps: StepStarts, events: Sequence[tuple[int, Event]]) -> None:
        """Fold what lies between two marks of the job; steps that go back open attempts."""
        steps = self._in_order(steps)
        taken, told = 0, 0
        for restart in self._restarts(steps):
            beyond = bisect_right(events, int(steps.place[restart]), key=itemgetter(0))
            self._take_part(steps[taken:restart], events[told:beyond])
            self._open(int(steps.t_ns[restart]), has_job_start=False)
            taken, told = restart, beyond
        self._take_part(steps[taken:], events[told:])

    def _take_part(self, steps: StepStarts, events: Sequence[tuple[int, Event]]) -> None:
        """Fold one attempt's events and steps; what comes first may open the attempt."""
        first = bisect_right(events, int(steps.place[0]), key=itemgetter(0)) if len(steps) else 0
        for place, event in events[:first]:
            self._tell(place, event, steps)
        if len(steps) and (self._attempt is None or self._attempt.ended_ns is not None):
            self._open(int(steps.t_ns[0]), has_job_start=False)
        for place, event in events[first:]:
            self._tell(place, event, steps)
        if len(steps):
            self._current.add_steps(steps)

    def _tell(self, place: int, event: Event, steps: StepStarts) -> None:
        """Fold an event that lies among some steps."""
        match event:
            case Began():
                self._complain(place, self._at_begin(event.t_ns).begin(event))
            case Ended() if self._attempt is None:
                self._complain(place, f"{event.span} ended and had not begun")
            case Ended():
                self._complain(place, self._current.end(event))
            case Took(begin_ns, duration_ns, span):
                before = steps.between_places(0, place).t_ns[-1:]
                begin_ns = self._last_sign_ns(before) if begin_ns is None else begin_ns
                attempt = self._at(begin_ns)
                self._complain(place, attempt.span(begin_ns, duration_ns, span))
            case Saved(t_ns, step):
                self._at(t_ns).fold.fold([CheckpointCommitted(t_ns=t_ns, step=step)])
            case Slices(t_ns, active, total, available):
                change = SlicesChanged(t_ns=t_ns, active=active, total=total, available=available)
                self._at(t_ns).fold.fold([change])
            case JobStarted() | JobEnded():
                raise AssertionError("a mark of the job is taken by itself")
            case _:
                assert_never(event)

    def _at_begin(self, t_ns: int) -> JobAttempt:
        """Return the attempt that something which begins at ``t_ns`` belongs to."""
        ended_ns = None if self._attempt is None else self._attempt.ended_ns
        if ended_ns is not None and t_ns > ended_ns:
            return self._open(t_ns, has_job_start=False)
        return self._at(t_ns)

    def _at(self, t_ns: int) -> JobAttempt:
        return self._attempt or self._open(t_ns, has_job_start=False)

    @property
    def _current(self) -> JobAttempt:
        assert self._attempt is not None
        return self._attempt

    def _last_sign_ns(self, step_starts: Ints) -> int:
        """Return the last instant that was told before something without one."""
        told_ns = 0 if self._attempt is None else self._attempt.fold.life.last_sign_ns
        return max([told_ns, *(int(t_ns) for t_ns in step_starts)])

    def _open(self, t_ns: int, *, has_job_start: bool) -> JobAttempt:
        fold = account_of(self._segments, replace(self._writer, start_ns=t_ns))
        fold.life.header = msgspec.structs.replace(self._header, t_ns=t_ns)
        self._attempt = JobAttempt(fold, has_job_start)
        self._attempts.append(self._attempt)
        return self._attempt

    def _restarts(self, steps: StepStarts) -> list[int]:
        """Return which steps are not beyond the one before them: there an attempt began."""
        attempt = self._attempt
        last = -1
        if attempt is not None and attempt.last_step is not None and attempt.ended_ns is None:
            last = attempt.last_step[0]
        previous = np.concatenate([[last], steps.number[:-1]])[: len(steps)]
        return [int(index) for index in np.flatnonzero(steps.number <= previous)]

    def _in_order(self, steps: StepStarts) -> StepStarts:
        """Return the steps that are not older than what was told before them."""
        if not len(steps):
            return steps
        number, t_ns = -1, int(steps.t_ns[0])
        if self._attempt is not None:
            number, t_ns = self._attempt.last_step or (-1, self._attempt.start_ns)
        numbers = np.concatenate([[number], steps.number])
        instants = np.concatenate([[t_ns], steps.t_ns])
        latest = np.maximum.accumulate(instants)
        is_latest = np.where(instants == latest, np.arange(len(instants)), 0)
        leader = numbers[np.maximum.accumulate(is_latest)]
        late = steps.t_ns < latest[:-1]
        late |= (steps.t_ns == latest[:-1]) & (steps.number <= leader[:-1])
        if not late.any():
            return steps
        kept = steps[~late]
        for place in steps[late][~self._were_told(steps[late], kept)].place:
            self._complain(int(place), f"the start of a step {LATE}")
        return kept

    def _were_told(self, late: StepStarts, kept: StepStarts) -> NDArray[np.bool_]:
        """Say which of some late steps were told before, to the letter."""
        told = late.are_in(kept.number, kept.t_ns)
        for attempt in self._attempts:
            told |= late.are_in(attempt.fold.steps.number, attempt.fold.steps.start)
            if attempt.last_step is not None:
                number, t_ns = attempt.last_step
                told |= (late.number == number) & (late.t_ns == t_ns)
        return told

    def _complain(self, place: int, message: str | None) -> None:
        if message is None:
            return
        first, count = self._complaints.get(message, (self._taken + place + 1, 0))
        self._complaints[message] = (first, count + 1)
