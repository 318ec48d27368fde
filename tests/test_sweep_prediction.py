"""What a run should take, the most that it may, and on what terms money is held for it."""

from __future__ import annotations

import pytest

from outlay.sweep.prediction import Prediction, at_most, measured, terms_of
from outlay.units import Duration, Money, Rate

SECOND = 10**9
DOLLAR_A_SECOND = Rate.parse("3600 USD/h")


def test_the_longest_of_the_finished_runs_is_what_the_next_should_take() -> None:
    found = measured(DOLLAR_A_SECOND, [1 * SECOND, 3 * SECOND, 2 * SECOND])
    assert (found.ns, found.cost) == (3 * SECOND, Money.parse("3 USD"))


def test_before_any_run_has_finished_nothing_is_measured() -> None:
    assert measured(DOLLAR_A_SECOND, []) == Prediction()


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 1000 + 100 + 120), ("5m", 300)])
def test_where_nobody_can_pay_more_a_run_gets_its_timeout_or_a_tenth_and_two_minutes_more(
    timeout: str | None, seconds: int
) -> None:
    stated = None if timeout is None else Duration.parse(timeout)
    found = at_most(DOLLAR_A_SECOND, Prediction(ns=1000 * SECOND), stated)
    assert (found.ns, found.cost) == (seconds * SECOND, Money.parse(seconds))


@pytest.mark.parametrize(
    ("predicted", "slice", "notice"),
    [("0s", "1s", "1s"), ("40s", "10s", "5s"), ("10h", "5m", "11s")],
)
def test_what_is_held_for_ending_a_run_includes_the_second_that_noticing_takes(
    predicted: str, slice: str, notice: str
) -> None:
    terms = terms_of(DOLLAR_A_SECOND, Duration.parse(predicted).ns)
    assert (terms.slice, terms.notice) == (Duration.parse(slice), Duration.parse(notice))
