"""What callers hand to the guard, checked before anything is written. Pure."""

from __future__ import annotations

from outlay.errors import InvalidValue
from outlay.guard.entries import LARGEST, micros_of
from outlay.units import Money
from outlay.units.money import MICROS
from outlay.units.numbers import exact_decimal

_KEY_LENGTH = 255


def read_label(op_label: str) -> str:
    """Return the name of an operation, refusing an empty one."""
    if not op_label.strip():
        raise InvalidValue("op_label", op_label, "a name for the operation, such as lab02-spinup")
    return op_label


def read_reason(reason: str) -> str:
    """Return why something is done, refusing silence."""
    if not reason.strip():
        raise InvalidValue("reason", reason, "why, in a few words")
    return reason


def read_key(key: str) -> str:
    """Return an idempotency key, refusing one that is too long to be one."""
    if len(key) > _KEY_LENGTH:
        raise InvalidValue("key", key, f"at most {_KEY_LENGTH} characters")
    return key


def read_amount(value: object, *, name: str, currency: str) -> Money:
    """Return an amount of zero or more; digits beyond a micro-unit round up.

    Raises:
        InvalidValue: It is no such amount, or of another currency.
    """
    amount = Money.parse(value, name=name, currency=currency, rounding="up")
    if amount.currency != currency or not 0 <= amount.micros < LARGEST * MICROS:
        expected = f"an amount in {currency}, zero or more and below {LARGEST}"
        raise InvalidValue(name, value, expected)
    return amount


def read_difference(value: object, *, name: str, currency: str) -> Money:
    """Return what is to be added to the spend, or taken back; what is in doubt counts as spent.

    Raises:
        InvalidValue: It is no finite number.
    """
    expected = f"a finite amount below {LARGEST}; negative takes back"
    number = exact_decimal(value, name=name, expected=expected)
    if abs(number) >= LARGEST:
        raise InvalidValue(name, value, expected)
    return Money(micros_of(number), currency)
