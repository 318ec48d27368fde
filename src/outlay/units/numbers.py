"""Reading numbers that people type: exact, finite, and never a bool."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from outlay.errors import InvalidValue

NUMBER = r"[+-]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d+)(?:[eE][+-]?\d+)?"
_NUMBER_THEN_UNIT = re.compile(rf"\s*({NUMBER})\s*([^\s\d].*?)?\s*")


def exact_decimal(value: object, *, name: str, expected: str) -> Decimal:
    """Return a number as the Decimal that was meant; a float means its shortest repr.

    Raises:
        InvalidValue: It is no number, a bool, NaN or infinite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise InvalidValue(name, value, expected)
    text = repr(value) if isinstance(value, float) else str(value)
    try:
        number = Decimal(text.replace("_", "").strip())
    except InvalidOperation:
        raise InvalidValue(name, value, expected) from None
    if not number.is_finite():
        raise InvalidValue(name, value, expected)
    return number


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
    # Exponents are bounded first: int(Decimal("1e999999")) would take minutes and gigabytes.
    if number.adjusted() > 60 or number != number.to_integral_value():
        raise InvalidValue(name, seen, expected)
    return int(number)
