"""Who pays: pools spread by weight, shared owners, months, FOCUS rows."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

from ledgers import HOUR, START_NS, Segment, dollars
from outlay.cost.allocation import IDLE, Allocation, Charge, Pool, Spread, allocate
from outlay.cost.book import CostBook, CostRow
from outlay.cost.charges import MonthlyCharges, charges_within, month_window, owner_by
from outlay.cost.collect import refresh_reports
from outlay.cost.focus import COLUMNS, MANDATORY, focus_rows, to_csv
from outlay.errors import InvalidValue
from outlay.goodput.breakdown import Window
from outlay.runs.collect import collect
from outlay.store import RunRow, open_store
from outlay.store.runs import list_runs
from outlay.units import Money

LATER_NS = START_NS + 1000 * HOUR


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
            "ns2": 18.667,
            "ns3": 9.333,
        }
        assert round(rows["ns2"].idle / 1e6, 3) == 20.104
        assert round(rows["ns2"].total / 1e6, 3) == 74.771
        assert found.total == Money.parse(112)

    def test_what_the_others_pay_of_its_idle_is_told_by_pool(self) -> None:
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


def test_what_is_idle_pays_for_nobody() -> None:
    found = allocate(
        [Charge(owner="a", micros=usd(30)), Charge(owner="b", micros=usd(10))],
        [Pool(name="disk", micros=usd(20), weights={"a": 0})],
        shared=["b"],
        spread=Spread.UNIFORM,
    )
    assert paid(found) == {"a": 40.0, IDLE: 20.0}


@pytest.mark.parametrize("charges", [[], [Charge(owner="a", micros=0)]])
def test_idle_does_not_vanish_where_nobody_used_anything(charges: list[Charge]) -> None:
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
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="2026-10"):
        month_window(text)


def a_run(run_dir: Path, *, start: float = 0, team: str = "", hours: float = 2) -> None:
    about = {"price": dollars(3), "gpus": 2, "user": "ada", "model": "m", "name": run_dir.name}
    about |= {"run_id": run_dir.name, "tags": {"team": team} if team else {}}
    segment = Segment(start=start, about=about)
    segment.step(hours * 1800).price(6, gpus=2).step(hours * 1800).end().write(run_dir)


def charges(root: Path, period: Window) -> MonthlyCharges:
    store = open_store()
    collect(store, sorted(root.iterdir()), LATER_NS)
    refresh_reports(store, LATER_NS)
    return charges_within(list_runs(store), CostBook(store).reports(), period, LATER_NS)


def test_a_run_in_the_period_is_charged_as_its_report_says(tmp_path: Path) -> None:
    a_run(tmp_path / "a")
    (found,) = charges(tmp_path, Window(START_NS, LATER_NS)).charges
    assert found.cost == Money.parse(18)
    assert found.gpu_us == 4 * 3_600_000_000


def test_a_run_across_the_border_is_charged_exactly_on_both_sides(tmp_path: Path) -> None:
    a_run(tmp_path / "a")  # An hour at 3 dollars a GPU, then an hour at 6.
    border_ns = START_NS + HOUR + HOUR // 2
    (before,) = charges(tmp_path, Window(0, border_ns)).charges
    (after,) = charges(tmp_path, Window(border_ns, LATER_NS)).charges
    assert (before.cost, after.cost) == (Money.parse(12), Money.parse(6))


def test_a_run_whose_log_is_gone_is_split_by_time_and_says_so(tmp_path: Path) -> None:
    a_run(tmp_path / "a")
    border_ns = START_NS + HOUR // 2
    charges(tmp_path, Window(0, border_ns))
    next((tmp_path / "a" / "ledger").glob("*.jsonl")).unlink()
    store = open_store()
    found = charges_within(
        list_runs(store), CostBook(store).reports(), Window(0, border_ns), LATER_NS
    )
    assert found.charges[0].cost == Money.parse(4.5)
    assert "split by time" in str(found.findings[0])


def test_parts_of_a_run_whose_log_is_gone_sum_to_what_it_cost() -> None:
    run = run_row(dir="/gone", started_ns=START_NS, last_seen_ns=START_NS + 7 * HOUR)
    report = CostRow(
        run_id="r", model="m", source="ledger", cost_micros=1_000_001, currency="USD",
        gpu_us=10, wall_us=10, at_ns=1, updated_ns=1,
    )  # fmt: skip
    borders = [0, START_NS + HOUR, START_NS + 4 * HOUR, LATER_NS]
    parts = [
        charges_within([run], [report], Window(start, end), LATER_NS).charges[0]
        for start, end in pairwise(borders)
    ]
    assert sum(part.cost.micros for part in parts) == 1_000_001
    assert sum(part.gpu_us for part in parts) == 10


def test_a_run_outside_the_period_is_not_charged(tmp_path: Path) -> None:
    a_run(tmp_path / "a")
    assert charges(tmp_path, Window(0, START_NS)).charges == []


def test_a_run_without_a_price_is_a_finding(tmp_path: Path) -> None:
    Segment(about={"run_id": "x"}).step(1).end().write(tmp_path / "x")
    store = open_store()
    collect(store, [tmp_path / "x"], LATER_NS)
    assert "no price" in str(refresh_reports(store, LATER_NS).findings[0])


def test_reports_are_derived_once_until_a_run_changes(tmp_path: Path) -> None:
    a_run(tmp_path / "a")
    store = open_store()
    collect(store, [tmp_path / "a"], LATER_NS)
    assert [refresh_reports(store, LATER_NS).derived for _ in range(2)] == [1, 0]
    collect(store, [tmp_path / "a"], LATER_NS + 1)
    assert refresh_reports(store, LATER_NS + 1).derived == 1


def run_row(**changes: object) -> RunRow:
    fields = {"run_id": "r", "dir": "/r", "model": "bert", "name": "r", "status": "completed"}
    numbers = {"attempts": 1, "steps": 1, "tokens": 1, "started_ns": 0, "last_seen_ns": 1}
    return RunRow(**(fields | numbers | {"updated_ns": 1} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("by", "owner"),
    [("user", "ada"), ("team", "nlp"), ("project", ""), ("tag:gpu pool", "x"), ("model", "bert")],
)
def test_a_run_belongs_to_its_user_model_or_tag(by: str, owner: str) -> None:
    run = run_row(user="ada", tags={"team": "nlp", "gpu pool": "x"})
    assert owner_by(by)(run) == owner


@pytest.mark.parametrize("by", ["tag", "tag:", "colour"])
def test_what_nothing_belongs_to_is_refused(by: str) -> None:
    with pytest.raises(InvalidValue, match="tag:NAME"):
        owner_by(by)


class TestFocus:
    def rows(self, tmp_path: Path) -> list[dict[str, str]]:
        a_run(tmp_path / "a", team="nlp")
        a_run(tmp_path / "b", start=50_000, team="cv", hours=1)
        period = Window(START_NS, LATER_NS)
        found = charges(tmp_path, period).charges
        owners = {charge.run.run_id: charge.run.tags["team"] for charge in found}
        return focus_rows(found, Money.parse("7.000001"), period, owners=owners)

    def test_has_every_mandatory_column_of_the_specification(self, tmp_path: Path) -> None:
        assert len(MANDATORY) == 21
        for row in self.rows(tmp_path):
            assert set(row) == set(COLUMNS)
            nullable = {"BillingAccountName", "ChargeClass", "ChargeDescription"}
            nullable |= {"PricingQuantity", "PricingUnit"}
            assert [name for name in MANDATORY if not row[name] and name not in nullable] == []

    def test_billed_costs_sum_to_the_bill_exactly(self, tmp_path: Path) -> None:
        billed = sum(Decimal(row["BilledCost"]) for row in self.rows(tmp_path))
        assert billed == Decimal("34.000001")

    def test_a_run_is_a_resource_of_its_owner(self, tmp_path: Path) -> None:
        rows = {row["ResourceId"]: row for row in self.rows(tmp_path)}
        assert rows["a"]["SubAccountId"] == "nlp"
        assert rows["a"]["Tags"] == '{"team": "nlp"}'
        assert (rows["a"]["PricingQuantity"], rows["a"]["PricingUnit"]) == ("4", "GPU-Hours")
        assert rows["a"]["ChargePeriodEnd"] == "2023-11-15T00:13:20Z"
        assert "idle" in rows[""]["ChargeDescription"]

    def test_reads_back_as_csv(self, tmp_path: Path) -> None:
        rows = self.rows(tmp_path)
        assert list(csv.DictReader(io.StringIO(to_csv(rows, COLUMNS)))) == rows
