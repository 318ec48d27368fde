"""Leases: the hold always pays for the time up to the stop, and for the stopping itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.errors import InvalidValue
from outlay.guard.lease import Terms, warnings
from outlay.units import Duration, Money, Rate

HOUR = 3600 * 10**9
rates = st.integers(min_value=1, max_value=100_000_000).map(Rate)
durations = st.integers(min_value=10**9, max_value=10 * HOUR).map(Duration)


@st.composite
def terms(draw: st.DrawFn) -> Terms:
    notice = draw(st.integers(min_value=0, max_value=HOUR).map(Duration))
    longer = st.integers(min_value=1, max_value=100 * HOUR)
    most = draw(st.none() | longer.map(lambda ns: Duration(notice.ns + ns)))
    allowance = draw(st.just(0) | st.integers(0, 10 * HOUR))
    return Terms(
        rate=draw(rates), most=most, slice=draw(durations), notice=notice,
        allowance=Duration(allowance),
    )  # fmt: skip


@given(terms(), st.integers(min_value=0, max_value=100 * HOUR))
def test_stopping_at_the_notice_never_costs_more_than_is_held(terms: Terms, elapsed: int) -> None:
    held = terms.opening()
    held += terms.extension(held, elapsed)
    stop_ns = terms.stop_ns(held)
    assert stop_ns is not None
    assert terms.cost(max(0, stop_ns + terms.notice.ns)) <= held


@given(terms())
def test_more_is_asked_for_before_stopping_is_due(terms: Terms) -> None:
    held = terms.opening()
    ask_ns, stop_ns = terms.ask_ns(held), terms.stop_ns(held)
    assert stop_ns is not None
    assert ask_ns is None or ask_ns <= stop_ns


@given(terms(), st.integers(min_value=0, max_value=100 * HOUR))
def test_the_longest_run_is_never_paid_beyond(terms: Terms, elapsed: int) -> None:
    held = terms.opening()
    held += terms.extension(held, elapsed)
    assert terms.most is None or held <= terms.cost(terms.most.ns)


@given(terms(), st.integers(min_value=0, max_value=100 * HOUR))
def test_no_more_than_a_slice_and_the_stopping_is_held_ahead(terms: Terms, elapsed: int) -> None:
    held = terms.opening()
    held += terms.extension(held, elapsed)
    ahead = held - terms.cost(elapsed)
    assert ahead <= max(terms.overshoot(), terms.opening())


def test_the_documents_figures() -> None:
    terms = Terms(rate=Rate.parse("0.70 USD/h"), most=Duration.parse("3h"))
    assert terms.cost(terms.most.ns if terms.most else 0) == Money.parse("2.10 USD")
    assert str(terms.overshoot()) == "0.064167 USD"


def test_each_warning_comes_once() -> None:
    seen = [warnings(100, n - 1, n) for n in range(1, 101)]
    assert [(n, w) for n, w in enumerate(seen, 1) if w] == [(50, (50,)), (75, (75,)), (90, (90,))]


def test_what_may_run_for_ever_is_never_warned() -> None:
    assert warnings(None, 0, 10**18) == ()


def test_the_longest_run_ends_with_the_money_or_the_time_whichever_is_first() -> None:
    terms = Terms(rate=Rate.parse("1 USD/h"), most=Duration.parse("3h"))
    assert terms.longest_ns(Money.parse("2 USD")) == 2 * HOUR
    assert terms.longest_ns(Money.parse("4 USD")) == 3 * HOUR


def test_at_a_rate_of_zero_money_never_stops_it() -> None:
    terms = Terms(rate=Rate.parse("0 USD/h"))
    assert terms.stop_ns(terms.opening()) is None
    assert terms.ask_ns(terms.opening()) is None


@pytest.mark.parametrize(("slice", "most"), [("0s", None), ("5m", "30s"), ("5m", "10s")])
def test_invalid_terms_are_refused(slice: str, most: str | None) -> None:
    with pytest.raises(InvalidValue):
        Terms(
            rate=Rate.parse("1 USD/h"),
            slice=Duration.parse(slice),
            most=Duration.parse(most) if most else None,
        )
