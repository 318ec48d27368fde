"""Readings of a price: what they say, and which are news."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.clock import SYSTEM
from outlay.pausing.price_readings import (
    MOST_JUMP,
    PriceReading,
    PriceUnreadable,
    PriceWatch,
    price_in_file,
    price_of_command,
)
from outlay.units import Rate, Unit

USD = Unit()
MAX_AGE_NS = 60


def stated(micros: int, at_ns: int) -> Callable[[], PriceReading]:
    return lambda: PriceReading(price=USD.rate(micros), at_ns=at_ns)


def unreadable() -> PriceReading:
    raise PriceUnreadable("here", "it is being replaced")


def test_two_readings_are_news_and_one_is_not() -> None:
    watch = PriceWatch(max_age_ns=MAX_AGE_NS).read(stated(20, 0), 0)
    assert watch.news is None
    assert watch.read(stated(21, 5), 5).news == (USD.rate(20), USD.rate(21))


@pytest.mark.parametrize(
    "bad",
    [unreadable, stated(61, 10), stated(6, 10), stated(20, 10 - MAX_AGE_NS - 1), stated(20, 100)],
    ids=["error", "jump up", "jump down", "old", "ahead"],
)
def test_what_is_no_news_needs_two_good_readings_after_it(bad: Callable[[], PriceReading]) -> None:
    watch = PriceWatch(max_age_ns=MAX_AGE_NS)
    watch = watch.read(stated(20, 8), 8).read(stated(20, 9), 9).read(bad, 10)
    assert watch.news is None
    assert watch.problem
    assert watch.known == USD.rate(20)
    watch = watch.read(stated(30, 11), 11)
    assert watch.news is None
    assert watch.read(stated(30, 12), 12).news is not None


def test_a_jump_from_the_reading_before_is_no_news_though_it_is_none_from_the_known_price() -> None:
    watch = PriceWatch(max_age_ns=MAX_AGE_NS, known=USD.rate(20))
    watch = watch.read(stated(10, 1), 1).read(stated(40, 2), 2)
    assert (watch.news, watch.known) == (None, USD.rate(20))


def test_a_reading_that_has_become_old_confirms_nothing() -> None:
    watch = PriceWatch(max_age_ns=MAX_AGE_NS).read(stated(20, 0), 0)
    assert watch.read(stated(20, MAX_AGE_NS + 1), MAX_AGE_NS + 1).news is None


@given(st.lists(st.one_of(st.none(), st.integers(1, 1000)), max_size=30))
def test_news_is_never_a_jump_nor_from_before_a_gap(prices: list[int | None]) -> None:
    watch, last = PriceWatch(max_age_ns=MAX_AGE_NS), None
    for at_ns, price in enumerate(prices):
        watch = watch.read(unreadable if price is None else stated(price, at_ns), at_ns)
        if watch.news is not None:
            before, now = (rate.micros_per_hour for rate in watch.news)
            assert (before, now) == (last, price)
            assert max(before, now) <= MOST_JUMP * min(before, now)
        last = price


def test_a_file_states_a_price_as_old_as_itself(tmp_path: Path) -> None:
    path = tmp_path / "price"
    path.write_text("2.10 USD/h\n")
    os.utime(path, ns=(5, 5))
    assert price_in_file(path, USD) == PriceReading(price=Rate.parse("2.10 USD/h"), at_ns=5)


def test_no_part_of_a_price_that_is_being_written_is_a_price(tmp_path: Path) -> None:
    path, whole = tmp_path / "price", "12.10 USD/h"
    for length in range(len(whole)):
        path.write_text(whole[:length])
        with pytest.raises(PriceUnreadable):
            price_in_file(path, USD)


@pytest.mark.parametrize("text", ["2.10 EUR/h", "cheap /h", "2.10 USD/h showback", "-1 USD/h"])
def test_a_price_of_another_kind_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "price").write_text(text)
    with pytest.raises(PriceUnreadable):
        price_in_file(tmp_path / "price", USD)


def test_a_missing_file_has_no_price(tmp_path: Path) -> None:
    with pytest.raises(PriceUnreadable, match="No such file"):
        price_in_file(tmp_path / "price", USD)


def test_a_command_prints_a_price_and_a_failed_one_none() -> None:
    before_ns = SYSTEM.wall_ns()
    read = price_of_command([sys.executable, "-c", "print('2.10 USD/h')"], USD)
    assert read.price == Rate.parse("2.10 USD/h")
    assert before_ns <= read.at_ns <= SYSTEM.wall_ns()
    failing = [sys.executable, "-c", "print('2.10 USD/h'); raise SystemExit(3)"]
    with pytest.raises(PriceUnreadable, match="it ended with 3"):
        price_of_command(failing, USD)
