"""Who pays: the cost of runs by user, team, project or tag, with idle and shared cost spread.

The words are OpenCost's: what an owner used itself is *direct*; a *pool* (an idle machine, a shared
file server) is nobody's and is spread over the owners by weight; the cost of a *shared* owner is
spread over the others. Every split is exact by largest remainder, so the rows sum to the bill to
the micro-unit. What cannot be spread because all weights are zero stays as a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from outlay.errors import InvalidValue
from outlay.rates import share_out
from outlay.units import Money

IDLE = "(idle)"
"""The row of cost that belongs to nobody."""
UNTAGGED = "(untagged)"
"""The row of runs that do not say whose they are."""


class Spread(StrEnum):
    """How what belongs to nobody is spread over the owners."""

    PROPORTIONAL = "proportional"
    """By what each used itself."""
    UNIFORM = "uniform"
    """In equal parts."""
    NONE = "none"
    """Not at all: it stays a row of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one owner used itself, in micro-units, and for how long.

    Attributes:
        assumed: What of it is assumed.
        corrects: It may be below zero: it takes back what an earlier month was charged.
    """

    owner: str
    micros: int
    gpu_us: int = 0
    runs: int = 1
    assumed: int = 0
    corrects: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Cost that belongs to nobody.

    Attributes:
        weights: By which it is spread; None means by each owner's direct cost.
    """

    name: str
    micros: int
    weights: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """One owner's part of the bill, in micro-units.

    Attributes:
        shared: Its part of shared owners' direct cost; of a shared owner, what it gave away, below
            zero.
        pools: Its part of each pool, that of shared owners included.
        assumed: What of the total is assumed.
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
        """Its part of all pools together."""
        return sum(self.pools.values())

    @property
    def total(self) -> int:
        """What the owner pays in all."""
        return self.direct + self.shared + self.idle

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours, for showing."""
        return self.gpu_us / 3.6e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The bill by owner, the dearest first; the rows' totals sum to it."""

    rows: tuple[AllocationRow, ...]
    currency: str

    @property
    def total(self) -> Money:
        """The bill."""
        return Money(sum(row.total for row in self.rows), self.currency)

    @property
    def assumed(self) -> Money:
        """What of the bill is assumed."""
        return Money(sum(row.assumed for row in self.rows), self.currency)


def allocate(
    charges: Iterable[Charge],
    pools: Sequence[Pool] = (),
    *,
    shared: Iterable[str] = (),
    spread: Spread = Spread.PROPORTIONAL,
    currency: str = "USD",
) -> Allocation:
    """Return the bill by owner; the cost of ``shared`` owners is spread over the others.

    Raises:
        InvalidValue: An amount or a weight is negative.
    """
    rows = _direct(charges)
    for pool in pools:
        _check(pool)
        rows = _add_pool(rows, pool, spread)
    owners = tuple(shared)
    for owner in owners:
        rows = _share_owner(rows, owner, owners, spread)
    ordered = sorted(rows.values(), key=lambda row: (-row.total, row.owner))
    return Allocation(rows=tuple(ordered), currency=currency)


def _direct(charges: Iterable[Charge]) -> dict[str, AllocationRow]:
    rows: dict[str, AllocationRow] = {}
    for charge in charges:
        if charge.micros < 0 and not charge.corrects:
            raise InvalidValue("cost", charge.micros, "an amount, zero or more")
        row = rows.get(charge.owner) or _empty(charge.owner)
        rows[charge.owner] = replace(
            row,
            runs=row.runs + charge.runs,
            gpu_us=row.gpu_us + charge.gpu_us,
            direct=row.direct + charge.micros,
            assumed=row.assumed + charge.assumed,
        )
    return rows


def _empty(owner: str) -> AllocationRow:
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
    parts = _parts(pool.micros, weights, spread)
    grown = dict(rows)
    for owner, micros in parts.items():
        row = grown.get(owner) or _empty(owner)
        grown[owner] = replace(row, pools=_added(row.pools, pool.name, micros))
    return grown


def _added(pools: Mapping[str, int], name: str, micros: int) -> dict[str, int]:
    return {**pools, name: pools.get(name, 0) + micros}


def _parts(micros: int, weights: Mapping[str, int], spread: Spread) -> dict[str, int]:
    """Return who gets which part of an amount; all of it is ``IDLE`` where nobody has a weight."""
    if spread is Spread.NONE or not any(weights.values()):
        return {IDLE: micros}
    return share_out(micros, weights)


def _weights(rows: Iterable[AllocationRow], spread: Spread) -> dict[str, int]:
    return {row.owner: 1 if spread is Spread.UNIFORM else max(row.direct, 0) for row in rows}


def _share_owner(
    rows: Mapping[str, AllocationRow], owner: str, shared: Sequence[str], spread: Spread
) -> dict[str, AllocationRow]:
    """Return the rows after an owner's cost was spread over those that are not shared."""
    if owner not in rows:
        return dict(rows)
    others = [row for name, row in rows.items() if name not in shared and name != IDLE]
    weights = _weights(others, spread)
    if spread is Spread.NONE or not any(weights.values()):
        return dict(rows)  # Nobody to pay for it: it stays its own row.
    given, grown = rows[owner], dict(rows)
    for name, micros in share_out(given.direct, weights).items():
        grown[name] = replace(grown[name], shared=grown[name].shared + micros)
    for name, micros in share_out(given.assumed, weights).items():
        grown[name] = replace(grown[name], assumed=grown[name].assumed + micros)
    for pool, idle in given.pools.items():
        for name, micros in share_out(idle, weights).items():
            grown[name] = replace(grown[name], pools=_added(grown[name].pools, pool, micros))
    # Its runs stay in the table, with nothing left to pay.
    grown[owner] = replace(given, shared=-given.direct, pools={}, assumed=0)
    return grown
