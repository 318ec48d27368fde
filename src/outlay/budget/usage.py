"""What a run has used: amounts, clocks, what each record charges, parts of the cost. Pure."""

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

# Amounts


class Usage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Amounts of everything that can be limited, of one step or summed over many.

    Attributes:
        tokens: Every augmented view of every micro-batch, over all ranks.
        steps: Micro-batches.
        time_ns: Charged time: data wait and steps, and all clocks if the budget charges ``all``.
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
    """Return the part that counts resources, which are never refunded."""
    return replace(usage, tokens=0, steps=0, flops=0)


def joined(usages: Iterable[Usage]) -> Usage:
    """Return what ranks used together: time and steps are the maximum, since ranks run in parallel.

    Money is the whole run's on every rank: the first rank's counts.
    """
    parts = list(usages)
    return replace(
        sum(parts, ZERO),
        steps=max(part.steps for part in parts),
        time_ns=max(part.time_ns for part in parts),
        cost_units=parts[0].cost_units,
    )


# Clocks: only training is charged to a time limit, unless the budget charges ``all``

TRAINING: Final = "training"
CLOCKS: Final = (TRAINING, "evaluation", "checkpoint", "logging")
CLOCK_OF_SPAN: Final = {
    "evaluation": "evaluation",
    "checkpoint_save": "checkpoint",
    "checkpoint_restore": "checkpoint",
    "logging": "logging",
}


class Clocks:
    """Nanoseconds by clock, and the largest single use of each, which predicts the next."""

    def __init__(self) -> None:
        self.spent_ns = dict.fromkeys(CLOCKS, 0)
        self._largest: dict[str, Usage] = {}

    def add(self, name: str, usage: Usage) -> None:
        """Add one use of a clock."""
        self.spent_ns[check_clock(name)] += usage.time_ns
        self._largest[name] = usage.largest(self._largest.get(name, ZERO))

    def predicted(self, name: str) -> Usage | None:
        """Return the expected maximum of the next use; None before the first."""
        return self._largest.get(check_clock(name))


def check_clock(name: str) -> str:
    """Return the name of a clock, or refuse it."""
    if name not in CLOCKS:
        raise InvalidValue("budget clock", name, choices(CLOCKS))
    return name


# Charges of records, for the live run and for its replay alike


class ClockCharge(msgspec.Struct, frozen=True, array_like=True):
    """Time on a clock other than training."""

    clock: str
    start_ns: int
    time_ns: int

    @property
    def end_ns(self) -> int:
        """The end of the half-open interval."""
        return self.start_ns + self.time_ns


class ClockSpan(msgspec.Struct, frozen=True, array_like=True):
    """The outermost open span with a clock of its own."""

    seq: int
    clock: str
    start_ns: int


class Ongoing(msgspec.Struct, frozen=True, array_like=True):
    """The state of ``Charges``: what the charge of the next record depends on."""

    open: ClockSpan | None
    since_step: list[ClockCharge]
    last_ns: int


class Charges:
    """Computes what each of a process's records charges, in order.

    Evaluation, checkpoints and logging inside a step's time are subtracted from it: they have
    clocks of their own. Of nested spans the outermost counts.
    """

    def __init__(self, ongoing: Ongoing | None = None) -> None:
        self._open = None if ongoing is None else ongoing.open
        self._since_step = [] if ongoing is None else list(ongoing.since_step)
        self._last_ns = 0 if ongoing is None else ongoing.last_ns

    @property
    def ongoing(self) -> Ongoing:
        """The state from which another ``Charges`` can continue."""
        return Ongoing(self._open, list(self._since_step), self._last_ns)

    def of(self, record: Record, seq: int) -> ClockCharge | Usage | None:
        """Return the charge of a record that is not a step: time on a clock, or energy.

        ``seq`` is the record's sequence number.
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
        """Return the charge of an open span, up to the last sign of life."""
        return self._close(self._last_ns) if self._open is not None else None

    @property
    def inside(self) -> bool:
        """Whether a span with a clock of its own is open."""
        return self._open is not None

    def _close(self, end_ns: int) -> ClockCharge:
        assert self._open is not None
        span, self._open = self._open, None
        charge = ClockCharge(span.clock, span.start_ns, end_ns - span.start_ns)
        self._since_step.append(charge)
        return charge

    def step(self, step: Step) -> Usage:
        """Return what a step used, without its cost."""
        self._last_ns = max(self._last_ns, step.t_ns)
        time_ns = step.wait_ns + step.dur_ns
        if self._since_step:
            begun_ns = step.t_ns - time_ns
            for span in self._since_step:
                time_ns -= max(0, min(span.end_ns, step.t_ns) - max(span.start_ns, begun_ns))
            self._since_step.clear()
        return Usage(
            step.tokens, step.count, step.flops, time_ns, 0, step.energy_mj, step.comm_bytes
        )


# Parts of the cost, and which of them a budget is charged

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
    """Nanoseconds by clock while one price held, from ``since_ns`` on (0: the begin)."""

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
    """The work of one process that its own rollbacks did not undo."""

    @property
    def lowest(self) -> int | None:
        """The lowest step number that was ever executed; None before the first."""

    def below(self, step: int | None = None) -> Usage:
        """Return the surviving progress of the steps numbered below ``step`` (None: of all)."""


@dataclass(slots=True)
class ProcessSpend:
    """What one process used.

    Attributes:
        executed: Everything it did, undone or not.
        periods: One for each price.
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
        other: The rest of an attempt.
        down: Between two attempts, if the machine is known to have been paid for.
        assumed: Between two attempts, if that is unknown; shown, but never charged.
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
        """The whole cost."""
        return sum(asdict(self).values())

    def charged(self, charge_cost: str) -> int:
        """Return what a budget is charged."""
        parts = asdict(self).items()
        return sum(units for name, units in parts if self.is_charged(name, charge_cost))

    @staticmethod
    def is_charged(name: str, charge_cost: str) -> bool:
        """Return whether a budget is charged a part: of ``all`` none that is merely assumed."""
        return name == "training" if charge_cost == "training" else name != "assumed"

    def micros(self) -> dict[str, int]:
        """Return the parts in micro-units; they sum to the rounded total."""
        return apportion(asdict(self))

    def document(self, charge_cost: str, currency: str) -> dict[str, Any]:
        """Return the parts for JSON; the currency is in the names."""
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
        """Return each part's label, cost, and whether it is charged.

        Parts of zero are left out, except ``down``, which users look for.
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
