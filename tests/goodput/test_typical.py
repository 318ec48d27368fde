"""The typical step equals the definition by median and MAD."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.goodput.steps import MIN_STEPS, SortedTimes, Typical

times = st.lists(st.integers(0, 10**15), min_size=MIN_STEPS, max_size=40)


def sorted_times(*batches: list[int]) -> SortedTimes:
    found = SortedTimes()
    for batch in batches:
        found = found.extended_by(np.array(batch, dtype=np.int64))
    return found


@pytest.mark.parametrize(
    ("own", "step_ns", "stall_beyond_ns"),
    [
        pytest.param([10, 10, 10], 10, 20, id="steady steps: twice the median"),
        pytest.param([8, 10, 12], 10, 30, id="uneven steps: ten times their spread"),
        pytest.param([10, 11, 10, 11], 10, 20, id="an even number: the floor of the middle"),
        pytest.param([0, 0, 0, 9], 0, 0, id="steps of no length"),
        pytest.param([1, 1, 10**15], 1, 2, id="one that hung changes nothing"),
    ],
)
def test_typical_and_stalled(own: list[int], step_ns: int, stall_beyond_ns: int) -> None:
    assert sorted_times(own).typical() == Typical(step_ns, stall_beyond_ns)


@pytest.mark.parametrize("count", range(MIN_STEPS))
def test_too_few_steps_have_nothing_typical(count: int) -> None:
    assert sorted_times([5] * count).typical() is None


@given(times)
def test_typical_is_what_the_definition_says(own: list[int]) -> None:
    ordered = sorted(own)
    low, high = ordered[(len(own) - 1) // 2], ordered[len(own) // 2]
    median = (low + high) // 2
    spread = sorted(abs(time - median) for time in own)[(len(own) - 1) // 2]
    expected = Typical(median, max(median + 10 * spread, 2 * median))
    assert sorted_times(own).typical() == expected


@given(times, st.lists(times, max_size=4))
def test_adding_in_batches_equals_adding_at_once(first: list[int], later: list[list[int]]) -> None:
    at_once = sorted_times([*first, *(time for batch in later for time in batch)])
    in_batches = sorted_times(first, *later)
    assert in_batches.typical() == at_once.typical()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_runs_stay_few_however_times_are_added(batches: list[int]) -> None:
    added = sorted_times(*(list(range(batch)) for batch in batches))
    lengths = [len(run.times) for run in added.runs]
    assert sum(lengths) == sum(batches)
    assert all(4 * shorter <= longer for longer, shorter in pairwise(lengths))


def test_the_longest_time_of_none_is_zero() -> None:
    assert sorted_times().longest() == 0
    assert sorted_times([3, 9, 4]).longest() == 9
