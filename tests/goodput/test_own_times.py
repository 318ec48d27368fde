"""Cached slow steps equal those that a search over all steps finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.account.columns import Ints, StepColumns
from outlay.account.run import SegmentAccount
from outlay.goodput import steps as module
from outlay.goodput.steps import SlowSteps
from outlay.ledger import SegmentId

own_times = st.lists(st.integers(0, 1000), max_size=10)


def cumulative(own: list[int]) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.array(own, dtype=np.int64))])


@given(
    queries=st.lists(st.tuples(own_times, st.integers(0, 1000)), max_size=4),
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=7),
    many=st.sampled_from([0, 3, 1024]),
)
def test_slow_steps_of_a_growing_attempt_are_found_at_every_query(
    queries: list[tuple[list[int], int]], counts: list[int], many: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SLACK", many)
        slow, own = SlowSteps(), list[int]()
        for more, bound in queries:
            own += more
            count = np.resize(np.array(counts, dtype=np.int64), len(own))
            expected = [i for i, time in enumerate(own) if time > bound * count[i]]
            assert slow.beyond(bound, cumulative(own), count).tolist() == expected


@given(before=own_times, after=own_times, place=st.integers(0, 25), bound=st.integers(0, 1000))
def test_steps_whose_times_changed_are_checked_again(
    before: list[int], after: list[int], place: int, bound: int
) -> None:
    slow = SlowSteps()
    slow.beyond(bound, cumulative(before), np.ones(len(before), dtype=np.int64))
    own = before[:place] + after
    slow.forget_from(place)
    found = slow.beyond(bound, cumulative(own), np.ones(len(own), dtype=np.int64))
    assert found.tolist() == [i for i, time in enumerate(own) if time > bound]


@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.integers(0, 30), st.integers(0, 40), st.integers(1, 3)),
            min_size=1,
            max_size=5,
        ),
        max_size=4,
    )
)
def test_a_fold_knows_whether_numbers_only_grow_and_which_is_least(
    batches: list[list[tuple[int, int, int]]],
) -> None:
    fold = SegmentAccount(SegmentId(0))
    for batch in batches:
        number, end, count = (
            np.array(column, dtype=np.int64) for column in zip(*batch, strict=True)
        )
        fold.add_steps(StepColumns.timed(number, end, end, count))
        numbers, counts = fold.steps.number.tolist(), fold.steps.count.tolist()
        grows = all(
            later >= number + count
            for number, count, later in zip(numbers, counts, numbers[1:], strict=False)
        )
        assert fold.only_grows == grows
        assert fold.least_number == min(numbers)


def test_a_fold_without_steps_has_no_least_number() -> None:
    assert SegmentAccount(SegmentId(0)).least_number is None
