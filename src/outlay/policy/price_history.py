"""The double threshold for an offer whose past prices are known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from outlay.policy.policies import DoubleThreshold
from outlay.policy.simulation import PriceChange
from outlay.policy.situation import PriceBounds
from outlay.rates import NS_PER_HOUR
from outlay.units import Rate

HISTORY_DAYS: Final = 30
"""Older prices say nothing about the next ones."""
_USUAL: Final = (0.10, 0.95)
"""Most prices are between these quantiles. See tests/support/price_worlds.py for their choice."""


def double_threshold_for(
    history: Iterable[PriceChange],
    at_ns: int,
    *,
    low: Rate | None = None,
    high: Rate | None = None,
) -> DoubleThreshold | None:
    """Return the policy for an offer at an instant, by its prices of the 30 days before.

    Thresholds are those for prices as they usually were; bounds that are stated go before those
    of the history. None without either.
    """
    known = before(history, at_ns)
    bounds = bounds_of(known, low, high)
    if bounds is None:
        return None
    return DoubleThreshold(
        bounds=bounds, usual=_usual_bounds(known, bounds), unit_ns=holding_ns(known)
    )


def before(history: Iterable[PriceChange], at_ns: int) -> list[PriceChange]:
    """Return the prices of the 30 days before an instant."""
    since_ns = at_ns - HISTORY_DAYS * 24 * NS_PER_HOUR
    return [change for change in history if since_ns <= change.at_ns <= at_ns]


def bounds_of(
    history: Iterable[PriceChange], low: Rate | None = None, high: Rate | None = None
) -> PriceBounds | None:
    """Return the stated bounds, else those of prices that moved; None without either."""
    known = {change.price for change in history if change.price is not None}
    by_price = sorted(known, key=lambda price: price.micros_per_hour)
    if len(by_price) > 1:
        low, high = low or by_price[0], high or by_price[-1]
    if low is None or high is None:
        return None
    return PriceBounds(low=low, high=high)


def _usual_bounds(history: Sequence[PriceChange], within: PriceBounds) -> PriceBounds | None:
    """Return where most prices within bounds are; None if there is none."""
    seen = [change.price for change in history if change.price is not None]
    prices = sorted((p for p in seen if p in within), key=lambda price: price.micros_per_hour)
    if not prices:
        return None
    low, high = (prices[min(len(prices) - 1, int(share * len(prices)))] for share in _USUAL)
    return PriceBounds(low=low, high=high)


def holding_ns(history: Iterable[PriceChange]) -> int:
    """Return the median time for which a price held: an hour at least."""
    changes = [change.at_ns for change in _changed(history)]
    held = [later - at_ns for at_ns, later in pairwise(changes)]
    return max(NS_PER_HOUR, round(median(held))) if held else NS_PER_HOUR


def _changed(history: Iterable[PriceChange]) -> Iterator[PriceChange]:
    """Yield the changes whose price differs from the one before."""
    last: Rate | None = None
    for change in history:
        if change.price != last:
            yield change
            last = change.price
