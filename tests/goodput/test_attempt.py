"""One attempt: the split of own time, in order of time."""

from __future__ import annotations

import pytest

from ledgers import SECOND, START_NS, Segment, ns, numbered
from outlay.account.run import SegmentAccount
from outlay.goodput.attempt import AttemptTimeline, OwnTimes
from outlay.goodput.steps import Typical
from outlay.ledger import SpanBegun, SpanEnded

ONE_SECOND = Typical(step_ns=SECOND, stall_beyond_ns=2 * SECOND)


def fold_of(segment: Segment) -> SegmentAccount:
    fold = SegmentAccount(segment.id)
    fold.fold(numbered(segment.records))
    return fold


def attempt(
    segment: Segment, typical: Typical | None = ONE_SECOND, redone_from: int | None = None
) -> AttemptTimeline:
    return AttemptTimeline(
        START_NS, segment.now_ns, OwnTimes(fold_of(segment)), typical, redone_from
    )


def seconds_before(timeline: AttemptTimeline, seconds: float) -> dict[str, float]:
    found = timeline.before(START_NS + ns(seconds))
    return {name: amount / SECOND for name, amount in found.items() if amount}


def test_startup_is_the_head_of_the_first_step() -> None:
    timeline = attempt(Segment().step(5).step(1))
    assert seconds_before(timeline, 3) == {"program_startup": 3}
    assert seconds_before(timeline, 4.5) == {"program_startup": 4, "step": 0.5}


def test_a_stall_is_the_tail_of_a_step() -> None:
    timeline = attempt(Segment().step(1).step(5).step(1))
    assert seconds_before(timeline, 1.5) == {"step": 1.5}
    assert seconds_before(timeline, 4) == {"step": 2, "stall": 2}
    assert seconds_before(timeline, 7) == {"step": 3, "stall": 4}


def test_a_step_at_the_threshold_does_not_stall() -> None:
    assert seconds_before(attempt(Segment().step(1).step(2)), 3) == {"step": 3}


def test_a_record_of_several_steps_is_held_to_as_many_typical_ones() -> None:
    timeline = attempt(Segment().step(3, count=2).step(4, count=2).step(5, count=2))
    assert seconds_before(timeline, 12) == {"program_startup": 1, "step": 8, "stall": 3}


def test_without_a_typical_step_nothing_is_split() -> None:
    assert seconds_before(attempt(Segment().step(9).step(1), None), 10) == {"step": 10}


def test_what_was_undone_of_a_step_that_stalled_is_only_its_progress() -> None:
    timeline = attempt(Segment().step(1).step(5), redone_from=1)
    assert seconds_before(timeline, 6) == {"step": 1, "wasted_progress": 1, "stall": 4}


def test_what_was_undone_of_a_first_step_is_only_its_progress() -> None:
    timeline = attempt(Segment().step(5).step(1), redone_from=0)
    assert seconds_before(timeline, 6) == {"program_startup": 4, "wasted_progress": 2}


def test_a_record_undone_in_part_keeps_its_head() -> None:
    timeline = attempt(Segment().step(1).step(4, count=4), redone_from=2)
    assert seconds_before(timeline, 2.5) == {"step": 2, "wasted_progress": 0.5}
    assert seconds_before(timeline, 5) == {"step": 2, "wasted_progress": 3}


def test_waiting_for_data_is_data_loading_unless_a_span_holds_it() -> None:
    segment = Segment().step(1).span("evaluation", 2)
    segment.after(-1).step(1, wait=3)  # The wait is said to have begun inside the span.
    timeline = attempt(segment)
    assert seconds_before(timeline, 2.5) == {"step": 1, "evaluation": 1.5}
    assert seconds_before(timeline, 6) == {"step": 2, "evaluation": 2, "data_loading": 2}


def test_a_span_inside_a_step_is_not_its_own_time() -> None:
    segment = Segment().step(1).add(SpanBegun(t_ns=START_NS + 2 * SECOND, name="checkpoint_save"))
    segment.add(SpanEnded(t_ns=START_NS + 8 * SECOND, begun=2)).step(8)
    timeline = attempt(segment)
    assert seconds_before(timeline, 9) == {"step": 3, "checkpoint_save": 6}
    assert timeline.own_ns(1) == 2 * SECOND


def test_work_beside_training_takes_no_part() -> None:
    timeline = attempt(Segment().span("checkpoint_save", 3, overlapped=True))
    assert seconds_before(timeline, 3) == {"other": 3}


def test_an_end_without_a_beginning_is_ignored() -> None:
    segment = Segment().add(SpanEnded(t_ns=START_NS, begun=9)).step(1)
    assert seconds_before(attempt(segment), 1) == {"step": 1}


@pytest.mark.parametrize(("step", "seconds"), [(-1, 0), (0, 1), (1, 3), (4, 3), (5, 6)])
def test_start_of_the_step_after_another(step: int, seconds: int) -> None:
    timeline = attempt(Segment().step(1).step(2).step(3, number=5))
    assert timeline.start_of_step_after(step) == START_NS + seconds * SECOND


def test_progress_of_an_attempt() -> None:
    timeline = attempt(Segment().step(1).step(2, count=3).checkpoint())
    assert timeline.furthest_step == 3
    assert timeline.first_step_end_ns == START_NS + SECOND
    (committed,) = timeline.checkpoints
    assert (committed.t_ns, committed.step) == (START_NS + 3 * SECOND, 3)


def test_an_attempt_without_steps_has_no_progress() -> None:
    timeline = attempt(Segment().heartbeat(after=4))
    assert timeline.furthest_step == -1
    assert timeline.first_step_end_ns == START_NS + 4 * SECOND
    assert timeline.first_kept_after(-1) is None


def test_the_first_surviving_step_is_not_one_that_was_undone() -> None:
    timeline = attempt(Segment().step(1).step(1).step(1, number=1).step(1))
    assert timeline.first_kept_after(0) == START_NS + 2 * SECOND
    assert timeline.first_kept_after(2) is None


def test_steps_that_claim_the_same_time_leave_it_to_the_earlier() -> None:
    timeline = attempt(Segment().step(2).after(-1).step(2), None)
    assert [timeline.own_ns(index) for index in range(2)] == [2 * SECOND, SECOND]


def test_a_late_record_takes_its_place() -> None:
    segment = Segment().step(1).step(1).step(1)
    records = numbered(segment.records)
    fold = SegmentAccount(segment.id)
    fold.fold([records[0], records[1], records[3]])
    own = OwnTimes(fold)
    own.before()
    fold.fold([records[2]])
    assert fold.steps.number.tolist() == [0, 1, 2]
    assert own.before()[0].tolist() == [0, SECOND, 2 * SECOND, 3 * SECOND]


@pytest.mark.parametrize(
    ("cut", "numbers"), [(0, []), (1, [0]), (1.5, [0, 1]), (2, [0, 1]), (9, [0, 1, 2])]
)
def test_an_attempt_cut_short_has_the_steps_that_had_begun(cut: float, numbers: list[int]) -> None:
    fold = fold_of(Segment().step(1).step(1).step(1).checkpoint())
    clipped = fold.clipped(START_NS + ns(cut))
    assert clipped.steps.number.tolist() == numbers
    assert bool(clipped.checkpoints) is (cut == 9)
