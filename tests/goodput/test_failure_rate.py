"""How often a job fails, by its own failures and those of others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outlay.goodput.failure_rate import FailureCount, NodeRates, mttf_hours


def test_the_spread_of_rates_is_found_again() -> None:
    """Rates of 2,000 nodes are drawn from a gamma distribution, and failures from the rates."""
    draw = np.random.default_rng(7)
    rates = draw.gamma(0.6, 1 / 600, 2000)  # A mean of one in 1,000 h.
    jobs = [FailureCount(failures=int(draw.poisson(rate * 4000)), hours=4000) for rate in rates]
    found = NodeRates.of(jobs)
    assert found is not None
    assert found.per_hour == pytest.approx(1 / 1000, rel=0.1)
    assert found.shape == pytest.approx(0.6, rel=0.2)


def test_the_mean_rate_of_a_job_is_right_on_average() -> None:
    """Of jobs that failed as often, the true rate averages to the one that is returned."""
    draw = np.random.default_rng(8)
    rates = draw.gamma(2.0, 1 / 2000, (4000, 8)).sum(axis=1)  # Each of 8 nodes: 1 in 1,000 h.
    counts = draw.poisson(rates * 500)
    spread = NodeRates(per_hour=1 / 1000, shape=2.0)
    for count in (2, 4, 6):
        mean = 1 / spread.mttf_hours(FailureCount(failures=count, hours=500, nodes=8))
        assert np.mean(rates[counts == count]) == pytest.approx(mean, rel=0.05)


def test_nodes_that_are_alike_share_one_rate() -> None:
    jobs = [FailureCount(failures=2, hours=100)] * 5
    found = NodeRates.of(jobs)
    assert found is not None
    assert math.isinf(found.shape)
    assert found.mttf_hours(FailureCount(failures=0, hours=100, nodes=2)) == 25


@pytest.mark.parametrize(
    ("failures", "among", "hours"),
    [(4, [], 25.0), (0, [], None), (4, [FailureCount(failures=2, hours=9)], 25.0)],
)
def test_without_others_a_job_has_only_its_own_failures(
    failures: int, among: list[FailureCount], hours: float | None
) -> None:
    assert mttf_hours(FailureCount(failures=failures, hours=100), among) == hours
