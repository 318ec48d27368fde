"""What a run costs per hour, as a step function of time.

Inside an attempt it is price times the GPUs of the nodes that are alive. Between attempts it
depends on what happened to the machine, which ``outlay.rates.build`` decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from outlay.rates.amounts import round_units
from outlay.units import Money


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

    def rate_at(self, t_ns: int) -> int:
        """Return the rate in force at an instant, in micro-units per hour; 0 outside the pieces."""
        holding = (p.micros_per_hour for p in self.pieces if p.start_ns <= t_ns < p.end_ns)
        return next(holding, 0)
