"""Histories that are easily misread, each with a result that can be checked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgers import HOUR, SECOND, START_NS, Segment, dollars, ns, to_lines
from outlay.errors import InvalidValue, NotARun
from outlay.goodput.follower import GoodputFollower, RunView
from outlay.goodput.reliability import disruptions
from outlay.goodput.timeline import Window
from outlay.ledger import (
    CheckpointCommitted,
    Heartbeat,
    KnownRecord,
    SpanBegun,
    SpanEnded,
    Step,
    ledger_dir,
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def view_of(run_dir: Path, *segments: Segment, now: float | None = None) -> RunView:
    """Write the segments, and look at the run at ``now`` (default: just after the last record)."""
    for segment in segments:
        segment.write(run_dir)
    last_ns = max(segment.now_ns for segment in segments)
    return GoodputFollower(run_dir).view(last_ns if now is None else START_NS + ns(now))


def window(start: float, end: float) -> Window:
    return Window(START_NS + ns(start), START_NS + ns(end))


def steps(segment: Segment, count: int, seconds: float) -> Segment:
    for _ in range(count):
        segment.step(seconds)
    return segment


def restarted(at: float, pid: int = 8, *, number: int = 0, seconds: float = 1.0) -> Segment:
    """A later attempt, whose first step has been run."""
    return Segment(start=at, about={"pid": pid}).step(seconds, number=number)


# Where ml-goodput-measurement is wrong -----------------------------------------------------------


def test_a_clean_restart_at_the_next_step_is_a_disruption_of_an_hour(run_dir: Path) -> None:
    first = steps(Segment(), 100, 1.0)
    second = steps(restarted(3700, number=100), 99, 1.0).end()
    view = view_of(run_dir, first, second)
    assert view.break_down().phases == {"step": 200 * SECOND, "recovery": HOUR}
    assert len(disruptions(view.timeline)) == 1


def test_a_window_is_not_shrunk_to_what_was_logged(run_dir: Path) -> None:
    view = view_of(run_dir, steps(Segment(), 600, 1.0), now=7200)
    found = view.break_down(window(0, 3600))
    assert found.goodput == pytest.approx(1 / 6)
    assert found.phases["recovery"] == 3000 * SECOND


def test_a_window_inside_an_outage_has_no_goodput(run_dir: Path) -> None:
    second = steps(restarted(3700, number=100), 9, 1.0).end()
    view = view_of(run_dir, steps(Segment(), 100, 1.0), second)
    found = view.break_down(window(1000, 2000))
    assert found.goodput == 0.0
    assert found.phases == {"recovery": 1000 * SECOND}


def test_a_step_that_hangs_is_badput(run_dir: Path) -> None:
    segment = steps(Segment(), 100, 1.0).step(1001)
    view = view_of(run_dir, steps(segment, 99, 1.0).end())
    found = view.break_down()
    assert found.phases == {"step": 200 * SECOND, "stall": 1000 * SECOND}
    assert found.goodput == pytest.approx(1 / 6)


def test_a_blocking_load_at_each_of_four_starts_counts_four_times(run_dir: Path) -> None:
    attempts = [
        steps(Segment(start=100 * n, about={"pid": n}).span("data_loading", 2), 10, 1.0)
        for n in range(4)
    ]
    found = view_of(run_dir, *attempts).break_down()
    assert found.phases["data_loading"] == 8 * SECOND


def test_overlapping_spans_share_their_time(run_dir: Path) -> None:
    segment = Segment().after(1).add(SpanBegun(t_ns=START_NS + SECOND, name="a"))
    segment.add(SpanBegun(t_ns=START_NS + 2 * SECOND, name="b"))
    segment.add(SpanEnded(t_ns=START_NS + 8 * SECOND, begun=2))
    segment.add(SpanEnded(t_ns=START_NS + 9 * SECOND, begun=1)).after(9)
    found = view_of(run_dir, segment.end())
    assert found.break_down().phases == {
        "custom:a": 2 * SECOND,
        "custom:b": 6 * SECOND,
        "other": 2 * SECOND,
    }


@pytest.mark.parametrize("restart", [False, True], ids=["same follower", "new follower"])
def test_a_grown_log_is_read_further(run_dir: Path, restart: bool) -> None:
    segment = steps(Segment(), 10, 1.0)
    segment.write(run_dir)
    follower = GoodputFollower(run_dir)
    follower.view(segment.now_ns)
    steps(segment, 10, 1.0).write(run_dir)
    reader = GoodputFollower(run_dir) if restart else follower
    assert reader.view(segment.now_ns).break_down().phases == {"step": 20 * SECOND}


def test_a_line_delivered_twice_is_no_disruption(run_dir: Path) -> None:
    segment = steps(Segment(), 10, 1.0)
    path = segment.write(run_dir)
    with path.open("ab") as log:
        log.write(to_lines(segment.records)[5])
    view = GoodputFollower(run_dir).view(segment.now_ns)
    assert disruptions(view.timeline) == []
    assert view.break_down().phases == {"step": 10 * SECOND}


def test_a_copy_of_a_segment_changes_nothing(run_dir: Path) -> None:
    segment = steps(Segment(), 10, 1.0)
    segment.write(run_dir, name="copy.jsonl")
    view = view_of(run_dir, segment)
    assert view.break_down().phases == {"step": 10 * SECOND}


def test_a_process_killed_while_it_saved_was_saving_to_its_last_sign(run_dir: Path) -> None:
    segment = steps(Segment(), 10, 1.0)
    segment.add(SpanBegun(t_ns=segment.now_ns, name="checkpoint_save")).heartbeat(after=4)
    found = view_of(run_dir, segment, now=10_000).break_down()
    assert found.phases == {"step": 10 * SECOND, "checkpoint_save": 4 * SECOND}


def test_steps_of_half_a_second_have_a_typical_time(run_dir: Path) -> None:
    view = view_of(run_dir, steps(Segment(), 10, 0.5).end())
    assert view.timeline.typical is not None
    assert view.timeline.typical.step_ns == SECOND // 2


# Money between attempts -------------------------------------------------------------------------


def _requeue(run_dir: Path, before: dict[str, str], after: dict[str, str]) -> RunView:
    price = dollars(10)
    first = steps(Segment(about={"price": price, "gpus": 8, **before}), 100, 36.0)
    second = Segment(start=6 * 3600, about={"price": price, "gpus": 8, "pid": 8, **after})
    return view_of(run_dir, first, steps(second.step(36.0, number=100), 99, 36.0).end())


def test_a_slurm_requeue_of_five_hours_adds_recovery_and_no_cost(run_dir: Path) -> None:
    job = {"slurm_job": "42"}
    view = _requeue(run_dir, {**job, "launch": "slurm-42-0"}, {**job, "launch": "slurm-42-1"})
    found = view.break_down()
    assert found.phases == {"step": 2 * HOUR, "recovery": 5 * HOUR}
    assert {name: money.micros for name, money in found.cost_by_phase.items()} == {
        "step": 160_000_000,
        "recovery": 0,
    }
    assert found.assumptions == ()


def test_a_crash_on_a_machine_that_stayed_up_adds_its_full_price(run_dir: Path) -> None:
    found = _requeue(run_dir, {"boot_id": "b"}, {"boot_id": "b"}).break_down()
    assert {name: money.micros for name, money in found.cost_by_phase.items()} == {
        "step": 160_000_000,
        "recovery": 400_000_000,
    }
    assert found.assumptions == ()


def test_an_unexplained_gap_is_charged_as_an_assumption(run_dir: Path) -> None:
    view = _requeue(run_dir, {}, {})
    assert view.break_down().cost_by_phase["recovery"].micros == 400_000_000
    assert len(view.break_down().assumptions) == 1
    assert view.break_down(window(0, 3600)).assumptions == ()


# Windows and runs at their edges ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "phases", "idle"),
    [
        pytest.param(5, 5, {}, 0, id="empty"),
        pytest.param(-20, -10, {}, 0, id="before the start"),
        pytest.param(-5, 5, {"step": 5}, 0, id="across the start"),
        pytest.param(5, 15, {"step": 5}, 5, id="across the end"),
        pytest.param(20, 30, {}, 10, id="after the end"),
        pytest.param(990, 1010, {}, 10, id="into the future"),
        pytest.param(2000, 3000, {}, 0, id="in the future"),
    ],
)
def test_windows_of_a_completed_run(
    run_dir: Path, start: float, end: float, phases: dict[str, int], idle: int
) -> None:
    view = view_of(run_dir, steps(Segment(), 10, 1.0).end(), now=1000)
    found = view.break_down(window(start, end))
    assert found.phases == {name: seconds * SECOND for name, seconds in phases.items()}
    assert found.idle_ns == idle * SECOND


def test_without_wall_time_there_is_no_goodput(run_dir: Path) -> None:
    view = view_of(run_dir, steps(Segment(), 10, 1.0).end(), now=1000)
    assert view.break_down(window(20, 30)).goodput is None


def test_a_dead_run_ends_with_its_last_sign_and_recovers_in_windows(run_dir: Path) -> None:
    view = view_of(run_dir, steps(Segment(), 10, 1.0), now=1000)
    assert view.break_down().phases == {"step": 10 * SECOND}
    assert view.break_down(window(0, 2000)).phases == {
        "step": 10 * SECOND,
        "recovery": 990 * SECOND,
    }


def test_a_live_run_is_other_since_its_last_record(run_dir: Path) -> None:
    view = view_of(run_dir, steps(Segment(), 10, 1.0), now=100)
    assert view.break_down().phases == {"step": 10 * SECOND, "other": 90 * SECOND}


def test_idle_time_between_two_completed_attempts_is_outside_wall_time(run_dir: Path) -> None:
    second = steps(restarted(100, number=10), 9, 1.0).end()
    found = view_of(run_dir, steps(Segment(), 10, 1.0).end(), second).break_down()
    assert found.wall_ns == 20 * SECOND
    assert found.idle_ns == 90 * SECOND


def test_a_run_with_no_steps_is_other(run_dir: Path) -> None:
    found = view_of(run_dir, Segment().heartbeat(after=9).end("failed")).break_down()
    assert found.phases == {"other": 9 * SECOND}
    assert found.goodput == 0.0


def test_a_run_that_has_only_begun_has_no_wall_time(run_dir: Path) -> None:
    found = view_of(run_dir, Segment()).break_down()
    assert (found.wall_ns, found.goodput, found.badput) == (0, None, {})


def test_a_window_must_not_end_before_it_starts(run_dir: Path) -> None:
    view = view_of(run_dir, steps(Segment(), 3, 1.0))
    with pytest.raises(InvalidValue, match="an end that is not before the start"):
        view.window(START_NS + SECOND, START_NS)


def test_missing_bounds_of_a_window_are_those_of_the_run(run_dir: Path) -> None:
    view = view_of(run_dir, steps(Segment(), 3, 1.0))
    assert view.window(end_ns=START_NS + SECOND) == window(0, 1)
    assert view.window(START_NS + SECOND) == window(1, 3)


def test_a_directory_without_a_log_is_not_a_run(run_dir: Path) -> None:
    with pytest.raises(NotARun):
        GoodputFollower(run_dir).view(START_NS)


def test_a_file_without_a_single_good_record_adds_no_attempt(run_dir: Path) -> None:
    segment = steps(Segment(), 10, 1.0)
    segment.write(run_dir)
    name = restarted(3600).id.file_name
    (ledger_dir(run_dir) / name).write_text("not a record\n")
    view = GoodputFollower(run_dir).view(segment.now_ns)
    assert view.break_down().phases == {"step": 10 * SECOND}
    assert [finding.source for finding in view.findings] == [name]


IMPOSSIBLE = {
    "number": Step(t_ns=START_NS, step=2**62, dur_ns=1),
    "instant": Step(t_ns=2**64 - 1, step=3, dur_ns=1),
    "duration": Step(t_ns=START_NS, step=3, dur_ns=2**62),
    "wait": Step(t_ns=START_NS, step=3, dur_ns=1, wait_ns=2**62),
    "count": Step(t_ns=START_NS, step=3, dur_ns=1, count=2**62),
    "no steps": Step(t_ns=START_NS, step=3, dur_ns=SECOND, count=0, samples=1),
    "sign of life": Heartbeat(t_ns=2**62),
    "checkpoint": CheckpointCommitted(t_ns=START_NS, step=2**62),
}


@pytest.mark.parametrize("many", [2, 300], ids=["read one by one", "read in bulk"])
@pytest.mark.parametrize("record", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_out_of_range_number_is_a_finding_with_its_line(
    run_dir: Path, record: KnownRecord, many: int
) -> None:
    segment = steps(Segment().step(1.0, count=2).add(record), many, 1.0)
    view = view_of(run_dir, segment.end())
    assert view.break_down().phases == {"step": (1 + many) * SECOND}
    assert [finding.line for finding in view.findings] == [3]


@pytest.mark.parametrize("again", [0, 2**62 - 2])
def test_the_largest_step_numbers_take_no_time_from_others(run_dir: Path, again: int) -> None:
    most = 2**62 - 1
    first = steps(Segment(), 5, 1.0).step(1.0, number=most, count=most)
    view = view_of(run_dir, first.step(1.0, number=10, count=most), restarted(9, number=again))
    found = view.break_down().phases
    assert found["step"] + found["wasted_progress"] == 8 * SECOND
    assert found["recovery"] == 2 * SECOND
    assert view.timeline.last_step() == again


def test_attempts_that_overlap_are_a_finding(run_dir: Path) -> None:
    first = steps(Segment(), 10, 1.0)
    view = view_of(run_dir, first, steps(restarted(5, number=5), 4, 1.0).end())
    (finding,) = view.findings
    assert (finding.source, finding.severity) == (first.id.file_name, "warning")
    assert view.break_down().phases == {"step": 10 * SECOND}


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("node", {"step": 10 * SECOND, "wasted_progress": 5 * SECOND}),
        ("another", {"step": 10 * SECOND}),
    ],
)
def test_attempts_that_overlap_are_laid_end_to_end_on_one_machine_alone(
    run_dir: Path, host: str, found: dict[str, int]
) -> None:
    def about(host: str, pid: int) -> dict[str, Any]:
        machine = {"host": host, "boot_id": host, "init_start": "1"}
        return {**machine, "nodes": 1, "pid": pid}

    first = steps(Segment(about=about("node", 7)), 10, 1.0)
    second = Segment(start=5, about=about(host, 8)).step(1.0, number=5)
    view = view_of(run_dir, first, steps(second, 4, 1.0).end())
    assert view.break_down().phases == found
    assert len(view.findings) == 1
