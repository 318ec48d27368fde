"""Money and rates as integer micro-units of a currency, of cash or of showback.

A micro-unit is one millionth of the currency unit: fine enough for the price of a token, and an
integer, so that sums are exact in any order. ``USD`` and ``USD showback`` are two units, which mix
as little as two currencies do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from functools import total_ordering
from typing import ClassVar, Final, Literal, NamedTuple, Self, TypeVar, get_args

from outlay.errors import InvalidValue, UnitMismatch
from outlay.units.quantity import EXACT, NUMBER, exact_decimal

MICROS = 1_000_000
Kind = Literal["cash", "showback"]
"""``cash`` is paid; ``showback`` is what something owned or reserved is worth."""
KINDS: tuple[Kind, ...] = get_args(Kind)
_SYMBOLS = {"$": "USD", "€": "EUR", "£": "GBP"}
GPU_HOURS: Final = "GPU-h"
"""The unit of time on a GPU, in which a spend log can be kept; nothing has a price in it."""
_CURRENCY = re.compile(rf"[A-Za-z]{{3}}|{GPU_HOURS}", re.IGNORECASE)
_AMOUNT = re.compile(rf"\s*([$€£])?\s*({NUMBER})\s*([A-Za-z]{{3}}|{GPU_HOURS})?\s*", re.IGNORECASE)
_PER_HOUR = re.compile(r"(.*?)\s*/\s*(?:h|hr|hour)\s*")

Rounding = Literal["half-even", "up"]
_ROUNDING = {"half-even": ROUND_HALF_EVEN, "up": ROUND_CEILING}
_EXPECTED_MONEY = 'a finite amount such as "5 USD", "$5", Decimal("5.00") or 5'
_EXPECTED_RATE = 'a finite amount per hour such as "1.50 USD/h", "$1.50/h" or 1.5'


def _read_amount(
    value: object, *, name: str, currency: str, rounding: Rounding, expected: str
) -> tuple[int, str]:
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value)
        if match is None or (match[1] and match[3]):
            raise InvalidValue(name, value, expected)
        named = _SYMBOLS[match[1]] if match[1] else (match[3] or currency).upper()
        if (named == GPU_HOURS.upper()) != (currency == GPU_HOURS):
            raise InvalidValue(name, value, f"an amount in {currency}")
        currency = GPU_HOURS if currency == GPU_HOURS else named
        number = exact_decimal(match[2], name=name, expected=expected)
    else:
        number = exact_decimal(value, name=name, expected=expected)
    if number < 0 or number.adjusted() > 30:
        raise InvalidValue(name, value, f"{expected}, zero or more")
    return int(EXACT.multiply(number, MICROS).to_integral_value(_ROUNDING[rounding])), currency


def decimal_text(micros: int) -> str:
    """Return micro-units in currency units, exact and with at least two decimals: ``-12.50``."""
    whole, fraction = divmod(abs(micros), MICROS)
    digits = f"{fraction:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micros < 0 else ''}{whole}.{digits}"


class Unit(NamedTuple):
    """A currency and a kind of money; only amounts of the same unit can be added or compared."""

    currency: str = "USD"
    kind: Kind = "cash"

    @classmethod
    def parse(cls, text: str, *, name: str = "unit") -> Self:
        """Return a unit as it is shown: ``USD``, ``USD showback`` or ``GPU-h``.

        Raises:
            InvalidValue: It is none.
        """
        currency, _, kind = text.strip().partition(" ")
        shown = GPU_HOURS if currency.upper() == GPU_HOURS.upper() else currency.upper()
        kinds = ("",) if shown == GPU_HOURS else ("", "showback")
        if kind not in kinds or not _CURRENCY.fullmatch(currency):
            raise InvalidValue(name, text, f'"USD", "USD showback" or "{GPU_HOURS}"')
        return cls(shown, "showback" if kind else "cash")

    def money(self, micros: int) -> Money:
        """Return an amount in this unit."""
        return (Money if self.kind == "cash" else ShowbackMoney)(micros, self.currency)

    def rate(self, micros_per_hour: int) -> Rate:
        """Return a rate in this unit."""
        return (Rate if self.kind == "cash" else ShowbackRate)(micros_per_hour, self.currency)

    def __str__(self) -> str:
        return self.currency if self.kind == "cash" else f"{self.currency} {self.kind}"


GPU_TIME: Final = Unit(GPU_HOURS)
"""The unit of amounts of GPU-hours."""


class _InUnit:
    """What an amount and a rate have in common: a currency, and a kind that is no field in JSON."""

    __slots__ = ()
    kind: ClassVar[Kind] = "cash"
    currency: str

    @property
    def unit(self) -> Unit:
        """Its currency and kind."""
        return Unit(self.currency, self.kind)


@total_ordering
@dataclass(frozen=True, slots=True)
class Money(_InUnit):
    """An amount of one unit, exact to the micro-unit; may be negative as a difference."""

    micros: int
    currency: str = "USD"

    @classmethod
    def parse(
        cls,
        value: object,
        *,
        name: str = "amount",
        currency: str = "USD",
        rounding: Rounding = "half-even",
    ) -> Self:
        """Return ``"5 USD"``, ``"$5"``, a Decimal, an int or a float as Money, zero or more.

        Args:
            value: The user's input; Money is returned as it is.
            name: The value's name in an error message.
            currency: The currency if the value names none.
            rounding: Of digits beyond the micro-unit; the guard rounds up.

        Raises:
            InvalidValue: Not such an amount, or negative.
        """
        if isinstance(value, cls):
            if value.micros < 0:
                raise InvalidValue(name, str(value), f"{_EXPECTED_MONEY}, zero or more")
            return value
        micros, currency = _read_amount(
            value, name=name, currency=currency, rounding=rounding, expected=_EXPECTED_MONEY
        )
        return cls(micros, currency)

    def as_kind(self, kind: Kind) -> Money:
        """Return the same amount as cash or showback: for one that was stated without a kind."""
        return Unit(self.currency, kind).money(self.micros)

    @property
    def amount(self) -> Decimal:
        """The amount in currency units, exactly."""
        return EXACT.divide(self.micros, MICROS)

    def _micros_of(self, other: object) -> int:
        if type(other) is not type(self) or other.currency != self.currency:
            raise UnitMismatch(self, other)
        return other.micros

    def __add__(self, other: Money) -> Self:
        return type(self)(self.micros + self._micros_of(other), self.currency)

    def __sub__(self, other: Money) -> Self:
        return type(self)(self.micros - self._micros_of(other), self.currency)

    def __neg__(self) -> Self:
        return type(self)(-self.micros, self.currency)

    def __mul__(self, factor: int) -> Self:
        if isinstance(factor, bool) or not isinstance(factor, int):
            raise UnitMismatch(self, factor)
        return type(self)(self.micros * factor, self.currency)

    __rmul__ = __mul__

    def __lt__(self, other: Money) -> bool:
        return self.micros < self._micros_of(other)

    def __bool__(self) -> bool:
        return self.micros != 0

    def __str__(self) -> str:
        text = f"{decimal_text(self.micros)} {self.currency}"
        return text if self.kind == "cash" else f"{text} {self.kind}"


class ShowbackMoney(Money):
    """An amount that is not paid: what hours of something owned or reserved are worth."""

    __slots__ = ()
    kind = "showback"


@dataclass(frozen=True, slots=True)
class Rate(_InUnit):
    """Money per hour, exact to the micro-unit."""

    micros_per_hour: int
    currency: str = "USD"

    @classmethod
    def parse(cls, value: object, *, name: str = "price", currency: str = "USD") -> Self:
        """Return ``"1.50 USD/h"``, ``"$1.50/h"`` or a bare number as a rate of zero or more."""
        if isinstance(value, cls):
            if value.micros_per_hour < 0:
                raise InvalidValue(name, str(value), f"{_EXPECTED_RATE}, zero or more")
            return value
        if isinstance(value, str) and (per_hour := _PER_HOUR.fullmatch(value)):
            value = per_hour[1]
        micros, currency = _read_amount(
            value, name=name, currency=currency, rounding="half-even", expected=_EXPECTED_RATE
        )
        return cls(micros, currency)

    @property
    def per_hour(self) -> Money:
        """The cost of one hour."""
        return self.unit.money(self.micros_per_hour)

    def __mul__(self, count: int) -> Self:
        return type(self)((self.per_hour * count).micros, self.currency)

    __rmul__ = __mul__

    def __add__(self, other: Rate) -> Self:
        if not isinstance(other, Rate):
            raise UnitMismatch(self, other)
        return type(self)((self.per_hour + other.per_hour).micros, self.currency)

    def __str__(self) -> str:
        text = f"{decimal_text(self.micros_per_hour)} {self.currency}/h"
        return text if self.kind == "cash" else f"{text} {self.kind}"


class ShowbackRate(Rate):
    """Showback per hour."""

    __slots__ = ()
    kind = "showback"


def recorded_rate(text: str) -> Rate:
    """Return a rate from its text in a document: the inverse of ``str``.

    Raises:
        InvalidValue: It is no rate.
    """
    plain = text.removesuffix(" showback")
    rate = Rate.parse(plain, name="rate", currency=GPU_HOURS if GPU_HOURS in plain else "USD")
    return Unit(rate.currency, "cash" if plain == text else "showback").rate(rate.micros_per_hour)


def per(cost: Money | None, count: float | Fraction | None) -> float | None:
    """Return the cost of one of ``count`` things, divided exactly and rounded once."""
    if cost is None or count is None or count <= 0:
        return None
    if count == int(count):
        return cost.micros / (MICROS * int(count))  # Python rounds a quotient of ints correctly.
    return float(Fraction(cost.micros, MICROS) / Fraction(count))


_Summand = TypeVar("_Summand", Money, Rate)


def sum_by_unit(amounts: Iterable[_Summand]) -> list[_Summand]:
    """Return one sum per unit, cash first."""
    sums: dict[Unit, _Summand] = {}
    for amount in amounts:
        sums[amount.unit] = sums[amount.unit] + amount if amount.unit in sums else amount
    return [sums[unit] for unit in sorted(sums, key=lambda unit: unit[::-1])]


PERCENTS: Final = (50, 75, 90, 100)
"""The thresholds of a limit that are reported, each once."""
_Amount = TypeVar("_Amount", int, Money)


def percents_reached(used: _Amount, limit: _Amount) -> list[int]:
    """Return the thresholds that ``used`` has reached, compared exactly."""
    return [percent for percent in PERCENTS if used * 100 >= limit * percent]
