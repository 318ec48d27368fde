"""Durations, tokens, energy and FLOPs as integers with a unit, and exact parsing of numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Context, Decimal, InvalidOperation
from functools import total_ordering
from typing import ClassVar, Self

from outlay.errors import InvalidValue, UnitMismatch

_DIGITS = r"[0-9]+(?:_[0-9]+)*"  # Not \d, which takes the digits of every script.
UNSIGNED = rf"(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?[0-9]+)?"
NUMBER = rf"[+-]?{UNSIGNED}"
_MOST_DIGITS = 400
_PLAIN_NUMBER = re.compile(rf"\s*{NUMBER}\s*")
_NUMBER_THEN_UNIT = re.compile(rf"\s*({NUMBER})\s*([^\s\d].*?)?\s*")
EXACT = Context(prec=4 * _MOST_DIGITS)
"""Rounds no accepted number; a thread's own context rounds at 28 digits, or as the host set it."""


def exact_decimal(value: object, *, name: str, expected: str) -> Decimal:
    """Return a number as an exact Decimal; a float as its shortest repr.

    Raises:
        InvalidValue: Not a number, a bool, NaN, infinite, or beyond 400 digits.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise InvalidValue(name, value, expected)
    # Not repr(): NumPy's floats include the type's name in theirs.
    text = float.__repr__(value) if isinstance(value, float) else str(value)
    if _PLAIN_NUMBER.fullmatch(text) is None:
        raise InvalidValue(name, value, expected)
    try:
        number = Decimal(text.replace("_", "").strip())
    except InvalidOperation:
        raise InvalidValue(name, value, expected) from None
    if not number.is_finite() or _has_too_many_digits(number):
        raise InvalidValue(name, value, expected)
    return number


def _has_too_many_digits(number: Decimal) -> bool:
    """Return whether exact arithmetic on a number could take minutes and gigabytes."""
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)  # It is finite.
    return bool(number) and (number.adjusted() > _MOST_DIGITS or exponent < -_MOST_DIGITS)


def split_unit(text: str, *, name: str, expected: str) -> tuple[Decimal, str]:
    """Split ``"1.5 kWh"`` into number and unit; the unit may be empty."""
    match = _NUMBER_THEN_UNIT.fullmatch(text)
    if match is None:
        raise InvalidValue(name, text, expected)
    return exact_decimal(match[1], name=name, expected=expected), match[2] or ""


def whole(number: Decimal, *, name: str, seen: object, expected: str) -> int:
    """Return a Decimal as an int.

    Raises:
        InvalidValue: It has a fractional part.
    """
    if number.adjusted() > 60 or number != number.to_integral_value():
        raise InvalidValue(name, seen, expected)
    return int(number)


@total_ordering
@dataclass(frozen=True, slots=True)
class Quantity:
    """A whole number of one unit; adds and compares only with its own kind."""

    value: int
    EXPECTED: ClassVar[str]

    @classmethod
    def _whole(cls, number: Decimal, *, name: str, seen: object) -> Self:
        """Return a Decimal as a quantity; it must be a whole number, zero or more."""
        if number < 0:
            raise InvalidValue(name, seen, f"{cls.EXPECTED}, zero or more")
        return cls(whole(number, name=name, seen=seen, expected=cls.EXPECTED))

    def _not_negative(self, name: str) -> Self:
        if self.value < 0:  # As a difference it may be; as an argument not.
            raise InvalidValue(name, str(self), f"{self.EXPECTED}, zero or more")
        return self

    def _value_of(self, other: object) -> int:
        if type(other) is not type(self):
            raise UnitMismatch(self, other)
        return other.value

    def __add__(self, other: Self) -> Self:
        return type(self)(self.value + self._value_of(other))

    def __sub__(self, other: Self) -> Self:
        return type(self)(self.value - self._value_of(other))

    def __lt__(self, other: Self) -> bool:
        return self.value < self._value_of(other)

    def __bool__(self) -> bool:
        return self.value != 0


NS_PER_HOUR = 3600 * 10**9
_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_NS |= {"m": 60 * 10**9, "min": 60 * 10**9, "h": NS_PER_HOUR, "d": 24 * NS_PER_HOUR}
_DURATION_PART = re.compile(rf"\s*({UNSIGNED})\s*({'|'.join(sorted(_NS, key=len, reverse=True))})")


class Duration(Quantity):
    """A span of time in whole nanoseconds."""

    __slots__ = ()
    EXPECTED = 'a duration with its unit, such as "72h", "1h20m", "90s" or "250ms"'

    @classmethod
    def parse(cls, value: object, *, name: str = "duration") -> Self:
        """Parse ``"72h"``, ``"1h20m"`` or a timedelta; a bare number is rejected as ambiguous."""
        if isinstance(value, cls):
            return value._not_negative(name)
        if isinstance(value, timedelta):
            microseconds = value // timedelta(microseconds=1)
            return cls._whole(Decimal(microseconds * 1000), name=name, seen=value)
        if not isinstance(value, str) or not value.strip():
            raise InvalidValue(name, value, cls.EXPECTED)
        total, rest = Decimal(0), value
        while rest.strip():
            part = _DURATION_PART.match(rest)
            if part is None:
                raise InvalidValue(name, value, cls.EXPECTED)
            number = exact_decimal(part[1], name=name, expected=cls.EXPECTED)
            total = EXACT.add(total, EXACT.multiply(number, _NS[part[2]]))
            rest = rest[part.end() :]
        return cls._whole(total, name=name, seen=value)

    @property
    def ns(self) -> int:
        """The duration in nanoseconds."""
        return self.value

    @property
    def seconds(self) -> float:
        """The duration in seconds, for display."""
        return self.value / 1e9

    def __str__(self) -> str:
        return duration_text(self.value)


def duration_text(ns: int) -> str:
    """Return nanoseconds as text: ``1h20m``, ``42.0s``, ``3.1ms``."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    if ns < 10**6:
        return f"{sign}{ns / 1e3:.1f}us" if ns else "0s"
    if ns < 10**9:
        return f"{sign}{ns / 1e6:.1f}ms"
    if ns < 60 * 10**9:
        return f"{sign}{ns / 1e9:.1f}s"
    minutes, seconds = divmod(ns // 10**9, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{sign}{days}d{hours:02d}h"
    return f"{sign}{hours}h{minutes:02d}m" if hours else f"{sign}{minutes}m{seconds:02d}s"


_THOUSANDS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_THOUSANDS |= {"P": 10**15, "E": 10**18, "Z": 10**21}


class _Count(Quantity):
    """A whole number, written with a metric prefix and the name of the thing: ``"50k tok"``."""

    __slots__ = ()
    THING: ClassVar[str]
    NAME: ClassVar[str]

    @classmethod
    def parse(cls, value: object, *, name: str | None = None) -> Self:
        """Parse a whole number or such a text; ``name`` is its name in an error message."""
        name = name or cls.NAME
        if isinstance(value, cls):
            return value._not_negative(name)
        if not isinstance(value, str):
            number = exact_decimal(value, name=name, expected=cls.EXPECTED)
        else:
            number, unit = split_unit(value, name=name, expected=cls.EXPECTED)
            letter = unit.removesuffix(f"{cls.THING}s").removesuffix(cls.THING).strip()
            if letter not in _THOUSANDS:
                raise InvalidValue(name, value, cls.EXPECTED)
            number = EXACT.multiply(number, _THOUSANDS[letter])
        return cls._whole(number, name=name, seen=value)


class Tokens(_Count):
    """A number of tokens, or of any other unit of data."""

    __slots__ = ()
    EXPECTED = 'a whole number of tokens, such as 50_000, "50k" or "1.2e12tok"'
    THING = "tok"
    NAME = "tokens"

    def __str__(self) -> str:
        return f"{self.value:,} tok"


class Flops(_Count):
    """A number of floating-point operations."""

    __slots__ = ()
    EXPECTED = 'a whole number of FLOPs, such as 10**18, "1e18" or "1.5 EFLOP"'
    THING = "FLOP"
    NAME = "flops"

    def __str__(self) -> str:
        return f"{self.value:.3e} FLOP"


MILLIJOULES_PER_WH = 3_600_000
_MILLIJOULES = {"mJ": 1, "J": 10**3, "kJ": 10**6, "MJ": 10**9}
_MILLIJOULES |= {"Wh": MILLIJOULES_PER_WH, "kWh": 10**3 * MILLIJOULES_PER_WH}


class Energy(Quantity):
    """Energy in whole millijoules, the unit that accelerators report."""

    __slots__ = ()
    EXPECTED = 'an energy with its unit, such as "5 Wh", "1.2 kWh" or "300 J"'

    @classmethod
    def parse(cls, value: object, *, name: str = "energy") -> Self:
        """Parse ``"5 Wh"``, ``"1.2 kWh"`` or ``"300 J"``; a bare number is rejected."""
        if isinstance(value, cls):
            return value._not_negative(name)
        if not isinstance(value, str):
            raise InvalidValue(name, value, cls.EXPECTED)
        number, unit = split_unit(value, name=name, expected=cls.EXPECTED)
        if unit not in _MILLIJOULES:
            raise InvalidValue(name, value, cls.EXPECTED)
        return cls._whole(EXACT.multiply(number, _MILLIJOULES[unit]), name=name, seen=value)

    @property
    def wh(self) -> float:
        """The energy in watt-hours, for display."""
        return self.value / MILLIJOULES_PER_WH

    def __str__(self) -> str:
        return f"{self.wh:.3f} Wh"
