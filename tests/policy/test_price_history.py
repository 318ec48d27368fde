"""The double threshold for an offer, from its past prices."""

from __future__ import annotations

from outlay.policy.price_history import bounds_of, double_threshold_for, holding_ns
from outlay.policy.simulation import PriceChange
from outlay.policy.situation import PriceBounds
from outlay.rates import NS_PER_HOUR
from outlay.units import Rate

CHEAP, DEAR = Rate.parse("1 USD/h"), Rate.parse("2 USD/h")
MONTH_H = 30 * 24


def usd(amount: float) -> Rate:
    return Rate(round(amount * 1_000_000))


def hourly(*prices: Rate | None) -> list[PriceChange]:
    return [PriceChange(hour * NS_PER_HOUR, price) for hour, price in enumerate(prices)]


def test_thresholds_are_for_usual_prices_and_the_worst_case_for_all() -> None:
    """1.00 to 1.99 USD and a jump: without the lowest tenth and the highest twentieth."""
    prices = [usd(1 + cents / 100) for cents in range(100)]
    policy = double_threshold_for(hourly(*prices, usd(9)), 200 * NS_PER_HOUR)
    assert policy is not None
    assert policy.bounds == PriceBounds(low=CHEAP, high=usd(9))
    assert policy.usual == PriceBounds(low=usd(1.10), high=usd(1.95))


def test_only_the_last_thirty_days_count() -> None:
    prices = hourly(usd(0.10), *[usd(1), usd(2)] * (MONTH_H // 2), usd(50))
    policy = double_threshold_for(prices, MONTH_H * NS_PER_HOUR + 1)
    assert policy is not None
    assert policy.bounds == PriceBounds(low=CHEAP, high=usd(2))


def test_stated_bounds_go_before_those_of_the_history() -> None:
    """Prices beyond them are expected no more, so that they are not usual either."""
    prices = hourly(*[usd(n) for n in (1, 2, 3, 4)])
    policy = double_threshold_for(prices, NS_PER_HOUR * 9, low=usd(2), high=usd(3))
    assert policy is not None
    assert policy.bounds == policy.usual == PriceBounds(low=usd(2), high=usd(3))
    elsewhere = double_threshold_for(prices, NS_PER_HOUR * 9, low=usd(5), high=usd(6))
    assert elsewhere is not None
    assert (elsewhere.bounds.low, elsewhere.usual) == (usd(5), None)


def test_without_prices_that_moved_or_bounds_there_is_none() -> None:
    assert double_threshold_for([], 0) is None
    assert double_threshold_for(hourly(CHEAP, CHEAP, None), 9 * NS_PER_HOUR) is None
    assert double_threshold_for([], 0, low=CHEAP) is None
    stated = double_threshold_for([], 0, low=CHEAP, high=DEAR)
    assert stated is not None
    assert (stated.usual, stated.unit_ns) == (None, NS_PER_HOUR)


def test_one_stated_bound_replaces_that_of_the_history() -> None:
    found = bounds_of(hourly(CHEAP, DEAR), high=usd(3))
    assert found == PriceBounds(low=CHEAP, high=usd(3))


def test_a_price_holds_for_the_median_time_and_an_hour_at_least() -> None:
    """It changes after 2, 5 and 3 hours; what it is read in between is no change."""
    prices = hourly(CHEAP, CHEAP, *[DEAR] * 5, *[CHEAP] * 3, DEAR, DEAR)
    assert holding_ns(prices) == 3 * NS_PER_HOUR
    minutes = [PriceChange(n * NS_PER_HOUR // 60, (CHEAP, DEAR)[n % 2]) for n in range(9)]
    assert holding_ns(minutes) == NS_PER_HOUR
