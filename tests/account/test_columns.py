"""Columns grow, shrink, and leave the views that were taken of them alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.account.columns import Column, integers, total

alike = st.tuples(st.sampled_from([0, 7, -1]), st.integers(0, 90)).map(lambda of: [of[0]] * of[1])
numbers = alike | st.lists(st.integers(-(2**62), 2**62), max_size=90)
changes = st.lists(numbers | st.lists(st.integers(0, 2**70), max_size=5) | st.integers(0, 99))


@pytest.mark.parametrize("first", [[], [1, 2], [0]])
@given(moves=changes)
def test_column_behaves_like_a_list_and_earlier_views_do_not_change(
    moves: list[list[int] | int], first: list[int]
) -> None:
    column, model = Column(first), list(first)
    taken = [(column.values, list(model))]
    for move in moves:
        if isinstance(move, int):
            length = min(move, len(model))
            column.truncate(length)
            model = model[:length]
        else:
            column.extend(integers(move))
            model = model + move
        taken.append((column.values, list(model)))
        assert len(column) == len(model)
        assert total(column.values) == sum(model)
    assert all(view.tolist() == content for view, content in taken)
