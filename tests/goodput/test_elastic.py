"""Slice-weighted goodput, from native records."""

from __future__ import annotations

from pathlib import Path

import pytest

import outlay
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.goodput.follower import GoodputFollower
from outlay.goodput.timeline import SliceEfficiency, Window, slice_efficiency

SECOND = 10**9


def efficiency(run_dir: Path, clock: ManualClock, *windows: Window) -> SliceEfficiency | None:
    view = GoodputFollower(run_dir).view(clock.wall_ns())
    changes = [change for fold in view.account.segments.values() for change in fold.life.slices]
    return slice_efficiency(view.timeline, changes, windows or [view.whole])


def elastic_run(run_dir: Path, clock: ManualClock) -> int:
    """Record 10 s with no counts, 10 s with 4 of 4 slices, 20 s with 1 of 4; half of it steps."""
    with outlay.run("model", dir=run_dir, clock=clock) as run:
        start_ns = clock.wall_ns()
        for counts, steps in ((None, 5), ((4, 4), 5), ((1, 4, 2), 10)):
            if counts is not None:
                run.set_slices(*counts)
            for _ in range(steps):
                with run.step():
                    clock.advance(SECOND)
            clock.advance(steps * SECOND)
    return start_ns


def test_productive_time_is_weighted_by_the_slices_that_train(tmp_path: Path) -> None:
    clock = ManualClock()
    elastic_run(tmp_path, clock)
    found = efficiency(tmp_path, clock)
    assert found == SliceEfficiency(
        goodput=(5 + 5 + 10 / 4) / 40,
        stepping=(10 + 20 / 4) / 30,
        available=(10 + 20 / 2) / 30,
        known_ns=30 * SECOND,
    )


def test_windows_are_weighted_by_themselves(tmp_path: Path) -> None:
    clock = ManualClock()
    start_ns = elastic_run(tmp_path, clock)
    found = efficiency(tmp_path, clock, Window(start_ns + 20 * SECOND, start_ns + 30 * SECOND))
    assert found is not None
    assert (found.goodput, found.stepping) == (0.25, 0.25)


def test_without_counts_there_is_no_efficiency(tmp_path: Path) -> None:
    clock = ManualClock()
    start_ns = elastic_run(tmp_path, clock)
    assert efficiency(tmp_path, clock, Window(start_ns, start_ns + 10 * SECOND)) is None


@pytest.mark.parametrize("counts", [(3, 2), (-1, 2), (0, 0), (2, 4, 1), (2, 4, 5)])
def test_invalid_counts_are_refused(counts: tuple[int, ...], tmp_path: Path) -> None:
    with outlay.run("model", dir=tmp_path) as run, pytest.raises(InvalidValue, match="slices"):
        run.set_slices(*counts)
