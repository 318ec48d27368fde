"""What a run has used: counts, clocks, what a record charges, parts of a cost. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import astuple, replace

from outlay.errors import InvalidValue, choices
from outlay.ledger import (
    SUPERVISOR,
    Attempt,
    BudgetEvent,
    Heartbeat,
    Record,
    SegmentId,
    SegmentLife,
    SpanBegun,
    SpanEnded,
    Step,
)
from outlay.rates import Basis, RateFunction, apportion, round_units
from outlay.units import Money
from outlay.units.money import MICROS

# What a step, or a whole run, has used: one struct of integers.


class Usage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Amounts of everything a limit can be set on; of a step, or summed over many.

    Attributes:
        tokens: Every augmented view of every micro-batch, over all ranks.
        steps: Micro-batches.
        flops: Floating-point operations.
        time_ns: Charged time: data wait and steps, and more when the budget charges ``all``.
        cost_units: Money, exact: micro-units per hour times nanoseconds.
        energy_mj: Millijoules.
        comm_bytes: Payload bytes of collectives.
    """

    tokens: int = 0
    steps: int = 0
    flops: int = 0
    time_ns: int = 0
    cost_units: int = 0
    energy_mj: int = 0
    comm_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.tokens + other.tokens,
            self.steps + other.steps,
            self.flops + other.flops,
            self.time_ns + other.time_ns,
            self.cost_units + other.cost_units,
            self.energy_mj + other.energy_mj,
            self.comm_bytes + other.comm_bytes,
        )

    def __sub__(self, other: Usage) -> Usage:
        return self.combine(other, operator.sub)

    def combine(self, other: Usage, join: Callable[[int, int], int]) -> Usage:
        """Return the usage whose every amount is ``join(mine, theirs)``."""
        return Usage(*map(join, astuple(self), astuple(other)))

    def largest(self, other: Usage) -> Usage:
        """Return the larger of the two, amount by amount."""
        return self.combine(other, max)

    @property
    def cost_micros(self) -> int:
        """The cost in micro-units, rounded."""
        return round_units(self.cost_units)


ZERO: Final = Usage()


def progress_of(usage: Usage) -> Usage:
    """Return the part that counts surviving work."""
    return Usage(tokens=usage.tokens, steps=usage.steps, flops=usage.flops)


def resources_of(usage: Usage) -> Usage:
    """Return the part that, once consumed, never comes back."""
    return replace(usage, tokens=0, steps=0, flops=0)


def sum_of(usages: Iterable[Usage]) -> Usage:
    """Return the sum, amount by amount."""
    return sum(usages, ZERO)


def joined(usages: Iterable[Usage]) -> Usage:
    """Return what ranks used together: they run side by side, so time and steps are not summed.

    Money is the whole run's on every rank: that of the first counts.
    """
    parts = list(usages)
    return replace(
        sum_of(parts),
        steps=max(part.steps for part in parts),
        time_ns=max(part.time_ns for part in parts),
        cost_units=parts[0].cost_units,
    )


# Where the time went: a clock each for training, evaluation, checkpoints and logging.
#
# Only training is charged to a time limit, unless the budget charges ``all``; each clock
# remembers its dearest use, from which the next one is predicted.

TRAINING: Final = "training"
CLOCKS: Final = (TRAINING, "evaluation", "checkpoint", "logging")
CLOCK_OF_SPAN: Final = {
    "evaluation": "evaluation",
    "checkpoint_save": "checkpoint",
    "checkpoint_restore": "checkpoint",
    "logging": "logging",
}


class Clocks:
    """Nanoseconds by clock, and the dearest single use of each."""

    def __init__(self) -> None:
        self.spent_ns = dict.fromkeys(CLOCKS, 0)
        self._dearest: dict[str, Usage] = {}

    def add(self, name: str, usage: Usage) -> None:
        """Record that ``name`` ran once and used this much; ``time_ns`` is what it took."""
        self.spent_ns[check_clock(name)] += usage.time_ns
        self._dearest[name] = usage.largest(self._dearest.get(name, ZERO))

    def predicted(self, name: str) -> Usage | None:
        """Return what the next use is expected to take at most; None before the first."""
        return self._dearest.get(check_clock(name))


def check_clock(name: str) -> str:
    """Return the name of a clock, or refuse it."""
    if name not in CLOCKS:
        raise InvalidValue("budget clock", name, choices(CLOCKS))
    return name


