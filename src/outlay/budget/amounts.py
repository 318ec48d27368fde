"""How the amount of a limit is read from what its user wrote: exact, finite and above zero."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final, TypeVar

from outlay.errors import InvalidValue
from outlay.units import Duration, Energy, Flops, Money, Tokens
from outlay.units.numbers import EXACT, exact_decimal, split_unit, whole
from outlay.units.quantity import MILLIJOULES_PER_WH

NS_PER_MINUTE: Final = 60 * 10**9
MICRO_EPOCHS: Final = 1_000_000
CURRENCY: Final = "USD"
"""What a limit on money is stated in; what a run pays in another is not counted."""
EXPECTED_STEPS: Final = "a whole number of steps, more than zero"
_EXPECTED_MINUTES = 'minutes such as 90 or 2.5, or a duration such as "2h"; more than zero'
_EXPECTED_BYTES = 'a whole number of bytes, such as 10**9, "10GB" or "5GiB"; more than zero'
_EXPECTED_WH = 'watt-hours such as 50 or 0.5, or an energy such as "1.2 kWh"; more than zero'
_EXPECTED_EPOCHS = "a number of epochs, such as 3 or 2.5, at least a millionth"
_BYTES = {"": 1, "B": 1}
_BYTES |= {f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", start=1)}
_BYTES |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)}

_Amount = TypeVar("_Amount", Duration, Energy, Flops, Money, Tokens, int)


def _positive(amount: _Amount, *, name: str, seen: object, expected: str) -> _Amount:
    if not amount:
        raise InvalidValue(name, seen, expected)
    return amount


def _number(value: object, *, name: str, expected: str) -> Decimal:
    number = exact_decimal(value, name=name, expected=expected)
    if number <= 0 or number.adjusted() > 30:
        raise InvalidValue(name, value, expected)
    return number


def _is_number(value: object) -> bool:
    """Say whether a value stands without a unit, also as text (``OUTLAY_BUDGET``, ``50_000``)."""
    if not isinstance(value, str):
        return isinstance(value, int | float | Decimal)
    try:
        Decimal(value.replace("_", ""))
    except ArithmeticError:
        return False
    return True


def _scaled(value: object, unit: int, *, name: str, expected: str) -> int:
    """Return a bare number of units as a whole number of what ``unit`` of make one."""
    number = _number(value, name=name, expected=expected)
    return int(EXACT.multiply(number, unit).to_integral_value(ROUND_HALF_EVEN))


def read_minutes(value: object, name: str = "max_minutes") -> Duration:
    """Return a number of minutes, or a duration with its unit, to the nanosecond."""
    duration = (
        Duration(_scaled(value, NS_PER_MINUTE, name=name, expected=_EXPECTED_MINUTES))
        if _is_number(value)
        else Duration.parse(value, name=name)
    )
    return _positive(duration, name=name, seen=value, expected=_EXPECTED_MINUTES)


def read_wh(value: object, name: str = "max_energy_Wh") -> Energy:
    """Return a number of watt-hours, or an energy with its unit, to the millijoule."""
    energy = (
        Energy(_scaled(value, MILLIJOULES_PER_WH, name=name, expected=_EXPECTED_WH))
        if _is_number(value)
        else Energy.parse(value, name=name)
    )
    return _positive(energy, name=name, seen=value, expected=_EXPECTED_WH)


def read_bytes(value: object, name: str = "max_comm_bytes") -> int:
    """Return a whole number of bytes, written as such or as ``"10GB"`` or ``"5GiB"``."""
    if not isinstance(value, str):
        count = _number(value, name=name, expected=_EXPECTED_BYTES)
    else:
        number, unit = split_unit(value, name=name, expected=_EXPECTED_BYTES)
        if unit not in _BYTES:
            raise InvalidValue(name, value, _EXPECTED_BYTES)
        count = EXACT.multiply(number, _BYTES[unit])
        count = _number(count, name=name, expected=_EXPECTED_BYTES)
    return whole(count, name=name, seen=value, expected=_EXPECTED_BYTES)


def read_tokens(value: object, name: str = "max_tokens") -> Tokens:
    """Return ``50_000`` or ``"50k"`` as Tokens above zero."""
    tokens = Tokens.parse(value, name=name)
    return _positive(tokens, name=name, seen=value, expected=f"{Tokens.EXPECTED}, more than zero")


def read_flops(value: object, name: str = "max_flops") -> Flops:
    """Return ``"1.5 EFLOP"`` or a whole number as Flops above zero."""
    flops = Flops.parse(value, name=name)
    return _positive(flops, name=name, seen=value, expected=f"{Flops.EXPECTED}, more than zero")


def read_usd(value: object, name: str = "max_cost_usd") -> Money:
    """Return ``5`` or ``"5 USD"`` as dollars above zero; another currency is refused."""
    expected = 'an amount in USD such as 5 or "5 USD", more than zero'
    money = Money.parse(value, name=name)
    if money.currency != CURRENCY:
        raise InvalidValue(name, str(money), expected)
    return _positive(money, name=name, seen=value, expected=expected)


def read_micro_epochs(value: object, name: str = "max_epochs") -> int:
    """Return a number of epochs, whole or not, in millionths of an epoch."""
    micro_epochs = _scaled(value, MICRO_EPOCHS, name=name, expected=_EXPECTED_EPOCHS)
    return _positive(micro_epochs, name=name, seen=value, expected=_EXPECTED_EPOCHS)


def read_steps(value: object, name: str = "steps_per_epoch") -> int:
    """Return a whole number of steps."""
    count = _number(value, name=name, expected=EXPECTED_STEPS)
    return whole(count, name=name, seen=value, expected=EXPECTED_STEPS)
