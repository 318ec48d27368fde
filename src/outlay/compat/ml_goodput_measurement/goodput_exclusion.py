"""``goodput_exclusion``: goodput without some intervals, which every calculator supports."""

from __future__ import annotations

from outlay.goodput.calculator import GoodputCalculator

__all__ = ["GoodputExclusion"]

GoodputExclusion = GoodputCalculator
