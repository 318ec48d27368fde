"""How numbers, counts, ages and money are written for people. Pure.

Money becomes text in ``str(money)`` and here, nowhere else, in these widths:

- ``str(money)``: exact, cents at least: what is added up, compared or logged.
- ``money_text(money)``: rounded: cents, and two digits of what is below one.
- ``money_text(money, decimals)``: as many decimals in every line of a column; 6 are all there are.
- ``unit_cost_text``: three digits of however little, such as what a token cost.
- ``dollar_text``: the sign before the amount, as in letters and checklists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from outlay.units.money import MICROS, Money
from outlay.units.quantity import duration_text


def number_text(value: float) -> str:
    """Return four digits of a number, from a thousand on to the hundredth; a whole one in full."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.2f}"


def counted(count: int, noun: str) -> str:
    """Return "1 run", "2 runs", "1,000 runs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def ago_text(ns: int) -> str:
    """Return how long ago something was, in whole units: where it stands there is little room."""
    if ns < 5 * 10**9:
        return "just now"
    (number, unit), *_ = re.findall(r"(\d+)(?:\.\d+)?([a-z]+)", duration_text(ns))
    return f"{number}{unit} ago"


def kind_suffix(kind: str) -> str:
    """Return what is written behind an amount: nothing behind cash."""
    return "" if kind == "cash" else f" {kind}"


def decimals_of(amounts: Iterable[Money]) -> int:
    """Return how many decimals a column of amounts shows: cents, or two digits of small ones."""
    largest = max((abs(money.micros) for money in amounts), default=0)
    if largest >= MICROS or not largest:
        return 2
    return min(6, 8 - len(str(largest)))


def figure_text(money: Money, decimals: int | None = None) -> str:
    """Return an amount without its currency; one that would read as zero says so."""
    digits = decimals_of([money]) if decimals is None else decimals
    text = f"{money.amount:,.{digits}f}"
    if money.micros and not any(letter in "123456789" for letter in text):
        return f"{'-' if money.micros < 0 else ''}<{10**-digits:.{digits}f}"
    return text


def money_text(money: Money, decimals: int | None = None) -> str:
    """Return an amount rounded for reading: ``12.50 USD``, ``0.0019 USD``."""
    return f"{figure_text(money, decimals)} {money.currency}"


def money_of(amount: float, currency: str) -> Money:
    """Return an amount that was computed with floats, to the micro-unit."""
    return Money(round(amount * MICROS), currency)


def amount_text(amount: float, currency: str) -> str:
    """Return ``money_text`` of an amount that was computed with floats."""
    return money_text(money_of(amount, currency))


def range_text(low: Money, high: Money) -> str:
    """Return two amounts with equal decimals: ``10.00 to 14.50``."""
    decimals = decimals_of([low, high])
    return f"{figure_text(low, decimals)} to {figure_text(high, decimals)}"


def unit_cost_text(cost: float, currency: str) -> str:
    """Return three digits of what one thing cost, without a power of ten; cents from one on."""
    is_small = cost and abs(cost) < 1
    return f"{Decimal(f'{cost:.3g}'):f} {currency}" if is_small else f"{cost:,.2f} {currency}"


def dollar_text(money: Money, decimals: int | None = None) -> str:
    """Return ``$5.00``, and ``5.00 EUR`` of another currency; exact unless decimals are given."""
    text = str(money).partition(" ")[0] if decimals is None else f"{money.amount:.{decimals}f}"
    return f"${text}" if money.currency == "USD" else f"{text} {money.currency}"
