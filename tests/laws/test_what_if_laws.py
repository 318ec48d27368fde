"""A replay under a run's own terms is the run, over random histories."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from histories import History, at_one_price, histories, view_at_once
from outlay.advise.what_if import OtherTerms, parts_of, replay
from outlay.ledger import Price


@settings(max_examples=100, deadline=None)
@given(histories())
def test_a_replay_under_its_own_terms_is_the_run(history: History) -> None:
    view = view_at_once(history)
    whole, found = view.break_down(), replay(view)
    assert found.time.total_ns == whole.wall_ns
    assert found.time.work == whole.phases.get("step", 0)
    assert found.time.repeated == whole.phases.get("wasted_progress", 0)
    assert found.time.save == whole.phases.get("checkpoint_save", 0)
    gaps = (whole.phases.get(phase, 0) for phase in ("recovery", "paused"))
    assert found.time.between == sum(gaps)
    assert found.cost == whole.cost
    assert found.assumptions == ()


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(1, 8 * 10**12), st.integers(1, 4))
def test_stating_the_run_s_own_price_and_gpus_changes_nothing(
    history: History, micros_per_hour: int, gpus: int
) -> None:
    """Where the price never changes."""
    price = Price(micros_per_hour=micros_per_hour)
    view = view_at_once(at_one_price(history, price, gpus))
    own = replay(view)
    for terms in (
        OtherTerms(price=price.rate),
        OtherTerms(gpus=gpus),
        OtherTerms(price=price.rate, gpus=gpus),
    ):
        found = replay(view, terms)
        assert (found.time, found.cost) == (own.time, own.cost)


@settings(max_examples=60, deadline=None)
@given(histories())
def test_stating_the_run_s_own_speed_changes_nothing(history: History) -> None:
    view = view_at_once(history)
    found = replay(view, OtherTerms(speed=Fraction(1)))
    assert (found.time, found.cost) == (replay(view).time, replay(view).cost)
    assert sum(part.time.total_ns for part in parts_of(view)) == found.time.total_ns
