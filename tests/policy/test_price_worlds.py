"""Policies on prices, spot and failures that were drawn: a small part of the benchmark."""

from __future__ import annotations

import random
from itertools import product
from statistics import fmean

import numpy as np
import pytest

from price_worlds import (
    DAY,
    FAMILIES,
    goodput_loss,
    goodput_of,
    marketplace,
    pooled,
    price_trial,
    spot_result,
)


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


def test_goodput_of_an_interval_by_hand() -> None:
    """A failure after 10 h, the end at 20 h: 3 saves of 0.5 h by 9 h, then 1 h restart."""
    found = goodput_of([10.0], 20.0, np.array([2.5]), save_h=0.5, restart_h=1.0)
    assert found[0] == pytest.approx((7.5 + 7.5) / 20)
