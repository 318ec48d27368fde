"""Progress that is committed, and progress that a kill would undo."""

from __future__ import annotations

from pathlib import Path

from ledgers import HOUR, SECOND, START_NS, Segment
from outlay.goodput.follower import GoodputFollower
from outlay.goodput.timeline import Progress, progress


def progress_of(run_dir: Path, *segments: Segment) -> Progress:
    for segment in segments:
        segment.write(run_dir)
    return progress(GoodputFollower(run_dir).view(START_NS + HOUR).timeline, None)


def test_steps_after_the_last_committed_one_are_at_risk(tmp_path: Path) -> None:
    found = progress_of(tmp_path, Segment().step(1).step(1).checkpoint().step(3))
    assert (found.committed_step, found.last_step) == (1, 2)
    assert (found.committed_ns, found.at_risk_ns) == (2 * SECOND, 3 * SECOND)


def test_after_a_rollback_the_last_step_is_the_one_that_survives(tmp_path: Path) -> None:
    first = Segment().step(1).checkpoint().step(1).step(1).step(1)
    second = Segment(start=10, about={"pid": 8}).step(1, number=1)
    assert progress_of(tmp_path, first, second).last_step == 1


def test_without_steps_there_is_no_progress(tmp_path: Path) -> None:
    found = progress_of(tmp_path, Segment().heartbeat(1))
    assert (found.last_step, found.committed_step, found.at_risk_ns) == (None, None, 0)
