"""Events of runs, the state that they fold to, and what an attempt's end makes of its run. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from outlay.decoding import Int64
from outlay.units.money import Kind

if TYPE_CHECKING:
    from outlay.sweep.engines.base import Ended

Status = Literal[
    "pending", "running", "completed", "error", "cancelled", "preempted", "skipped", "paused",
    "pruned",
]  # fmt: skip
"""``paused``: it ended on purpose at a rung of a search; ``pruned``: it does not go on."""
ON_PURPOSE: Final = ("paused", "pruned")
"""The statuses in which a search ended a run; neither is a failure."""
STOPPED_BY_PERSON: Final = "stopped by a person"
"""The reason of a cancelled run that is started again only if that is asked for."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the journal: one run's change of status.

    Attributes:
        t_ns: UTC nanoseconds.
        ticket: Of the attempt that started, for the engine to find it again.
        env: The variables that the sweep set.
        cost_micros: What the attempt cost, in millionths of ``currency``.
        logged_micros: The total of the run's log at that time; None where it has none.
        kind: Of the cost: ``cash`` or ``showback``; "" for that of the sweep's price.
        gpu_micros: Millionths of the GPU-hours that a book counted for it; None for another book.
        hold: The id of the hold that pays for it.
        corrects: Whether it only adds to the cost of an attempt that has ended.
        rung: Of a start or a report, from 0.
        reports: Whether it has the metric at that rung.
        metric: The value by which the search compares it; None if it has none.
        saved: Whether the attempt committed a checkpoint.
        passes: Whether it only reports that a running attempt passed the rung.
    """

    t_ns: Int64
    run: str
    status: Status
    ticket: str = ""
    returncode: int | None = None
    reason: str = ""
    elapsed_ns: Int64 = 0
    command: list[str] = []
    env: dict[str, str] = {}
    cost_micros: Int64 | None = None
    logged_micros: Int64 | None = None
    currency: str = ""
    kind: Kind | Literal[""] = ""
    gpu_micros: Int64 | None = None
    hold: str = ""
    corrects: bool = False
    rung: Int64 = 0
    reports: bool = False
    metric: float | None = None
    saved: bool = False
    passes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReport:
    """What a run reported at the end of a rung, or at its own end.

    Attributes:
        metric: The value by which runs are compared; None if it has none.
        saved: Whether it can continue from a checkpoint.
        cost_micros: What it had cost by then.
    """

    metric: float | None
    saved: bool = False
    t_ns: int = 0
    cost_micros: int | None = None


@dataclass(slots=True)
class RunState:
    """The state of one run: a fold of its events.

    Attributes:
        attempts: How often it was started.
        cost_micros: Total of all attempts so far; None where none had a price.
        logged_micros: The total of its log when last recorded.
        kind: Of the cost, where its log states it; else "".
        gpu_micros: Total of the GPU-hours that a book counted; None for another book.
        elapsed_ns: Total run time of all attempts.
        rung: Of the last start, from 0.
        starts: How often it was started at that rung.
        cancelled: How often of these it was cancelled.
        reports: By rung.
    """

    status: Status = "pending"
    ticket: str = ""
    returncode: int | None = None
    reason: str = ""
    attempts: int = 0
    started_ns: int | None = None
    finished_ns: int | None = None
    elapsed_ns: int = 0
    cost_micros: int | None = None
    logged_micros: int | None = None
    currency: str = ""
    kind: Kind | Literal[""] = ""
    gpu_micros: int | None = None
    hold: str = ""
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    rung: int = 0
    starts: int = 0
    cancelled: int = 0
    reports: dict[int, RungReport] = field(default_factory=dict)

    @property
    def is_stopped(self) -> bool:
        """Whether a person stopped this run, rather than the sweep."""
        return self.status == "cancelled" and self.reason == STOPPED_BY_PERSON

    @property
    def tries(self) -> int:
        """How many starts at the rung count against its retries: not those that were cancelled."""
        return self.starts - self.cancelled

    def apply(self, event: Event) -> None:
        """Apply one event."""
        if event.corrects:
            self._add_cost(event)
            return
        if event.passes:
            self._add_report(event)
            return
        if self.status == "running" and event.status == "cancelled":
            self.cancelled += 1
        self.status = event.status
        self.reason = event.reason
        if event.status == "running":
            self.attempts += 1
            if event.rung != self.rung:
                self.starts = self.cancelled = 0
            self.starts += 1
            self.rung = event.rung
            self.started_ns = event.t_ns
            self.finished_ns = self.returncode = None
            self.ticket, self.hold = event.ticket, event.hold
            self.command, self.env = event.command, event.env
            return
        self.finished_ns = event.t_ns if self.attempts else None
        self.returncode = event.returncode
        self.elapsed_ns += event.elapsed_ns
        self._add_cost(event)
        if event.reports:
            self._add_report(event)

    def _add_report(self, event: Event) -> None:
        self.reports[event.rung] = RungReport(
            metric=event.metric, saved=event.saved, t_ns=event.t_ns, cost_micros=self.cost_micros
        )

    def _add_cost(self, event: Event) -> None:
        if event.logged_micros is not None:
            self.logged_micros = event.logged_micros
        if event.gpu_micros is not None:
            self.gpu_micros = (self.gpu_micros or 0) + event.gpu_micros
        if event.cost_micros is not None:
            self.cost_micros = (self.cost_micros or 0) + event.cost_micros
            self.currency, self.kind = event.currency, event.kind or self.kind


def fold(events: Iterable[Event]) -> dict[str, RunState]:
    """Return the state of every run that has an event."""
    states: dict[str, RunState] = {}
    for event in events:
        states.setdefault(event.run, RunState()).apply(event)
    return states


# The status of a run after an attempt.

TAKEN_BACK = "the machine was taken back"
REACHED = "it had reached its budget"


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """A status and the reason for it; none for a success, unless it was told to end."""

    status: Status
    reason: str = ""


def judge(
    ended: Ended,
    stopped: RunVerdict | None,
    logged_end: str | None,
    *,
    reached_budget: bool = False,
) -> RunVerdict:
    """Return the status of a run after an attempt.

    ``stopped`` is the verdict if the harness stopped it; ``logged_end`` the end status in its log;
    ``reached_budget`` whether its log says that its own budget stopped it.
    """
    timed_out = stopped is not None and stopped.status == "error"
    if reached_budget and was_told(ended, logged_end) and not timed_out:
        # It has trained all that it may; started again, it would train nothing.
        after = ended.reason if stopped is None else stopped.reason
        return RunVerdict("completed", f"{REACHED}; then {after or 'told to end'}")
    if ended.how == "not_started":
        return RunVerdict("error", f"could not be started: {ended.reason}")
    if ended.how == "lost":
        return RunVerdict("cancelled", ended.reason)
    if ended.how == "exited" and ended.reason and not ended.asked:
        return RunVerdict("error", ended.reason)
    if ended.how == "preempted":
        return RunVerdict("preempted", ended.reason or TAKEN_BACK)
    done = logged_end in ("completed", "paused")
    left_early = logged_end == "preempted" or (ended.asked and not done)
    if ended.returncode == 0 and not left_early:
        return RunVerdict("paused" if logged_end == "paused" else "completed")
    if stopped is not None:
        return stopped
    if logged_end == "preempted" and not ended.asked:
        return RunVerdict("preempted", TAKEN_BACK)
    if ended.asked:
        # A program that is told to end may exit with 0; it is not done.
        return RunVerdict("cancelled", ended.reason or "told to end")
    return RunVerdict("error", exit_text(ended.returncode))


def was_told(ended: Ended, logged_end: str | None) -> bool:
    """Say whether a program that exited had been told to end."""
    return ended.how == "exited" and (ended.asked or logged_end in ("preempted", "terminated"))


def exit_text(returncode: int | None) -> str:
    """Return an exit status in words."""
    if returncode is None:
        return "ended with an unknown exit status"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
