"""Round values for an axis: steps of 1, 2 or 5 times a power of ten, each with its label. Pure.

Ticks are exact decimals, so that two of them never read the same, and an axis begins and ends with
one: values that are all positive get no negative tick.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

_STEPS: Final = (1, 2, 5, 10)
_SCALES: Final = ((12, "T"), (9, "B"), (6, "M"), (3, "k"))
_LONGEST: Final = 6
"""Zeros that a label may show before it is written with a power of ten, or a letter for one."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A round value and how it is written."""

    value: float
    label: str


def ticks(values: Sequence[float], *, about: int = 6) -> list[Tick]:
    """Return two ticks or more, evenly spaced, the first and last around all values.

    Args:
        values: Finite numbers, at least one.
        about: How many ticks are wished for; there may be two more.
    """
    low, high = _span(min(values), max(values))
    step = _step((high - low) / (about - 1))
    first, last = _floor(low, step), -_floor(-high, step)
    exact = [step * number for number in range(first, max(last, first + 1) + 1)]
    return [Tick(float(value), label) for value, label in zip(exact, _labels(exact), strict=True)]


def _span(low: float, high: float) -> tuple[float, float]:
    """Return the ends of what is to be shown; values that hardly differ get room around them."""
    widest = max(abs(low), abs(high))
    if high - low > widest * 1e-9:
        return low, high
    if not widest:
        return 0.0, 1.0
    return low - widest / 10, high + widest / 10


def _step(wished: float) -> Decimal:
    """Return the smallest round step that is at least the wished one."""
    power = Decimal(1).scaleb(math.floor(math.log10(wished)))
    return next(factor * power for factor in _STEPS if float(factor * power) >= wished * (1 - 1e-9))


def _floor(value: float, step: Decimal) -> int:
    """Return the last multiple of the step at or below a value, as a number of steps."""
    return math.floor(Decimal(repr(value)) / step)


def _labels(values: Sequence[Decimal]) -> list[str]:
    """Return exact decimals as text, all on one scale."""
    highest = max(abs(value) for value in values).adjusted()
    lowest = min(int(value.as_tuple().exponent) for value in values)
    for power, letter in _SCALES:
        if highest >= max(power, _LONGEST - 1):
            return [f"{_plain(value.scaleb(-power))}{letter if value else ''}" for value in values]
    if lowest < -_LONGEST and highest - lowest < 3:
        return [f"{_plain(value.scaleb(-lowest))}e{lowest}" if value else "0" for value in values]
    return [_plain(value) for value in values]


def _plain(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
