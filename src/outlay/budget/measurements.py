"""Measurements for a budget: amounts that callers state, meters, limits without a meter."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping
from typing import Final

from outlay.budget.limits import COMM, CURRENCY, ENERGY, FLOPS, TOKENS, cost_in, total_key
from outlay.budget.surviving import PER_STEP_MAX
from outlay.budget.terms import Budget
from outlay.budget.usage import Usage
from outlay.clock import Clock
from outlay.errors import Finding, InvalidValue, Refused
from outlay.ledger import Price
from outlay.rates import units as priced_units
from outlay.rates import units_of
from outlay.record.facts import is_first_of_node
from outlay.record.meters.batches import describe_batch
from outlay.record.meters.collectives import CollectiveMeter
from outlay.record.meters.energy import Quality, detect_energy
from outlay.record.meters.step_meters import StepMeters
from outlay.units import Money, Rate
from outlay.units.quantity import MILLIJOULES_PER_WH

# Amounts that callers state

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
    currency: str = CURRENCY,
) -> Usage:
    """Return one step's use; without a ``cost``, its time is priced at ``rate``."""
    tokens = _count(step_samples, "step_samples")
    # Half-even to the nanosecond: the error of a whole run stays below a microsecond.
    time_ns = round(_amount(step_wall_ms, "step_wall_ms") * 1_000_000)
    if cost is None:
        units = priced_units(rate, time_ns) if rate is not None else 0
    else:
        units = money_units(cost, currency)
    return Usage(
        tokens,
        1,
        _count(flops, "flops") if flops else 0,
        time_ns,
        units,
        millijoules(energy_Wh) if energy_Wh else 0,
        _count(comm_bytes, "comm_bytes") if comm_bytes else 0,
    )


def _count(value: object, name: str) -> int:
    if type(value) is int and 0 <= value <= PER_STEP_MAX:
        return value
    # Else it may be a NumPy integer, or a whole float, as from a tensor.
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
    # NaN fails every comparison, so it is refused like negative and infinite values.
    try:
        if 0 <= value < math.inf and value is not True:
            return value
    except TypeError:
        pass
    raise InvalidValue(name, value, _EXPECTED_AMOUNT)


def millijoules(energy_Wh: float) -> int:
    """Return watt-hours as millijoules, rounded up, so that no energy counts as zero.

    A tolerance of one microjoule makes 0.1 Wh 360,000 mJ in floating point.
    """
    return math.ceil(_amount(energy_Wh, "energy_Wh") * MILLIJOULES_PER_WH - 0.001)


def money_units(cost: Money | float, currency: str = CURRENCY) -> int:
    """Return a cost as exact units, rounded up to the micro-unit."""
    money = Money.parse(cost, name="cost", currency=currency, rounding="up")
    if money.currency != currency:
        raise InvalidValue("cost", str(money), f"an amount in {currency}, zero or more")
    return units_of(money)


# Limits that nothing measures are refused

_MISSING = {
    TOKENS.key: (
        "tokens",
        "the first step reported no tokens: say how many with run.step(tokens=...) or "
        "run.end_step(tokens=...)",
    ),
    FLOPS.key: (
        "flops",
        "the first step reported no FLOPs: run.meters.flops = FlopsPerToken.six_per_parameter(...)",
    ),
}


