"""Policies decide by price, availability and deadline, and say why; against enumeration."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest

from ledgers import HOUR, START_NS, Segment, ns
from outlay.errors import InvalidValue, UnitMismatch
from outlay.goodput.follower import read_view
from outlay.policy.hindsight import least_cost
from outlay.policy.pauses import pause_cost_of
from outlay.policy.policies import (
    AlwaysOn,
    DoubleThreshold,
    FixedThreshold,
    GreedySpot,
    Policy,
    UniformProgress,
    decide,
)
from outlay.policy.price_thresholds import (
    PriceModel,
    double_thresholds,
    published_ratio,
    worst_ratio,
)
from outlay.policy.simulation import PriceChange, simulate
from outlay.policy.situation import Action, JobTerms, PauseCost, PriceBounds, Situation
from outlay.units import Rate

BOUNDS = PriceBounds(low=Rate(1_000_000), high=Rate(3_000_000))
ON_DEMAND = Rate(3_000_000)
PAUSE = PauseCost(start_ns=HOUR // 10, save_ns=HOUR // 10)


def dollars_per_hour(amount: float) -> Rate:
    return Rate(round(amount * 1_000_000))


def hourly(*prices: float | None) -> list[PriceChange]:
    return [
        PriceChange(hour * HOUR, None if price is None else dollars_per_hour(price))
        for hour, price in enumerate(prices)
    ]


def terms(work_h: float, time_h: float, pause: PauseCost = PAUSE, **fields: Rate) -> JobTerms:
    return JobTerms(
        work_ns=round(work_h * HOUR), time_ns=round(time_h * HOUR), pause=pause, **fields
    )


def model(low: float, high: float, units: int, pause: float) -> PriceModel:
    return PriceModel(
        low=low, high=high, units=units, work=units, pause=pause, first_start=pause, shifted=False
    )  # fmt: skip


@pytest.mark.parametrize(("low", "alpha"), [(1.0, 1.84), (1.5, 1.51)])
def test_the_published_ratio_is_that_of_the_paper(low: float, alpha: float) -> None:
    assert published_ratio(model(low, 3.0, 48, 0.5)) == pytest.approx(alpha, abs=0.005)


def test_thresholds_fall_and_end_at_the_lowest_price() -> None:
    of = double_thresholds(model(1.0, 3.0, 48, 0.5))
    assert list(of.start) == sorted(of.start, reverse=True)
    assert all(
        stop - start == pytest.approx(0.5) for start, stop in zip(of.start, of.stop, strict=True)
    )
    assert of.start[0] < 3.0
    assert of.start[-1] == pytest.approx(1.0, abs=0.05)


def test_a_low_price_for_a_moment_exceeds_the_published_ratio_and_not_the_stated_one() -> None:
    """24 hours at the lowest price, then just above the threshold, then the highest."""
    policy, job = DoubleThreshold(bounds=BOUNDS), terms(48, 144, PauseCost())
    without_pauses = model(1.0, 3.0, 48, 0.0)
    above = double_thresholds(without_pauses).start[24] + 0.001
    series = hourly(*[1.0] * 24, *[above] * 72, *[3.0] * 48)
    best = least_cost(series, job, cell_ns=HOUR)
    assert best is not None
    ratio = simulate(policy, series, job).cost.micros / best.micros
    stated = policy.worst_case_ratio(job)
    assert stated is not None
    assert published_ratio(without_pauses) < ratio <= stated


def test_where_a_pause_costs_more_than_prices_differ_it_never_pauses() -> None:
    job = terms(4, 12, PauseCost(start_ns=HOUR // 2, save_ns=HOUR // 4))
    found = simulate(DoubleThreshold(bounds=BOUNDS), hourly(3.0, 1.0, 3.0, 1.0, 1.0, 1.0), job)
    assert (found.starts, found.done_ns) == (1, round(4.5 * HOUR))


def test_a_price_above_the_threshold_pauses_and_a_low_one_resumes() -> None:
    """Four hours of work; save and start take six minutes each."""
    found = simulate(
        FixedThreshold(below=dollars_per_hour(2)), hourly(1.0, 1.0, 3.0, 1.5), terms(4, 24)
    )
    actions = [(each.at_ns / HOUR, each.decision.action) for each in found.decisions]
    assert actions == [(0, Action.RUN), (2, Action.WAIT), (3, Action.RUN)]
    # 0.1 h start + 1.9 h at 1, a save of 0.1 h at 3, then 0.1 h start + 2.1 h at 1.5.
    assert str(found.cost) == "5.60 USD"
    assert found.done_ns == round(5.2 * HOUR)
    assert found.overhead_ns == round(0.3 * HOUR)
    assert "above the threshold of 2.00 USD/h" in found.decisions[1].decision.reason


def test_it_starts_at_the_last_moment_at_which_it_can_finish() -> None:
    found = simulate(FixedThreshold(below=dollars_per_hour(1)), hourly(2.0), terms(3, 10))
    assert [each.at_ns for each in found.decisions] == [0, round(6.9 * HOUR)]
    assert (found.done_ns, found.late_ns) == (10 * HOUR, 0)
    assert "last moment" in found.decisions[1].decision.reason


def test_no_pause_that_would_miss_the_deadline() -> None:
    found = simulate(FixedThreshold(below=dollars_per_hour(1)), hourly(1.0, 2.0), terms(3, 3.25))
    assert (found.starts, found.late_ns) == (1, 0)


def test_a_deadline_that_cannot_be_met_is_forecast() -> None:
    at = Situation(job=terms(4, 4), work_left_ns=4 * HOUR, time_left_ns=4 * HOUR, price=ON_DEMAND)
    assert not at.job.is_feasible
    assert decide(AlwaysOn(), at).late_ns == HOUR // 10


def test_a_price_outside_the_bounds_says_that_the_worst_case_does_not_hold() -> None:
    job = terms(4, 24)
    at = Situation(
        job=job, work_left_ns=job.work_ns, time_left_ns=job.time_ns, price=dollars_per_hour(4)
    )
    assert "does not hold" in decide(DoubleThreshold(bounds=BOUNDS), at).reason


def test_prices_in_two_currencies_are_refused() -> None:
    job = terms(4, 24, on_demand=ON_DEMAND)
    at = Situation(
        job=job, work_left_ns=job.work_ns, time_left_ns=job.time_ns, price=Rate(1, "EUR")
    )
    with pytest.raises(UnitMismatch):
        decide(UniformProgress(), at)
    with pytest.raises(UnitMismatch):
        FixedThreshold(below=ON_DEMAND).choose(at)
    with pytest.raises(UnitMismatch):
        PriceBounds(low=ON_DEMAND, high=Rate(4_000_000, "EUR"))


def test_impossible_terms_are_refused() -> None:
    with pytest.raises(InvalidValue, match="work_ns"):
        JobTerms(work_ns=0, time_ns=1)
    with pytest.raises(InvalidValue, match="save_ns"):
        PauseCost(save_ns=-1)
    with pytest.raises(InvalidValue, match="bounds"):
        PriceBounds(low=dollars_per_hour(3), high=dollars_per_hour(2))
    with pytest.raises(InvalidValue, match="series"):
        simulate(AlwaysOn(), [], terms(1, 2))


@pytest.mark.parametrize("policy", [GreedySpot(), UniformProgress()])
def test_spot_is_used_while_it_is_there_and_on_demand_meets_the_deadline(policy: Policy) -> None:
    job = terms(6, 10, on_demand=ON_DEMAND)
    found = simulate(policy, hourly(1.0, 1.0, None), job)
    assert found.late_ns == 0
    assert found.reclaimed == 1
    actions = {each.decision.action for each in found.decisions}
    assert actions == {Action.RUN, Action.WAIT, Action.ON_DEMAND}


def test_uniform_progress_falls_back_before_greedy_does() -> None:
    """Without spot, greedy waits for the last moment; uniform progress keeps up."""
    job = terms(6, 10, on_demand=ON_DEMAND)
    first = {
        policy.name: next(
            each.at_ns
            for each in simulate(policy, hourly(None), job).decisions
            if each.decision.action is Action.ON_DEMAND
        )
        for policy in (GreedySpot(), UniformProgress())
    }
    assert first == {"greedy": round(3.6 * HOUR), "uniform progress": 1}


def test_a_policy_without_bounds_states_no_ratio() -> None:
    job, spot = terms(4, 12), terms(4, 12, on_demand=ON_DEMAND)
    assert FixedThreshold(below=ON_DEMAND).worst_case_ratio(job) is None
    assert AlwaysOn().worst_case_ratio(job) is None
    assert UniformProgress().worst_case_ratio(spot) is None
    assert GreedySpot(bounds=BOUNDS).worst_case_ratio(job) is None


def test_always_on_is_at_worst_the_highest_price_over_the_lowest() -> None:
    assert AlwaysOn(bounds=BOUNDS).worst_case_ratio(terms(4, 12)) == 3.0


# The best in hindsight, against the enumeration of all plans


def enumerated(prices: list[float], work: int, *, start: int, repeated: int) -> float:
    """Return the least cost over all ways to rent each cell; a cell starts or works."""
    best = math.inf
    for rented in product((False, True), repeat=len(prices)):
        left, cost, setup, was_on = work, 0.0, 0, False
        for price, is_on in zip(prices, rented, strict=True):
            if was_on and not is_on:
                left = min(work, left + repeated)
            if is_on:
                setup = start if not was_on else setup
                cost += price
                left, setup = (left, setup - 1) if setup else (left - 1, 0)
            was_on = is_on
            if left == 0:
                best = min(best, cost)
                break
    return best


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("repeated", [0, 1])
def test_hindsight_is_the_cheapest_of_all_plans(start: int, repeated: int) -> None:
    prices = [3.0, 1.0, 2.5, 1.0, 1.2, 3.0, 1.0, 1.1, 2.0, 1.0]
    pause = PauseCost(start_ns=start * HOUR, repeated_ns=repeated * HOUR)
    for work in (1, 3, 4):
        best = least_cost(hourly(*prices), terms(work, 10, pause), cell_ns=HOUR)
        expected = enumerated(prices, work, start=start, repeated=repeated)
        assert best is not None
        assert best.micros == pytest.approx(expected * 1_000_000)


def test_hindsight_pays_for_saves() -> None:
    """Two hours at 1 with an hour at 9 between: a save there would cost 9."""
    pause = PauseCost(save_ns=HOUR)
    best = least_cost(hourly(1.0, 9.0, 1.0, 3.0, 3.0), terms(2, 5, pause), cell_ns=HOUR)
    assert str(best) == "4.00 USD"


def test_hindsight_repeats_work_after_a_pause() -> None:
    """Two hours and a save at 1; then one hour again and the two that are left, at 1."""
    pause = PauseCost(save_ns=HOUR, repeated_ns=HOUR)
    series = hourly(1.0, 1.0, 1.0, 9.0, 9.0, 1.0, 1.0, 1.0, 9.0, 9.0)
    assert str(least_cost(series, terms(4, 10, pause), cell_ns=HOUR)) == "6.00 USD"


def test_hindsight_uses_spot_where_it_is_there() -> None:
    job = terms(4, 6, PauseCost(start_ns=HOUR), on_demand=ON_DEMAND)
    best = least_cost(hourly(1.0, 1.0, 1.0, None), job, cell_ns=HOUR)
    assert str(best) == "12.00 USD"  # Three hours on spot and three on-demand, a start in each.


def test_hindsight_of_the_impossible_is_none() -> None:
    assert least_cost(hourly(1.0), terms(3, 2), cell_ns=HOUR) is None


# What a pause costs, from a run's log


def test_the_cost_of_a_pause_is_measured_from_the_log(tmp_path: Path) -> None:
    """Saves of 2 s, a restore of 3 s, a first step 4 s longer, and two steps repeated."""
    first = Segment().step(1).step(1).step(1)
    first.span("checkpoint_save", 2).checkpoint().step(1).step(1).end("paused")
    first.write(tmp_path)
    again = Segment(start=20, about={"pid": 8}).span("checkpoint_restore", 3)
    again.step(5, number=3).step(1).step(1).step(1).end()
    again.write(tmp_path)
    view = read_view(tmp_path, START_NS + ns(60))
    found = pause_cost_of(view.timeline)
    assert (found.save_ns, found.start_ns, found.repeated_ns) == (ns(2), ns(7), ns(2))
    assert found.assumed == ()


def test_what_was_never_seen_is_named(tmp_path: Path) -> None:
    Segment().step(1).step(1).end().write(tmp_path)
    found = pause_cost_of(read_view(tmp_path, START_NS + ns(60)).timeline)
    assert (found.save_ns, found.repeated_ns, len(found.assumed)) == (0, 0, 2)


def test_a_bound_is_never_below_the_published_ratio() -> None:
    for pause in (0.0, 0.2, 1.0):
        for units in (1, 5, 48):
            of = model(1.0, 3.0, units, pause)
            assert worst_ratio(of, double_thresholds(of)) >= published_ratio(of) - 1e-6
