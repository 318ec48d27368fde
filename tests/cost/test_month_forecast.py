"""The forecast of a month by the days of use: right for what is steady, and its interval holds."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from outlay.cost.charges import month_window
from outlay.cost.forecast import Estimate
from outlay.cost.month_forecast import LEAST_DAYS, forecast_month
from outlay.cost.spending import Spending
from outlay.units import Unit
from spending_worlds import DAY_NS, KINDS, Use, is_reported, spending_on, world

USD = Unit("USD")
NOVEMBER = month_window("2026-11")
DAYS = (1, 3, 10, 17, 25)


def forecast(spending: Spending, now_ns: int) -> dict[Unit, Estimate]:
    """Return the forecast if everything that was used until now goes on."""
    running = {each.run_id for each in spending.spends if each.end_ns == now_ns}
    return forecast_month(spending, now_ns, running)


def at_noon(day: int) -> int:
    return NOVEMBER.start_ns + day * DAY_NS - DAY_NS // 2


@pytest.mark.parametrize("day", DAYS)
def test_a_run_at_a_constant_cost_is_forecast_exactly_on_every_day(day: int) -> None:
    """It lives since September at 480 USD a day: November will cost 14,400."""
    now = day - 0.5
    uses = [Use(-50, 60, 480 * 110)]
    found = forecast(spending_on(uses, now, NOVEMBER.start_ns), at_noon(day))[USD]
    assert found.low is not None
    assert found.high is not None
    assert found.point / 10**6 == pytest.approx(14_400)
    assert found.low <= found.point <= found.high


def test_a_run_that_began_today_is_expected_to_go_on() -> None:
    found = forecast(spending_on([Use(9, 40, 3100)], 9.5, NOVEMBER.start_ns), at_noon(10))
    estimate = found[USD]
    assert (estimate.low, estimate.high) == (None, None)
    assert 50 < estimate.point / 10**6 <= 2100
    assert "too few" in estimate.note


def test_nothing_is_forecast_of_what_was_spent_once_today() -> None:
    spent = spending_on([Use(9, 9.1, 5)], 9.5, NOVEMBER.start_ns)
    assert forecast(spent, at_noon(10)) == {}
    assert forecast(Spending(spends=()), at_noon(10)) == {}


def held(kind: str, seeds: Iterable[int], days: Iterable[int] = DAYS) -> list[bool | None]:
    """Return whether each interval held the truth; None where no interval was given."""
    results: list[bool | None] = []
    for seed in seeds:
        uses = world(kind, seed)
        truth = sum(use.between(0, 30) for use in uses)
        for day in days:
            known = spending_on(uses, day - 0.5, NOVEMBER.start_ns)
            found = forecast(known, at_noon(day)).get(USD)
            if found is None or found.low is None or found.high is None:
                results.append(None)
            else:
                # Amounts are rounded to micro-units before; an end may be what goes on as now.
                low, high = found.low / 10**6 - 0.01, found.high / 10**6 + 0.01
                results.append(low <= truth <= high)
    return results


def reported(kind: str, count: int) -> list[int]:
    """Return worlds of the half on which nothing was tuned."""
    return [seed for seed in range(2 * count + 40) if is_reported(kind, seed)][:count]


def shares_of(results: list[bool | None]) -> tuple[float, float]:
    """Return how often an interval held, and how often one was given."""
    given = [each for each in results if each is not None]
    return sum(given) / len(given), len(given) / len(results)


def test_intervals_hold_in_worlds_on_which_nothing_was_tuned() -> None:
    results = [each for kind in KINDS for each in held(kind, reported(kind, 12))]
    coverage, given = shares_of(results)
    assert 0.70 <= coverage <= 0.95
    assert given >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("day", DAYS)
def test_intervals_hold_on_every_day_of_the_month(kind: str, day: int) -> None:
    coverage, given = shares_of(held(kind, reported(kind, 200), [day]))
    assert 0.70 <= coverage <= 0.95
    assert given >= 0.9


def test_a_short_history_has_no_interval() -> None:
    uses = [Use(day, day + 0.1, 10) for day in range(LEAST_DAYS - 1)]
    known = spending_on(uses, LEAST_DAYS - 1, NOVEMBER.start_ns)
    found = forecast(known, NOVEMBER.start_ns + (LEAST_DAYS - 1) * DAY_NS)[USD]
    assert found.low is None
