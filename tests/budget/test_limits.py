"""Limits: parsing, refusals, and when a limit is reached or would be exceeded."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlay.budget.limits import (
    DIMENSIONS,
    KEYS,
    MODES,
    TOKENS,
    cost_in,
    dimension_of,
    reached,
    would_pass,
)
from outlay.budget.terms import (
    LIMIT_KEYS,
    Budget,
    comm_cap,
    energy_cap,
    iso_cost,
    iso_epochs,
    iso_flops,
    iso_time,
    iso_tokens,
)
from outlay.budget.usage import Usage
from outlay.errors import InvalidValue
from outlay.rates import NS_PER_HOUR
from outlay.units import Duration, Energy, Flops, Money, Tokens

EXAMPLE = {
    "max_minutes": 2,
    "max_tokens": 50_000,
    "max_epochs": 3,
    "max_comm_bytes": 10**9,
    "max_energy_Wh": 5,
    "max_carbon_g": 420,
    "max_cost_usd": 5,
    "max_flops": 10**18,
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_requires_its_own_limit(mode: str, private_home: Path) -> None:
    private_home.mkdir(parents=True, exist_ok=True)
    (private_home / "outlay.toml").write_text('carbon = "350 g/kWh"')
    key = MODES[mode].key
    others = {other: value for other, value in EXAMPLE.items() if other != key}
    with pytest.raises(InvalidValue, match=f"mode '{mode}' requires '{key}'"):
        Budget.of(mode, others)
    assert Budget.of(mode, {**others, key: EXAMPLE[key]}).mode == mode


def test_an_unknown_key_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(InvalidValue, match=r"max_comm_byte.*max_comm_bytes.*steps_per_epoch"):
        Budget.of("iso_tokens", {"max_tokens": 5, "max_comm_byte": 7})


@pytest.mark.parametrize("key", LIMIT_KEYS)
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -1, 0, True, "many", [], "nan", "-3", "1e99"]
)
def test_what_is_no_amount_above_zero_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=key):
        Budget.of("iso_tokens", {"max_tokens": 5, key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_minutes", Duration(-1)),
        ("max_energy_Wh", Energy(-1)),
        ("max_cost_usd", Money(-1)),
        ("max_tokens", Tokens(-1)),
        ("max_flops", Flops(-1)),
    ],
)
def test_a_quantity_below_zero_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=key):
        Budget.of("iso_tokens", {"max_tokens": 5, key: value})


@pytest.mark.parametrize("key", ["max_tokens", "max_comm_bytes", "max_flops", "steps_per_epoch"])
def test_counts_are_whole(key: str) -> None:
    with pytest.raises(InvalidValue, match=key):
        Budget.of("iso_tokens", {"max_tokens": 5, key: 2.5})


def test_null_means_not_set() -> None:
    nothing = dict.fromkeys(LIMIT_KEYS)
    assert Budget.of("iso_tokens", {**nothing, "max_tokens": 5}).limits == {"max_tokens": 5}


@pytest.mark.parametrize(
    ("budget", "limits"),
    [
        (iso_time("2h"), {"max_minutes": 120}),
        (iso_time("2.5min"), {"max_minutes": 2.5}),
        (iso_time(timedelta(hours=2)), {"max_minutes": 120}),
        (iso_tokens("50k"), {"max_tokens": 50_000}),
        (iso_tokens("50_000"), {"max_tokens": 50_000}),
        (iso_epochs(2.5), {"max_epochs": 2.5}),
        (iso_cost("5 USD"), {"max_cost_usd": 5}),
        (iso_cost(0.25), {"max_cost_usd": 0.25}),
        (iso_cost("5 EUR"), {"max_cost_eur": 5}),
        (iso_cost("€5"), {"max_cost_eur": 5}),
        (iso_tokens(9, max_cost_gbp="0.5 GBP"), {"max_tokens": 9, "max_cost_gbp": 0.5}),
        (iso_flops("1.5 ZFLOP"), {"max_flops": 15 * 10**20}),
        (comm_cap("10GB"), {"max_comm_bytes": 10**10}),
        (comm_cap("5GiB"), {"max_comm_bytes": 5 * 2**30}),
        (energy_cap("1.2 kWh"), {"max_energy_Wh": 1200}),
        (energy_cap(0.5), {"max_energy_Wh": 0.5}),
        (iso_time("1m", max_cost_usd=5), {"max_minutes": 1, "max_cost_usd": 5}),
    ],
)
def test_limits_are_parsed_with_their_units(budget: Budget, limits: dict[str, float]) -> None:
    assert budget.limits == limits


def test_an_unknown_unit_of_bytes_is_refused_with_the_known() -> None:
    with pytest.raises(InvalidValue, match=r"max_comm_bytes.*10GB"):
        comm_cap("5 parsecs")


def test_an_unknown_charge_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(InvalidValue, match=r"charge.*all.*training"):
        iso_time("1h", charge="lunch")


@pytest.mark.parametrize(("key", "amount"), [("max_cost_usd", "5 EUR"), ("max_cost_eur", "$5")])
def test_money_of_another_currency_than_its_key_is_refused_with_the_right_key(
    key: str, amount: str
) -> None:
    right = {"max_cost_usd": "max_cost_eur", "max_cost_eur": "max_cost_usd"}[key]
    with pytest.raises(InvalidValue, match=rf"{key}.*{right}"):
        iso_tokens(5, **{key: amount})


def test_two_limits_on_money_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"max_cost_eur, max_cost_usd.*one limit on money"):
        iso_cost("5 EUR", max_cost_usd=5)


@pytest.mark.parametrize("key", ["max_cost_EUR", "max_cost_euro", "max_cost_<currency>"])
def test_a_key_of_no_currency_is_refused_with_how_to_write_one(key: str) -> None:
    with pytest.raises(InvalidValue, match=r"max_cost_<currency>"):
        iso_tokens(5, **{key: 5})


def test_money_is_counted_in_the_currency_of_its_limit() -> None:
    assert iso_cost("5 EUR").currency == "EUR"
    assert iso_tokens(5).currency == "USD"
    assert iso_cost("5 EUR", max_minutes=1).own_key == "max_cost_eur"
    (bound,) = iso_cost("5 EUR").bounds
    assert bound.dimension is cost_in("EUR") is dimension_of("max_cost_eur")
    assert bound.dimension.text(bound.limit) == "5.00 EUR"


def test_a_limit_in_another_currency_is_another_limit() -> None:
    changes = iso_cost("5 EUR").changed_from("iso_cost", {"max_cost_usd": 5})
    assert changes == {"max_cost_usd": (5, None), "max_cost_eur": (None, 5)}


def test_stated_epoch_length_precedes_the_loaders() -> None:
    assert iso_epochs(3, steps_per_epoch=10).for_epochs_of(99).steps_per_epoch == 10
    assert iso_epochs(3).for_epochs_of(99).bounds[0].limit == 297


def test_fraction_of_a_step_is_rounded_down() -> None:
    assert iso_epochs(2.5, steps_per_epoch=3).bounds[0].limit == 7


def test_less_than_one_step_of_an_epoch_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at least one step"):
        _ = iso_epochs(0.01, steps_per_epoch=10).bounds


def test_the_modes_own_limit_is_checked_first() -> None:
    bounds = iso_cost(1, max_tokens=1).bounds
    assert [bound.dimension.key for bound in bounds] == ["max_cost_usd", "max_tokens"]


# Small ones often, so that totals meet limits exactly.
amounts = st.integers(0, 4) | st.integers(0, 10**24)
limits = st.integers(1, 6) | st.integers(1, 10**24)
usages = st.builds(Usage, amounts, amounts, amounts, amounts, amounts, amounts, amounts)


@example(Usage(tokens=3), Usage(tokens=2), TOKENS, 5)
@given(usages, usages, st.sampled_from(DIMENSIONS), limits)
def test_a_step_is_refused_exactly_when_its_total_would_lie_past_a_limit(
    total: Usage, step: Usage, dimension: Any, limit: int
) -> None:
    budget = Budget.of("iso_tokens", {"max_tokens": 10**50, "steps_per_epoch": 1})
    bounds = [type(budget.bounds[0])(dimension, limit)]
    after = getattr(total, dimension.name) + getattr(step, dimension.name)
    refusal = would_pass(total, step, bounds)
    assert (refusal is not None) == (after > limit)
    assert refusal is None or refusal.over == after - limit


@example(Usage(tokens=5), TOKENS, 5)
@given(usages, st.sampled_from(DIMENSIONS), limits)
def test_a_limit_is_reached_exactly_when_the_total_is_no_less(
    total: Usage, dimension: Any, limit: int
) -> None:
    bounds = [type(iso_tokens(1).bounds[0])(dimension, limit)]
    used = getattr(total, dimension.name)
    reason = reached(total, bounds)
    assert (reason is not None) == (used >= limit)
    assert reason is None or reason.over == used - limit


@given(
    st.sampled_from([key for key in (*KEYS, "max_cost_eur") if key != "max_epochs"]),
    st.integers(1, 10**9),
)
def test_a_limit_as_shown_reads_back_as_the_same_limit(key: str, number: int) -> None:
    dimension = dimension_of(key)
    assert dimension is not None
    budget = Budget.of(dimension.mode, {key: number})
    assert Budget.of(budget.mode, budget.limits) == budget


def test_the_reason_says_which_limit_and_by_how_much() -> None:
    bounds = iso_tokens(50).bounds
    refusal = would_pass(Usage(tokens=32), Usage(tokens=32), bounds)
    assert str(refusal) == ("tokens: 32 tok of 50 tok used, the next step would pass it by 14 tok")
    assert str(reached(Usage(tokens=51), bounds)) == "tokens: 51 tok of 50 tok used, 1 tok over"


@given(st.integers(0, 10**30))
def test_cost_is_rounded_once_and_half_to_even(units: int) -> None:
    micros = Usage(cost_units=units).cost_micros
    assert micros == round(Fraction(units, NS_PER_HOUR))
