"""Policies on prices, spot and failures, drawn and real: a small part of the benchmark."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from price_worlds import (
    DAY,
    FAMILIES,
    HOUR,
    faults_by_node,
    goodput_loss,
    goodput_of,
    histories,
    marketplace,
    pooled,
    price_trial,
    spot_result,
    starts_of,
)

REAL = Path(__file__).parent.parent / "data" / "real"


def test_double_threshold_removes_most_of_the_excess_of_always_on() -> None:
    trials = [
        price_trial(
            f"drawn {seed}", marketplace(seed, 24 * 41), 31 * DAY, work_h=work_h, slack=slack
        )
        for seed in range(900, 912)
        for work_h, slack in product((24, 72), (2, 3))
    ]
    found = pooled(trials)
    assert found.removed >= 0.4
    assert found.dearer <= 0.1
    assert found.broken == 0


def test_on_real_prices_the_double_threshold_removes_most_of_the_excess() -> None:
    """On one series, with less excess than the 5 % from which the benchmark counts a series."""
    ((name, series),) = histories(REAL / "prices.csv").items()
    starts = starts_of(series, 144 * HOUR, 8, f"{name} 72 2")
    found = pooled([price_trial(name, series, at, work_h=72, slack=2) for at in starts], 0.01)
    assert found.trials == 8
    assert found.removed >= 0.4
    assert found.dearer == 0
    assert found.broken == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_uniform_progress_saves_at_least_what_greedy_does(family: str) -> None:
    found = spot_result(family, range(900, 915), work_h=48, share=0.75)
    assert found.uniform >= found.greedy
    assert found.late == 0


def test_the_interval_advised_from_the_first_half_is_good_on_the_second() -> None:
    losses = []
    for seed in range(900, 920):
        rng, t, failures = random.Random(seed), 0.0, []
        while (t := t + rng.expovariate(1 / 100)) < 8000:
            failures.append(t)
        nodes = [failures[number::4] for number in range(4)]
        found = goodput_loss(nodes, nodes, 8000, save_h=1 / 60, restart_h=1 / 12)
        losses.append(found.advised)
    assert fmean(loss <= 0.01 for loss in losses) >= 0.95


def test_the_interval_advised_from_the_first_half_of_a_real_trace_is_good_on_the_second() -> None:
    """Jobs on 8 of 100 servers; saves of a minute, restarts of five."""
    faults = faults_by_node(REAL / "faults.csv")
    servers = [*faults.values(), *[[] for _ in range(100 - len(faults))]]
    rng, end_h = random.Random(0), max(max(each) for each in faults.values())
    losses = [
        goodput_loss(rng.sample(servers, 8), servers, end_h, save_h=1 / 60, restart_h=5 / 60)
        for _ in range(40)
    ]
    assert fmean(loss.advised <= 0.01 for loss in losses) >= 0.95


def test_goodput_of_an_interval_by_hand() -> None:
    """A failure after 10 h, the end at 20 h: 3 saves of 0.5 h by 9 h, then 1 h restart."""
    found = goodput_of([10.0], 20.0, np.array([2.5]), save_h=0.5, restart_h=1.0)
    assert found[0] == pytest.approx((7.5 + 7.5) / 20)
