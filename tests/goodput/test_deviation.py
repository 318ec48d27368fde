"""Ideal step time and deviation: robust, and for steps of any length."""

from __future__ import annotations

import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.compat.ml_goodput_measurement.goodput_utils import (
    compute_ideal_step_time,
    step_deviation,
)
from outlay.goodput.steps import SortedTimes
from outlay.goodput.throughput import (
    StepOff,
    StepTimes,
    ideal_step_ns,
    worst_steps,
)


def times(*seconds: float) -> StepTimes:
    return StepTimes(np.arange(len(seconds)), np.array(seconds, dtype=np.float64) * 1e9)


def sorted_times(*seconds: float) -> SortedTimes:
    own = np.array([round(second * 1e9) for second in seconds], dtype=np.int64)
    return SortedTimes().extended_by(own)


def test_nothing_is_ideal_without_steps() -> None:
    assert ideal_step_ns(sorted_times()) is None


def test_anomalous_steps_do_not_shift_the_ideal() -> None:
    assert ideal_step_ns(sorted_times(1.0, 1.1, 0.9, 1.0, 500.0)) == pytest.approx(1.0e9)


@given(st.lists(st.lists(st.integers(0, 10**12), min_size=1), min_size=1, max_size=5))
def test_the_ideal_of_a_growing_run_is_what_the_definition_says(batches: list[list[int]]) -> None:
    growing = SortedTimes()
    for batch in batches:
        growing = growing.extended_by(np.array(batch, dtype=np.int64))
    every = [time for batch in batches for time in batch]
    median = statistics.median(map(Fraction, every))
    spread = statistics.median(abs(time - median) for time in every)
    usual = [time for time in every if time <= median + 3 * spread]
    assert ideal_step_ns(growing) == sum(usual) / len(usual)
    assert ideal_step_ns(growing.with_run(np.array([5]))) == ideal_step_ns(
        growing.extended_by(np.array([5]))
    )


@given(st.lists(st.integers(0, 2**40), min_size=1))
def test_the_ideal_of_a_run_is_that_of_a_list(own: list[int]) -> None:
    of_a_list = compute_ideal_step_time([float(time) for time in own])
    assert ideal_step_ns(SortedTimes().extended_by(np.array(own))) == pytest.approx(
        of_a_list, rel=1e-12
    )


def test_deviation_is_absolute_and_by_step() -> None:
    assert step_deviation(times(1.0, 1.5, 0.75), 1e9) == {0: 0.0, 1: 0.5, 2: 0.25}


def test_of_a_repeated_step_the_last_execution_counts() -> None:
    repeated = StepTimes(np.array([0, 1, 1]), np.array([1e9, 9e9, 1e9]))
    assert step_deviation(repeated, 1e9) == {0: 0.0, 1: 0.0}


def test_the_worst_steps_are_the_farthest_from_the_ideal_either_way() -> None:
    assert worst_steps(times(1.0, 4.0, 0.5, 1.0), 1e9, 2) == [
        StepOff(step=1, own_ns=4 * 10**9, off_ns=3 * 10**9),
        StepOff(step=2, own_ns=5 * 10**8, off_ns=-5 * 10**8),
    ]
