"""Folds a run's log into what the run has used, with rollback. Pure.

``ProcessSpend`` is the only fold of a process's records: a running process keeps its own, a start
replays a log, and a statement in the log is a snapshot of it. Progress counts surviving work: an
attempt that starts at step m undoes every earlier execution numbered m or higher, of any rank.
Resources count everything that was consumed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from outlay.budget.limits import CURRENCY
from outlay.budget.surviving import Run, Surviving
from outlay.budget.usage import (
    CLOCKS,
    NO_COST,
    TRAINING,
    ZERO,
    Charges,
    ClockCharge,
    CostParts,
    Period,
    Usage,
    clocks_of,
    joined,
    resources_of,
    spent_before,
)
from outlay.decoding import BadDocument, convert
from outlay.errors import Finding
from outlay.ledger import (
    SUPERVISOR,
    Attempt,
    AttemptEnded,
    AttemptStarted,
    BudgetEvent,
    BudgetStatement,
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
from outlay.rates import Basis, RateFunction, run_rates
from outlay.units import Money

# One process
#
# A start restores the last statement and replays only the records after it. A statement has no
# authority over the records: a reader of the whole log replays them, and both results must agree.

FORM: Final = 1
"""The version of a statement's content."""

RUNS_MAX: Final = 256
"""How many runs of equal steps a statement lists; beyond that, neighbours are merged."""

MARKS_MAX: Final = 32
"""To how many past checkpoints a rollback is exact after a restore from a statement."""

_LISTED_MAX: Final = 128
"""How many prices, budget events or spans a statement may repeat; with more, none is written."""

_TERMS: Final = ("set", "changed", "dropped", "epoch", "ended")
Kept = PriceChanged | SlicesChanged | BudgetEvent | AttemptEnded
"""Records that a statement repeats; of budget events only the terms and the final totals."""

_LAST_STEP: Final = (
    "step", "count", "t_ns", "dur_ns", "wait_ns", "tokens", "samples", "comm_bytes", "energy_mj",
    "flops",
)  # fmt: skip
"""The fields of the last step in a statement."""


