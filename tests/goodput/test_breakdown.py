"""A breakdown's figures, and the names and the order of phases."""

from __future__ import annotations

import pytest

from ledgers import SECOND, START_NS, Segment, dollars, numbered
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView, view_of
from outlay.goodput.timeline import TimelineBuilder, Window
from outlay.rates import NS_PER_HOUR, round_units, round_units_up
from outlay.units import Money


def view(segment: Segment) -> RunView:
    builder = TimelineBuilder()
    builder.account.fold(segment.id, numbered(segment.records))
    timeline = builder.build(segment.now_ns)
    assert timeline is not None
    return view_of(timeline, builder.account)


def test_nothing_recorded_has_no_timeline() -> None:
    assert TimelineBuilder().build(START_NS) is None


def test_badput_is_everything_but_steps_in_reading_order() -> None:
    segment = Segment().span("zeal", 1).span("training_prep", 1).step(1).heartbeat(1)
    found = view(segment.end()).break_down()
    assert list(found.badput) == ["training_prep", "custom:zeal", "other"]
    assert found.share("other") == 0.25


def test_without_a_price_there_is_no_cost() -> None:
    found = view(Segment().step(1).end()).break_down()
    assert (found.cost, found.cost_by_phase, found.assumptions) == (None, {}, ())


def test_micro_dollars_go_to_the_phases_that_lost_most_by_rounding() -> None:
    """Three thirds of a micro-dollar: the whole is one, and one phase gets it."""
    segment = Segment(about={"price": dollars(1.2)})
    segment.step(0.001).span("evaluation", 0.001).heartbeat(0.001).end()
    found = view(segment).break_down()
    assert {name: money.micros for name, money in found.cost_by_phase.items()} == {
        "step": 1,
        "evaluation": 0,
        "other": 0,
    }


def test_phases_cost_what_the_rates_say_of_their_windows() -> None:
    seen = view(steps_at_a_price())
    windows = [
        Window(START_NS, START_NS + SECOND),
        Window(START_NS + 3 * SECOND, seen.whole.end_ns),
    ]
    assert seen.rates is not None
    assert [window.length_ns for window in windows] == [SECOND, 2 * SECOND]
    found = seen.break_down(exclusions=(Window(windows[0].end_ns, windows[1].start_ns),))
    assert found.windows == tuple(windows)
    units = sum(seen.rates.units_between(w.start_ns, w.end_ns) for w in windows)
    assert found.cost == Money(round_units(units), "USD")


def steps_at_a_price() -> Segment:
    """Five seconds at 7 dollars an hour, then at 11."""
    return Segment(about={"price": dollars(7)}).step(2).price(11).step(3).end()


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("checkpoint_save", "checkpoint_save"),
        ("custom:debug", "custom:debug"),
        ("debug", "custom:debug"),
        ("step", "custom:step"),
        ("recovery", "custom:recovery"),
    ],
)
def test_a_span_cannot_pass_for_a_phase_that_is_measured(name: str, phase: str) -> None:
    assert ph.phase_of_span(name) == phase


def test_round_units_up_rounds_up() -> None:
    assert [round_units_up(units) for units in (0, 1, NS_PER_HOUR)] == [0, 1, 1]


def test_a_view_has_its_ranks_and_their_work() -> None:
    found = view(Segment().step(1, tokens=5).step(1, tokens=7).end())
    assert found.account.work.tokens == 12
    assert [row.steps for row in found.ranks()] == [2]
    assert found.break_down().wall_ns == 2 * SECOND
