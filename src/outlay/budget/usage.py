"""What a run has used: amounts, clocks, what each record charges, parts of the cost. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import astuple, replace

from outlay.errors import InvalidValue, choices
from outlay.ledger import Heartbeat, Record, SpanBegun, SpanEnded, Step
from outlay.rates import apportion, round_units
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


def spent_before(t_ns: int, charges: Iterable[ClockCharge]) -> int:
    """Return the nanoseconds of the charges that are before ``t_ns``."""
    return sum(max(0, min(each.end_ns, t_ns) - each.start_ns) for each in charges)


class ClockSpan(msgspec.Struct, frozen=True, array_like=True):
    """The outermost open span with a clock of its own."""

    seq: int
    clock: str
    start_ns: int


class Charges(msgspec.Struct, array_like=True):
    """Computes what each of a process's records charges, in order.

    Evaluation, checkpoints and logging inside a step's time are subtracted from it: they have
    clocks of their own. Of nested spans the outermost counts.

    Attributes:
        open: The outermost open span with a clock of its own.
        since_step: What other clocks were charged since the last step.
        last_ns: The last sign of life.
    """

    open: ClockSpan | None = None
    since_step: list[ClockCharge] = []
    last_ns: int = 0

    def step(self, step: Step) -> Usage:
        """Return what a step used, without its cost."""
        self.last_ns = max(self.last_ns, step.t_ns)
        time_ns = step.wait_ns + step.dur_ns
        if self.since_step:
            begun_ns = step.t_ns - time_ns
            for span in self.since_step:
                time_ns -= max(0, min(span.end_ns, step.t_ns) - max(span.start_ns, begun_ns))
            self.since_step.clear()
        return Usage(
            step.tokens, step.count, step.flops, time_ns, 0, step.energy_mj, step.comm_bytes
        )

    def other(self, record: Record) -> ClockCharge | Usage | None:
        """Return the charge of a record that is not a step: time on a clock, or energy."""
        self.last_ns = max(self.last_ns, record.t_ns)
        match record:
            case SpanBegun(overlapped=False) if self.open is None:
                if clock := CLOCK_OF_SPAN.get(record.name):
                    self.open = ClockSpan(record.seq, clock, record.t_ns)
            case SpanEnded() if self.open is not None and record.begun == self.open.seq:
                return self._close(self.open, record.t_ns)
            case Heartbeat() if record.energy_mj:
                return Usage(energy_mj=record.energy_mj)
            case _:
                pass
        return None

    def end(self) -> ClockCharge | None:
        """Return the charge of an open span, up to the last sign of life."""
        return None if self.open is None else self._close(self.open, self.last_ns)

    def _close(self, span: ClockSpan, end_ns: int) -> ClockCharge:
        charge = ClockCharge(span.clock, span.start_ns, end_ns - span.start_ns)
        self.open = None
        self.since_step.append(charge)
        return charge


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
