"""Steps that are undone when a step is executed again."""

from __future__ import annotations

import numpy as np
import pytest

from outlay.account.run import find_decreases
from outlay.goodput.steps import Undone, UndoneTime, undone_steps


def undone(numbers: list[int], counts: list[int], redone_from: int | None = None) -> Undone:
    number, count = np.array(numbers, dtype=np.int64), np.array(counts, dtype=np.int64)
    only_grows = not len(find_decreases(number, count))
    return undone_steps(number, count, redone_from, only_grows=only_grows)


def shares(found: Undone, records: int) -> list[float]:
    """Return how much of each record survived."""
    return [kept / of for kept, of in map(found.kept, range(records))]


@pytest.mark.parametrize(
    ("numbers", "counts", "redone_from", "kept"),
    [
        pytest.param([0, 1, 2], [1, 1, 1], None, [1, 1, 1], id="nothing ran again"),
        pytest.param([0, 1, 2], [1, 1, 1], 3, [1, 1, 1], id="resumed at the next step"),
        pytest.param([0, 1, 2], [1, 1, 1], 1, [1, 0, 0], id="two steps back"),
        pytest.param([0, 1, 2], [1, 1, 1], 0, [0, 0, 0], id="from the start"),
        pytest.param([5, 6], [1, 1], 2, [0, 0], id="from before the start"),
        pytest.param([0, 10, 20], [10, 10, 10], 15, [1, 0.5, 0], id="inside a record"),
        pytest.param([0, 10], [4, 4], 7, [1, 0], id="between records that leave steps out"),
        pytest.param([0, 1, 2, 1, 2], [1] * 5, None, [1, 0, 0, 1, 1], id="inside an attempt"),
        pytest.param([0, 1, 2, 1, 2], [1] * 5, 2, [1, 0, 0, 1, 0], id="inside, then later"),
        pytest.param([0, 1, 1, 1], [1] * 4, None, [1, 0, 0, 1], id="the same step thrice"),
        pytest.param([0, 4, 2], [4, 4, 1], None, [0.5, 0, 1], id="inside, within a record"),
    ],
)
def test_a_later_execution_undoes_earlier_ones(
    numbers: list[int], counts: list[int], redone_from: int | None, kept: list[float]
) -> None:
    assert shares(undone(numbers, counts, redone_from), len(numbers)) == kept


def test_no_steps_leave_nothing_to_undo() -> None:
    assert UndoneTime(undone([], [], 3), np.zeros(1, dtype=np.int64)).before(0) == 0


@pytest.mark.parametrize(
    ("numbers", "expected"), [([0, 1, 2], [0, 0, 20, 50]), ([0, 0, 1], [0, 10, 10, 40])]
)
def test_undone_own_time_adds_up(numbers: list[int], expected: list[int]) -> None:
    own_cumulative = np.array([0, 10, 30, 60], dtype=np.int64)
    found = UndoneTime(undone(numbers, [1, 1, 1], redone_from=1), own_cumulative)
    assert [found.before(index) for index in range(4)] == expected


@pytest.mark.parametrize("numbers", [[0, 1, 2], [0, 0, 1]])
def test_asking_for_many_equals_asking_for_each(numbers: list[int]) -> None:
    found = undone(numbers, [1, 1, 1], redone_from=1)
    each = [found.is_undone(index) for index in range(3)]
    assert found.contains(np.arange(3)).tolist() == each
