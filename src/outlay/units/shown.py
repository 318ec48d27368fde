"""Formatting of numbers, counts, ages and money for people. Pure.

Money becomes text in ``str(money)`` and here, nowhere else:

- ``str(money)``: exact, at least two decimals; for amounts that are added, compared or logged.
- ``money_text(money)``: rounded to cents, or to two significant digits below one.
- ``money_text(money, decimals)``: a fixed number of decimals for a column, at most 6.
- ``unit_cost_text``: three significant digits, for example of the cost of a token.
- ``dollar_text``: with the currency sign in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Literal

from outlay.units.money import MICROS, Money, Unit, decimal_text
from outlay.units.quantity import duration_text

Grade = Literal["measured", "stated", "estimated", "assumed"]
"""How a figure is known: measured by the run; stated: measured time at a price that a user typed;
estimated: computed from measurements; assumed: not measured by anything."""


def graded(text: str, grade: Grade) -> str:
    """Return a figure's text with how it is known, unless it is measured."""
    return text if grade == "measured" else f"{text} ({grade})"


def number_text(value: float) -> str:
    """Return four significant digits, two decimals from 1,000 on; integers in full."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.2f}"


def counted(count: int, noun: str) -> str:
    """Return "1 run", "2 runs", "1,000 runs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def ago_text(ns: int) -> str:
    """Return an age in one whole unit, for narrow columns: ``2h ago``."""
    if ns < 5 * 10**9:
        return "just now"
    (number, unit), *_ = re.findall(r"(\d+)(?:\.\d+)?([a-z]+)", duration_text(ns))
    return f"{number}{unit} ago"


def decimals_of(amounts: Iterable[Money]) -> int:
    """Return the decimals for a column of amounts: 2, or two significant digits if all are < 1."""
    largest = max((abs(money.micros) for money in amounts), default=0)
    if largest >= MICROS or not largest:
        return 2
    return min(6, 8 - len(str(largest)))


def figure_text(money: Money, decimals: int | None = None) -> str:
    """Return an amount without its currency; one that would round to zero reads ``<0.01``."""
    digits = decimals_of([money]) if decimals is None else decimals
    text = f"{money.amount:,.{digits}f}"
    if money.micros and not any(letter in "123456789" for letter in text):
        return f"{'-' if money.micros < 0 else ''}<{10**-digits:.{digits}f}"
    return text


def money_text(money: Money, decimals: int | None = None) -> str:
    """Return a rounded amount: ``12.50 USD``, ``0.0019 USD``."""
    return f"{figure_text(money, decimals)} {money.unit}"


def money_of(amount: float, unit: Unit | str) -> Money:
    """Return a float amount as Money, rounded to the micro-unit; a currency means cash."""
    stated = Unit(unit) if isinstance(unit, str) else unit
    return stated.money(round(amount * MICROS))


def amount_text(amount: float, unit: Unit | str) -> str:
    """Return ``money_text`` of a float amount."""
    return money_text(money_of(amount, unit))


def range_text(low: Money, high: Money) -> str:
    """Return two amounts with equal decimals: ``10.00 to 14.50``."""
    decimals = decimals_of([low, high])
    return f"{figure_text(low, decimals)} to {figure_text(high, decimals)}"


def unit_cost_text(cost: float, currency: str) -> str:
    """Return three significant digits without an exponent below one, two decimals from one on."""
    is_small = cost and abs(cost) < 1
    return f"{Decimal(f'{cost:.3g}'):f} {currency}" if is_small else f"{cost:,.2f} {currency}"


def dollar_text(money: Money, decimals: int | None = None) -> str:
    """Return ``$5.00``, or ``5.00 EUR`` for other currencies; exact unless decimals are given."""
    text = decimal_text(money.micros) if decimals is None else f"{money.amount:.{decimals}f}"
    return f"${text}" if money.unit == Unit("USD") else f"{text} {money.unit}"


def beside_text(costs: Iterable[Money]) -> str:
    """Return costs in other currencies, to be appended to a cost: `` and 3.00 EUR``."""
    return "".join(f" and {cost}" for cost in costs)
