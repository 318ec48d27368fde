"""Cost allocation: the bill by user, team, project or tag, with idle and shared cost distributed.

Terms are OpenCost's: an owner's own usage is its *direct* cost; a *pool* (an idle machine, a shared
file server) has no owner and is distributed over the owners by weight; the cost of a *shared* owner
is distributed over the others. Splits use the largest remainder, so the rows sum to the bill to the
micro-unit. Cost that cannot be distributed because all weights are zero keeps its own row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from outlay.errors import InvalidValue
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
class Charge:
    """Direct cost of one owner, in micro-units.

    Attributes:
        assumed: The assumed part of ``micros``.
        corrects: May be negative: refunds a charge of an earlier month.
    """

    owner: str
    micros: int
    gpu_us: int = 0
    runs: int = 1
    assumed: int = 0
    corrects: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Cost without an owner.

    Attributes:
        weights: By owner; None means each owner's direct cost.
    """

    name: str
    micros: int
    weights: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """One owner's part of the bill, in micro-units.

    Attributes:
        shared: Its part of shared owners' direct cost; negative for a shared owner.
        pools: Its part of each pool, including the parts of shared owners.
        assumed: The assumed part of the total.
    """

    owner: str
    runs: int
    gpu_us: int
    direct: int
    shared: int = 0
    pools: Mapping[str, int] = field(default_factory=dict)
    assumed: int = 0

    @property
    def idle(self) -> int:
        """Its part of all pools."""
        return sum(self.pools.values())

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
    charges: Iterable[Charge],
    pools: Sequence[Pool] = (),
    *,
    shared: Iterable[str] = (),
    spread: Spread = Spread.PROPORTIONAL,
    currency: str = "USD",
) -> Allocation:
    """Return the bill by owner; the cost of ``shared`` owners is distributed over the others.

    Raises:
        InvalidValue: An amount or a weight is negative.
    """
    rows = _direct_rows(charges)
    for pool in pools:
        _check(pool)
        rows = _add_pool(rows, pool, spread)
    owners = tuple(shared)
    for owner in owners:
        rows = _distribute_owner(rows, owner, owners, spread)
    ordered = sorted(rows.values(), key=lambda row: (-row.total, row.owner))
    return Allocation(rows=tuple(ordered), currency=currency)


def _direct_rows(charges: Iterable[Charge]) -> dict[str, AllocationRow]:
    rows: dict[str, AllocationRow] = {}
    for charge in charges:
        if charge.micros < 0 and not charge.corrects:
            raise InvalidValue("cost", charge.micros, "an amount, zero or more")
        row = rows.get(charge.owner) or _empty_row(charge.owner)
        rows[charge.owner] = replace(
            row,
            runs=row.runs + charge.runs,
            gpu_us=row.gpu_us + charge.gpu_us,
            direct=row.direct + charge.micros,
            assumed=row.assumed + charge.assumed,
        )
    return rows


def _empty_row(owner: str) -> AllocationRow:
    return AllocationRow(owner=owner, runs=0, gpu_us=0, direct=0)


def _check(pool: Pool) -> None:
    if pool.micros < 0:
        raise InvalidValue(pool.name, pool.micros, "an amount, zero or more")
    if any(weight < 0 for weight in (pool.weights or {}).values()):
        raise InvalidValue(pool.name, dict(pool.weights or {}), "weights of zero or more")


def _add_pool(
    rows: Mapping[str, AllocationRow], pool: Pool, spread: Spread
) -> dict[str, AllocationRow]:
    owners = {name: row for name, row in rows.items() if name != IDLE}
    weights = _weights(owners.values(), spread) if pool.weights is None else pool.weights
    parts = {IDLE: pool.micros}
    if spread is not Spread.NONE and any(weights.values()):
        parts = share_out(pool.micros, weights)
    updated = dict(rows)
    for owner, micros in parts.items():
        row = updated.get(owner) or _empty_row(owner)
        updated[owner] = _with_pool(row, pool.name, micros)
    return updated


def _with_pool(row: AllocationRow, name: str, micros: int) -> AllocationRow:
    return replace(row, pools={**row.pools, name: row.pools.get(name, 0) + micros})


def _weights(rows: Iterable[AllocationRow], spread: Spread) -> dict[str, int]:
    return {row.owner: 1 if spread is Spread.UNIFORM else max(row.direct, 0) for row in rows}


def _distribute_owner(
    rows: Mapping[str, AllocationRow], owner: str, shared: Sequence[str], spread: Spread
) -> dict[str, AllocationRow]:
    """Return the rows after distributing a shared owner's cost over the others."""
    if owner not in rows:
        return dict(rows)
    others = [row for name, row in rows.items() if name not in shared and name != IDLE]
    weights = _weights(others, spread)
    if spread is Spread.NONE or not any(weights.values()):
        return dict(rows)  # Nobody to distribute it to: it keeps its own row.
    given, updated = rows[owner], dict(rows)
    for name, micros in share_out(given.direct, weights).items():
        updated[name] = replace(updated[name], shared=updated[name].shared + micros)
    for name, micros in share_out(given.assumed, weights).items():
        updated[name] = replace(updated[name], assumed=updated[name].assumed + micros)
    for pool, idle in given.pools.items():
        for name, micros in share_out(idle, weights).items():
            updated[name] = _with_pool(updated[name], pool, micros)
    # Its runs remain in the table with a total of 0.
    updated[owner] = replace(given, shared=-given.direct, pools={}, assumed=0)
    return updated