# What a record of the run log means to a budget: a step's use, or the time of another clock.
#
# The live run and its replay go through here, so that they cannot disagree.


class ClockCharge(msgspec.Struct, frozen=True, array_like=True):
    """Work beside the steps: on which clock, how long, and since when."""

    clock: str
    start_ns: int
    time_ns: int


class ClockSpan(msgspec.Struct, frozen=True, array_like=True):
    """The outermost span with a clock of its own that has not ended."""

    seq: int
    clock: str
    start_ns: int


class Ongoing(msgspec.Struct, frozen=True, array_like=True):
    """What the next record's charge depends on, of the records before it."""

    open: ClockSpan | None
    since_step: list[ClockCharge]
    last_ns: int


class Charges:
    """Reads one process's records in order and says what each of them charges.

    Evaluation, checkpoints and logging inside a step's time are taken out of it: they have clocks
    of their own. Of spans within each other the outermost counts.
    """

    def __init__(self, ongoing: Ongoing | None = None) -> None:
        self._open = None if ongoing is None else ongoing.open
        self._since_step = [] if ongoing is None else list(ongoing.since_step)
        self._last_ns = 0 if ongoing is None else ongoing.last_ns

    @property
    def ongoing(self) -> Ongoing:
        """What another ``Charges`` needs to go on from here."""
        return Ongoing(self._open, list(self._since_step), self._last_ns)

    def of(self, record: Record, seq: int) -> ClockCharge | Usage | None:
        """Return what a record that is no step charges: time on a clock, or energy of its own.

        ``seq`` is its place in the segment.
        """
        self._last_ns = max(self._last_ns, record.t_ns)
        match record:
            case SpanBegun(overlapped=False) if self._open is None:
                if clock := CLOCK_OF_SPAN.get(record.name):
                    self._open = ClockSpan(seq, clock, record.t_ns)
            case SpanEnded() if self._open is not None and record.begun == self._open.seq:
                return self._close(record.t_ns)
            case Heartbeat() if record.energy_mj:
                return Usage(energy_mj=record.energy_mj)
            case _:
                pass
        return None

    def end(self) -> ClockCharge | None:
        """Return what a span that never ended charges: up to the last sign of life."""
        return self._close(self._last_ns) if self._open is not None else None

    @property
    def inside(self) -> bool:
        """Whether work with a clock of its own is going on."""
        return self._open is not None

    def _close(self, end_ns: int) -> ClockCharge:
        assert self._open is not None
        span, self._open = self._open, None
        charge = ClockCharge(span.clock, span.start_ns, end_ns - span.start_ns)
        self._since_step.append(charge)
        return charge

    def step(self, step: Step) -> Usage:
        """Return what a step used; its money is not known here."""
        self._last_ns = max(self._last_ns, step.t_ns)
        time_ns = step.wait_ns + step.dur_ns
        if self._since_step:
            begun_ns = step.t_ns - time_ns
            for span in self._since_step:
                end_ns = span.start_ns + span.time_ns
                time_ns -= max(0, min(end_ns, step.t_ns) - max(span.start_ns, begun_ns))
            self._since_step.clear()
        return Usage(
            step.tokens, step.count, step.flops, time_ns, 0, step.energy_mj, step.comm_bytes
        )


# What a run's cost is made of, and which of that its budget is charged.

LABELS: Final = {
    "training": "training",
    "start_up": "start-up",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "logging": "logging",
    "other": "other",
    "down": "down between attempts",
    "assumed": "assumed",
}


class Period(msgspec.Struct, array_like=True):
    """Nanoseconds by clock since an instant from which on one price held; 0: the begin."""

    since_ns: int
    spent_ns: dict[str, int] = {}

    def spent(self, clock: str) -> int:
        """Return the nanoseconds on a clock."""
        return self.spent_ns.get(clock, 0)

    @property
    def all_ns(self) -> int:
        """The nanoseconds on all clocks."""
        return sum(self.spent_ns.values())


def clocks_of(periods: Sequence[Period]) -> dict[str, int]:
    """Return nanoseconds by clock."""
    return {name: sum(period.spent(name) for period in periods) for name in CLOCKS}


class SurvivingWork(Protocol):
    """The work of one process that no rollback of its own undid."""

    @property
    def lowest(self) -> int | None:
        """The lowest step number that was ever executed; None before the first."""

    def below(self, step: int | None = None) -> Usage:
        """Return the surviving progress of the steps numbered below ``step`` (None: of all)."""


