"""One start of a job, as its payloads tell it: steps that began, and spans with two edges."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from outlay.account.columns import Ints
from outlay.account.payload_events import Began, Ended
from outlay.account.payload_steps import LATEST_NS, StepStarts
from outlay.account.segment import SegmentAccount
from outlay.account.spans import DATA_LOADING, SpanInterval
from outlay.account.steps import StepColumns
from outlay.ledger import AttemptEnded, SpanBegun, SpanEnded

LATE = "comes after a later one and is not counted"
_BESIDE = 0


@dataclass(slots=True)
class JobAttempt:
    """An attempt as far as it has been told.

    Attributes:
        last_step: The number and instant of the last step that began; it runs until the job ends.
        begun: Spans that are open: when each began, and its number in the fold.
    """

    fold: SegmentAccount
    has_job_start: bool
    last_step: tuple[int, int] | None = None
    ended_ns: int | None = None
    begun: dict[str, tuple[int, int]] = field(default_factory=dict)
    _spans: int = 0
    _loads: int = 0
    _last_load_ns: int = -1

    @property
    def start_ns(self) -> int:
        """When the attempt began."""
        return self.fold.life.segment.start_ns

    @property
    def is_bare(self) -> bool:
        """Whether only what some programs do before their job start has been told."""
        return not self.has_job_start and self.last_step is None and self.ended_ns is None

    def see(self, t_ns: int) -> None:
        """Take note of a sign of life."""
        self.fold.life.last_sign_ns = max(self.fold.life.last_sign_ns, t_ns)

    def add_steps(self, steps: StepStarts) -> None:
        """Add steps that began; each is known in full when the next begins."""
        number, t_ns = steps.number, steps.t_ns
        if self.last_step is not None:
            number = np.concatenate([[self.last_step[0]], number])
            t_ns = np.concatenate([[self.last_step[1]], t_ns])
        self._add(number, t_ns)
        self.last_step = (int(number[-1]), int(t_ns[-1]))
        self.see(int(t_ns[-1]))

    def finish(self, t_ns: int) -> None:
        """End the job, and with it the step that runs."""
        if self.last_step is not None and self.ended_ns is None:
            number, start_ns = self.last_step
            self._add(np.array([number, number + 1]), np.array([start_ns, t_ns]))
        self.ended_ns = t_ns
        self.fold.fold([AttemptEnded(t_ns=t_ns, status="completed")])

    def span(self, begin_ns: int, duration_ns: int, span: str) -> str | None:
        """Add a span that is over; returns what is wrong with that, if anything is."""
        end_ns = begin_ns + duration_ns
        if end_ns > LATEST_NS:
            return f"{span} took too long to be true and is not counted"
        number = self._open(begin_ns, span)
        self.fold.fold([SpanEnded(t_ns=end_ns, begun=number)])
        return None

    def begin(self, event: Began) -> str | None:
        """Begin a span; returns what is wrong with that, if anything is.

        The first load of an attempt holds training up; later ones run beside the steps.
        """
        t_ns, span = event.t_ns, event.span
        if span == DATA_LOADING:
            if t_ns <= self._last_load_ns or t_ns < self.start_ns:
                return None  # Delivered twice; loads are too many to remember each.
            self._last_load_ns = t_ns
        if t_ns < self.start_ns:
            return f"the begin of {span} {LATE}"
        if span == DATA_LOADING and self._loads:
            self.begun[span] = (t_ns, _BESIDE)
            return None
        complaint = None
        if span in self.begun:
            complaint = f"{span} began again before it ended; the first is taken to end there"
            self._close(t_ns, span)
        self.begun[span] = (t_ns, self._open(t_ns, span))
        return complaint

    def end(self, event: Ended) -> str | None:
        """End a span; returns what is wrong with that, if anything is."""
        t_ns, span = event.t_ns, event.span
        if span not in self.begun:
            told_until_ns = self.fold.life.last_sign_ns if self._loads else self.start_ns
            twice = span == DATA_LOADING and t_ns <= told_until_ns
            return None if twice else f"{span} ended and had not begun"
        if t_ns < self.begun[span][0]:
            return f"the end of {span} {LATE}"
        self._close(t_ns, span)
        self._loads += span == DATA_LOADING
        return None

    def _open(self, t_ns: int, span: str) -> int:
        self._spans += 1
        self.fold.fold([SpanBegun(seq=self._spans, t_ns=t_ns, name=span)])
        return self._spans

    def _close(self, t_ns: int, span: str) -> None:
        begin_ns, number = self.begun.pop(span)
        if number == _BESIDE:
            self.fold.beside.append(SpanInterval(begin_ns, self._loads, t_ns, span))
            self.see(t_ns)
        else:
            self.fold.fold([SpanEnded(t_ns=t_ns, begun=number)])

    def _add(self, number: Ints, t_ns: Ints) -> None:
        if len(number) > 1:
            steps = StepColumns.timed(number[:-1], t_ns[:-1], t_ns[1:], np.diff(number))
            self.fold.add_steps(steps)
