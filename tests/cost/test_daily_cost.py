"""Cost by day, against the period before, and how a limit is used up."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.cost.burn_down import BurnDown, burn_down
from outlay.cost.charges import month_window
from outlay.cost.daily_cost import (
    DAY_NS,
    CostChange,
    changes,
    cost_by_day,
    days_of,
    month_before,
    part_between,
    units_by_use,
)
from outlay.cost.spending import Spending, SpendItem
from outlay.goodput.timeline import Window
from outlay.units import Money, Unit

MAY = month_window("2026-05")
HOUR_NS = 3600 * 10**9
NOTHING = Money(0)


def item(
    start_h: float, hours: float, micros: int, *, user: str = "ada", unit: Unit | None = None
) -> SpendItem:
    """Return a charge from so many hours after the beginning of May."""
    start_ns = MAY.start_ns + round(start_h * HOUR_NS)
    of = unit or Unit()
    return SpendItem(
        source="ledger", run_id=f"r{start_h}", model="m", name="run", start_ns=start_ns,
        end_ns=start_ns + round(hours * HOUR_NS), booked_ns=start_ns, cost=of.money(micros),
        assumed=of.money(0), user=user,
    )  # fmt: skip


items = st.builds(
    item, st.floats(0, 700), st.floats(0, 40), st.integers(-(10**9), 10**15),
    user=st.sampled_from(("ada", "grace", "")),
)  # fmt: skip


@given(found=st.lists(items, max_size=8))
def test_the_days_of_a_month_sum_to_what_is_booked_in_it(found: list[SpendItem]) -> None:
    by_day = cost_by_day(found, lambda spend: spend.user)
    for user in {spend.user for spend in found}:
        whole = sum(spend.cost.micros for spend in found if spend.user == user)
        assert sum(by_day[user].values()) == whole
    days = {day for days in by_day.values() for day in days}
    assert all(MAY.start_ns <= day < MAY.end_ns and day % DAY_NS == 0 for day in days)


@given(spend=items, cut=st.lists(st.integers(0, 31 * 24 * 60), max_size=4))
def test_parts_of_adjacent_periods_sum_and_are_in_proportion_to_time(
    spend: SpendItem, cut: list[int]
) -> None:
    """The oracle: cost times the exact fraction of time, less than a micro-unit away."""
    edges = [MAY.start_ns, *sorted(MAY.start_ns + m * 60 * 10**9 for m in cut), MAY.end_ns]
    parts = [part_between(spend, a, b) for a, b in itertools.pairwise(edges)]
    assert sum(parts) == spend.cost.micros
    length = spend.end_ns - spend.start_ns
    if length and spend.end_ns <= MAY.end_ns:
        for (a, b), part in zip(itertools.pairwise(edges), parts, strict=True):
            inside = max(0, min(b, spend.end_ns) - max(a, spend.start_ns))
            assert abs(part - Fraction(spend.cost.micros) * inside / length) < 1


@pytest.mark.parametrize("change", [{"between": True}, {"origin": "2026-04"}, {"source": "stated"}])
def test_what_is_booked_whole_counts_on_the_day_of_its_booking(change: dict[str, str]) -> None:
    spend = replace(item(20, 30, 10**6), booked_ns=MAY.start_ns + 9 * DAY_NS, **change)  # type: ignore[arg-type]
    assert list(days_of(spend)) == [(MAY.start_ns + 9 * DAY_NS, 10**6)]


def test_a_month_that_is_not_over_is_compared_with_as_much_of_the_one_before() -> None:
    now_ns = MAY.start_ns + 10 * DAY_NS + HOUR_NS
    april = month_window("2026-04")
    before = month_before(MAY, now_ns)
    assert before == Window(april.start_ns, april.start_ns + 10 * DAY_NS + HOUR_NS)
    assert month_before(MAY, MAY.end_ns) == april
    late = replace(item(0, 24, 50), start_ns=april.start_ns, end_ns=april.start_ns + DAY_NS)
    late = replace(late, booked_ns=april.start_ns)
    after = replace(late, start_ns=april.end_ns - DAY_NS, end_ns=april.end_ns)
    found = changes(Spending(spends=(item(0, 24, 80), late, after)), MAY, before)
    assert found == {("", Unit()): CostChange(spent=Money(80), before=Money(50))}
    assert found["", Unit()].text == "+60%"


def test_the_first_unit_is_that_of_most_runs_and_cash_comes_first() -> None:
    euro, showback = Unit("EUR"), Unit("USD", "showback")
    spends = (
        item(1, 1, 9 * 10**12), item(2, 1, 1, unit=euro), item(3, 1, 1, unit=euro),
        *(item(hour, 1, 1, unit=showback) for hour in (4, 5, 6)),
    )  # fmt: skip
    assert units_by_use(Spending(spends=spends)) == [euro, Unit(), showback]


# Burn-down

NOW_NS = MAY.start_ns + 20 * DAY_NS


def down(daily: int, days: int, limit: int, *, held: int = 0) -> BurnDown:
    by_day = {NOW_NS - back * DAY_NS: daily for back in range(1, days + 1)}
    return burn_down(
        by_day, limit=Money(limit), spent=Money(daily * days), held=Money(held), now_ns=NOW_NS
    )


def test_the_same_cost_every_day_uses_a_limit_up_on_one_day() -> None:
    """100 a day for ten days, 350 left: nothing is left on the fourth day from now."""
    found = down(100, 10, 1350)
    assert found.used_up == ((NOW_NS + 4 * DAY_NS - 1),) * 3
    assert found.text == "used up on 24 May"
    assert [each.micros for each in found.past][-2:] == [1000, 1000]
    assert [(each.low, each.micros, each.high) for each in found.ahead[:2]] == [
        (1100,) * 3, (1200,) * 3,
    ]  # fmt: skip


def test_what_is_held_counts_as_used() -> None:
    assert down(100, 10, 1350, held=150).short == "22 May"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (down(100, 10, 10**6), "lasts until 20 July"),
        (down(100, 10, 950), "over since 20 May"),
        (down(100, 10, 1000), "used up"),
        (down(100, 0, 1000), "no past day to forecast from"),
        (down(100, 3, 350), "used up on 21 May (from 3 days)"),
    ],
)
def test_a_limit_that_is_not_used_up_on_a_day_says_why(found: BurnDown, text: str) -> None:
    assert found.text == text


def test_days_that_differ_give_an_interval() -> None:
    by_day = {NOW_NS - back * DAY_NS: 10 if back % 3 else 300 for back in range(1, 15)}
    spent = Money(sum(by_day.values()))
    found = burn_down(by_day, limit=spent + Money(1000), spent=spent, held=NOTHING, now_ns=NOW_NS)
    low, middle, high = found.used_up
    assert low is not None
    assert middle is not None
    assert high is not None
    assert NOW_NS + 3 * DAY_NS < low < middle < high
    assert found.text.endswith(", 80%)")
