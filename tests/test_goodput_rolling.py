"""Rolling windows: of one length, one after another, the last at the end."""

from __future__ import annotations

import pytest

from outlay.errors import InvalidValue
from outlay.goodput.breakdown import Window, rolling


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
