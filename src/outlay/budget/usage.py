"""What a step, or a whole run, has used: one struct of integers.

What each of them is called in a configuration is the subject of ``outlay.budget.dimensions``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec.structs import astuple, replace

from outlay.rates import round_units


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

    Money is the whole run's on every rank, and the first one's word counts.
    """
    parts = list(usages)
    return replace(
        sum_of(parts),
        steps=max(part.steps for part in parts),
        time_ns=max(part.time_ns for part in parts),
        cost_units=parts[0].cost_units,
    )
