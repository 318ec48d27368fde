"""What machines did and cost in the last hours."""

from __future__ import annotations

import pytest

from outlay.runs.inventory.machine_hours import (
    HOUR_NS,
    HOURS,
    MachineSpan,
    hourly_cost,
    last_hours,
    machine_hours,
)
from outlay.store.run_row import AttemptCharge, RunRow
from outlay.units import Money, Rate, Unit

NOW_NS = 1_700_000_000_000_000_000
DOLLARS = Unit("USD")


def run(name: str, *, since_h: float, until_h: float, host: str = "node") -> RunRow:
    """Return a run between so many hours ago, at 10 dollars an hour."""
    start_ns, end_ns = (NOW_NS - round(h * HOUR_NS) for h in (since_h, until_h))
    micros = round((since_h - until_h) * 10 * 10**6)
    charge = AttemptCharge(start_ns=start_ns, end_ns=end_ns, booked_ns=start_ns, micros=micros)
    return RunRow(
        run_id=name, dir=name, model="m", name=name, status="completed", attempts=1, steps=1,
        tokens=0, started_ns=start_ns, last_seen_ns=end_ns, ended_ns=end_ns, host=host,
        cost=Money(micros), charges=(charge,),
    )  # fmt: skip


def machine(*, since_h: float, rate: str | None = None) -> MachineSpan:
    return MachineSpan(
        name="node", start_ns=NOW_NS - round(since_h * HOUR_NS), end_ns=NOW_NS,
        has=lambda row: row.host == "node", rate=None if rate is None else Rate.parse(rate),
    )  # fmt: skip


def half(row: RunRow, start_ns: int, end_ns: int) -> float:
    del row, start_ns, end_ns
    return 0.5


def test_an_hour_is_productive_waiting_or_in_no_run_and_sums_to_one() -> None:
    (found,) = machine_hours(
        [machine(since_h=3)], [run("a", since_h=2, until_h=0.75)], NOW_NS, half
    )
    assert [dict(each) for each in found.shares[-3:]] == [
        {"in no run": 1.0}, {"productive": 0.5, "waiting": 0.5},
        {"productive": 0.125, "waiting": 0.125, "in no run": 0.75},
    ]  # fmt: skip
    assert not any(found.shares[: HOURS - 3]), "it was not there"
    assert found.hours_in("in no run") == 1.75


def test_two_runs_at_once_fill_an_hour_and_no_more() -> None:
    both = [run("a", since_h=1, until_h=0), run("b", since_h=1, until_h=0)]
    (found,) = machine_hours([machine(since_h=1)], both, NOW_NS, half)
    assert found.shares[-1] == {"productive": 0.5, "waiting": 0.5}


@pytest.mark.parametrize(("rate", "cost"), [("4 USD/h", 4), (None, 2.5)])
def test_a_machine_costs_its_rate_or_what_its_runs_do(rate: str | None, cost: float) -> None:
    ran = run("a", since_h=1, until_h=0.75)
    found = machine_hours([machine(since_h=5, rate=rate)], [ran], NOW_NS, half)
    assert hourly_cost(found)[DOLLARS][-1] == round(cost * 10**6)


def test_runs_on_no_known_machine_are_a_row_of_their_host() -> None:
    ran = run("a", since_h=1, until_h=0, host="elsewhere")
    (found,) = machine_hours([], [ran], NOW_NS, half)
    assert (found.name, sum(hourly_cost([found])[DOLLARS])) == ("elsewhere", 10**7)
    assert len(last_hours(NOW_NS)) == HOURS
