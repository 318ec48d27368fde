"""Everything a limit can be set on: what it is called, read from and shown as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from outlay.budget import amounts
from outlay.budget.usage import Usage
from outlay.rates import units_of
from outlay.units import Duration, Energy, Flops, Money, Tokens
from outlay.units.money import MICROS
from outlay.units.quantity import MILLIJOULES_PER_WH


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One thing that can be limited.

    Attributes:
        name: The field of ``Usage`` that counts it.
        label: What people call it.
        key: The configuration key of its limit.
        mode: The budget mode that requires that limit.
        progress: Whether it counts surviving work (a rollback takes back what it undid) rather
            than a resource, which is never refunded.
        predictable: Whether a step's use can be known before it runs.
        read: Reads a limit, as the user wrote it, into the unit of ``name``.
        number: Shows an amount in the unit of ``key``.
        text: Shows an amount as people read it.
    """

    name: str
    label: str
    key: str
    mode: str
    progress: bool = False
    predictable: bool = False
    read: Callable[[object], int] = field(repr=False)
    number: Callable[[int], int | float] = field(repr=False)
    text: Callable[[int], str] = field(repr=False)


def _ratio(amount: int, unit: int) -> int | float:
    return amount / unit if amount % unit else amount // unit


def _money(units: int) -> Money:
    return Money(Usage(cost_units=units).cost_micros)


TIME: Final = Dimension(
    name="time_ns",
    label="training time",
    key="max_minutes",
    mode="iso_time",
    read=lambda value: amounts.read_minutes(value).ns,
    number=lambda ns: _ratio(ns, amounts.NS_PER_MINUTE),
    text=lambda ns: str(Duration(ns)),
)
TOKENS: Final = Dimension(
    name="tokens",
    label="tokens",
    key="max_tokens",
    mode="iso_tokens",
    progress=True,
    predictable=True,
    read=lambda value: amounts.read_tokens(value).value,
    number=int,
    text=lambda count: str(Tokens(count)),
)
EPOCHS: Final = Dimension(
    name="steps",
    label="epochs",
    key="max_epochs",
    mode="iso_epochs",
    progress=True,
    predictable=True,
    read=lambda value: amounts.read_micro_epochs(value),
    number=lambda micro_epochs: _ratio(micro_epochs, amounts.MICRO_EPOCHS),
    text=lambda count: f"{count:,} steps",
)
COMM: Final = Dimension(
    name="comm_bytes",
    label="collectives",
    key="max_comm_bytes",
    mode="comm_cap",
    read=lambda value: amounts.read_bytes(value),
    number=int,
    text=lambda count: f"{count:,} B",
)
ENERGY: Final = Dimension(
    name="energy_mj",
    label="energy",
    key="max_energy_Wh",
    mode="energy_cap",
    read=lambda value: amounts.read_wh(value).value,
    number=lambda mj: _ratio(mj, MILLIJOULES_PER_WH),
    text=lambda mj: str(Energy(mj)),
)
COST: Final = Dimension(
    name="cost_units",
    label="cost",
    key="max_cost_usd",
    mode="iso_cost",
    read=lambda value: units_of(amounts.read_usd(value)),
    number=lambda units: _ratio(_money(units).micros, MICROS),
    text=lambda units: str(_money(units)),
)
FLOPS: Final = Dimension(
    name="flops",
    label="FLOPs",
    key="max_flops",
    mode="iso_flops",
    progress=True,
    read=lambda value: amounts.read_flops(value).value,
    number=int,
    text=lambda count: str(Flops(count)),
)

DIMENSIONS: Final = (TIME, TOKENS, EPOCHS, COMM, ENERGY, COST, FLOPS)
MODES: Final = {dimension.mode: dimension for dimension in DIMENSIONS}
KEYS: Final = {dimension.key: dimension for dimension in DIMENSIONS}
