"""Rolling windows: of one length, one after another, the last at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlay import run
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.goodput.follower import GoodputFollower, roll
from outlay.goodput.timeline import Window, rolling

SECOND = 10**9


def test_windows_end_at_equal_distances_and_at_the_end() -> None:
    assert rolling(Window(0, 10), length_ns=4, every_ns=3) == [
        Window(-3, 1),
        Window(0, 4),
        Window(3, 7),
        Window(6, 10),
    ]


def test_windows_of_their_own_distance_add_up_to_the_whole() -> None:
    windows = rolling(Window(5, 25), length_ns=10, every_ns=10)
    assert windows == [Window(5, 15), Window(15, 25)]


@pytest.mark.parametrize(("length_ns", "every_ns"), [(0, 1), (1, 0), (-1, 1)])
def test_a_length_that_is_not_above_zero_is_refused(length_ns: int, every_ns: int) -> None:
    with pytest.raises(InvalidValue):
        rolling(Window(0, 10), length_ns, every_ns)


def test_windows_of_a_run_begin_where_it_begins_and_leave_out_exclusions(tmp_path: Path) -> None:
    clock = ManualClock()
    with run("bert", dir=tmp_path, clock=clock) as training:
        for _ in training.steps(range(10)):
            clock.advance(SECOND)
    view = GoodputFollower(tmp_path).view(clock.wall_ns())
    start_ns = view.whole.start_ns
    left_out = Window(start_ns, start_ns + SECOND)
    rows = roll(view, 8 * SECOND, 8 * SECOND, exclusions=(left_out,))
    assert [row.window.start_ns for row in rows] == [start_ns, start_ns + 2 * SECOND]
    assert [row.wall_ns for row in rows] == [SECOND, 8 * SECOND]
    assert [row.badput for row in rows] == [None, None]
