"""Reading numbers that people type: exact, finite, and never a bool."""

from __future__ import annotations

import re
from decimal import Context, Decimal, InvalidOperation

from outlay.errors import InvalidValue

_DIGITS = r"[0-9]+(?:_[0-9]+)*"  # Not \d, which takes the digits of every script.
UNSIGNED = rf"(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?[0-9]+)?"
NUMBER = rf"[+-]?{UNSIGNED}"
_MOST_DIGITS = 400
_PLAIN_NUMBER = re.compile(rf"\s*{NUMBER}\s*")
_NUMBER_THEN_UNIT = re.compile(rf"\s*({NUMBER})\s*([^\s\d].*?)?\s*")
EXACT = Context(prec=4 * _MOST_DIGITS)
"""Rounds nothing that was let in: a thread's own context does at 28 digits, or as it was set to."""


def exact_decimal(value: object, *, name: str, expected: str) -> Decimal:
    """Return a number as the Decimal that was meant; a float means its shortest repr.

    Raises:
        InvalidValue: It is no number, a bool, NaN or infinite, or absurdly large or fine.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise InvalidValue(name, value, expected)
    # Not repr(): NumPy's floats are floats, and put their type's name around the number.
    text = float.__repr__(value) if isinstance(value, float) else str(value)
    if _PLAIN_NUMBER.fullmatch(text) is None:
        raise InvalidValue(name, value, expected)
    try:
        number = Decimal(text.replace("_", "").strip())
    except InvalidOperation:
        raise InvalidValue(name, value, expected) from None
    if not number.is_finite() or _is_absurd(number):
        raise InvalidValue(name, value, expected)
    return number


def _is_absurd(number: Decimal) -> bool:
    """Say whether exact arithmetic on a number could take minutes and gigabytes."""
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)  # It is finite.
    return bool(number) and (number.adjusted() > _MOST_DIGITS or exponent < -_MOST_DIGITS)


def split_unit(text: str, *, name: str, expected: str) -> tuple[Decimal, str]:
    """Split ``"1.5 kWh"`` into its number and its unit; the unit may be empty."""
    match = _NUMBER_THEN_UNIT.fullmatch(text)
    if match is None:
        raise InvalidValue(name, text, expected)
    return exact_decimal(match[1], name=name, expected=expected), match[2] or ""


def whole(number: Decimal, *, name: str, seen: object, expected: str) -> int:
    """Return a Decimal as an int.

    Raises:
        InvalidValue: It has a fractional part, so some of it would be lost.
    """
    if number.adjusted() > 60 or number != number.to_integral_value():
        raise InvalidValue(name, seen, expected)
    return int(number)
