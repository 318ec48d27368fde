"""From a run's log to what the run has used: a pure fold.

Progress is what survives: an attempt that starts at step m undoes every earlier execution numbered
m or higher, whichever rank made it. Resources are everything that was consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from outlay.budget.amounts import CURRENCY
from outlay.budget.charges import Charge, Charges, ClockCharge, EnergyCharge, StepCharge
from outlay.budget.clocks import CLOCKS, TRAINING
from outlay.budget.surviving import Surviving
from outlay.budget.usage import ZERO, Usage, joined, resources_of, sum_of
from outlay.ledger import (
    BudgetEvent,
    Record,
    SegmentId,
    SegmentLife,
    derive_attempts,
    training_ranks,
)
from outlay.rates import RateFunction, run_rates


@dataclass(slots=True)
class SegmentSpend:
    """What one process used, folded from its records in order.

    Attributes:
        surviving: Its work that no rollback of its own undid.
        executed: Everything it did, undone or not.
    """

    life: SegmentLife
    surviving: Surviving = field(default_factory=Surviving)
    executed: Usage = ZERO
    clocks_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLOCKS, 0))
    events: list[BudgetEvent] = field(default_factory=list)
    _charges: Charges = field(default_factory=Charges)

    def fold(self, records: Sequence[Record]) -> None:
        """Take note of more records."""
        self.life.fold(records)
        for record in records:
            if isinstance(record, BudgetEvent):
                self.events.append(record)
            self._charge(self._charges.of(record, record.seq))

    def finish(self) -> None:
        """No more records: charge what was going on at the last sign of life."""
        self._charge(self._charges.end())

    def _charge(self, charge: Charge | None) -> None:
        match charge:
            case StepCharge(step, usage):
                self.surviving.execute(step, usage.tokens, usage.flops, usage.steps)
                self.executed += usage
                self.clocks_ns[TRAINING] += usage.time_ns
            case ClockCharge():
                self.clocks_ns[charge.clock] += charge.time_ns
            case EnergyCharge():
                self.executed += Usage(energy_mj=charge.energy_mj)
            case None:
                pass


@dataclass(frozen=True, slots=True)
class AttemptSpend:
    """What the ranks of one attempt used."""

    ranks: tuple[SegmentSpend, ...]

    @property
    def lowest(self) -> int | None:
        """The lowest step number that any rank executed."""
        return min(
            (rank.surviving.lowest for rank in self.ranks if rank.surviving.lowest is not None),
            default=None,
        )

    def progress_below(self, step: int | None) -> Usage:
        """Return surviving work over all ranks; steps are those of the rank that made most."""
        return joined(rank.surviving.below(step) for rank in self.ranks)

    @property
    def executed(self) -> Usage:
        """What all ranks did, undone or not; side by side, so time is the slowest's."""
        return joined(rank.executed for rank in self.ranks)

    @property
    def clocks_ns(self) -> dict[str, int]:
        """The clocks of the slowest rank, clock by clock."""
        return {name: max(rank.clocks_ns[name] for rank in self.ranks) for name in CLOCKS}


@dataclass(frozen=True, slots=True)
class RunSpend:
    """What a whole run used, attempt by attempt.

    Attributes:
        at_least: What the run said it had used, where its log has lost some of that.
    """

    attempts: tuple[AttemptSpend, ...]
    cost_units: int = 0
    at_least: Usage = ZERO

    def progress_below(self, step: int | None = None) -> Usage:
        """Return what survives when the next attempt starts at ``step`` (None: there is none)."""
        total = ZERO
        for attempt in reversed(self.attempts):
            total += attempt.progress_below(step)
            lowest = attempt.lowest
            if lowest is not None:
                step = lowest if step is None else min(step, lowest)
        return total

    def total(self, *, charge: str, below: int | None = None) -> Usage:
        """Return everything used; with ``charge`` "all", every clock counts as time."""
        total = self.progress_below(below) + resources_of(self.executed)
        beside_ns = sum(ns for name, ns in self.clocks_ns.items() if name != TRAINING)
        time_ns = total.time_ns + (beside_ns if charge == "all" else 0)
        total = replace(total, time_ns=time_ns, cost_units=self.cost_units)
        return total.largest(self._least(below))

    def _least(self, below: int | None) -> Usage:
        """Return what was used whatever the log has lost; of progress, if none is undone."""
        if self.at_least == ZERO:
            return ZERO
        if below is not None and (
            below < self.at_least.steps or self.progress_below(below) != self.progress_below()
        ):
            return resources_of(self.at_least)
        return self.at_least

    @property
    def executed(self) -> Usage:
        """Everything that was done, undone or not, and what it cost."""
        done = sum_of(each.executed for each in self.attempts)
        return replace(done, cost_units=self.cost_units)

    @property
    def clocks_ns(self) -> dict[str, int]:
        """Nanoseconds by clock, over all attempts."""
        return {name: sum(each.clocks_ns[name] for each in self.attempts) for name in CLOCKS}


def budget_events(spends: Iterable[SegmentSpend]) -> list[BudgetEvent]:
    """Return everything that happened to a run's budget, oldest first."""
    events = [event for spend in spends for event in spend.events]
    return sorted(events, key=lambda event: event.t_ns)


def last_stated(spends: Iterable[SegmentSpend]) -> Mapping[str, Any] | None:
    """Return the budget the run was last started with, as it was recorded."""
    stated: dict[str, Any] | None = None
    for event in budget_events(spends):
        if event.event in ("set", "changed"):
            stated = dict(event.data)
        elif event.event == "epoch" and stated is not None:
            stated |= event.data
    return stated


def fold_segments(segments: Mapping[SegmentId, Sequence[Record]]) -> list[SegmentSpend]:
    """Return what each process of a run log used; the order of segments does not matter."""
    spends = []
    for segment in sorted(segments):
        spend = SegmentSpend(SegmentLife(segment))
        spend.fold(sorted(segments[segment], key=lambda record: record.seq))
        spend.finish()
        spends.append(spend)
    return spends


def join_attempts(
    spends: Iterable[SegmentSpend], until_ns: int, *, without: SegmentId | None = None
) -> RunSpend:
    """Return what a run used up to ``until_ns``.

    Args:
        spends: Its processes.
        until_ns: How far a live attempt's price is carried on.
        without: The segment of an attempt that has just begun: it ends the time between attempts
            that is paid for, and is left out of what was used.
    """
    by_segment = {spend.life.segment: spend for spend in spends}
    attempts = derive_attempts(spend.life for spend in by_segment.values())
    rates = run_rates(attempts, until_ns).function
    kept = [attempt for attempt in attempts if without not in attempt.ranks]
    start_ns = attempts[0].start_ns if attempts else until_ns
    return RunSpend(
        attempts=tuple(
            AttemptSpend(tuple(by_segment[rank] for rank in training_ranks(attempt.ranks)))
            for attempt in kept
        ),
        cost_units=_units_between(rates, start_ns, until_ns),
    )


def _units_between(rates: RateFunction | None, start_ns: int, end_ns: int) -> int:
    if rates is None or rates.currency != CURRENCY:
        return 0
    return rates.known_units_between(start_ns, end_ns)
