"""A timeline that is rebuilt while records arrive in any order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgers import SECOND, START_NS, Segment, numbered
from outlay.goodput.timeline import Timeline, TimelineBuilder
from outlay.ledger import Record, SpanBegun, SpanEnded
from outlay.ledger.attempts import DEAD_AFTER_NS


def built(builder: TimelineBuilder, now: float = 100) -> Timeline:
    timeline = builder.build(START_NS + round(now * SECOND))
    assert timeline is not None
    return timeline


def fold(builder: TimelineBuilder, segment: Segment, records: Sequence[Record] = ()) -> None:
    builder.account.fold(segment.id, records or numbered(segment.records))


def whole(timeline: Timeline) -> dict[str, int]:
    found = timeline.between(timeline.start_ns, timeline.end_ns)
    return {name: ns // SECOND for name, ns in found.items()}


def steps(segment: Segment, count: int, seconds: float) -> Segment:
    for _ in range(count):
        segment.step(seconds)
    return segment


def test_steps_of_a_rank_that_led_for_a_while_do_not_stay_typical() -> None:
    """Rank 1's file is seen first; when rank 0's appears, the run is rank 0's."""
    builder = TimelineBuilder()
    fold(builder, steps(Segment(rank=1), 20, 3).end())
    assert built(builder).typical is not None
    fold(builder, steps(Segment(rank=0), 4, 1).end())
    typical = built(builder).typical
    assert typical is not None
    assert typical.step_ns == SECOND


def test_a_late_span_takes_its_time_from_the_steps() -> None:
    segment = steps(Segment(), 5, 2)
    segment.add(SpanBegun(t_ns=START_NS + 3 * SECOND, name="evaluation"))
    segment.add(SpanEnded(t_ns=START_NS + 4 * SECOND, begun=6)).end()
    *others, begun, ended, last = numbered(segment.records)
    builder = TimelineBuilder()
    fold(builder, segment, [*others, last])
    assert whole(built(builder)) == {"step": 10}
    fold(builder, segment, [ended])
    assert whole(built(builder)) == {"step": 10}
    fold(builder, segment, [begun])
    assert whole(built(builder)) == {"step": 9, "evaluation": 1}


def test_a_supervisor_extends_its_attempt_on_both_sides() -> None:
    builder = TimelineBuilder()
    fold(builder, steps(Segment(start=5), 3, 1))
    fold(builder, Segment(start=2, rank=-1).heartbeat(after=18).end("failed"))
    assert whole(built(builder)) == {"step": 3, "other": 15}


def test_other_ranks_only_show_that_the_attempt_was_alive() -> None:
    builder = TimelineBuilder()
    fold(builder, steps(Segment(), 3, 1))
    fold(builder, steps(Segment(rank=1), 8, 1).end())
    timeline = builder.build(START_NS + 9000 * SECOND)
    assert timeline is not None
    assert whole(timeline) == {"step": 3, "other": 5}


def test_the_later_of_overlapping_attempts_counts() -> None:
    builder = TimelineBuilder()
    fold(builder, steps(Segment(), 10, 1).end("failed"))
    later = Segment(start=4, about={"pid": 8}).step(1, number=2)
    fold(builder, steps(later, 4, 1).end())
    assert whole(built(builder)) == {"step": 7, "wasted_progress": 2}


def test_alive_can_be_stated() -> None:
    builder = TimelineBuilder()
    fold(builder, steps(Segment(), 3, 1))
    now_ns = START_NS + 9000 * SECOND
    for alive, seconds in ((True, 9000), (False, 3), (None, 3)):
        timeline = builder.build(now_ns, alive=alive)
        assert timeline is not None
        assert (timeline.end_ns - timeline.start_ns) // SECOND == seconds
        assert timeline.alive is bool(alive)


@pytest.mark.parametrize(("longer_ns", "alive"), [(0, True), (1, False)])
def test_an_attempt_is_dead_after_ten_minutes_without_a_sign_of_life(
    longer_ns: int, alive: bool
) -> None:
    builder = TimelineBuilder()
    fold(builder, steps(Segment(), 3, 1))
    timeline = builder.build(START_NS + 3 * SECOND + DEAD_AFTER_NS + longer_ns)
    assert timeline is not None
    assert timeline.alive is alive


def test_an_attempt_with_an_end_is_not_alive() -> None:
    builder = TimelineBuilder()
    fold(builder, steps(Segment(), 3, 1).end("failed"))
    timeline = builder.build(START_NS + 4 * SECOND, alive=True)
    assert timeline is not None
    assert not timeline.alive


def test_a_present_before_the_last_record_does_not_cut_the_run() -> None:
    builder = TimelineBuilder()
    fold(builder, steps(Segment(), 3, 1))
    assert whole(built(builder, now=1)) == {"step": 3}


def test_no_time_passed_before_the_start() -> None:
    builder = TimelineBuilder()
    fold(builder, steps(Segment(), 3, 1))
    assert built(builder).before(START_NS - 1) == {}
