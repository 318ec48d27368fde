"""Cost allocation: idle cost, shared owners, months, FOCUS rows."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from outlay.cost.allocation import IDLE, Allocation, AllocationRow, Spread, allocate
from outlay.cost.charges import month_window
from outlay.cost.focus import (
    BY_TIME,
    COLUMNS,
    MANDATORY,
    VERSIONS,
    Invoice,
    focus_rows,
    to_csv,
)
from outlay.cost.spending import SpendItem
from outlay.errors import InvalidValue
from outlay.units import Money
from outlay.units.quantity import NS_PER_HOUR as HOUR

US_PER_HOUR = 3_600_000_000


def usd(amount: float) -> int:
    return round(amount * 1e6)


def paid(allocation: Allocation) -> dict[str, float]:
    return {row.owner: round(row.total / 1e6, 3) for row in allocation.rows}


def used(**dollars: float) -> list[AllocationRow]:
    """Return what each owner used."""
    return [AllocationRow(owner=owner, runs=1, direct=usd(each)) for owner, each in dollars.items()]


def test_idle_is_spread_in_proportion_to_what_each_used() -> None:
    assert paid(allocate(used(a=30, b=10), idle=usd(20))) == {"a": 45.0, "b": 15.0}


def test_idle_can_be_spread_in_equal_parts() -> None:
    found = allocate(used(a=30, b=10), idle=usd(20), spread=Spread.UNIFORM)
    assert paid(found) == {"a": 40.0, "b": 20.0}


def test_idle_can_stay_a_row_of_its_own() -> None:
    found = allocate(used(a=30), idle=usd(20), spread=Spread.NONE)
    assert paid(found) == {"a": 30.0, IDLE: 20.0}


def test_an_owner_named_like_the_idle_row_keeps_its_usage() -> None:
    usage = [*used(a=0), AllocationRow(owner=IDLE, direct=usd(5))]
    assert paid(allocate(usage, idle=usd(20))) == {IDLE: 25.0, "a": 0.0}


def test_a_shared_owner_is_paid_for_by_the_others_including_its_idle_cost() -> None:
    found = allocate(used(a=28, b=36, c=18), idle=usd(41), shared=["a"])
    rows = {row.owner: row for row in found.rows}
    assert {n: round(r.shared / 1e6, 3) for n, r in rows.items()} == {
        "a": -28.0,
        "b": 18.667,
        "c": 9.333,
    }
    assert {name: round(row.idle / 1e6, 3) for name, row in rows.items()} == {
        "a": 0.0,
        "b": 27.333,
        "c": 13.667,
    }
    assert found.total == Money.parse(123)


def test_the_idle_row_gets_no_shared_cost() -> None:
    usage = [*used(b=10), AllocationRow(owner=IDLE, direct=usd(20))]
    assert paid(allocate(usage, shared=["b"], spread=Spread.UNIFORM)) == {IDLE: 20.0, "b": 10.0}


def test_an_owner_named_twice_as_shared_is_paid_for_once() -> None:
    found = allocate(used(a=30, b=10), shared=["b", "b"])
    assert paid(found) == {"a": 40.0, "b": 0.0}


def test_the_runs_of_a_shared_owner_stay_in_the_table() -> None:
    usage = [*used(a=30), AllocationRow(owner="b", runs=3, direct=usd(10))]
    shared = {row.owner: row for row in allocate(usage, shared=["b"]).rows}["b"]
    assert (shared.runs, shared.direct, shared.shared, shared.total) == (3, usd(10), -usd(10), 0)


def test_the_assumed_part_of_a_shared_owner_is_distributed() -> None:
    assumed = {"a": 1, "b": 6, "c": 0}
    usage = [AllocationRow(owner=o, direct=usd(9), assumed=usd(a)) for o, a in assumed.items()]
    found = allocate(usage, shared=["b"])
    assert {row.owner: row.assumed for row in found.rows} == {"a": usd(4), "b": 0, "c": usd(3)}
    assert found.assumed == Money(usd(7))


@pytest.mark.parametrize("usage", [[], used(a=0)])
def test_idle_cost_without_usage_keeps_its_own_row(usage: list[AllocationRow]) -> None:
    found = allocate(usage, idle=usd(20))
    assert found.total == Money.parse(20)
    assert paid(found)[IDLE] == 20.0


def test_four_quarters_of_a_gpu_are_one_gpu() -> None:
    quarters = [AllocationRow(owner=f"u{i}", gpu_us=900_000_000) for i in range(4)]
    assert sum(row.gpu_hours for row in allocate(quarters).rows) == 1.0


@pytest.mark.parametrize(
    ("text", "days"), [("2026-10", 31), ("2026-02", 28), ("2024-02", 29), ("2026-12", 31)]
)
def test_a_month_is_a_window(text: str, days: int) -> None:
    assert month_window(text).length_ns == days * 24 * HOUR


@pytest.mark.parametrize("text", ["2026-13", "2026-00", "2026", "october", "2026-1", "9999-12"])
def test_an_invalid_month_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="2026-10"):
        month_window(text)


START_NS = month_window("2026-10").start_ns
INVOICE = Invoice(start_ns=START_NS, end_ns=month_window("2026-10").end_ns, account="lab")


def spent(owner: str, dollars: float, **changes: Any) -> SpendItem:
    fields: dict[str, Any] = {
        "run_id": owner,
        "name": owner,
        "model": "bert",
        "gpu_us": 4 * US_PER_HOUR,
    }
    times = {"start_ns": START_NS, "end_ns": START_NS + 2 * HOUR, "booked_ns": START_NS}
    money = {"cost": Money(usd(dollars)), "assumed": Money(0), "gpu_us": 4 * US_PER_HOUR}
    facts: dict[str, Any] = {"tags": {"team": owner}, "provider": "lambda", "source": "ledger"}
    return SpendItem(**fields | times | money | facts | changes)


class TestFocus:
    def rows(self, *spends: SpendItem, **changes: Any) -> list[dict[str, str]]:
        found = spends or (spent("nlp", 18), spent("cv", 9))
        idle, invoice = Money(7_000_001), replace(INVOICE, **changes)
        return focus_rows(found, idle, invoice, owner_of=lambda spend: spend.tags["team"])

    def test_has_every_mandatory_column_of_the_specification(self) -> None:
        assert len(MANDATORY) == 21
        for row in self.rows(billed="USD"):
            assert set(row) == set(COLUMNS)
            nullable = {"ChargeClass", "PricingQuantity", "PricingUnit"}
            assert [name for name in MANDATORY if not row[name] and name not in nullable] == []

    def test_costs_sum_to_the_bill_exactly(self) -> None:
        costs = [Decimal(row["EffectiveCost"]) for row in self.rows()]
        assert sum(costs) == Decimal("34.000001")

    def test_billed_cost_is_empty_until_a_bill_is_known(self) -> None:
        assert {row["BilledCost"] for row in self.rows()} == {"0.00"}
        billed = [Decimal(row["BilledCost"]) for row in self.rows(billed="USD")]
        assert sum(billed) == Decimal("34.000001")

    def test_a_run_is_a_resource_of_its_owner(self) -> None:
        row = self.rows()[0]
        assert (row["ResourceId"], row["SubAccountId"]) == ("nlp", "nlp")
        assert row["Tags"] == '{"team": "nlp"}'
        assert (row["PricingQuantity"], row["PricingUnit"]) == ("4.00", "GPU-Hours")
        assert row["ChargePeriodEnd"] == "2026-10-01T02:00:00Z"

    def test_usage_has_a_quantity_and_what_is_idle_is_no_usage(self) -> None:
        rows = self.rows(spent("nlp", 1, between=True, gpu_us=0), spent("cv", 1))
        usage = [row for row in rows if row["ChargeCategory"] == "Usage"]
        assert [(row["PricingQuantity"], row["PricingUnit"]) for row in usage] == [
            ("2.00", "Hours"),
            ("4.00", "GPU-Hours"),
        ]
        assert "idle" in rows[-1]["ChargeDescription"]
        assert (rows[-1]["ChargeCategory"], rows[-1]["PricingQuantity"]) == ("Adjustment", "")

    @pytest.mark.parametrize("length_ns", [0, 1, 10**9 - 1])
    def test_a_charge_period_is_at_least_one_second(self, length_ns: int) -> None:
        row = self.rows(spent("nlp", 0, end_ns=START_NS + length_ns))[0]
        assert row["ChargePeriodStart"] == "2026-10-01T00:00:00Z"
        assert row["ChargePeriodEnd"] == "2026-10-01T00:00:01Z"

    @pytest.mark.parametrize(
        ("stated", "named", "provider"),
        [("aws", "lambda", "aws"), (None, "lambda", "lambda"), (None, "", "unknown")],
    )
    def test_the_provider_is_the_stated_one_or_whom_the_price_names(
        self, stated: str | None, named: str, provider: str
    ) -> None:
        row = self.rows(spent("nlp", 1, provider=named), provider=stated)[0]
        columns = ("ProviderName", "PublisherName", "InvoiceIssuerName", "BillingAccountId")
        assert [row[name] for name in columns] == [*[provider] * 3, "lab"]

    def test_what_is_assumed_has_a_column(self) -> None:
        rows = self.rows(spent("nlp", 3, assumed=Money(1_000_001)))
        assert [row["x_AssumedCost"] for row in rows] == ["1.000001", "0.00"]

    def test_reads_back_as_csv(self) -> None:
        rows = self.rows()
        assert list(csv.DictReader(io.StringIO(to_csv(rows, COLUMNS)))) == rows

    def test_version_1_4_allocates_a_machine_to_its_runs(self) -> None:
        row, idle = self.rows(spent("nlp", 18, machine="n1"), version="1.4")
        assert list(row) == list(idle) == list(VERSIONS["1.4"])
        assert (row["ResourceId"], row["Tags"]) == ("n1", "{}")
        assert (row["AllocatedResourceId"], row["AllocatedTags"]) == ("nlp", '{"team": "nlp"}')
        assert (row["AllocatedMethodId"], idle["AllocatedMethodId"]) == (BY_TIME, "")
        assert row["ServiceProviderName"] == row["HostProviderName"] == "lambda"
        assert {"ProviderName", "PublisherName"}.isdisjoint(row)
