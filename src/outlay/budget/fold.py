"""From a run's log to what the run has used: a pure fold.

Progress is what survives: an attempt that starts at step m undoes every earlier execution numbered
m or higher, whichever rank made it. Resources are everything that was consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from outlay.budget.amounts import CURRENCY
from outlay.budget.charges import Charge, Charges, ClockCharge, EnergyCharge, StepCharge
from outlay.budget.clocks import CLOCKS, TRAINING
from outlay.budget.cost_parts import (
    NO_COST,
    CostedRun,
    CostParts,
    Period,
    ProcessSpend,
    clocks_of,
)
from outlay.budget.surviving import Surviving
from outlay.budget.usage import ZERO, Usage, joined, resources_of, sum_of
from outlay.ledger import (
    BudgetEvent,
    CheckpointCommitted,
    PriceChanged,
    Record,
    SegmentId,
    SegmentLife,
    SlicesChanged,
    Step,
    derive_attempts,
    training_ranks,
)
from outlay.rates import run_rates

MARKS_MAX: Final = 32
"""How many checkpoints back a rollback can be sure to find its place in a statement."""


@dataclass(slots=True)
class SegmentSpend:
    """What one process used, folded from its records in order.

    Attributes:
        surviving: Its work that no rollback of its own undid.
        executed: Everything it did, undone or not.
        periods: Nanoseconds by clock, for each stretch of time with one price.
        events: What happened to the budget.
        last_step: Its last step.
        first_step_ns: When its first step began to wait for data.
        before_steps_ns: Time on the clocks before its first step.
        marks: The steps that its last checkpoints are resumed at, ascending.
    """

    life: SegmentLife
    surviving: Surviving = field(default_factory=Surviving)
    executed: Usage = ZERO
    periods: list[Period] = field(default_factory=lambda: [Period(0)])
    events: list[BudgetEvent] = field(default_factory=list)
    last_step: Step | None = None
    first_step_ns: int | None = None
    before_steps_ns: int = 0
    marks: list[int] = field(default_factory=list)
    charges: Charges = field(default_factory=Charges)

    def fold(self, records: Sequence[Record]) -> None:
        """Take note of more records."""
        self.life.fold(records)
        for record in records:
            if type(record) is Step:
                self._step(record)
            else:
                self._other(record)

    def finish(self) -> None:
        """No more records: charge what was going on at the last sign of life."""
        self._charge(self.charges.end())

    def _step(self, step: Step) -> None:
        usage = self.charges.step(step)
        if self.first_step_ns is None:
            self.first_step_ns = step.t_ns - step.dur_ns - step.wait_ns
            self.before_steps_ns = sum(period.all_ns for period in self.periods)
        self.last_step = step
        self.surviving.execute(step.step, usage.tokens, usage.flops, usage.steps)
        self.executed += usage
        self._spend(TRAINING, step.t_ns, usage.time_ns)

    def _other(self, record: Record) -> None:
        match record:
            case BudgetEvent():
                self.events.append(record)
            case PriceChanged() | SlicesChanged():
                self.periods.append(Period(record.t_ns))
            case CheckpointCommitted():
                mark = record.step + 1
                earlier = (one for one in self.marks if one < mark)
                self.marks = [*earlier, mark][-MARKS_MAX:]
            case _:
                pass
        self._charge(self.charges.of(record, record.seq))

    def _charge(self, charge: Charge | None) -> None:
        match charge:
            case ClockCharge():
                self._spend(charge.clock, charge.start_ns + charge.time_ns, charge.time_ns)
            case EnergyCharge():
                self.executed += Usage(energy_mj=charge.energy_mj)
            case StepCharge() | None:
                pass

    def _spend(self, clock: str, end_ns: int, time_ns: int) -> None:
        """Put the ``time_ns`` before ``end_ns`` on a clock, each part where its price holds."""
        for period in reversed(self.periods):
            part_ns = min(time_ns, max(0, end_ns - period.since_ns))
            period.spent_ns[clock] = period.spent(clock) + part_ns
            time_ns -= part_ns
            end_ns = min(end_ns, period.since_ns)
            if not time_ns:
                break


@dataclass(frozen=True, slots=True)
class AttemptSpend:
    """What the ranks of one attempt used."""

    ranks: tuple[ProcessSpend, ...]

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
        clocks = [clocks_of(rank.periods) for rank in self.ranks]
        return {name: max(spent_ns[name] for spent_ns in clocks) for name in CLOCKS}


@dataclass(frozen=True, slots=True)
class RunSpend:
    """What a whole run used, attempt by attempt.

    Attributes:
        parts: What it cost, in the currency of limits.
        start_ups_ns: From an attempt's begin to its first step, for each that made one.
        at_least: What the run said it had used, where its log has lost some of that.
    """

    attempts: tuple[AttemptSpend, ...]
    parts: CostParts = NO_COST
    at_least: Usage = ZERO
    start_ups_ns: tuple[int, ...] = ()

    @property
    def cost_units(self) -> int:
        """What it cost, exact, as far as that is known and not assumed."""
        return self.parts.charged("all")

    def progress_below(self, step: int | None = None) -> Usage:
        """Return what survives when the next attempt starts at ``step`` (None: there is none)."""
        total = ZERO
        for attempt in reversed(self.attempts):
            total += attempt.progress_below(step)
            lowest = attempt.lowest
            if lowest is not None:
                step = lowest if step is None else min(step, lowest)
        return total

    def total(self, *, charge: str, charge_cost: str = "all", below: int | None = None) -> Usage:
        """Return everything used, as charged.

        Args:
            charge: With ``all``, every clock counts as time; else training alone.
            charge_cost: With ``training``, money counts during training alone.
            below: Progress counts below this step.
        """
        total = self.progress_below(below) + resources_of(self.executed)
        beside_ns = sum(ns for name, ns in self.clocks_ns.items() if name != TRAINING)
        time_ns = total.time_ns + (beside_ns if charge == "all" else 0)
        cost_units = self.parts.charged(charge_cost)
        total = replace(total, time_ns=time_ns, cost_units=cost_units)
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


def budget_events(spends: Iterable[ProcessSpend]) -> list[BudgetEvent]:
    """Return everything that happened to a run's budget, oldest first."""
    events = [event for spend in spends for event in spend.events]
    return sorted(events, key=lambda event: event.t_ns)


def last_stated(spends: Iterable[ProcessSpend]) -> Mapping[str, Any] | None:
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
    spends: Iterable[ProcessSpend], until_ns: int, *, without: SegmentId | None = None
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
    parts = NO_COST
    if rates is not None and rates.currency == CURRENCY:
        parts = CostedRun(attempts, by_segment, rates, until_ns).parts()
    return RunSpend(
        attempts=tuple(
            AttemptSpend(tuple(by_segment[rank] for rank in training_ranks(attempt.ranks)))
            for attempt in kept
        ),
        parts=parts,
        start_ups_ns=tuple(
            first_ns - attempt.start_ns
            for attempt in kept
            if (first_ns := by_segment[attempt.segment].first_step_ns) is not None
        ),
    )
