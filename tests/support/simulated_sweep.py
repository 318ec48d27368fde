"""A sweep without processes: its attempts end as stated, its decisions are those of the search.

It keeps a journal as a harness does, may be killed after any line of it, and continues from there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from outlay.sweep.search.halving import Decisions, awaits_decision
from outlay.sweep.state.outcomes import Event, RunState, Status, fold
from outlay.sweep.state.setup import RESUMED


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt ends; ``paused`` at the last rung is ``completed``."""

    status: Status = "paused"
    metric: float | None = None
    saved: bool = True
    cost_micros: int = 0


class Decide(Protocol):
    """What the search decides by the states of all runs."""

    def __call__(self, states: Mapping[str, RunState], *, idle: bool) -> Decisions: ...


class _Killed(Exception):
    """The harness was killed after a line of the journal."""


def _always(run: str, rung: int) -> bool:
    del run, rung
    return True


@dataclass(kw_only=True)
class SimulatedSweep:
    """A sweep whose attempts end at once, in any order.

    Attributes:
        attempt: The end of an attempt of a run at a rung; the last is how often it failed there.
        order: Chooses what happens next.
        suggest: The next runs of a search that chooses by results; none when all are known.
        may_hold: Whether the ceiling has the money for an attempt.
        settled: Called with the run and the end of each attempt.
        kills: The harness is killed when the journal has so many lines.
    """

    runs: list[str]
    decide: Decide
    attempt: Callable[[str, int, int], Ending]
    order: random.Random
    retries: int = 0
    suggest: Callable[[Mapping[str, RunState]], Sequence[str]] = lambda _: ()
    may_hold: Callable[[str, int], bool] = _always
    settled: Callable[[str, Ending], None] = lambda *_: None
    kills: frozenset[int] = frozenset()
    events: list[Event] = field(default_factory=list)
    states: dict[str, RunState] = field(default_factory=dict)
    _queue: list[tuple[str, int]] = field(default_factory=list)
    _active: list[str] = field(default_factory=list)
    _deferred: list[tuple[str, int]] = field(default_factory=list)
    _promoted: set[tuple[str, int]] = field(default_factory=set)
    _known: bool = False

    def run(self) -> dict[str, RunState]:
        """Run until nothing is left to do; return the states of all runs."""
        while True:
            try:
                self._resume()
                while self._step():
                    pass
            except _Killed:
                continue
            return self.states

    def _resume(self) -> None:
        """Continue from the journal alone, as it is on disk."""
        self.events = msgspec.json.decode(msgspec.json.encode(self.events), type=list[Event])
        self.states = fold(self.events)
        self._active, self._deferred, self._promoted = [], [], set()
        for run, state in self.states.items():
            if state.status == "running":
                self._record(run, "cancelled", reason="its harness died")
        self._queue = [(run, self._state(run).rung) for run in self.runs if self._is_left(run)]

    def _is_left(self, run: str) -> bool:
        state = self._state(run)
        if state.status == "error":
            return state.tries <= self.retries
        return state.status in RESUMED and not awaits_decision(state)

    def _state(self, run: str) -> RunState:
        return self.states.get(run, RunState())

    def _record(self, run: str, status: Status, **facts: object) -> None:
        event = msgspec.convert({"t_ns": 0, "run": run, "status": status, **facts}, Event)
        self.events.append(event)
        self.states.setdefault(run, RunState()).apply(event)
        if len(self.events) in self.kills:
            raise _Killed

    def _step(self) -> bool:
        self._decide()
        choices = [self._start] * bool(self._queue) + [self._end] * bool(self._active)
        if not self._known and not self._deferred:
            choices.append(self._learn)
        if choices:
            self.order.choice(choices)()
            return True
        for run, _ in self._deferred:
            self._record(run, "skipped", reason="no money")
        found, self._deferred = bool(self._deferred), []
        return found

    def _decide(self) -> None:
        self._apply(self.decide(self.states, idle=False))
        if self._known and not (self._queue or self._active or self._deferred):
            self._apply(self.decide(self.states, idle=True))

    def _apply(self, found: Decisions) -> None:
        for run, reason in found.pruned.items():
            self._queue = [one for one in self._queue if one[0] != run]
            self._deferred = [one for one in self._deferred if one[0] != run]
            self._record(run, "pruned", reason=reason)
        for one in found.promoted.items():
            if one not in self._promoted:
                self._promoted.add(one)
                self._queue.append(one)

    def _start(self) -> None:
        run, rung = self._queue.pop(self.order.randrange(len(self._queue)))
        if not self.may_hold(run, rung):
            self._deferred.append((run, rung))
            return
        self._record(run, "running", rung=rung)
        self._active.append(run)

    def _learn(self) -> None:
        more = self.suggest(self.states)
        self._known = not more
        self.runs += more
        self._queue += [(run, 0) for run in more]

    def _end(self) -> None:
        run = self._active.pop(self.order.randrange(len(self._active)))
        state = self._state(run)
        ending = self.attempt(run, state.rung, state.tries - 1)
        facts: dict[str, object] = {"cost_micros": ending.cost_micros, "currency": "USD"}
        if ending.status in ("paused", "completed"):
            about = {"metric": ending.metric, "saved": ending.saved}
            facts |= {"reports": True, "rung": state.rung, **about}
        self.settled(run, ending)
        self._record(run, ending.status, **facts)
        if ending.status == "error" and self._is_left(run):
            self._queue.append((run, state.rung))
        self._queue += self._deferred
        self._deferred = []
