"""Parsing of quantities, and errors for different units."""

from __future__ import annotations

import decimal
import math
import pickle
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from operator import add, ge, gt, le, lt, sub

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from outlay.errors import InvalidValue, UnitMismatch
from outlay.ledger.price import typed_price
from outlay.units import Duration, Energy, Flops, Money, Rate, Tokens, Unit
from outlay.units.money import KINDS, sum_by_unit
from outlay.units.shown import (
    dollar_text,
    money_of,
    money_text,
    range_text,
    unit_cost_text,
)

micros = st.integers(min_value=0, max_value=10**18)
units = st.builds(Unit, st.sampled_from(["USD", "EUR"]), st.sampled_from(KINDS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 USD", Money(5_000_000)),
        ("$5", Money(5_000_000)),
        ("5", Money(5_000_000)),
        ("€0.25", Money(250_000, "EUR")),
        ("1_000.5 eur", Money(1_000_500_000, "EUR")),
        ("1e-6", Money(1)),
        (Decimal("1.10"), Money(1_100_000)),
        (3, Money(3_000_000)),
        (0.1, Money(100_000)),
        (np.float64(0.1), Money(100_000)),
        (Money(7, "GBP"), Money(7, "GBP")),
    ],
)
def test_money_is_parsed_exactly(text: object, expected: Money) -> None:
    assert Money.parse(text) == expected


@pytest.mark.parametrize(
    "value",
    [
        math.nan, math.inf, -1, True, None, "", "five", "$5 USD", "5 US", "1e99", b"5", "-3 USD",
        "9e999999", "1e-999999", Money(-1), "\uff11 USD", "\u0661", "1__0", "1_", "_1", "1_.5",
    ],
)  # fmt: skip
def test_invalid_amount_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue, match="ceiling: got"):
        Money.parse(value, name="ceiling")


def test_rounding_up_keeps_amounts_below_a_micro_unit() -> None:
    assert Money.parse("0.0000001", rounding="up") == Money(1)
    assert Money.parse("0.0000001") == Money(0)


def test_digits_that_no_decimal_context_holds_are_rounded_up_too() -> None:
    assert Money.parse(f"1.{'0' * 40}1", rounding="up") == Money(1_000_001)


def test_a_scripts_own_decimal_context_changes_no_amount() -> None:
    with decimal.localcontext(prec=3):
        assert Money.parse("1234.567891") == Money(1_234_567_891)
        assert Money(1_234_567_891).amount == Decimal("1234.567891")
        assert Duration.parse("1h1ns").ns == 3600 * 10**9 + 1


def test_a_price_below_zero_is_refused() -> None:
    with pytest.raises(InvalidValue, match="zero or more"):
        Rate.parse(Rate(-1))


@given(units, micros, micros)
def test_money_adds_and_orders_as_its_integers_do_in_its_unit(unit: Unit, a: int, b: int) -> None:
    assert unit.money(a) + unit.money(b) == unit.money(a + b)
    assert unit.money(a) - unit.money(b) == unit.money(a - b)
    assert unit.rate(a) + unit.rate(b) == unit.rate(a + b)
    assert (unit.money(a) < unit.money(b)) == (a < b)
    assert (unit.money(a) == unit.money(b)) == (a == b)


@given(micros)
def test_money_text_parses_back_to_the_same_money(a: int) -> None:
    assert Money.parse(str(Money(a, "EUR"))) == Money(a, "EUR")


@given(units, st.integers(min_value=0, max_value=10**12))
def test_rate_text_parses_back_to_the_same_rate_in_its_unit(unit: Unit, a: int) -> None:
    assert typed_price(str(unit.rate(a)), name="price", source="").rate == unit.rate(a)


@pytest.mark.parametrize("text", ["1.50 USD/h", "$1.50/hr", "1.5 / hour", "1.5", 1.5])
def test_rates_are_per_hour(text: object) -> None:
    assert Rate.parse(text) == Rate(1_500_000)


@pytest.mark.parametrize("operation", [add, sub, lt, le, gt, ge])
@given(one=units, other=units, a=micros, b=micros)
def test_units_never_mix(
    operation: Callable[[Money, Money], object], one: Unit, other: Unit, a: int, b: int
) -> None:
    assume(one != other)
    assert one.money(a) != other.money(a)
    assert one.rate(a) != other.rate(a)
    with pytest.raises(UnitMismatch):
        operation(one.money(a), other.money(b))
    with pytest.raises(UnitMismatch):
        one.rate(a) + other.rate(b)


@given(st.lists(st.tuples(units, micros)))
def test_sums_by_unit_are_all_of_the_money_cash_first(parts: list[tuple[Unit, int]]) -> None:
    sums = sum_by_unit(unit.money(amount) for unit, amount in parts)
    totals = {unit: sum(a for each, a in parts if each == unit) for unit, _ in parts}
    assert {each.unit: each.micros for each in sums} == totals
    assert [each.kind for each in sums] == sorted(each.kind for each in sums)


