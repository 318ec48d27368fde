"""What a run costs per hour, as a step function of time, and exact amounts of it.

Inside an attempt it is price times the GPUs of the nodes that are alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TypeVar

from outlay.units import Money, Rate
from outlay.units.quantity import NS_PER_HOUR

# Exact amounts: micro-units per hour times nanoseconds, rounded once and in one place.

Key = TypeVar("Key")


def hourly(micros_per_gpu_hour: int, gpus: Fraction | int) -> int:
    """Return what some GPUs cost per hour, in micro-units: a share of one rounded half to even."""
    return round(micros_per_gpu_hour * gpus)


def rate_of(price: Rate, gpus: Fraction | int) -> Rate:
    """Return what some GPUs cost per hour at a price for each."""
    return Rate(hourly(price.micros_per_hour, gpus), price.currency)


def units(rate: Rate, ns: int) -> int:
    """Return the exact cost of some time at a rate, in micro-units per hour times ns."""
    return rate.micros_per_hour * ns


def cost(rate: Rate, ns: int) -> Money:
    """Return what some time costs at a rate, rounded half to even."""
    return Money(round_units(units(rate, ns)), rate.currency)


def cost_at_most(rate: Rate, ns: int) -> Money:
    """Return what some time costs at a rate, any rest counted whole: for money set aside."""
    return Money(round_units_up(units(rate, ns)), rate.currency)


def paid_time(amount: Money, rate: Rate) -> int | None:
    """Return how many whole nanoseconds an amount pays for; None where they cost nothing."""
    return units_of(amount) // rate.micros_per_hour if rate.micros_per_hour else None


def units_of(amount: Money) -> int:
    """Return an amount in exact units."""
    return amount.micros * NS_PER_HOUR


def round_units(units: int) -> int:
    """Return exact units (micro-units per hour times ns) as micro-units, half to even."""
    micros, rest = divmod(units, NS_PER_HOUR)
    half = NS_PER_HOUR // 2
    return micros + (rest > half or (rest == half and micros % 2 == 1))


def round_units_up(units: int) -> int:
    """Return exact units as micro-units, any rest counted whole: for money set aside."""
    return -(-units // NS_PER_HOUR)


def apportion(parts: Mapping[Key, int]) -> dict[Key, int]:
    """Return each part in micro-units, so that they sum to the rounded whole exactly.

    Largest remainder: every part is rounded down, and the micro-units still missing go to the
    parts that lost most; ties go to the part that comes first.
    """
    total = round_units(sum(parts.values()))
    floors = {key: units // NS_PER_HOUR for key, units in parts.items()}
    lost = {key: units % NS_PER_HOUR for key, units in parts.items()}
    return _topped_up(floors, lost, total)


def share_out(micros: int, weights: Mapping[Key, int]) -> dict[Key, int]:
    """Return an amount split in proportion to weights, summing to it exactly.

    Largest remainder, as in ``apportion``. The weights are zero or more and not all zero.
    """
    total = sum(weights.values())
    floors = {key: micros * weight // total for key, weight in weights.items()}
    lost = {key: micros * weight % total for key, weight in weights.items()}
    return _topped_up(floors, lost, micros)


def _topped_up(floors: dict[Key, int], lost: Mapping[Key, int], total: int) -> dict[Key, int]:
    """Return the parts with what is missing of the total given to those that lost most."""
    missing = total - sum(floors.values())
    for key in sorted(floors, key=lambda key: -lost[key])[:missing]:
        floors[key] += 1
    return floors


class Basis(StrEnum):
    """On what ground a stretch of time is charged."""

    MEASURED = "measured"
    """A process was recording, or the machine is known to have stayed up."""
    UNBILLED = "unbilled"
    """The machine was given back: nothing to pay."""
    STATED = "stated"
    """The user said what a stopped machine costs."""
    ASSUMED = "assumed"
    """Nothing is known; charged as if the machine had stayed rented."""


@dataclass(frozen=True, slots=True)
class RatePiece:
    """During ``[start_ns, end_ns)`` the whole run costs ``micros_per_hour``."""

    start_ns: int
    end_ns: int
    micros_per_hour: int
    basis: Basis = Basis.MEASURED

    def units(self, ns: int) -> int:
        """Return the exact cost of some of its time, in micro-units per hour times ns."""
        return self.micros_per_hour * ns


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that a figure rests on and nobody measured."""

    start_ns: int
    end_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class RateFunction:
    """A run's rate over time: pieces in order, without overlap; outside them nothing is charged."""

    pieces: tuple[RatePiece, ...]
    currency: str
    assumptions: tuple[Assumption, ...] = ()

    def units_between(self, start_ns: int, end_ns: int) -> int:
        """Return the exact cost of ``[start_ns, end_ns)`` in micro-units per hour times ns."""
        return sum(self.units_by_basis(start_ns, end_ns).values())

    def units_by_basis(self, start_ns: int, end_ns: int) -> dict[Basis, int]:
        """Return the exact cost of ``[start_ns, end_ns)`` by the ground on which it is charged."""
        found = dict.fromkeys(Basis, 0)
        for piece in self.pieces:
            overlap_ns = min(end_ns, piece.end_ns) - max(start_ns, piece.start_ns)
            if overlap_ns > 0:
                found[piece.basis] += piece.units(overlap_ns)
        return found

    def known_units_between(self, start_ns: int, end_ns: int) -> int:
        """Return the exact cost of ``[start_ns, end_ns)`` without what is only assumed."""
        found = self.units_by_basis(start_ns, end_ns)
        return sum(found.values()) - found[Basis.ASSUMED]

    def cost_between(self, start_ns: int, end_ns: int) -> Money:
        """Return the cost of ``[start_ns, end_ns)``, rounded once."""
        return Money(round_units(self.units_between(start_ns, end_ns)), self.currency)

    def assumed_between(self, start_ns: int, end_ns: int) -> Money:
        """Return what of the cost of ``[start_ns, end_ns)`` is only assumed; never more than it.

        Each stretch of time costs the difference of two rounded totals, so that stretches sum to
        the whole, and what comes later changes nothing of what came before.
        """
        total = assumed = 0
        for piece in self.pieces:
            overlap_ns = min(end_ns, piece.end_ns) - max(start_ns, piece.start_ns)
            if overlap_ns > 0:
                before, total = total, total + piece.units(overlap_ns)
                if piece.basis is Basis.ASSUMED:
                    assumed += round_units(total) - round_units(before)
        return Money(assumed, self.currency)

    def rate_at(self, t_ns: int) -> int:
        """Return the rate in force at an instant, in micro-units per hour; 0 outside the pieces."""
        holding = (p.micros_per_hour for p in self.pieces if p.start_ns <= t_ns < p.end_ns)
        return next(holding, 0)
