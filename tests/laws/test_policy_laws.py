"""Policies are never late where that was possible, and never cost more than they state."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from outlay.policy.hindsight import least_cost
from outlay.policy.policies import (
    AlwaysOn,
    DoubleThreshold,
    FixedThreshold,
    GreedySpot,
    Policy,
    UniformProgress,
)
from outlay.policy.simulation import PriceChange, simulate
from outlay.policy.situation import JobTerms, PauseCost, PriceBounds
from outlay.units import Rate

HOUR = 3600 * 10**9
CELL = HOUR // 10
ROUNDING = 1e-5
BOUNDS = PriceBounds(low=Rate(1_000_000), high=Rate(3_000_000))


def pauses(most_cells: int = 4) -> st.SearchStrategy[PauseCost]:
    cells = st.integers(0, most_cells).map(lambda n: n * CELL)
    return st.builds(PauseCost, start_ns=cells, save_ns=cells, repeated_ns=cells)


@st.composite
def jobs(draw: st.DrawFn, *, on_demand: Rate | None = None) -> JobTerms:
    """Work of up to nine hours, not always whole ones, that can be done in time."""
    pause = draw(pauses())
    work_ns = draw(st.integers(2, 60)) * CELL
    slack_ns = draw(st.integers(0, 120) | st.integers(0, 10)) * CELL
    time_ns = work_ns + pause.start_ns + slack_ns
    return JobTerms(work_ns=work_ns, time_ns=time_ns, pause=pause, on_demand=on_demand)


@st.composite
def price_series(draw: st.DrawFn, job: JobTerms, marks: list[int]) -> list[PriceChange]:
    """Hourly prices: stretches of the bounds, of thresholds and just above, and of any price."""
    low, high = BOUNDS.low.micros_per_hour, BOUNDS.high.micros_per_hour
    at_marks = [low, high, *marks, *(mark + 1 for mark in marks)]
    inside = [price for price in at_marks if low <= price <= high]
    price = st.sampled_from(inside) | st.integers(low, high)
    hours = -(-job.time_ns // HOUR)
    prices: list[int] = []
    while len(prices) < hours:
        prices += [draw(price)] * draw(st.sampled_from([1, 1, 2, 3, 8]))
    return [PriceChange(n * HOUR, Rate(micros)) for n, micros in enumerate(prices[:hours])]


def spot_series() -> st.SearchStrategy[list[PriceChange]]:
    """Return spot that comes, goes and costs anything within the bounds after any cells."""
    low, high = BOUNDS.low.micros_per_hour, BOUNDS.high.micros_per_hour
    price = st.sampled_from([None, low, high]) | st.integers(low, high)
    cells = st.integers(1, 30) | st.integers(100, 200)
    runs = st.lists(st.tuples(cells, price), min_size=1, max_size=30)

    def as_changes(found: list[tuple[int, int | None]]) -> list[PriceChange]:
        changes, now_ns = [], 0
        for cells, micros in found:
            changes.append(PriceChange(now_ns, None if micros is None else Rate(micros)))
            now_ns += cells * CELL
        return changes

    return runs.map(as_changes)


def check_ratio(policy: Policy, series: list[PriceChange], job: JobTerms) -> None:
    best, stated = least_cost(series, job, cell_ns=CELL), policy.worst_case_ratio(job)
    assert best is not None
    assert stated is not None
    ratio = simulate(policy, series, job).cost.micros / best.micros
    target(ratio / stated)
    assert ratio <= stated + ROUNDING


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_double_threshold_is_in_time_and_within_its_ratio(data: st.DataObject) -> None:
    usual = data.draw(
        st.sampled_from([None, BOUNDS, PriceBounds(low=Rate(1_300_000), high=Rate(2_000_000))])
    )
    job, policy = data.draw(jobs()), DoubleThreshold(bounds=BOUNDS, usual=usual)
    if policy.worst_case_ratio(job) is None:
        job = JobTerms(work_ns=job.work_ns, time_ns=job.time_ns)
    of = policy.thresholds(job)
    marks = sorted({int(price) for price in (*of.start, *of.stop)})
    series = data.draw(price_series(job, marks))
    assert simulate(policy, series, job).late_ns == 0
    check_ratio(policy, series, job)


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from([1_000_000, 1_400_000, 2_000_000, 3_000_000]))
def test_a_fixed_threshold_is_in_time_and_within_its_ratio(data: st.DataObject, at: int) -> None:
    job, policy = data.draw(jobs()), FixedThreshold(below=Rate(at), bounds=BOUNDS)
    series = data.draw(price_series(job, [at]))
    assert simulate(policy, series, job).late_ns == 0
    if policy.worst_case_ratio(job) is not None:
        check_ratio(policy, series, job)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_always_on_is_within_its_ratio(data: st.DataObject) -> None:
    job = data.draw(jobs())
    check_ratio(AlwaysOn(bounds=BOUNDS), data.draw(price_series(job, [])), job)


ON_DEMAND = [Rate(500_000), BOUNDS.low, Rate(1_500_000), BOUNDS.high, Rate(4_000_000)]
WITH_FALLBACK = [AlwaysOn(bounds=BOUNDS), GreedySpot(bounds=BOUNDS), UniformProgress(bounds=BOUNDS)]


@pytest.mark.parametrize("policy", WITH_FALLBACK, ids=lambda policy: policy.name)
@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(ON_DEMAND))
def test_on_demand_keeps_the_deadline_however_often_spot_is_taken_back(
    policy: Policy, data: st.DataObject, on_demand: Rate
) -> None:
    """Spot may cost more than on-demand at times, or always."""
    job = data.draw(jobs(on_demand=on_demand))
    series = data.draw(spot_series())
    assert simulate(policy, series, job).late_ns == 0
    check_ratio(policy, series, job)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_miss_because_of_a_machine_that_was_taken_back_is_forecast(data: st.DataObject) -> None:
    """Without on-demand to fall back to, an offer that is gone may make it late."""
    job, policy = data.draw(jobs()), DoubleThreshold(bounds=BOUNDS)
    found = simulate(policy, data.draw(spot_series()), job)
    forecast = max(each.decision.late_ns for each in found.decisions)
    assert (found.late_ns == 0) == (forecast == 0)
