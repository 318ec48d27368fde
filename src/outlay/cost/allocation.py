"""Cost allocation: the bill by user, team, project or tag, with idle and shared cost distributed.

Terms are OpenCost's: an owner's own usage is its *direct* cost; *idle* cost has no owner and is
distributed over the owners; the cost of a *shared* owner is distributed over the others. Splits use
the largest remainder, so the rows sum to the bill to the micro-unit. Cost that cannot be
distributed because all weights are zero keeps its own row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from outlay.rates import share_out
from outlay.units import Money

IDLE = "(idle)"
"""The row of cost without an owner."""
UNTAGGED = "(untagged)"
"""The row of runs without the tag."""


class Spread(StrEnum):
    """How cost without an owner is distributed."""

    PROPORTIONAL = "proportional"
    """By direct cost."""
    UNIFORM = "uniform"
    """In equal parts."""
    NONE = "none"
    """Not at all: it keeps its own row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """One owner's part of the bill, in micro-units.

    Attributes:
        direct: Cost of its own usage; negative if it refunds a charge of an earlier month.
        shared: Its part of shared owners' direct cost; negative for a shared owner.
        idle: Its part of the idle cost, including the parts of shared owners.
        assumed: The assumed part of the total.
    """

    owner: str
    runs: int = 0
    gpu_us: int = 0
    direct: int = 0
    shared: int = 0
    idle: int = 0
    assumed: int = 0

    @property
    def total(self) -> int:
        """What the owner pays."""
        return self.direct + self.shared + self.idle

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours, for display."""
        return self.gpu_us / 3.6e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The bill by owner, largest first; the rows' totals sum to it."""

    rows: tuple[AllocationRow, ...]
    currency: str

    @property
    def total(self) -> Money:
        """The bill."""
        return Money(sum(row.total for row in self.rows), self.currency)

    @property
    def assumed(self) -> Money:
        """The assumed part of the bill."""
        return Money(sum(row.assumed for row in self.rows), self.currency)


def allocate(
    usage: Iterable[AllocationRow],
    *,
    idle: int = 0,
    shared: Sequence[str] = (),
    spread: Spread = Spread.PROPORTIONAL,
    currency: str = "USD",
) -> Allocation:
    """Return the bill by owner: each owner's usage, and ``idle`` cost, zero or more.

    The cost of ``shared`` owners is distributed over the others.
    """
    rows = _add_idle({row.owner: row for row in usage}, idle, spread)
    for owner in dict.fromkeys(shared):
        rows = _distribute_owner(rows, owner, shared, spread)
    ordered = sorted(rows.values(), key=lambda row: (-row.total, row.owner))
    return Allocation(rows=tuple(ordered), currency=currency)


def _add_idle(
    rows: dict[str, AllocationRow], idle: int, spread: Spread
) -> dict[str, AllocationRow]:
    assert idle >= 0, "a bill below the usage leaves nothing idle"
    weights = _weights(rows.values(), spread)
    parts = share_out(idle, weights) if any(weights.values()) else {IDLE: idle}
    with_idle = {
        owner: replace(rows.get(owner) or AllocationRow(owner=owner), idle=part)
        for owner, part in parts.items()
    }
    return rows | with_idle if idle else rows


def _weights(rows: Iterable[AllocationRow], spread: Spread) -> dict[str, int]:
    """Return the weight of each owner; none if nothing is distributed."""
    owners = [row for row in rows if row.owner != IDLE and spread is not Spread.NONE]
    return {row.owner: 1 if spread is Spread.UNIFORM else max(row.direct, 0) for row in owners}


def _distribute_owner(
    rows: dict[str, AllocationRow], owner: str, shared: Sequence[str], spread: Spread
) -> dict[str, AllocationRow]:
    """Return the rows after distributing a shared owner's cost over the others."""
    weights = _weights((row for row in rows.values() if row.owner not in shared), spread)
    if owner not in rows or not any(weights.values()):
        return rows  # Nobody to distribute it to: it keeps its own row.
    given = rows[owner]
    direct, idle, assumed = (
        share_out(part, weights) for part in (given.direct, given.idle, given.assumed)
    )
    paid = {
        other: replace(
            rows[other],
            shared=rows[other].shared + direct[other],
            idle=rows[other].idle + idle[other],
            assumed=rows[other].assumed + assumed[other],
        )
        for other in weights
    }
    # Its runs remain in the table with a total of 0.
    return rows | paid | {owner: replace(given, shared=-given.direct, idle=0, assumed=0)}
