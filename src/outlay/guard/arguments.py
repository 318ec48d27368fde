"""What callers hand to the guard, checked before anything is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from outlay.errors import InvalidValue
from outlay.guard.entries import LARGEST, micros_of
from outlay.units import Money
from outlay.units.money import MICROS
from outlay.units.numbers import exact_decimal

_KEY_LENGTH = 255


def read_text(value: object, *, name: str, expected: str = "text") -> str:
    """Return text that a line can hold.

    Raises:
        InvalidValue: It is no text, or has surrogates in it, which UTF-8 has no bytes for.
    """
    if not isinstance(value, str):
        raise InvalidValue(name, value, expected)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(name, value, f"{expected}, in characters that UTF-8 can hold") from None
    return value


def read_label(op_label: object) -> str:
    """Return the name of an operation, refusing an empty one."""
    expected = "a name for the operation, such as lab02-spinup"
    label = read_text(op_label, name="op_label", expected=expected)
    if not label.strip():
        raise InvalidValue("op_label", op_label, expected)
    return label


def read_reason(reason: object) -> str:
    """Return why something is done, refusing silence."""
    text = read_text(reason, name="reason", expected="why, in a few words")
    if not text.strip():
        raise InvalidValue("reason", reason, "why, in a few words")
    return text


def read_key(key: object) -> str:
    """Return an idempotency key, refusing one that is too long to be one."""
    text = read_text(key, name="key")
    if len(text) > _KEY_LENGTH:
        raise InvalidValue("key", key, f"at most {_KEY_LENGTH} characters")
    return text


def read_detail(detail: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a note says beside its event, all of it text."""
    return {
        read_text(key, name="detail"): read_text(value, name=f"detail {key!r}")
        for key, value in (detail or {}).items()
    }


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
    if number.copy_abs() >= LARGEST:
        raise InvalidValue(name, value, expected)
    return Money(micros_of(number), currency)
