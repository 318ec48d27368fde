"""What an attempt's end means for its run, and how runs stand by the journal. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from outlay.ledger.price import Kind
from outlay.sweep.state.journal import Event, Status

if TYPE_CHECKING:
    from outlay.sweep.engines.base import Ended

# What the journal says about each run: a fold of its events.


@dataclass(slots=True)
class RunState:
    """How one run stands.

    Attributes:
        attempts: How often it was started.
        cost_micros: What all its attempts cost so far; None where none had a price.
        logged_micros: What its log added up to when that was last recorded.
        kind: Of the cost, where its log says so; else "".
        elapsed_ns: How long all its attempts ran.
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
    hold: str = ""
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Take in one event."""
        if event.corrects:
            self._add_cost(event)
            return
        self.status = event.status
        self.reason = event.reason
        if event.status == "running":
            self.attempts += 1
            self.started_ns = event.t_ns
            self.finished_ns = self.returncode = None
            self.ticket, self.hold = event.ticket, event.hold
            self.command, self.env = event.command, event.env
            return
        self.finished_ns = event.t_ns if self.attempts else None
        self.returncode = event.returncode
        self.elapsed_ns += event.elapsed_ns
        self._add_cost(event)

    def _add_cost(self, event: Event) -> None:
        if event.logged_micros is not None:
            self.logged_micros = event.logged_micros
        if event.cost_micros is not None:
            self.cost_micros = (self.cost_micros or 0) + event.cost_micros
            self.currency, self.kind = event.currency, event.kind or self.kind


def fold(events: Iterable[Event]) -> dict[str, RunState]:
    """Return the state of every run that something happened to."""
    states: dict[str, RunState] = {}
    for event in events:
        states.setdefault(event.run, RunState()).apply(event)
    return states


# What an attempt's end means for its run: which status, and why.

TAKEN_BACK = "the machine was taken back"


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """A status and the reason for it; empty for a good end."""

    status: Status
    reason: str = ""


def judge(ended: Ended, stopped: RunVerdict | None, logged_end: str | None) -> RunVerdict:
    """Return what a run is after an attempt.

    Args:
        ended: How the attempt ended.
        stopped: What the run becomes because the harness told it to end, and why.
        logged_end: How the last attempt in the run's own log ended, if it has one.
    """
    if ended.how == "not_started":
        return RunVerdict("error", f"could not be started: {ended.reason}")
    if ended.how == "lost":
        return RunVerdict("cancelled", ended.reason)
    if ended.how == "exited" and ended.reason and not ended.asked:
        return RunVerdict("error", ended.reason)
    if ended.how == "preempted":
        return RunVerdict("preempted", ended.reason or TAKEN_BACK)
    left_early = logged_end == "preempted" or (ended.asked and logged_end != "completed")
    if ended.returncode == 0 and not left_early:
        return RunVerdict("completed")
    if stopped is not None:
        return stopped
    if logged_end == "preempted" and not ended.asked:
        return RunVerdict("preempted", TAKEN_BACK)
    if ended.asked:
        # A program may well exit with 0 when it is asked to end; that is not done.
        return RunVerdict("cancelled", ended.reason or "told to end")
    return RunVerdict("error", exit_text(ended.returncode))


def exit_text(returncode: int | None) -> str:
    """Return an exit status as people read it."""
    if returncode is None:
        return "ended, nobody knows how"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
