"""What a run's cost is made of, and which of that its budget is charged.

Pure. What time costs is ``outlay.rates``' answer; here it is put under the names of what a run did
then: train, start up, evaluate, save, log, be down between attempts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, Final, Protocol

import msgspec

from outlay.budget.clocks import CLOCKS
from outlay.budget.usage import Usage
from outlay.ledger import SUPERVISOR, Attempt, BudgetEvent, SegmentId, SegmentLife
from outlay.rates import Basis, RateFunction, apportion
from outlay.units import Money
from outlay.units.money import MICROS

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


class ProcessSpend(Protocol):
    """What one process used, however it was computed; the names are those of ``SegmentSpend``."""

    @property
    def life(self) -> SegmentLife:
        """How the process lived."""

    @property
    def surviving(self) -> SurvivingWork:
        """Its work that no rollback of its own undid."""

    @property
    def executed(self) -> Usage:
        """Everything it did, undone or not."""

    @property
    def periods(self) -> list[Period]:
        """Nanoseconds by clock, for each stretch of time with one price."""

    @property
    def events(self) -> list[BudgetEvent]:
        """What happened to the budget."""

    @property
    def first_step_ns(self) -> int | None:
        """When its first step began to wait for data."""

    @property
    def before_steps_ns(self) -> int:
        """Time on the clocks before its first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostParts:
    """A run's cost in exact units (micro-units per hour times ns), part by part.

    Attributes:
        training: During steps and the wait for their data.
        start_up: From an attempt's begin to its first step.
        evaluation, checkpoint, logging: On those clocks.
        other: In an attempt, and none of these.
        down: Between two attempts, where it is known that the machine was paid for.
        assumed: Between two attempts, where nobody knows; shown, and never charged.
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

    def document(self, charge_cost: str) -> dict[str, Any]:
        """Return the parts as JSON shows them."""
        micros = self.micros()
        charged = [name for name in micros if self.is_charged(name, charge_cost)]
        return {
            "charge": charge_cost,
            "cost_usd": sum(micros.values()) / MICROS,
            "charged_usd": sum(micros[name] for name in charged) / MICROS,
            "parts": {
                name: {"usd": amount / MICROS, "charged": name in charged}
                for name, amount in micros.items()
            },
        }

    def rows(self, charge_cost: str) -> list[tuple[str, str, str]]:
        """Return what each part is called, costs, and whether it is charged.

        Parts of zero are left out, but for the time between attempts, which people look for.
        """
        return [
            (LABELS[name], str(Money(amount)), _charged(self.is_charged(name, charge_cost)))
            for name, amount in self.micros().items()
            if amount or name == "down"
        ]


NO_COST: Final = CostParts()


def _charged(is_charged: bool) -> str:  # noqa: FBT001 - the only thing it says
    return "charged" if is_charged else "not charged"


@dataclass(frozen=True, slots=True)
class CostedRun:
    """What is needed to divide a run's cost.

    Attributes:
        attempts: Oldest first.
        spends: What each process used.
        rates: What the run costs over time.
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
        whole = self._units(start_ns, following.start_ns)
        pieces = tuple(piece for piece in self.rates.pieces if piece.basis is Basis.ASSUMED)
        assumed = RateFunction(pieces, self.rates.currency)
        doubtful = assumed.units_between(start_ns, min(following.start_ns, self.until_ns))
        return CostParts(down=whole - doubtful, assumed=doubtful)

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
        first_ns = spend.first_step_ns
        before_ns = spend.before_steps_ns
        if first_ns is None:
            first_ns, before_ns = (
                attempt.last_sign_ns,
                sum(period.all_ns for period in spend.periods),
            )
        if first_ns <= attempt.start_ns:
            return 0
        paid = self._units(attempt.start_ns, first_ns)
        return paid - paid * before_ns // (first_ns - attempt.start_ns)
