"""A step's measurements, as callers state them, turned into whole numbers or refused."""

from __future__ import annotations

import math
import operator

from outlay.budget.amounts import CURRENCY
from outlay.budget.surviving import PER_STEP_MAX
from outlay.budget.usage import Usage
from outlay.errors import InvalidValue
from outlay.rates import units as priced_units
from outlay.rates import units_of
from outlay.units import Money, Rate
from outlay.units.quantity import MILLIJOULES_PER_WH

_EXPECTED_COUNT = f"a whole number from 0 to {PER_STEP_MAX:,}"
_EXPECTED_AMOUNT = "a finite number, zero or more"


def step_usage(
    step_samples: int,
    step_wall_ms: float,
    comm_bytes: int,
    energy_Wh: float,
    cost: Money | float | None,
    flops: int,
    rate: Rate | None,
) -> Usage:
    """Return one step's use; without a stated cost, its time is priced at ``rate``.

    Raises:
        InvalidValue: A negative, NaN or infinite amount, or a count that is not whole.
    """
    tokens = _count(step_samples, "step_samples")
    # Half-even to the nanosecond: the error of a whole run stays below a microsecond.
    time_ns = round(_amount(step_wall_ms, "step_wall_ms") * 1_000_000)
    if cost is None:
        units = priced_units(rate, time_ns) if rate is not None else 0
    else:
        units = money_units(cost)
    return Usage(
        tokens,
        1,
        _count(flops, "flops") if flops else 0,
        time_ns,
        units,
        millijoules(energy_Wh) if energy_Wh else 0,
        _count(comm_bytes, "comm_bytes") if comm_bytes else 0,
    )


def _count(value: int, name: str) -> int:
    if type(value) is int and 0 <= value <= PER_STEP_MAX:
        return value
    return _unusual_count(value, name)


def _unusual_count(value: object, name: str) -> int:
    """Return a count given as a NumPy integer or a whole float, as tensors' items are."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidValue(name, value, _EXPECTED_COUNT) from None
    if isinstance(value, bool) or not 0 <= count <= PER_STEP_MAX:
        raise InvalidValue(name, value, _EXPECTED_COUNT)
    return count


def _amount(value: float, name: str) -> float:
    # NaN fails every comparison, so this refuses it together with the negative and the infinite.
    try:
        if 0 <= value < math.inf and value is not True:
            return value
    except TypeError:
        pass
    raise InvalidValue(name, value, _EXPECTED_AMOUNT)


def millijoules(energy_Wh: float) -> int:
    """Return watt-hours as millijoules, rounded up: energy that was used never counts as none.

    A microjoule is forgiven, so that 0.1 Wh is 360,000 mJ in floating point too.
    """
    return math.ceil(_amount(energy_Wh, "energy_Wh") * MILLIJOULES_PER_WH - 0.001)


def money_units(cost: Money | float) -> int:
    """Return a cost in dollars as exact units, rounded up to the micro-dollar."""
    money = Money.parse(cost, name="cost", rounding="up")
    if money.currency != CURRENCY:
        raise InvalidValue("cost", str(money), f"an amount in {CURRENCY}, zero or more")
    return units_of(money)