@given(units, micros)
def test_the_kind_is_in_the_text_of_an_amount_and_beside_it_in_json(unit: Unit, a: int) -> None:
    money = unit.money(a)
    assert str(money).endswith(f" {unit.currency}" if unit.kind == "cash" else " showback")
    assert msgspec.to_builtins(money) == {"micros": a, "currency": unit.currency}
    assert pickle.loads(pickle.dumps(money)) == money
    assert Money(a, unit.currency).as_kind(unit.kind) == money


def test_an_amount_is_stated_without_a_kind() -> None:
    with pytest.raises(InvalidValue):
        Money.parse("5 USD showback")


def test_money_is_never_multiplied_by_a_float() -> None:
    with pytest.raises(UnitMismatch):
        Money(1) * 0.5  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("72h", 72 * 3600 * 10**9),
        ("1h20m", 4800 * 10**9),
        ("1.5h", 5400 * 10**9),
        ("250ms", 250 * 10**6),
        ("2d 3min", (2 * 86_400 + 180) * 10**9),
        (timedelta(seconds=1.5), 1_500_000_000),
    ],
)
def test_durations_are_parsed_to_the_nanosecond(text: object, ns: int) -> None:
    assert Duration.parse(text).ns == ns


@pytest.mark.parametrize(
    "value",
    [
        90, "90", "", "h", "-1h", "1x", "1h2", None, True, "0.1ns", "1h-20m", "9e999999h",
        timedelta(seconds=-1), Duration(-1),
    ],
)  # fmt: skip
def test_a_duration_without_a_clear_unit_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue):
        Duration.parse(value)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("50k", 50_000),
        ("1.2e12tok", 1_200_000_000_000),
        ("50_000", 50_000),
        (7, 7),
        ("3 Mtok", 3_000_000),
        ("3 Mtoks", 3_000_000),
    ],
)
def test_tokens_are_whole_numbers(text: object, count: int) -> None:
    assert Tokens.parse(text).value == count


@pytest.mark.parametrize(
    "value",
    ["1.5", 0.5, "5 potatoes", math.nan, -1, True, "1e99", "90s", "5ks", "9e999999k", Tokens(-1)],
)
def test_invalid_token_count_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue):
        Tokens.parse(value)


def test_flops_may_exceed_sixty_four_bits() -> None:
    assert Flops.parse("1.5 ZFLOP").value == 15 * 10**20


def test_energy_is_kept_in_millijoules() -> None:
    assert Energy.parse("5 Wh") == Energy.parse("18 kJ") == Energy(18_000_000)


def test_energy_without_a_unit_is_refused() -> None:
    with pytest.raises(InvalidValue):
        Energy.parse(5)


def test_quantities_of_different_kinds_do_not_mix() -> None:
    with pytest.raises(UnitMismatch):
        Tokens(1) + Energy(1)  # type: ignore[operator]
    with pytest.raises(UnitMismatch):
        _ = Duration(1) < Tokens(1)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (3_100_000, "3.1ms"),
        (42 * 10**9, "42.0s"),
        (4800 * 10**9, "1h20m"),
        (-90 * 10**9, "-1m30s"),
        (90_000 * 10**9, "1d01h"),
    ],
)
def test_durations_are_formatted(ns: int, text: str) -> None:
    assert str(Duration(ns)) == text


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0.00 USD"), (1, "0.000001 USD"), (1_900, "0.0019 USD"), (54_900, "0.055 USD"),
        (120_000, "0.12 USD"), (12_504_000, "12.50 USD"), (-1_234_567_890, "-1,234.57 USD"),
    ],
)  # fmt: skip
def test_money_is_rounded_for_reading_to_cents_or_two_digits(micros: int, text: str) -> None:
    assert money_text(Money(micros)) == text


def test_amount_that_rounds_to_zero_is_shown_as_below_a_cent() -> None:
    assert money_text(Money(-3), 2) == "-<0.01 USD"


def test_money_with_six_decimals_has_every_digit() -> None:
    assert money_text(Money(1_234_000_001), 6) == "1,234.000001 USD"


def test_the_ends_of_a_range_of_money_have_equal_decimals() -> None:
    assert range_text(money_of(0.004, "EUR"), money_of(0.25, "EUR")) == "<0.01 to 0.25"


@pytest.mark.parametrize(
    ("cost", "text"),
    [(0.0, "0.00 USD"), (1.23456e-8, "0.0000000123 USD"), (1234.5, "1,234.50 USD")],
)
def test_unit_cost_has_three_digits_and_no_exponent(cost: float, text: str) -> None:
    assert unit_cost_text(cost, "USD") == text


def test_currency_sign_is_used_for_dollars_only() -> None:
    assert dollar_text(Money(5_000_000)) == "$5.00"
    assert dollar_text(Money(5_004_000, "EUR"), 2) == "5.00 EUR"
