"""Which span holds an instant: the one begun last of those that are open."""

from __future__ import annotations

import numpy as np
import pytest

from outlay.goodput.cover import Cover, SpanInterval, flatten


def spans(*intervals: tuple[int, int, str]) -> list[SpanInterval]:
    """Spans in the order of the log."""
    return [SpanInterval(begin, place, end, n) for place, (begin, end, n) in enumerate(intervals)]


def painted(*intervals: tuple[int, int, str], start: int = 0, end: int = 10) -> str:
    """Draw each instant of a window as the name of the span that holds it."""
    flat = flatten(spans(*intervals), start, end)
    holders = {t: span.phase for span in flat for t in range(span.begin_ns, span.end_ns)}
    return "".join(holders.get(t, ".") for t in range(start, end))


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        pytest.param([], "..........", id="none"),
        pytest.param([(1, 4, "a"), (4, 6, "b")], ".aaabb....", id="one after another"),
        pytest.param([(1, 9, "a"), (3, 6, "b")], ".aabbbaaa.", id="nested"),
        pytest.param([(1, 6, "a"), (4, 9, "b")], ".aaabbbbb.", id="crossing"),
        pytest.param([(1, 9, "a"), (2, 8, "b"), (3, 4, "c")], ".abcbbbba.", id="three deep"),
        pytest.param([(2, 5, "a"), (2, 8, "b")], "..bbbbbb..", id="a tie goes to the later line"),
        pytest.param([(2, 8, "a"), (2, 5, "b")], "..bbbaaa..", id="a tie that ends first"),
        pytest.param([(4, 6, "b"), (1, 9, "a")], ".aaabbaaa.", id="the order of begins decides"),
        pytest.param([(1, 4, "a"), (2, 5, "b"), (7, 9, "c")], ".abbb..cc.", id="with a pause"),
        pytest.param([(3, 3, "a"), (6, 2, "b")], "..........", id="spans that hold nothing"),
    ],
)
def test_the_last_begun_span_holds(intervals: list[tuple[int, int, str]], expected: str) -> None:
    assert painted(*intervals) == expected


def test_spans_are_cut_to_the_window() -> None:
    assert painted((0, 20, "a"), start=5, end=8) == "aaa"


def test_a_span_cut_at_the_start_keeps_its_place_among_others() -> None:
    assert painted((3, 9, "a"), (1, 9, "b"), start=5) == "aaaa."


def test_the_time_before_each_instant_is_what_spans_held() -> None:
    cover = Cover(flatten(spans((1, 4, "a"), (6, 8, "b")), 0, 10))
    instants = np.arange(0, 11, dtype=np.int64)
    assert cover.before(instants).tolist() == [0, 0, 1, 2, 3, 3, 3, 4, 5, 5, 5]


def test_without_spans_nothing_is_held() -> None:
    cover = Cover([])
    assert cover.before(np.array([1, 5], dtype=np.int64)).tolist() == [0, 0]
    assert cover.phases_before(5) == {}


def test_each_phase_has_its_own_time() -> None:
    cover = Cover(flatten(spans((1, 9, "a"), (3, 6, "b")), 0, 10))
    assert [cover.phases_before(t) for t in (0, 4, 10)] == [
        {"a": 0, "b": 0},
        {"a": 2, "b": 1},
        {"a": 5, "b": 3},
    ]
