"""What the journal says about each run: a fold of its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from outlay.sweep.journal import Event, Status


@dataclass(slots=True)
class RunState:
    """How one run stands.

    Attributes:
        attempts: How often it was started.
        cost_micros: What all its attempts cost so far; None where none had a price.
        logged_micros: What its log added up to when that was last recorded.
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
            self.currency = event.currency


def fold(events: Iterable[Event]) -> dict[str, RunState]:
    """Return the state of every run that something happened to."""
    states: dict[str, RunState] = {}
    for event in events:
        states.setdefault(event.run, RunState()).apply(event)
    return states
