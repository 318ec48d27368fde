"""The laws of units: cash, showback and GPU-hours never mix, and texts of rates read back."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay import BudgetGuard
from outlay.errors import InvalidValue, UnitMismatch
from outlay.guard.spend_log import MemorySpendLog
from outlay.units import Money, Unit
from outlay.units.money import GPU_TIME, recorded_rate

units = st.sampled_from([
    Unit(), Unit("EUR"), Unit("USD", "showback"), Unit("EUR", "showback"), GPU_TIME,
])  # fmt: skip
micros = st.integers(min_value=0, max_value=10**12)
OPERATIONS: tuple[Callable[[Money, Money], object], ...] = (
    operator.add, operator.sub, operator.lt, operator.ge,
)  # fmt: skip


@given(units, micros)
def test_a_rate_and_a_unit_are_read_back_from_their_text(unit: Unit, per_hour: int) -> None:
    assert recorded_rate(str(unit.rate(per_hour))) == unit.rate(per_hour)
    assert recorded_rate(str(unit.rate(per_hour))).unit == unit
    assert Unit.parse(str(unit)) == unit


@given(units, units, micros, st.sampled_from(OPERATIONS))
def test_amounts_of_two_units_are_never_added_or_compared(
    one: Unit, other: Unit, amount: int, act: Callable[[Money, Money], object]
) -> None:
    if one == other:
        act(one.money(amount), other.money(amount))
        return
    with pytest.raises(UnitMismatch):
        act(one.money(amount), other.money(amount))


@given(units, units, st.integers(min_value=1, max_value=10**6))
def test_a_guard_writes_only_amounts_of_its_unit(one: Unit, other: Unit, amount: int) -> None:
    log = MemorySpendLog()
    guard = BudgetGuard(10**6, "spend.jsonl", currency=str(one), environ={}, log=log)
    if one == other:
        hold = guard.authorize("a", other.money(amount), rate=other.rate(amount))
        guard.record_actual("a", other.money(amount), hold=hold)
        assert {line.currency for line in log.lines()} == {str(one)}
        return
    acts: tuple[Callable[[], object], ...] = (
        lambda: guard.authorize("a", other.money(amount)),
        lambda: guard.authorize("a", one.money(amount), rate=other.rate(amount)),
        lambda: guard.record_actual("a", other.money(amount)),
    )
    for act in acts:
        with pytest.raises(InvalidValue, match="an amount in"):
            act()
    assert not log.lines()


def test_gpu_hours_have_no_showback() -> None:
    with pytest.raises(InvalidValue):
        Unit.parse("GPU-h showback")
