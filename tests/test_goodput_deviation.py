"""Ideal step time and deviation: robust, and for steps of any length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.goodput.deviation import StepTimes, ideal_step_ns, step_deviation


def times(*seconds: float) -> StepTimes:
    return StepTimes(np.arange(len(seconds)), np.array(seconds, dtype=np.float64) * 1e9)


def test_nothing_is_ideal_without_steps() -> None:
    assert ideal_step_ns(times()) is None


def test_anomalous_steps_do_not_shift_the_ideal() -> None:
    assert ideal_step_ns(times(1.0, 1.1, 0.9, 1.0, 500.0)) == pytest.approx(1.0e9)


@given(st.integers(-17, 17), st.integers(3, 50))
def test_the_ideal_scales_with_the_length_of_steps(exponent: int, count: int) -> None:
    length = 2.0**exponent  # Exact, so that no step changes sides of a bound by rounding.
    pattern = [1.0 + 0.01 * (index % 3) for index in range(count)]
    short, long = (
        ideal_step_ns(times(*pattern)),
        ideal_step_ns(times(*[length * p for p in pattern])),
    )
    assert short is not None
    assert long == pytest.approx(short * length, rel=1e-12)


def test_deviation_is_absolute_and_by_step() -> None:
    assert step_deviation(times(1.0, 1.5, 0.75), 1e9) == {0: 0.0, 1: 0.5, 2: 0.25}


def test_of_a_repeated_step_the_last_execution_counts() -> None:
    repeated = StepTimes(np.array([0, 1, 1]), np.array([1e9, 9e9, 1e9]))
    assert step_deviation(repeated, 1e9) == {0: 0.0, 1: 0.0}
