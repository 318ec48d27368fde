"""The timeline's laws, over random histories: partition, money, windows, replay, the oracle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from goodput_oracle import ExpectedTimeline, expected_timeline
from histories import History, build_view, histories, view_at_once
from outlay.goodput.follower import GoodputFollower, RunView
from outlay.goodput.timeline import TimelineBuilder, Window, without
from outlay.ledger import KnownRecord, Record, encode_line, ledger_dir

small = histories()
real = histories(tick_ns=731_337_919)  # About 0.7 s, for runs of minutes; not a round number.
thorough = settings(max_examples=200, deadline=None)
quick = settings(max_examples=120, deadline=None)
# A seed: a draw from Hypothesis for each choice takes longer than the choice.
chances = st.integers(0, 2**32).map(random.Random)


def expected_of(history: History) -> ExpectedTimeline:
    return expected_timeline(
        history.segments, history.now_ns, alive=history.alive, dead_after=history.dead_after_ns
    )


def everything(view: RunView) -> Window:
    """From before the start until after the present, gaps and idle time included."""
    timeline = view.timeline
    later_ns = max(timeline.now_ns, timeline.end_ns)
    length_ns = later_ns - timeline.start_ns + 7
    return Window(timeline.start_ns - length_ns // 5, later_ns + length_ns // 5)


def cuts(view: RunView, data: st.DataObject, count: int) -> list[int]:
    window = everything(view)
    instants = st.integers(window.start_ns, window.end_ns)
    return sorted(data.draw(st.lists(instants, min_size=count, max_size=count)))


def figures(view: RunView) -> tuple[Any, ...]:
    """All figures of a view, and its phases at about a hundred instants."""
    window = everything(view)
    step = max(window.length_ns // 97, 1)
    at = range(window.start_ns, window.end_ns, step)
    return (
        view.break_down(window),
        view.break_down(),
        view.timeline.typical,
        view.rates,
        [view.timeline.before(t) for t in at],
    )


# Agreement with the oracle ----------------------------------------------------------------------


def _assert_agrees(view: RunView, expected: ExpectedTimeline, windows: Sequence[Window]) -> None:
    found = view.break_down() if not windows else view.break_down(windows[0])
    ranges = [range(window.start_ns, window.end_ns) for window in windows] or [
        range(expected.start, expected.end)
    ]
    assert found.phases == expected.phases(*ranges)
    assert found.idle_ns == expected.idle(*ranges)
    micros = None if found.cost is None else found.cost.micros
    _assert_costs(micros, found.cost_by_phase, expected, ranges)
    beside = {each.cost.currency: each for each in found.cost_beside}
    for currency in expected.beside:
        exact = expected.micros(*ranges, currency=currency)
        micros = beside[currency].cost.micros if currency in beside else 0
        assert micros == round(sum(exact.values(), Fraction(0)))
    assert beside.keys() <= expected.beside.keys()


def _assert_costs(
    micros: int | None,
    by_phase: dict[str, Any],
    expected: ExpectedTimeline,
    ranges: Sequence[range],
) -> None:
    exact = expected.micros(*ranges)
    if micros is None:
        assert not expected.rate_at
        return
    assert micros == round(sum(exact.values(), Fraction(0)))
    for phase, money in by_phase.items():
        assert abs(money.micros - exact[phase]) < 1


@given(small)
@thorough
def test_the_oracle_agrees_on_the_whole_run_and_its_typical_step(history: History) -> None:
    view, expected = view_at_once(history), expected_of(history)
    _assert_agrees(view, expected, [])
    typical = view.timeline.typical
    assert (None if typical is None else typical.step_ns) == expected.typical


@given(small, st.data())
@thorough
def test_the_oracle_agrees_on_windows_and_exclusions(history: History, data: st.DataObject) -> None:
    view, expected = view_at_once(history), expected_of(history)
    edges = cuts(view, data, 4)
    for start, end in pairwise(edges):
        _assert_agrees(view, expected, [Window(start, end)])
    window = everything(view)
    exclusions = (Window(edges[0], edges[2]), Window(edges[1], edges[3]))
    kept = [range(window.start_ns, edges[0]), range(edges[3], window.end_ns)]
    assert view.break_down(window, exclusions=exclusions).phases == expected.phases(*kept)


@given(small)
@quick
def test_the_oracle_agrees_on_every_single_instant(history: History) -> None:
    view, expected = view_at_once(history), expected_of(history)
    window = everything(view)
    for t in range(window.start_ns, window.end_ns):
        assert view.timeline.between(t, t + 1) == expected.phases(range(t, t + 1))


# Partition --------------------------------------------------------------------------------------


@given(real)
@thorough
def test_phases_sum_to_wall_time_to_the_nanosecond(history: History) -> None:
    view = view_at_once(history)
    idle_ns = view.timeline.idle_between(*_bounds(view.whole))
    assert view.break_down().wall_ns == view.whole.length_ns - idle_ns


@given(real)
@quick
def test_no_phase_is_ever_negative(history: History) -> None:
    view = view_at_once(history)
    window = everything(view)
    at = range(window.start_ns, window.end_ns, max(window.length_ns // 97, 1))
    for start_ns, end_ns in pairwise(at):
        assert all(ns > 0 for ns in view.timeline.between(start_ns, end_ns).values())


@given(real, st.data())
@thorough
def test_adjacent_windows_add_up(history: History, data: st.DataObject) -> None:
    view = view_at_once(history)
    edges = cuts(view, data, 5)
    parts = [view.break_down(Window(start, end)).phases for start, end in pairwise(edges)]
    whole = view.break_down(Window(edges[0], edges[-1])).phases
    names = set(whole).union(*parts)
    assert {name: sum(part.get(name, 0) for part in parts) for name in names} == {
        name: whole.get(name, 0) for name in names
    }


@given(real, st.data())
@thorough
def test_phase_dollars_sum_to_the_cost_and_to_the_integral_of_the_rate(
    history: History, data: st.DataObject
) -> None:
    view = view_at_once(history)
    edges = cuts(view, data, 2)
    for window in (view.whole, everything(view), Window(*edges)):
        found = view.break_down(window)
        if view.rates is None:
            assert found.cost is None
            continue
        assert found.cost == view.rates.cost_between(*_bounds(window))
        assert sum(money.micros for money in found.cost_by_phase.values()) == found.cost.micros


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=5))
@example([(27, 30)])  # Behind the window.
@example([(0, 4), (3, 9), (20, 27)])  # Over its edges.
@example([(16, 18), (8, 14), (10, 12), (22, 19)])  # Not in order, nested, inverted.
def test_exclusions_leave_the_instants_outside_them(
    pairs: list[tuple[int, int]],
) -> None:
    kept = without(Window(5, 25), [Window(*pair) for pair in pairs])
    instants = [t for window in kept for t in range(window.start_ns, window.end_ns)]
    excluded = {t for start, end in pairs for t in range(start, end)}
    assert instants == [t for t in range(5, 25) if t not in excluded]


# Replay -----------------------------------------------------------------------------------------


@given(small | real, chances)
@thorough
def test_folding_a_prefix_and_then_the_rest_equals_folding_all(
    history: History, chance: random.Random
) -> None:
    builder = TimelineBuilder()
    pending = {segment: list(records) for segment, records in history.segments.items()}
    while pending:
        segment = chance.choice(sorted(pending))
        size = chance.randint(1, 6)
        builder.account.fold(segment, pending[segment][:size])
        pending[segment] = pending[segment][size:]
        if not pending[segment]:
            del pending[segment]
        if chance.random() < 0.5:
            build_view(builder, history)
    assert figures(build_view(builder, history)) == figures(view_at_once(history))


@given(small | real, chances)
@thorough
def test_order_of_arrival_does_not_matter(history: History, chance: random.Random) -> None:
    builder = TimelineBuilder()
    arrivals = [(s, record) for s, records in history.segments.items() for record in records]
    chance.shuffle(arrivals)
    for segment, record in arrivals:
        builder.account.fold(segment, [record])
        if chance.random() < 0.2:
            build_view(builder, history)
    assert figures(build_view(builder, history)) == figures(view_at_once(history))


@given(small | real, chances)
@quick
def test_a_view_does_not_change_when_more_records_are_folded(
    history: History, chance: random.Random
) -> None:
    arrivals = [(s, record) for s, records in history.segments.items() for record in records]
    chance.shuffle(arrivals)
    builder = TimelineBuilder()
    half = len(arrivals) // 2 + 1
    for segment, record in arrivals[:half]:
        builder.account.fold(segment, [record])
    early = build_view(builder, history)
    before = figures(early)
    for segment, record in arrivals[half:]:
        builder.account.fold(segment, [record])
    build_view(builder, history)
    assert figures(early) == before


def _lines(records: Sequence[Record]) -> bytes:
    known = [record for record in records if isinstance(record, KnownRecord)]
    return b"".join(encode_line(record, record.seq) for record in known)


@given(real, chances)
@settings(max_examples=60, deadline=None)
def test_following_a_growing_log_equals_reading_it_at_the_end(
    tmp_path_factory: pytest.TempPathFactory, history: History, chance: random.Random
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    follower = GoodputFollower(run_dir)
    ledger_dir(run_dir).mkdir()
    logs = {segment: _lines(records) for segment, records in history.segments.items()}
    # The oldest segment's header first: before it there is no run.
    _append(run_dir, min(logs), logs, logs[min(logs)].index(b"\n") + 1)
    while any(logs.values()):
        segment = chance.choice([segment for segment in sorted(logs) if logs[segment]])
        _append(run_dir, segment, logs, chance.randint(1, 900))
        _view(follower, history)
    assert figures(_view(follower, history)) == figures(_view(GoodputFollower(run_dir), history))


def _append(run_dir: Path, segment: Any, logs: dict[Any, bytes], size: int) -> None:
    with (ledger_dir(run_dir) / segment.file_name).open("ab") as log:
        log.write(logs[segment][:size])
    logs[segment] = logs[segment][size:]


def _view(follower: GoodputFollower, history: History) -> RunView:
    return follower.view(history.now_ns, alive=history.alive, dead_after_ns=history.dead_after_ns)


def _bounds(window: Window) -> tuple[int, int]:
    return window.start_ns, window.end_ns