class BudgetRefused(Refused):
    """A limit was set that nothing here can measure, so it would never be reached."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key} is set, but {why}")


def meters_for(budget: Budget, environ: Mapping[str, str], clock: Clock) -> StepMeters:
    """Return the meters that a budget needs, and an energy meter if this node has a sensor.

    Raises:
        BudgetRefused: Energy is limited, but this node has no sensor.
    """
    meters = StepMeters()
    if COMM.key in budget.limits:
        meters.collectives = CollectiveMeter()
    energy = detect_energy(environ, clock)
    if energy.quality is not Quality.UNAVAILABLE:
        meters.energy = energy
    elif limits := [each for each in budget.bounds_known if each.dimension.name == ENERGY.name]:
        if not is_first_of_node(environ):
            return meters
        raise BudgetRefused(
            limits[0].dimension.key,
            "nothing here measures energy: no GPU with NVML (pip install "
            "'outlay[energy]') and no readable /sys/class/powercap/*-rapl:*/energy_uj",
        )
    return meters


def begin_metering(meters: StepMeters) -> None:
    """Start counting collectives, if they are limited or several ranks train together."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    distributed = torch.distributed
    if meters.collectives is None and distributed.is_available() and distributed.is_initialized():
        meters.collectives = CollectiveMeter()
    if meters.collectives is not None:
        meters.collectives.start()


def unmeasured(
    total: Usage, currency: str, meters: StepMeters | None = None, *, priced: bool = False
) -> list[str]:
    """Return the documented names of the totals that are zero because nothing measured them."""
    meters = meters or StepMeters()
    known = {
        "comm_bytes": total.comm_bytes or meters.collectives is not None,
        "energy_Wh": total.energy_mj or meters.energy is not None,
        total_key(currency): total.cost_units or priced,
        "flops": total.flops or meters.flops is not None,
    }
    return [name for name, is_known in known.items() if not is_known]


def unread_energy(meters: StepMeters) -> list[Finding]:
    """Return a finding if readings of energy failed."""
    if meters.energy is None or not meters.energy.lost:
        return []
    message = f"{meters.energy.lost} readings of energy failed; the total is too low"
    return [Finding(source="energy", message=message)]


def refuse_unpriced(
    budget: Budget, price: Price | None, paid_in: str = "", stopped: Price | None = None
) -> None:
    """Refuse a limit on money for a run that has no price, or one in another currency.

    ``paid_in`` is the currency of the first price in the run's log, or ""; ``stopped`` the price
    of its machine between attempts.
    """
    if not budget.limits_money:
        return
    currency = budget.currency
    key = cost_in(currency).key
    if price is None:
        stated = f'"1.50 {currency}/h"'
        why = f"the run has no price: --price {stated}, outlay.run(price={stated}) or OUTLAY_PRICE"
        raise BudgetRefused(key, why)
    between = "" if stopped is None else stopped.currency
    for found, says in (
        (paid_in, "has paid"),
        (price.currency, "pays"),
        (between, "pays a stopped machine"),
    ):
        if found in ("", currency):
            continue
        advice = f'state it in {found}, such as iso_cost("5 {found}") or {cost_in(found).key}=5'
        if paid_in == currency:
            advice = f"state the price in {currency}, in which the run has paid so far"
        raise BudgetRefused(
            key, f"the run {says} in {found}, and the limit is in {currency}: {advice}"
        )


_STATE_TOKENS: Final = (
    "state its tokens with run.steps(loader, tokens=lambda batch: ...), or in a trainer with "
    "OutlayCallback(tokens=lambda batch: ...); tokens=outlay.count_views counts samples"
)


def counted_tokens(budget: Budget, used: Usage, tokens: int | None, batch: object) -> int:
    """Return a batch's tokens, before it is trained on; 0 if they are unknown and not limited.

    Raises:
        BudgetRefused: Tokens are limited, and those of this batch are unknown, or 0 in the first.
    """
    if TOKENS.key in budget.limits and (tokens is None or not (tokens or used.tokens)):
        why = "tokens= counts none in the first batch"
        if tokens is None:
            why = (
                f"a batch is a {describe_batch(batch)}, without input_ids or integer inputs "
                "[batch, length] that could be counted"
            )
        raise BudgetRefused(TOKENS.key, f"{why}: {_STATE_TOKENS}")
    return tokens or 0


def refuse_unreported(budget: Budget, first_step: Usage) -> None:
    """Refuse limits on what the first step did not report."""
    for key, (name, why) in _MISSING.items():
        if key in budget.limits and not getattr(first_step, name):
            raise BudgetRefused(key, why)
