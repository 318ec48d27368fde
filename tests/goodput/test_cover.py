"""The span of each instant: of the open spans, the one that began last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.account.columns import SpanInterval, Spans
from outlay.goodput.attempt import Cover, cover_of, flatten


def spans(*intervals: tuple[int, int, str]) -> list[SpanInterval]:
    """Spans in the order of the log."""
    return [SpanInterval(begin, place, end, n) for place, (begin, end, n) in enumerate(intervals)]


def covered(*intervals: tuple[int, int, str], still_open: int = 0) -> Cover:
    """Return the cover of the first ten instants; the last so many spans are still open."""
    every, over = spans(*intervals), Spans()
    closed = len(every) - still_open
    for span in every[:closed]:
        over.append(span)
    return cover_of(over, every[closed:], 0, 10)


def painted(*intervals: tuple[int, int, str], start: int = 0, end: int = 10) -> str:
    """Draw each instant of a window as the name of the span that holds it."""
    flat = flatten(spans(*intervals), start, end)
    holders = {t: span.name for span in flat for t in range(span.begin_ns, span.end_ns)}
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


some_spans = st.lists(
    st.tuples(st.integers(-2, 12), st.integers(-2, 12), st.sampled_from("abc")), max_size=6
)


@given(intervals=some_spans, still_open=st.integers(0, 6))
def test_a_cover_agrees_with_every_instant(
    intervals: list[tuple[int, int, str]], still_open: int
) -> None:
    picture = painted(*intervals)
    cover = covered(*intervals, still_open=min(still_open, len(intervals)))
    held = cover.before(np.arange(11, dtype=np.int64)).tolist()
    assert held == [t - picture[:t].count(".") for t in range(11)]
    for t in range(11):
        found = {phase: ns for phase, ns in cover.phases_before(t).items() if ns}
        names = set(picture[:t]) - {"."}
        assert found == {f"custom:{name}": picture[:t].count(name) for name in names}


@given(batches=st.lists(some_spans, max_size=4))
def test_spans_can_be_added_between_queries(
    batches: list[list[tuple[int, int, str]]],
) -> None:
    growing, every = Spans(), list[SpanInterval]()
    for batch in batches:
        for span in spans(*batch):
            growing.append(span)
            every.append(span)
        found = growing.columns()
        names = [found.names[place] for place in found.name]
        rows = zip(
            found.begin.tolist(), found.order.tolist(), found.end.tolist(), names, strict=True
        )
        assert [SpanInterval(*row) for row in rows] == every == list(growing)