class StatedSpend(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a statement: a ``ProcessSpend`` as plain values.

    Attributes:
        next_step, lowest: As in ``Surviving``.
        ongoing: The open span, and the spans since the last step.
        kept: Prices, slices, the terms of the budget and the end.
        last_step: The model for steps that are lost after the statement.
    """

    executed: Usage
    runs: list[Run]
    next_step: int
    lowest: int | None = None
    periods: list[Period]
    ongoing: Charges
    kept: list[Kept] = []
    last_step: list[int] | None = None
    first_step_ns: int | None = None
    before_steps_ns: int = 0
    last_sign_ns: int

    def surviving(self) -> Surviving:
        """Return the surviving work."""
        return Surviving.of(self.runs, next_step=self.next_step, lowest=self.lowest)

    def step(self) -> Step | None:
        """Return the last step, without its sequence number."""
        values = self.last_step
        return None if values is None else Step(**dict(zip(_LAST_STEP, values, strict=True)))


@dataclass(slots=True)
class ProcessSpend:
    """What one process used, folded from its records in order.

    Attributes:
        executed: Everything it did, undone or not.
        periods: One for each price.
        kept: Prices, slices, budget events and the end.
        first_step_ns: When its first step began to wait for data.
        before_steps_ns: Time on the clocks before its first step.
        marks: The steps at which its last checkpoints resume, ascending.
    """

    life: SegmentLife
    surviving: Surviving = field(default_factory=Surviving)
    executed: Usage = ZERO
    periods: list[Period] = field(default_factory=lambda: [Period(0)])
    kept: list[Kept] = field(default_factory=list)
    first_step_ns: int | None = None
    before_steps_ns: int = 0
    last_step: Step | None = None
    marks: list[int] = field(default_factory=list)
    charges: Charges = field(default_factory=Charges)

    @property
    def events(self) -> list[BudgetEvent]:
        """All budget events."""
        return [record for record in self.kept if isinstance(record, BudgetEvent)]

    def apply(self, record: Record) -> None:
        """Add the next record."""
        self.life.last_sign_ns = max(self.life.last_sign_ns, record.t_ns)
        if type(record) is Step:
            self._step(record)
            return
        match record:
            case AttemptStarted():
                self.life.fold((record,))
            case PriceChanged() | SlicesChanged():
                self._keep(record)
                self.periods.append(Period(record.t_ns))
            case BudgetEvent() | AttemptEnded():
                self._keep(record)
            case CheckpointCommitted():
                mark = record.step + 1
                earlier = (one for one in self.marks if one < mark)
                self.marks = [*earlier, mark][-MARKS_MAX:]
            case _:
                pass
        self._charge(self.charges.other(record))

    def _keep(self, record: Kept) -> None:
        self.life.fold((record,))
        self.kept.append(record)

    def finish(self) -> None:
        """Charge a span that is still open, up to the last sign of life."""
        self._charge(self.charges.end())

    def _step(self, step: Step) -> None:
        if self.first_step_ns is None:
            self.first_step_ns = step.t_ns - step.dur_ns - step.wait_ns
            self.before_steps_ns = spent_before(self.first_step_ns, self.charges.since_step)
        usage = self.charges.step(step)
        self.last_step = step
        self.surviving.execute(step.step, usage.tokens, usage.flops, usage.steps)
        self.executed += usage
        self._spend(TRAINING, step.t_ns, usage.time_ns)

    def _charge(self, charge: ClockCharge | Usage | None) -> None:
        match charge:
            case ClockCharge():
                self._spend(charge.clock, charge.end_ns, charge.time_ns)
                if self.first_step_ns is not None:  # A span may be open over the first step.
                    self.before_steps_ns += spent_before(self.first_step_ns, (charge,))
            case Usage():
                self.executed += charge
            case None:
                pass

    def _spend(self, clock: str, end_ns: int, time_ns: int) -> None:
        """Add the ``time_ns`` before ``end_ns`` to a clock, each part in its price's period."""
        for period in reversed(self.periods):
            part_ns = min(time_ns, max(0, end_ns - period.since_ns))
            period.spent_ns[clock] = period.spent(clock) + part_ns
            time_ns -= part_ns
            end_ns = min(end_ns, period.since_ns)
            if not time_ns:
                break

    def snapshot(self) -> StatedSpend | None:
        """Return the state for a statement, or None if it is too large for one.

        Surviving work is merged as in the statement, so that the next one need not merge it again.
        """
        kept = [one for one in self.kept if not isinstance(one, BudgetEvent) or one.event in _TERMS]
        if max(len(kept), len(self.periods), len(self.charges.since_step)) > _LISTED_MAX:
            return None
        surviving, last = self.surviving, self.last_step
        stated = StatedSpend(
            executed=self.executed,
            runs=surviving.outline(RUNS_MAX, self.marks),
            next_step=surviving.next_step,
            lowest=surviving.lowest,
            periods=self.periods,
            ongoing=self.charges,
            kept=kept,
            last_step=None if last is None else [getattr(last, name) for name in _LAST_STEP],
            first_step_ns=self.first_step_ns,
            before_steps_ns=self.before_steps_ns,
            last_sign_ns=self.life.last_sign_ns,
        )
        if len(surviving) > RUNS_MAX:
            self.surviving = stated.surviving()
        return stated


def read_statement(statement: BudgetStatement) -> StatedSpend | None:
    """Return a statement's content, or None if it is not valid."""
    if statement.form != FORM or not 0 < statement.covers <= statement.seq:
        return None
    try:
        stated = convert(statement.state, StatedSpend)
        stated.surviving()
        stated.step()
    except (BadDocument, OverflowError, ValueError):
        return None
    return stated if stated.periods else None


def is_valid(statement: BudgetStatement) -> bool:
    """Return whether a statement can replace the records that it covers."""
    return read_statement(statement) is not None


def restore_spend(
    segment: SegmentId, header: AttemptStarted | None, statement: BudgetStatement
) -> ProcessSpend:
    """Return the fold of all records that a valid statement covers."""
    stated = read_statement(statement)
    assert stated is not None
    life = SegmentLife(segment)
    life.fold([*([header] if header else []), *stated.kept])
    life.last_sign_ns = stated.last_sign_ns
    return ProcessSpend(
        life,
        surviving=stated.surviving(),
        executed=stated.executed,
        periods=stated.periods,
        kept=stated.kept,
        first_step_ns=stated.first_step_ns,
        before_steps_ns=stated.before_steps_ns,
        last_step=stated.step(),
        charges=stated.ongoing,
    )


# The ranks of an attempt, and the attempts of a run


@dataclass(frozen=True, slots=True)
class AttemptSpend:
    """What the ranks of one attempt used.

    Attributes:
        unrecorded_ns: Its wall time, if only a supervisor with a budget recorded it.
    """

    ranks: tuple[ProcessSpend, ...]
    unrecorded_ns: int = 0

    @property
    def lowest(self) -> int | None:
        """The lowest step number that any rank executed."""
        return min(
            (rank.surviving.lowest for rank in self.ranks if rank.surviving.lowest is not None),
            default=None,
        )

    def progress_below(self, step: int | None) -> Usage:
        """Return surviving work over all ranks; ``steps`` is the maximum over ranks."""
        return joined(rank.surviving.below(step) for rank in self.ranks)

    @property
    def executed(self) -> Usage:
        """What all ranks did, undone or not; time is the slowest rank's."""
        done = joined(rank.executed for rank in self.ranks)
        return replace(done, time_ns=done.time_ns + self.unrecorded_ns)

    @property
    def clocks_ns(self) -> dict[str, int]:
        """Nanoseconds by clock: for each, the slowest rank's."""
        clocks = [clocks_of(rank.periods) for rank in self.ranks]
        return {name: max(spent_ns[name] for spent_ns in clocks) for name in CLOCKS}


@dataclass(frozen=True, slots=True)
class RunSpend:
    """What a whole run used, attempt by attempt.

    Attributes:
        parts: Its cost, in the counted currency.
        start_ups_ns: The time from begin to first step of each attempt that made a step.
        at_least: Totals that the run recorded, a lower bound where its log has lost records.
        beside: Its cost in other currencies, which is not in ``parts``.
        clocks_disagree: Two attempts overlap, or a clock was set between two of them.
    """

    attempts: tuple[AttemptSpend, ...]
    parts: CostParts = NO_COST
    at_least: Usage = ZERO
    start_ups_ns: tuple[int, ...] = ()
    clocks_disagree: bool = False
    beside: tuple[Money, ...] = ()

    def beside_findings(self, currency: str) -> list[Finding]:
        """Return a finding on money that a budget in ``currency`` does not count, if any."""
        if not self.beside:
            return []
        amounts = " and ".join(map(str, self.beside))
        message = f"the run has also paid {amounts}: not in this budget, which is in {currency}"
        return [Finding(source="budget", message=message, severity="warning")]

    def progress_below(self, step: int | None = None) -> Usage:
        """Return what survives if the next attempt starts at ``step`` (None: there is none)."""
        total = ZERO
        for attempt in reversed(self.attempts):
            total += attempt.progress_below(step)
            lowest = attempt.lowest
            if lowest is not None:
                step = lowest if step is None else min(step, lowest)
        return total

    def total(self, *, charge: str, charge_cost: str = "all", below: int | None = None) -> Usage:
        """Return what a budget is charged; of progress, only the steps numbered ``below``."""
        done = self.charged(charge=charge, charge_cost=charge_cost)
        total = self.progress_below(below) + resources_of(done)
        return total.largest(self._least(below))

    def charged(self, *, charge: str, charge_cost: str) -> Usage:
        """Return everything that was done, with the time and cost that a budget is charged."""
        done = self.executed
        other_ns = sum(ns for name, ns in self.clocks_ns.items() if name != TRAINING)
        time_ns = done.time_ns + (other_ns if charge == "all" else 0)
        return replace(done, time_ns=time_ns, cost_units=self.parts.charged(charge_cost))

    def _least(self, below: int | None) -> Usage:
        """Return the lower bound of what was used; without progress if some of it is undone."""
        if self.at_least == ZERO:
            return ZERO
        if below is not None and (
            below < self.at_least.steps or self.progress_below(below) != self.progress_below()
        ):
            return resources_of(self.at_least)
        return self.at_least

    @property
    def executed(self) -> Usage:
        """Everything that was done, undone or not, and its cost without the assumed part."""
        done = sum((each.executed for each in self.attempts), ZERO)
        return replace(done, cost_units=self.parts.charged("all"))

    @property
    def clocks_ns(self) -> dict[str, int]:
        """Nanoseconds by clock, over all attempts."""
        return {name: sum(each.clocks_ns[name] for each in self.attempts) for name in CLOCKS}


@dataclass(frozen=True, slots=True)
class CostedRun:
    """Divides a run's cost up to ``until_ns`` into its parts; attempts are oldest first."""

    attempts: Sequence[Attempt]
    spends: Mapping[SegmentId, ProcessSpend]
    rates: RateFunction
    until_ns: int

    def parts(self) -> CostParts:
        """Return the cost of all attempts and of the time between them."""
        parts = NO_COST
        for attempt, following in zip_longest(self.attempts, self.attempts[1:]):
            parts += self._within(attempt)
            parts += self._after(attempt, following)
        return parts

    def _units(self, start_ns: int, end_ns: int) -> int:
        return self.rates.units_between(start_ns, min(end_ns, self.until_ns))

    def _after(self, attempt: Attempt, following: Attempt | None) -> CostParts:
        start_ns = attempt.last_sign_ns
        if following is None:
            return CostParts(other=self._units(start_ns, self.until_ns))
        end_ns = min(following.start_ns, self.until_ns)
        units = self.rates.units_by_basis(start_ns, end_ns)
        assumed = units.pop(Basis.ASSUMED)
        return CostParts(down=sum(units.values()), assumed=assumed)

    def _within(self, attempt: Attempt) -> CostParts:
        whole = self._units(attempt.start_ns, attempt.last_sign_ns)
        if attempt.segment.rank == SUPERVISOR:
            return CostParts(other=whole)
        spend = self.spends[attempt.segment]
        clocks = self._by_clock(attempt, spend)
        start_up = self._start_up(attempt, spend)
        other = whole - start_up - sum(clocks.values())
        return CostParts(start_up=start_up, other=other, **clocks)

    def _by_clock(self, attempt: Attempt, spend: ProcessSpend) -> dict[str, int]:
        """Return the cost of the time on each clock, at the price in effect then."""
        units: dict[str, int] = {}
        since = [period.since_ns + attempt.moved_ns for period in spend.periods]
        ends = [*since[1:], attempt.last_sign_ns]
        for period, since_ns, end_ns in zip(spend.periods, since, ends, strict=True):
            start_ns = max(since_ns, attempt.start_ns)
            if end_ns <= start_ns:
                continue
            paid = self._units(start_ns, end_ns)
            for clock, ns in period.spent_ns.items():
                units[clock] = units.get(clock, 0) + paid * ns // (end_ns - start_ns)
        return units

    def _start_up(self, attempt: Attempt, spend: ProcessSpend) -> int:
        """Return the cost until the first step, without the time on other clocks."""
        first_ns, before_ns = spend.first_step_ns, spend.before_steps_ns
        if first_ns is not None:
            first_ns += attempt.moved_ns
        else:
            first_ns = attempt.last_sign_ns
            before_ns = sum(period.all_ns for period in spend.periods)
        if first_ns <= attempt.start_ns:
            return 0
        paid = self._units(attempt.start_ns, first_ns)
        return paid - paid * before_ns // (first_ns - attempt.start_ns)


def budget_events(spends: Iterable[ProcessSpend]) -> list[BudgetEvent]:
    """Return all budget events of a run, oldest first, also if a clock was set back since."""
    by_segment = {spend.life.segment: spend for spend in spends}
    attempts = derive_attempts(spend.life for spend in by_segment.values())
    dated = [
        (event.t_ns + attempt.moved_ns, event)
        for attempt in attempts
        for segment in dict.fromkeys(attempt.ranks)
        for event in by_segment[segment].events
    ]
    return [event for _, event in sorted(dated, key=lambda each: each[0])]


DROPPED: Final = "dropped"
"""The event of a start that drops the run's budget."""


def last_stated(spends: Iterable[ProcessSpend]) -> Mapping[str, Any] | None:
    """Return the budget that the run was last started with, as recorded.

    That of the program comes before that of its supervisor: a program may state its own.
    """
    spends = list(spends)
    return _last_of(stated_by(spends, supervisor=False)) or _last_of(spends)


def stated_by(spends: Iterable[ProcessSpend], *, supervisor: bool) -> list[ProcessSpend]:
    """Return the use of supervisors, or of the processes that are not."""
    return [each for each in spends if (each.life.segment.rank == SUPERVISOR) == supervisor]


def _last_of(spends: Iterable[ProcessSpend]) -> Mapping[str, Any] | None:
    stated: dict[str, Any] | None = None
    for event in budget_events(spends):
        if event.event in ("set", "changed"):
            stated = dict(event.data)
        elif event.event == DROPPED:
            stated = None
        elif event.event == "epoch" and stated is not None:
            stated |= event.data
    return stated


def rates_in(
    attempts: Sequence[Attempt], until_ns: int, currency: str
) -> tuple[RateFunction | None, list[RateFunction]]:
    """Return a run's rate in a currency, None without a price in it, and those in others."""
    paid = run_rates(attempts, until_ns)
    every = [] if paid.function is None else [paid.function, *paid.beside]
    counted = next((function for function in every if function.currency == currency), None)
    return counted, [function for function in every if function is not counted]


def parts_of(spend: ProcessSpend, until_ns: int, currency: str) -> CostParts:
    """Return the cost of a running process's attempt from its begin to ``until_ns``."""
    # Copies, since another thread may fold a record meanwhile.
    periods = [Period(each.since_ns, dict(each.spent_ns)) for each in spend.periods]
    spend = dataclasses.replace(spend, periods=periods)
    life = dataclasses.replace(spend.life)
    life.last_sign_ns = until_ns
    attempts = derive_attempts([life])
    rates, _ = rates_in(attempts, until_ns, currency)
    if rates is None:
        return NO_COST
    return CostedRun(attempts, {life.segment: spend}, rates, until_ns).parts()


def join_attempts(
    spends: Iterable[ProcessSpend],
    until_ns: int | None,
    *,
    currency: str = CURRENCY,
    without: SegmentId | None = None,
) -> RunSpend:
    """Return what a run used up to ``until_ns`` (None: to its last sign of life).

    Money in another currency is beside.

    ``without`` is the segment of an attempt that has just begun: it ends the billed time since the
    last attempt, and its own use is left out.
    """
    by_segment = {spend.life.segment: spend for spend in spends}
    attempts = derive_attempts(spend.life for spend in by_segment.values())
    if until_ns is None:
        until_ns = attempts[-1].last_sign_ns if attempts else 0
    is_last = without is None or without in attempts[-1].ranks
    rates, others = rates_in(attempts, until_ns, currency)
    kept = [attempt for attempt in attempts if without not in attempt.ranks]
    parts = NO_COST
    if rates is not None:
        parts = CostedRun(attempts, by_segment, rates, until_ns).parts()
    return RunSpend(
        attempts=tuple(
            AttemptSpend(
                tuple(by_segment[rank] for rank in training_ranks(attempt.ranks)),
                _unrecorded_ns(attempt, by_segment, attempts[-1], until_ns),
            )
            for attempt in kept
        ),
        parts=parts,
        start_ups_ns=tuple(
            first_ns + attempt.moved_ns - attempt.start_ns
            for attempt in kept
            if (first_ns := by_segment[attempt.segment].first_step_ns) is not None
        ),
        clocks_disagree=not is_last
        or any(attempt.overlaps or attempt.clock_set_ns for attempt in attempts),
        beside=tuple(
            cost
            for function in others
            if (cost := function.cost_between(attempts[0].start_ns, until_ns))
        ),
    )


def _unrecorded_ns(
    attempt: Attempt, spends: Mapping[SegmentId, ProcessSpend], last: Attempt, until_ns: int
) -> int:
    """Return the wall time of an attempt that only a supervisor with a budget recorded, else 0."""
    stated = last_stated(spends[rank] for rank in attempt.ranks)
    if stated is None or stated.get("records") or any(r.rank != SUPERVISOR for r in attempt.ranks):
        return 0
    runs = attempt is last and attempt.end is None
    return (until_ns if runs else min(attempt.last_sign_ns, until_ns)) - attempt.start_ns