@dataclass(slots=True)
class ProcessSpend:
    """What one process used.

    Attributes:
        surviving: Its work that no rollback of its own undid.
        executed: Everything it did, undone or not.
        periods: Nanoseconds by clock, for each stretch of time with one price.
        first_step_ns: When its first step began to wait for data.
        before_steps_ns: Time on the clocks before its first step.
    """

    life: SegmentLife
    surviving: SurvivingWork
    executed: Usage = ZERO
    periods: list[Period] = field(default_factory=lambda: [Period(0)])
    events: list[BudgetEvent] = field(default_factory=list)
    first_step_ns: int | None = None
    before_steps_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostParts:
    """A run's cost in exact units (micro-units per hour times ns), part by part.

    Attributes:
        training: During steps and the wait for their data.
        start_up: From an attempt's begin to its first step.
        evaluation, checkpoint, logging: On those clocks.
        other: In an attempt, and none of these.
        down: Between two attempts, where it is known that the machine was paid for.
        assumed: Between two attempts, where it is unknown; shown, and never charged.
    """

    training: int = 0
    start_up: int = 0
    evaluation: int = 0
    checkpoint: int = 0
    logging: int = 0
    other: int = 0
    down: int = 0
    assumed: int = 0

    def __add__(self, added: CostParts) -> CostParts:
        mine, theirs = asdict(self), asdict(added)
        return CostParts(**{name: mine[name] + theirs[name] for name in mine})

    @property
    def total(self) -> int:
        """All of the cost."""
        return sum(asdict(self).values())

    def charged(self, charge_cost: str) -> int:
        """Return what a budget is charged: ``all`` that is known, or ``training`` alone."""
        return self.training if charge_cost == "training" else self.total - self.assumed

    def is_charged(self, name: str, charge_cost: str) -> bool:
        """Say whether a part is charged to a budget."""
        return name == "training" if charge_cost == "training" else name != "assumed"

    def micros(self) -> dict[str, int]:
        """Return the parts in micro-units; they sum to the rounded total."""
        return apportion(asdict(self))

    def document(self, charge_cost: str, currency: str) -> dict[str, Any]:
        """Return the parts as JSON shows them; the currency is in the names."""
        micros, code = self.micros(), currency.lower()
        charged = [name for name in micros if self.is_charged(name, charge_cost)]
        return {
            "charge": charge_cost,
            f"cost_{code}": sum(micros.values()) / MICROS,
            f"charged_{code}": sum(micros[name] for name in charged) / MICROS,
            "parts": {
                name: {code: amount / MICROS, "charged": name in charged}
                for name, amount in micros.items()
            },
        }

    def rows(self, charge_cost: str, currency: str) -> list[tuple[str, Money, str]]:
        """Return what each part is called, costs, and whether it is charged.

        Parts of zero are left out, but for the time between attempts, which people look for.
        """
        rows = []
        for name, amount in self.micros().items():
            if amount or name == "down":
                charged = "charged" if self.is_charged(name, charge_cost) else "not charged"
                rows.append((LABELS[name], Money(amount, currency), charged))
        return rows


NO_COST: Final = CostParts()


@dataclass(frozen=True, slots=True)
class CostedRun:
    """What is needed to divide a run's cost.

    Attributes:
        attempts: Oldest first.
        until_ns: Where the cost ends.
    """

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
        """Return the cost of the time on each clock, at the price of when it ran."""
        units: dict[str, int] = {}
        ends = [*(period.since_ns for period in spend.periods[1:]), attempt.last_sign_ns]
        for period, end_ns in zip(spend.periods, ends, strict=True):
            start_ns = max(period.since_ns, attempt.start_ns)
            if end_ns <= start_ns:
                continue
            paid = self._units(start_ns, end_ns)
            for clock, ns in period.spent_ns.items():
                units[clock] = units.get(clock, 0) + paid * ns // (end_ns - start_ns)
        return units

    def _start_up(self, attempt: Attempt, spend: ProcessSpend) -> int:
        """Return the cost until the first step, without what other clocks took of that."""
        first_ns, before_ns = spend.first_step_ns, spend.before_steps_ns
        if first_ns is None:
            first_ns = attempt.last_sign_ns
            before_ns = sum(period.all_ns for period in spend.periods)
        if first_ns <= attempt.start_ns:
            return 0
        paid = self._units(attempt.start_ns, first_ns)
        return paid - paid * before_ns // (first_ns - attempt.start_ns)
