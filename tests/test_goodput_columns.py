"""Columns grow, shrink, and leave the views that were taken of them alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlay.goodput.columns import Column

changes = st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=90) | st.integers(0, 99))


@given(changes)
def test_a_column_is_a_list_and_its_views_stay_what_they_were(
    moves: list[list[int] | int],
) -> None:
    column, model = Column([1, 2]), [1, 2]
    taken = [(column.values, list(model))]
    for move in moves:
        if isinstance(move, int):
            length = min(move, len(model))
            column.truncate(length)
            model = model[:length]
        else:
            column.extend(move)
            model = model + move
        taken.append((column.values, list(model)))
        assert len(column) == len(model)
    assert all(view.tolist() == content for view, content in taken)
