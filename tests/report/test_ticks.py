"""Axes read well: round steps, distinct labels, no negative tick for positive values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.report.drawing.charts import ticks

finite = st.floats(-1e15, 1e15, allow_subnormal=False).filter(lambda x: not 0 < abs(x) < 1e-12)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.1, 0.92], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([0.010012, 0.010048], ["0.01001", "0.01002", "0.01003", "0.01004", "0.01005"]),
        ([3, 17], ["0", "5", "10", "15", "20"]),
        ([-3, 9], ["-5", "0", "5", "10"]),
        ([0.9], ["0.8", "0.85", "0.9", "0.95", "1"]),
        ([0], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([1.2e9, 3.1e9], ["1B", "1.5B", "2B", "2.5B", "3B", "3.5B"]),
        ([0, 1_500_000], ["0", "0.5M", "1M", "1.5M"]),
        ([2e-7, 9e-7], ["2e-7", "4e-7", "6e-7", "8e-7", "10e-7"]),
        (
            [0.3, 0.3000001],
            ["0.3", "0.30000002", "0.30000004", "0.30000006", "0.30000008", "0.3000001"],
        ),
        ([120_000, 180_000], ["120k", "140k", "160k", "180k"]),
    ],
)
def test_ticks_are_round(values: list[float], labels: list[str]) -> None:
    assert [tick.label for tick in ticks(values)] == labels


@given(st.lists(finite, min_size=1, max_size=9))
def test_ticks_lie_around_all_values_and_each_reads_differently(values: list[float]) -> None:
    found = ticks(values)
    assert found[0].value <= min(values) <= max(values) <= found[-1].value
    assert len({tick.label for tick in found}) == len(found)
    assert 2 <= len(found) <= 9


@given(st.lists(finite, min_size=1, max_size=9))
def test_steps_are_one_two_or_five_times_a_power_of_ten(values: list[float]) -> None:
    found = ticks(values)
    step = (found[-1].value - found[0].value) / (len(found) - 1)
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert any(math.isclose(mantissa, one, rel_tol=1e-3) for one in (1, 2, 5))


@given(st.lists(st.floats(1e-9, 1e15), min_size=1, max_size=9))
def test_positive_values_get_no_negative_tick(values: list[float]) -> None:
    assert ticks(values)[0].value >= 0
