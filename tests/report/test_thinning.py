"""Fewer points of a metric for the same picture: no extreme is lost, each point was recorded."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlay.report.drawing.charts import fitting, log_ticks, short_labels
from outlay.report.drawing.thinning import extremes, smoothed, within

VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400)


@given(VALUES, st.integers(1, 40), st.data())
def test_each_column_keeps_its_least_and_its_largest_value(
    values: list[float], columns: int, data: st.DataObject
) -> None:
    """The axis may go back, as after a restart."""
    places = st.lists(st.integers(0, 50), min_size=len(values), max_size=len(values))
    x, y = np.array(data.draw(places), dtype=float), np.array(values)
    kept = extremes(x, y, columns)
    assert list(kept) == sorted(set(kept))
    assert {0, len(x) - 1} <= set(kept)
    assert (y[kept].min(), y[kept].max()) == (y.min(), y.max())
    assert len(kept) <= max(2 * columns, 8 * columns + 2)
    if (np.diff(x) >= 0).all() and len(x) > 2 * columns and x[-1] > x[0]:
        column = np.minimum((x - x[0]) * (columns / (x[-1] - x[0])), columns - 1).astype(int)
        for each in np.unique(column):
            mine, drawn = y[column == each], y[kept][column[kept] == each]
            assert (drawn.min(), drawn.max()) == (mine.min(), mine.max())


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(0, 30), st.integers(1, 9))
def test_a_part_of_an_axis_has_its_points_and_those_that_lead_to_its_ends(
    places: list[int], low: int, width: int
) -> None:
    x = np.array(sorted(places), dtype=float)
    near = within(x, low, low + width)
    inside = [low <= place <= low + width for place in x]
    assert not any(inside[n] and not near[n] for n in range(len(x)))
    if x[0] <= low <= x[-1]:
        assert x[near].min() <= max(low, x[x >= low].min())
    outside = [x[n] for n in range(len(x)) if near[n] and not inside[n]]
    assert sum(place < low for place in outside) <= 1
    assert sum(place > low + width for place in outside) <= 1


def test_smoothing_is_an_average_that_does_not_depend_on_how_often_values_were_recorded() -> None:
    x = np.arange(0, 1001, 1.0)
    step = np.where(x < 500, 0.0, 1.0)
    often = smoothed(np.repeat(x, 3), np.repeat(step, 3), 0.9, 500)
    once = smoothed(x, step, 0.9, 500)
    assert np.allclose(np.interp(x, *often), np.interp(x, *once), atol=0.02)
    after = dict(zip(*once, strict=True))
    assert after[400.0] == 0
    fade = 1 - 0.9 ** (510 - 499)
    assert after[510.0] == pytest.approx(fade, abs=0.01)
    assert (once[1] >= 0).all()
    assert (once[1] <= 1).all()


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=9))
@example([999999999999.998])
def test_ticks_of_a_logarithmic_axis_enclose_all_values_and_read_differently(
    values: list[float],
) -> None:
    found = log_ticks(values)
    assert found[0].value <= min(values) <= max(values) <= found[-1].value
    assert len({tick.label for tick in found}) == len(found)
    assert 2 <= len(found) <= 10
    assert all(math.log10(b.value) > math.log10(a.value) for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("labels", "short", "names"),
    [
        (["lr=1", "lr=2"], ("lr=1", "lr=2"), ""),
        (
            ["learning_rate=0.1, width=2", "learning_rate=0.2, width=2"], ("0.1, 2", "0.2, 2"),
            "learning_rate, width",
        ),
        (["a_long_one_of_words_only", "b"], ("a_long_one_of_words_only", "b"), ""),
    ],
)  # fmt: skip
def test_configurations_are_named_by_what_differs(
    labels: list[str], short: tuple[str, ...], names: str
) -> None:
    assert short_labels(labels) == (short, names)


def test_labels_that_are_cut_stay_different() -> None:
    alike = [f"{'the_same_beginning_' * 2}{number}" for number in range(12)]
    assert len(set(fitting(alike))) == 12
    assert {len(label) for label in fitting(alike)} == {20}
    assert fitting(["same" * 9, "same" * 9]) == ["same" * 4 + "sam…"] * 2
