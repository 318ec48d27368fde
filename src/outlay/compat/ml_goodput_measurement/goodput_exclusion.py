"""``goodput_exclusion``: goodput without some intervals, which every calculator supports."""

from __future__ import annotations

from outlay.compat.ml_goodput_measurement.calculator import GoodputCalculator

__all__ = ["GoodputExclusion"]

GoodputExclusion = GoodputCalculator
