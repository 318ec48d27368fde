"""When a model's budget is worth a word: at half, three quarters, nine tenths, all of it."""

from __future__ import annotations

from typing import Final

from outlay.cost.training import AlertType
from outlay.units import Money

PERCENTS: Final[dict[int, AlertType]] = {
    50: "warning_50",
    75: "warning_75",
    90: "warning_90",
    100: "exceeded",
}


def reached(spent: Money, limit: Money) -> list[int]:
    """Return the thresholds that were reached, compared exactly; of nothing spent, none."""
    if not spent:
        return []
    return [percent for percent in PERCENTS if spent * 100 >= limit * percent]


def percent_used(spent: Money, limit: Money) -> float:
    """Return how much of the limit was spent, in percent; infinite where the limit is 0."""
    if not limit:
        return float("inf") if spent else 0.0
    return spent.micros * 100 / limit.micros


def standing(spent: Money, limit: Money) -> AlertType | None:
    """Return the highest threshold reached, as it is documented; None below half."""
    crossed = reached(spent, limit)
    return PERCENTS[crossed[-1]] if crossed else None
