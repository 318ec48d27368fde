"""Cost allocation: pools, shared owners, months, FOCUS rows."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from outlay.cost.allocation import IDLE, Allocation, Charge, Pool, Spread, allocate
from outlay.cost.charges import month_window
from outlay.cost.focus import COLUMNS, MANDATORY, Invoice, focus_rows, to_csv
from outlay.cost.spending import SpendItem
from outlay.errors import InvalidValue
from outlay.units import Money
from outlay.units.quantity import NS_PER_HOUR as HOUR

US_PER_HOUR = 3_600_000_000


def usd(amount: float) -> int:
    return round(amount * 1e6)


def paid(allocation: Allocation) -> dict[str, float]:
    return {row.owner: round(row.total / 1e6, 3) for row in allocation.rows}


class TestTheWorkedExampleOfOpenCost:
    """Three namespaces on two clusters; idle is spread per cluster and resource."""

    charges = (
        Charge(owner="ns1", micros=usd(28)),
        Charge(owner="ns2", micros=usd(36)),
        Charge(owner="ns3", micros=usd(18)),
    )
    pools = (
        Pool(name="cluster1 cpu", micros=usd(5), weights={"ns1": 3, "ns2": 3}),
        Pool(name="cluster1 ram", micros=usd(15), weights={"ns1": 13, "ns2": 3}),
        Pool(name="cluster2", micros=usd(10), weights={"ns2": 18, "ns3": 18}),
    )

    def test_idle_is_distributed_by_resource(self) -> None:
        found = allocate(self.charges, self.pools)
        idle = {row.owner: row.idle for row in found.rows}
        assert idle == {"ns1": 14_687_500, "ns2": 10_312_500, "ns3": 5_000_000}
        assert found.total == Money.parse(112)

    def test_a_shared_namespace_is_paid_for_by_the_others_idle_included(self) -> None:
        found = allocate(self.charges, self.pools, shared=["ns1"])
        rows = {row.owner: row for row in found.rows}
        assert {n: round(r.shared / 1e6, 3) for n, r in rows.items()} == {
            "ns1": -28.0,
            "ns2": 18.667,
            "ns3": 9.333,
        }
        assert round(rows["ns2"].idle / 1e6, 3) == 20.104
        assert round(rows["ns2"].total / 1e6, 3) == 74.771
        assert found.total == Money.parse(112)

    def test_the_idle_cost_of_a_shared_owner_is_kept_by_pool(self) -> None:
        found = allocate(self.charges, self.pools, shared=["ns1"])
        by_pool = [sum(row.pools.get(pool.name, 0) for row in found.rows) for pool in self.pools]
        assert by_pool == [pool.micros for pool in self.pools]

    def test_shared_owners_may_come_from_any_iterable(self) -> None:
        once = allocate(self.charges, self.pools, shared=iter(["ns1", "ns2"]))
        assert once == allocate(self.charges, self.pools, shared=["ns1", "ns2"])


def test_idle_is_spread_in_proportion_to_what_each_used() -> None:
    found = allocate(
        [Charge(owner="a", micros=usd(30)), Charge(owner="b", micros=usd(10))],
        [Pool(name="idle", micros=usd(20))],
    )
    assert paid(found) == {"a": 45.0, "b": 15.0}


def test_idle_can_be_spread_in_equal_parts() -> None:
    found = allocate(
        [Charge(owner="a", micros=usd(30)), Charge(owner="b", micros=usd(10))],
        [Pool(name="idle", micros=usd(20))],
        spread=Spread.UNIFORM,
    )
    assert paid(found) == {"a": 40.0, "b": 20.0}


def test_idle_can_stay_a_row_of_its_own() -> None:
    found = allocate(
        [Charge(owner="a", micros=usd(30))],
        [Pool(name="idle", micros=usd(20))],
        spread=Spread.NONE,
    )
    assert paid(found) == {"a": 30.0, IDLE: 20.0}


def test_the_idle_row_gets_no_shared_cost() -> None:
    found = allocate(
        [Charge(owner="a", micros=usd(30)), Charge(owner="b", micros=usd(10))],
        [Pool(name="disk", micros=usd(20), weights={"a": 0})],
        shared=["b"],
        spread=Spread.UNIFORM,
    )
    assert paid(found) == {"a": 40.0, "b": 0.0, IDLE: 20.0}


def test_the_runs_of_a_shared_owner_stay_in_the_table() -> None:
    charges = [Charge(owner="a", micros=usd(30)), Charge(owner="b", micros=usd(10), runs=3)]
    shared = {row.owner: row for row in allocate(charges, shared=["b"]).rows}["b"]
    assert (shared.runs, shared.direct, shared.shared, shared.total) == (3, usd(10), -usd(10), 0)


def test_the_assumed_part_of_a_shared_owner_is_distributed() -> None:
    charges = [Charge(owner=o, micros=usd(9), assumed=usd(a)) for o, a in (("a", 1), ("b", 6))]
    found = allocate([*charges, Charge(owner="c", micros=usd(9))], shared=["b"])
    assert {row.owner: row.assumed for row in found.rows} == {"a": usd(4), "b": 0, "c": usd(3)}
    assert found.assumed == Money(usd(7))


@pytest.mark.parametrize("charges", [[], [Charge(owner="a", micros=0)]])
def test_idle_cost_without_usage_keeps_its_own_row(charges: list[Charge]) -> None:
    found = allocate(charges, [Pool(name="idle", micros=usd(20))])
    assert found.total == Money.parse(20)
    assert paid(found)[IDLE] == 20.0


def test_four_quarters_of_a_gpu_are_one_gpu() -> None:
    quarters = [Charge(owner=f"u{i}", micros=usd(0.25), gpu_us=900_000_000) for i in range(4)]
    assert sum(row.gpu_hours for row in allocate(quarters).rows) == 1.0


def test_negative_amounts_and_weights_are_refused() -> None:
    with pytest.raises(InvalidValue, match="zero or more"):
        allocate([Charge(owner="a", micros=-1)])
    with pytest.raises(InvalidValue, match="zero or more"):
        allocate([], [Pool(name="idle", micros=-1)])
    with pytest.raises(InvalidValue, match="weights"):
        allocate([], [Pool(name="idle", micros=1, weights={"a": -1})])


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
        assert {row["BilledCost"] for row in self.rows()} == {"0"}
        billed = [Decimal(row["BilledCost"]) for row in self.rows(billed="USD")]
        assert sum(billed) == Decimal("34.000001")

    def test_a_run_is_a_resource_of_its_owner(self) -> None:
        row = self.rows()[0]
        assert (row["ResourceId"], row["SubAccountId"]) == ("nlp", "nlp")
        assert row["Tags"] == '{"team": "nlp"}'
        assert (row["PricingQuantity"], row["PricingUnit"]) == ("4", "GPU-Hours")
        assert row["ChargePeriodEnd"] == "2026-10-01T02:00:00Z"

    def test_usage_has_a_quantity_and_what_is_idle_is_no_usage(self) -> None:
        rows = self.rows(spent("nlp", 1, between=True, gpu_us=0), spent("cv", 1))
        usage = [row for row in rows if row["ChargeCategory"] == "Usage"]
        assert [(row["PricingQuantity"], row["PricingUnit"]) for row in usage] == [
            ("2", "Hours"),
            ("4", "GPU-Hours"),
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
        assert [row["x_AssumedCost"] for row in rows] == ["1.000001", "0"]

    def test_reads_back_as_csv(self) -> None:
        rows = self.rows()
        assert list(csv.DictReader(io.StringIO(to_csv(rows, COLUMNS)))) == rows
