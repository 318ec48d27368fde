"""``goodput_exclusion``: goodput without some intervals, which every calculator answers."""

from __future__ import annotations

from outlay.goodput.calculator import GoodputCalculator

__all__ = ["GoodputExclusion"]

GoodputExclusion = GoodputCalculator
