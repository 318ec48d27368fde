"""Bills through the command line: reading, importing, matching, reconciling, correcting."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from command_line import in_process
from ledgers import HOUR, START_NS, Segment
from outlay.cli.guard.options import read_terms
from outlay.clock import ManualClock, utc_text
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Vendor
from outlay.guard.rental.rental import RentalOrder, rental_of
from outlay.guard.rental.watch import remember_log
from outlay.ledger import Price
from outlay.ledger.price import typed_price
from outlay.store import outlay_home
from outlay.units import Money, Rate
from outlay.units.billing_terms import BillingTerms
from outlay.web.book_reader import BookReader
from outlay.web.money import money_page
from outlay.web.page import PageQuery

MONTH = "2023-11"
MINUTE = HOUR // 60


def at(after_ns: int) -> str:
    return utc_text(START_NS + after_ns)


def write_run(
    root: Path, machine: str, ns: int, price: Price | None = None, start_ns: int = 0, **about: Any
) -> None:
    facts = {
        "run_id": about.pop("run_id", machine), "name": machine, "user": "ada", "nodes": 1,
        "price": price or Price(2_000_000), "instance_id": machine, "gpus": 1, "model": "m",
    } | about  # fmt: skip
    run = Segment(start=start_ns / 1e9, about=facts).step(ns / 1e9).end()
    run.write(root / facts["run_id"])


def focus(path: Path, *rows: Mapping[str, object], **changes: object) -> Path:
    """Write a bill in FOCUS 1.2; rows state what differs from an hour of usage."""
    usual = {
        "BilledCost": "0", "BillingCurrency": "USD", "BillingPeriodStart": "2023-11-01T00:00:00Z",
        "ChargeCategory": "Usage", "ChargePeriodStart": at(0), "ChargePeriodEnd": at(HOUR),
        "InvoiceId": "inv-1", "PricingQuantity": "", "PricingUnit": "", "ProviderName": "lambda",
        "ResourceId": "", "ResourceName": "", "RegionId": "", "ServiceCategory": "Compute",
        "SkuId": "", "CommitmentDiscountId": "", "CommitmentDiscountStatus": "", "Tags": "",
    }  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, list(usual), lineterminator="\n")
    writer.writeheader()
    writer.writerows(usual | changes | dict(row) for row in rows)
    path.write_text(text.getvalue())
    return path


def hours(resource: str, quantity: object, cost: object, **changes: object) -> dict[str, object]:
    stated = {"ResourceId": resource, "PricingQuantity": quantity, "PricingUnit": "Hours"}
    return stated | {"BilledCost": cost} | changes


def told(*words: object) -> Any:
    done = in_process(*map(str, words), "--json")
    assert done.code == 0, done.err or done.out
    return done.json


def reconciled() -> dict[str, Any]:
    found: dict[str, Any] = told("bill", "reconcile", "--month", MONTH)
    return found


def row_of(resource: str) -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = (row for row in reconciled()["rows"] if row["resource"] == resource)
    return row


# Importing


def test_the_same_file_imported_twice_changes_nothing(tmp_path: Path) -> None:
    bill = focus(tmp_path / "bill.csv", hours("i-1", 1, "2.00"), hours("i-2", 1, "3.00"))
    first = told("bill", "import", bill)
    before = reconciled()
    again = told("bill", "import", bill)
    assert (first["new_lines"], again["new_lines"]) == (2, 0)
    assert reconciled() == before
    assert len(told("bill", "list")["bills"]) == 1


def test_equal_rows_are_lines_of_their_own(tmp_path: Path) -> None:
    told("bill", "import", focus(tmp_path / "bill.csv", *[hours("i-1", 1, "2.00")] * 3))
    assert reconciled()["currencies"][0]["billed"] == "6"


def test_a_newer_version_of_an_invoice_is_refused_until_it_is_to_replace(tmp_path: Path) -> None:
    told("bill", "import", focus(tmp_path / "a.csv", hours("i-1", 1, "2.00")))
    newer = focus(tmp_path / "b.csv", hours("i-1", 1, "2.00"), hours("i-1", 2, "4.00"))
    refused = in_process("bill", "import", str(newer))
    assert refused.code == 2
    assert "--replace" in refused.err
    assert told("bill", "import", newer, "--replace")["new_lines"] == 2
    assert reconciled()["currencies"][0]["billed"] == "6"


def test_another_part_of_an_invoice_is_added_when_said_so(tmp_path: Path) -> None:
    told("bill", "import", focus(tmp_path / "a.csv", hours("i-1", 1, "2.00")))
    part = focus(tmp_path / "b.csv", hours("i-2", 2, "4.00"))
    assert told("bill", "import", part, "--add")["new_lines"] == 1
    assert reconciled()["currencies"][0]["billed"] == "6"


def test_the_total_of_the_invoice_is_checked_to_the_cent(tmp_path: Path) -> None:
    bill = focus(tmp_path / "bill.csv", *[hours("i-1", 1, "0.0033")] * 3)
    wrong = in_process("bill", "import", str(bill), "--total", "0.02 USD")
    assert wrong.code == 2
    assert told("bill", "list")["bills"] == []
    assert told("bill", "import", bill, "--total", "0.01 USD")["new_lines"] == 3


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("BilledCost", "two", "BilledCost is 'two'"),
        ("ChargeCategory", "Gift", "ChargeCategory is 'Gift'"),
        ("ChargePeriodEnd", "2020-01-01", "ends before it begins"),
        ("BillingCurrency", "dollars", "the currency is 'dollars'"),
    ],
)
def test_one_bad_row_refuses_the_file(tmp_path: Path, column: str, value: str, said: str) -> None:
    bill = focus(
        tmp_path / "bill.csv", hours("i-1", 1, "2"), hours("i-1", 1, "2", **{column: value})
    )
    refused = in_process("bill", "import", str(bill))
    assert (refused.code, told("bill", "list")["bills"]) == (2, [])
    assert said in refused.err
    assert "row 3" in refused.err


def test_parquet_is_refused_with_a_conversion(tmp_path: Path) -> None:
    path = tmp_path / "bill.parquet"
    path.write_bytes(b"PAR1" + bytes(20))
    refused = in_process("bill", "import", str(path))
    assert refused.code == 2
    assert "duckdb" in refused.err


def test_a_changed_kept_file_is_a_finding_and_not_counted(tmp_path: Path) -> None:
    kept = told("bill", "import", focus(tmp_path / "b.csv", hours("i-1", 1, "2")))["kept"]
    Path(kept).write_text(Path(kept).read_text().replace('"2"', '"3"'))
    found = reconciled()
    assert found["currencies"] == []
    assert "changed since" in found["findings"][0]["message"]


# Formats


CUR = {
    "identity_line_item_id": "1", "bill_invoice_id": "77", "line_item_line_item_type": "Usage",
    "bill_billing_period_start_date": "2023-11-01T00:00:00Z", "line_item_currency_code": "USD",
    "line_item_usage_start_date": at(0), "line_item_usage_end_date": at(HOUR),
    "line_item_resource_id": "i-1", "line_item_usage_amount": "1.0", "pricing_unit": "Hrs",
    "line_item_unblended_cost": "2.0000000001", "product_product_family": "Compute Instance",
    "line_item_usage_type": "BoxUsage:p5.48xlarge", "resource_tags": '{"user_team": "nlp"}',
    "savings_plan_savings_plan_a_r_n": "", "reservation_reservation_a_r_n": "",
}  # fmt: skip


def cur(path: Path, *rows: dict[str, str]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(CUR))
    writer.writeheader()
    for number, row in enumerate(rows):
        writer.writerow(CUR | {"identity_line_item_id": str(number)} | row)
    path.write_bytes(gzip.compress(text.getvalue().encode()))
    return path


def test_aws_cur_covered_usage_and_its_negation_cost_nothing(tmp_path: Path) -> None:
    plan = {"savings_plan_savings_plan_a_r_n": "arn:sp"}
    bill = cur(
        tmp_path / "cur.csv.gz",
        plan | {"line_item_line_item_type": "SavingsPlanCoveredUsage"},
        plan | {"line_item_line_item_type": "SavingsPlanNegation",
                "line_item_unblended_cost": "-2.0000000001"},
        plan | {"line_item_line_item_type": "SavingsPlanRecurringFee", "line_item_resource_id": "",
                "line_item_unblended_cost": "1.5"},
        {"product_product_family": "Storage", "line_item_unblended_cost": "0.25"},
        {"line_item_line_item_type": "Tax", "line_item_unblended_cost": "0.19"},
    )  # fmt: skip
    write_run(tmp_path, "i-1", HOUR)
    told("import", "runs", tmp_path)
    told("bill", "import", bill)
    row = row_of("i-1")
    assert (row["billed_usage"], row["commitment"], row["billed_hours"]) == ("0", "-2", 1.0)
    assert (row["storage"], row["tax"], row["total"]) == ("0.25", "0.19", "0.44")
    assert reconciled()["currencies"][0]["billed"] == "1.94"


def test_another_part_has_only_its_new_lines_added(tmp_path: Path) -> None:
    told("bill", "import", cur(tmp_path / "a.csv.gz", {}))
    part = cur(tmp_path / "b.csv.gz", {}, {})
    assert "was imported from a.csv.gz" in in_process("bill", "import", str(part)).err
    assert told("bill", "import", part, "--add")["new_lines"] == 1
    assert told("bill", "import", cur(tmp_path / "c.csv.gz", {}), "--add")["new_lines"] == 0


def test_google_cloud_credits_are_lines_of_their_own(tmp_path: Path) -> None:
    row = {
        "usage_start_time": at(0), "usage_end_time": at(HOUR), "cost": 2.5, "currency": "EUR",
        "cost_type": "regular", "invoice": {"month": "202311"},
        "resource": {"name": "projects/p/zones/z/instances/vm-1"},
        "sku": {"description": "Nvidia H100 80GB GPU running in Europe"},
        "credits": [{"amount": -0.5, "type": "SUSTAINED_USAGE_DISCOUNT", "name": "sustained"}],
    }  # fmt: skip
    tax = row | {"cost_type": "tax", "cost": 0.38, "credits": [], "resource": {}}
    path = tmp_path / "gcp.jsonl"
    path.write_text("\n".join(map(json.dumps, (row, tax))))
    told("bill", "import", path)
    write_run(tmp_path, "vm-1", HOUR, Price(2_500_000, "EUR"))
    told("import", "runs", tmp_path)
    found = row_of("projects/p/zones/z/instances/vm-1")
    assert (found["state"], found["billed_usage"], found["credit"]) == ("matched", "2.5", "-0.5")
    assert reconciled()["currencies"][0]["billed"] == "2.38"


def test_hours_of_runpod_are_summed_by_pod(tmp_path: Path) -> None:
    path = tmp_path / "runpod.json"
    records = [
        {"podId": "pod-1", "time": at(n * HOUR), "amount": 0.69, "timeBilledMs": 3_600_000}
        for n in range(3)
    ]
    path.write_text(json.dumps([*records, {"networkVolumeId": "v", "time": at(0), "amount": 0.1}]))
    told("bill", "import", path)
    row = row_of("pod-1")
    assert (row["billed_hours"], row["billed_usage"]) == (3.0, "2.07")
    assert row_of("v")["storage"] == "0.1"


def test_any_table_can_be_mapped(tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(
        "Instance,From,To,Amount,Kind\n"
        f"i-1,{at(0)},{at(HOUR)},$2.00,GPU\n,{at(0)},{at(HOUR)},0.40,Sales tax\n"
    )
    how = tmp_path / "map.toml"
    how.write_text(
        'provider = "ourcloud"\ncurrency = "USD"\n[columns]\ncost = "Amount"\nstart = "From"\n'
        'end = "To"\nresource = "Instance"\ncategory = "Kind"\n'
        '[categories]\n"Sales tax" = "tax"\n'
    )
    assert in_process("bill", "import", str(bill)).code == 2
    told("bill", "import", bill, "--map", how)
    assert (row_of("i-1")["billed_usage"], row_of("")["tax"]) == ("2", "0.4")


# Matching


def test_a_machine_is_matched_by_gpu_region_and_time_only_if_it_is_the_only_one(
    tmp_path: Path,
) -> None:
    price = Price(2_000_000, offer="lambda:1xH100:on-demand:us-east-1")
    write_run(tmp_path, "", HOUR, price, run_id="r1")
    told("import", "runs", tmp_path)
    line = hours("x-1", 1, "2", SkuId="gpu_1x_h100_sxm5", RegionId="us-east-1")
    told("bill", "import", focus(tmp_path / "a.csv", line))
    assert row_of("x-1")["how"] == "GPU, region and time"
    write_run(tmp_path, "", HOUR, price, run_id="r2", host="other")
    told("import", "runs", tmp_path)
    assert row_of("x-1")["state"] == "only in the bill"


def test_a_machine_at_another_time_is_not_matched(tmp_path: Path) -> None:
    write_run(tmp_path, "i-1", HOUR, start_ns=48 * HOUR)
    told("import", "runs", tmp_path)
    told("bill", "import", focus(tmp_path / "a.csv", hours("i-1", 1, "2")))
    states = sorted(row["state"] for row in reconciled()["rows"])
    assert states == ["only in the bill", "only in the books"]


def test_a_run_on_two_machines_is_booked_on_both(tmp_path: Path) -> None:
    for node in (0, 1):
        facts = {"run_id": "r", "host": f"n{node}", "node": node, "nodes": 2, "world_size": 2,
                 "gpus": 2, "node_gpus": 1, "gpus_source": "visible", "launch": "x", "pid": node,
                 "instance_id": f"i-{node}", "price": Price(2_000_000)}  # fmt: skip
        Segment(rank=node, about=facts).step(3600).end().write(tmp_path / "r")
    told("import", "runs", tmp_path)
    told("bill", "import", focus(tmp_path / "a.csv", hours("i-0", 1, "2"), hours("i-1", 1, "2")))
    assert [row_of(each)["our_cost"] for each in ("i-0", "i-1")] == ["2", "2"]
    assert reconciled()["currencies"][0]["confirmed_share"] == 1.0


# Causes


def test_a_difference_is_split_by_cause(tmp_path: Path) -> None:
    """An hour less 30 s at 2 USD; billed 1 h 5 min at 2.10: Lambda bills by the minute."""
    write_run(tmp_path, "i-1", HOUR - MINUTE // 2)
    told("import", "runs", tmp_path)
    quantity = Decimal(65) / 60
    told(
        "bill",
        "import",
        focus(tmp_path / "a.csv", hours("i-1", quantity, quantity * Decimal("2.1"))),
    )
    row = row_of("i-1")
    assert (row["our_cost"], row["increment"]) == ("1.983333", "0.016667")
    assert row["boot_and_shutdown"] == "0.166667"  # Five minutes.
    assert Decimal(row["price"]) == pytest.approx(quantity * Decimal("0.1"), abs=Decimal("2e-6"))
    parts = ("increment", "boot_and_shutdown", "price", "commitment", "unmatched")
    difference = Decimal(row["billed_usage"]) - Decimal(row["our_cost"])
    assert sum(Decimal(row[part]) for part in parts) == difference


def test_an_amount_that_a_bill_states_within_half_a_percent_is_confirmed(tmp_path: Path) -> None:
    for machine in ("i-1", "i-2"):
        write_run(tmp_path, machine, HOUR)
    told("import", "runs", tmp_path)
    lines = hours("i-1", 1, "2.01"), hours("i-2", 1, "2.50")
    told("bill", "import", focus(tmp_path / "a.csv", *lines, ProviderName="ourcloud"))
    (found,) = reconciled()["currencies"]
    assert (found["confirmed"], found["booked"], found["confirmed_share"]) == ("2", "4", 0.5)


# Corrections


def test_books_equal_the_bill_once_that_is_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path, "i-1", HOUR, tags={"team": "nlp"})
    told("import", "runs", tmp_path)
    tax = {"BilledCost": "0.418", "ChargeCategory": "Tax"}
    told("bill", "import", focus(tmp_path / "a.csv", hours("i-1", "1.1", "2.2"), tax))
    assert told("cost", "summary")["totals"] == {"USD": 2.0}
    made = told("bill", "correct", "--month", MONTH, "--reason", "bill of November")["corrections"]
    assert {(each["part"], each["micros"], each.get("user", "")) for each in made} == {
        ("boot and shutdown", 200_000, "ada"), ("tax", 418_000, ""),
    }  # fmt: skip
    (found,) = reconciled()["currencies"]
    assert (found["booked"], found["billed"], found["confirmed_share"]) == ("2.618", "2.618", 1.0)
    assert told("cost", "summary")["totals"] == {"USD": 2.618}
    assert told("bill", "correct", "--month", MONTH, "--reason", "again")["corrections"] == []
    rows = told("cost", "allocate", "--by", "team", "--month", MONTH)["rows"]
    assert {row["owner"]: row["total"] for row in rows} == {"nlp": "2.2", "(untagged)": "0.418"}


def test_a_correction_needs_a_reason(tmp_path: Path) -> None:
    told("bill", "import", focus(tmp_path / "a.csv", hours("i-1", 1, "2")))
    assert in_process("bill", "correct", "--month", MONTH, "--reason", " ").code == 2


# Prices as vendors bill


def test_six_minute_jobs_billed_by_the_started_hour(tmp_path: Path) -> None:
    """Runs cost their time; the rest of the hour is a row of the same owner, and not idle."""
    price = typed_price("2 USD/h, increment 1h", name="price", source="test")
    for number in range(10):
        write_run(tmp_path, f"i-{number}", 6 * MINUTE, price, user=f"user{number % 2}")
    told("import", "runs", tmp_path)
    summary = told("cost", "summary")
    assert summary["models"]["m"]["total_cost"] == 2.0
    assert sum(each["micros"] for each in summary["beyond_use"]) == 18_000_000
    assert summary["totals"] == {"USD": 20.0}
    words = ("cost", "allocate", "--by", "user", "--month", MONTH, "--bill", "20 USD")
    rows = {row["owner"]: (row["total"], row["idle"]) for row in told(*words)["rows"]}
    assert rows == {"user0": ("10", "0"), "user1": ("10", "0")}
    bill = focus(tmp_path / "a.csv", *(hours(f"i-{n}", 1, "2") for n in range(10)))
    told("bill", "import", bill)
    assert reconciled()["currencies"][0]["confirmed_share"] == 1.0


@pytest.mark.parametrize(
    ("terms", "billed_minutes"),
    [("increment 15m", 15), ("minimum 10m", 10), ("setup 5m", 11), ("increment 4m, setup 1m", 8),
     ("increment 1m, minimum 9m, setup 2m", 9)],
)  # fmt: skip
def test_terms_of_a_price(tmp_path: Path, terms: str, billed_minutes: int) -> None:
    price = typed_price(f"60 USD/h, {terms}", name="price", source="test")
    write_run(tmp_path, "i-1", 6 * MINUTE, price)
    told("import", "runs", tmp_path)
    assert told("cost", "summary")["totals"] == {"USD": float(billed_minutes)}


def test_runs_within_one_increment_share_it(tmp_path: Path) -> None:
    price = typed_price("60 USD/h, increment 1h", name="price", source="test")
    for number, start in enumerate((0, 30, 300)):
        write_run(tmp_path, "i-1", 6 * MINUTE, price, start * MINUTE, run_id=f"r{number}")
    told("import", "runs", tmp_path)
    assert told("cost", "summary")["totals"] == {"USD": 120.0}


def test_terms_are_part_of_an_offer_and_recorded_with_a_run(tmp_path: Path) -> None:
    words = ("H100", "2 USD/h, increment 1h, minimum 2h", "--provider", "ourcloud")
    (offer,) = told("prices", "set", *words)
    assert offer["terms"] == {"increment_ns": HOUR, "minimum_ns": 2 * HOUR}
    run = tmp_path / "run"
    named = ("--dir", str(run), "--price", "ourcloud:H100", "--gpus", "1", "--", "true")
    assert in_process("exec", *named).code == 0
    (segment,) = (run / "ledger").glob("*r-1.jsonl")
    assert (
        '"terms":{"increment_ns":3600000000000,"minimum_ns":7200000000000}' in segment.read_text()
    )


@pytest.mark.parametrize("price", ["2 USD/h, increment", "2 USD/h, per 1h", "2 USD/h, setup -1m"])
def test_unknown_terms_are_refused(tmp_path: Path, price: str) -> None:
    refused = in_process("exec", "--dir", str(tmp_path / "r"), "--price", price, "--", "true")
    assert refused.code == 2
    assert not (tmp_path / "r").exists()


def test_pages_and_commands_state_the_share_that_a_bill_confirms(tmp_path: Path) -> None:
    for machine in ("i-1", "i-2"):
        write_run(tmp_path, machine, HOUR)
    told("import", "runs", tmp_path)
    told("bill", "import", focus(tmp_path / "a.csv", hours("i-1", 1, "2")))
    page = money_page(PageQuery(path="/money", query=[("month", MONTH)]), BookReader())
    assert page.document["bills"][0]["confirmed_share"] == 0.5
    assert "2.00 USD (50.0%)" in "".join(page.parts)
    allocated = ("cost", "allocate", "--by", "user", "--month", MONTH)
    assert told(*allocated)["bills"] == page.document["bills"]
    assert "Confirmed by bills: 2.00 USD (50.0%)" in in_process(*allocated).out
    digest = ("digest", "--since", "2023-11-01T00:00Z")
    assert told(*digest)["confirmed"] == page.document["bills"]
    assert "(50.0%)" in in_process(*digest).out
    shown = in_process("bill", "reconcile", "--month", MONTH).out
    assert "bills confirm 50.0% of the books" in shown
    assert shown.split()[-6:] == ["invoice", "inv-1", "of", "lambda", "2.00", "USD"]


# Commitments


def test_a_commitment_is_used_and_unused_and_sums_to_its_cost(tmp_path: Path) -> None:
    """Two GPUs for ten hours at 6 USD/h: one used for 5 h; three for 1 h, of which two count."""
    reserved = "lambda:1xH100:reserved"
    price = Price(1_000_000, kind="showback", offer=reserved)
    write_run(tmp_path, "i-1", 5 * HOUR, price, run_id="r1")
    write_run(tmp_path, "i-2", HOUR, price, 6 * HOUR, run_id="r2", gpus=3)
    write_run(tmp_path, "i-3", HOUR, Price(1_000_000, offer="lambda:1xH100:on-demand"), run_id="r3")
    told("import", "runs", tmp_path)
    term = ("--since", at(0), "--until", at(10 * HOUR), "--provider", "lambda", "--gpus", "2")
    (row,) = told("cost", "commitments", "set", "plan", "6 USD/h", *term)["commitments"]
    assert row["cost"]["micros"] == 60_000_000
    assert (row["used"]["micros"], row["unused"]["micros"]) == (21_000_000, 39_000_000)
    assert told("cost", "summary")["totals"] == {"USD": 61.0}
    fee = {"BilledCost": "60", "ChargeCategory": "Purchase", "CommitmentDiscountId": "plan"}
    told("bill", "import", focus(tmp_path / "a.csv", fee, hours("i-3", 1, "1")))
    assert (row_of("plan")["our_cost"], row_of("plan")["billed_usage"]) == ("60", "60")
    assert reconciled()["currencies"][0]["confirmed_share"] == 1.0
    assert told("cost", "commitments", "remove", "plan")["commitments"] == []


def test_runs_on_a_commitment_that_are_charged_in_cash_are_counted_once(tmp_path: Path) -> None:
    price = Price(3_000_000, offer="lambda:1xH100:reserved")
    write_run(tmp_path, "i-1", 5 * HOUR, price)
    told("import", "runs", tmp_path)
    term = ("--since", at(0), "--until", at(10 * HOUR), "--provider", "lambda", "--gpus", "2")
    told("cost", "commitments", "set", "plan", "6 USD/h", *term)
    assert told("cost", "summary")["totals"] == {"USD": 60.0}


# Rentals


def test_a_rental_is_charged_by_started_increments_and_ends_within_what_is_held(
    tmp_path: Path, clock: ManualClock
) -> None:
    """10 USD at 2 USD/h pays five hours: it ends before the fifth; 90 minutes are billed as two."""
    terms = BillingTerms(increment_ns=HOUR)
    vendor = Vendor(name="lambda", list=("true",), terminate=("true",))
    order = RentalOrder(
        label="lab", limit=Money.parse("11 USD"), rate=Rate.parse("2 USD/h"), vendor=vendor,
        create=("true",), terms=terms,
    )  # fmt: skip
    assert order.lifetime_ns() == 5 * HOUR - order.margin.ns
    log = tmp_path / "spend.jsonl"
    guard = BudgetGuard(50, log, clock=clock, environ={})
    remember_log(log)
    rental = rental_of(order, clock.wall_ns())
    hold = guard.authorize("lab-pod", "10 USD", rental=rental)
    guard.note("created", hold=hold, detail={"resource": "pod-1"})
    assert rental.cost_until(rental.started_ns) == Money(0)
    assert rental.cost_until(rental.started_ns + 90 * MINUTE) == Money(4_000_000)
    clock.advance(90 * MINUTE)
    write_run(tmp_path, "pod-1", 30 * MINUTE)
    told("import", "runs", tmp_path)
    spent = rental.cost_until(clock.wall_ns())
    guard.settle_rental(guard.holds()[0], spent, "its list is empty")
    assert told("cost", "summary")["totals"] == {"USD": 4.0}
    tagged = hours("x", 2, "4", Tags=json.dumps({"Name": rental.name}))
    told("bill", "import", focus(tmp_path / "a.csv", tagged))
    row = row_of("x")
    assert (row["how"], row["our_cost"], row["confirmed"]) == ("tag", "4", True)


def test_the_time_of_a_rental_includes_its_set_up(tmp_path: Path) -> None:
    guard = BudgetGuard(50, tmp_path / "spend.jsonl", environ={})
    terms = read_terms("2 USD/h, increment 1h, setup 5m", guard, name="--rate")
    assert terms == BillingTerms(increment_ns=HOUR)


# Every screen


def test_nothing_of_a_corrected_bill_is_idle_and_every_owner_pays_for_their_own(
    tmp_path: Path,
) -> None:
    """Increment, boot, storage, credit and tax of two users, whose bill is 12.05 USD."""
    for user in ("ada", "bob"):
        write_run(tmp_path, f"i-{user}", 6 * MINUTE, user=user)
    told("import", "runs", tmp_path)
    beside = [
        {"ResourceId": "i-ada", "BilledCost": "0.50", "ServiceCategory": "Storage"},
        {"ResourceId": "i-bob", "BilledCost": "-0.25", "ChargeCategory": "Credit"},
        {"BilledCost": "1.80", "ChargeCategory": "Tax"},
    ]
    lines = hours("i-ada", 1, "2"), hours("i-bob", 4, "8")
    told("bill", "import", focus(tmp_path / "a.csv", *lines, *beside, ProviderName="ourcloud"))
    told("bill", "correct", "--month", MONTH, "--reason", "bill of November")
    words = ("cost", "allocate", "--by", "user", "--month", MONTH, "--bill", "12.05 USD")
    rows = {row["owner"]: (row["total"], row["idle"]) for row in told(*words)["rows"]}
    assert rows == {"ada": ("2.5", "0"), "bob": ("7.75", "0"), "(untagged)": ("1.8", "0")}


def test_every_screen_has_the_same_total(tmp_path: Path) -> None:
    """Runs, what is billed beyond them, a commitment, and corrections by a bill."""
    price = typed_price("2 USD/h, increment 1h", name="price", source="test")
    for number in range(3):
        write_run(tmp_path, f"i-{number}", 7 * MINUTE + 1, price, user=f"u{number}")
    told("import", "runs", tmp_path)
    term = ("--since", at(0), "--until", at(10 * HOUR), "--provider", "lambda", "--gpus", "2")
    told("cost", "commitments", "set", "plan", "0.123457 USD/h", *term)
    told("bill", "import", focus(tmp_path / "a.csv", hours("i-0", "1.3", "2.7654321987")))
    told("bill", "correct", "--month", MONTH, "--reason", "bill of November")
    file = tmp_path / "focus.csv"
    rows = told("cost", "allocate", "--by", "user", "--month", MONTH, "--focus", file)["rows"]
    page = money_page(PageQuery(path="/money", query=[("month", MONTH)]), BookReader())
    digest = told("digest", "--since", "2023-11-01T00:00Z")
    found = {
        "allocate": sum(Decimal(row["total"]) for row in rows),
        "focus": sum(
            Decimal(r["EffectiveCost"]) for r in csv.DictReader(file.read_text().splitlines())
        ),
        "page": sum(Decimal(str(row["cost"])) for row in page.rows),
        "digest": Decimal(sum(part["micros"] for part in digest["parts"])) / 10**6,
        "summary": Decimal(str(told("cost", "summary")["totals"]["USD"])),
        "bill": Decimal(reconciled()["currencies"][0]["booked"]),
    }
    assert found == dict.fromkeys(found, Decimal("8.000002"))


def test_the_rate_of_a_partition_has_no_billing_terms() -> None:
    words = ("prices", "partition", "set", "gpu", "1 USD/h, increment 1h")
    assert in_process(*words).code == 2


def test_commands_say_what_they_did(tmp_path: Path) -> None:
    bill = focus(tmp_path / "a.csv", hours("i-1", 1, "2.005"))
    said = in_process("bill", "import", str(bill)).out
    assert said == "1 line imported, FOCUS. invoice inv-1 of lambda (2023-11): 2.00 USD\n"
    again = in_process("bill", "import", str(bill)).out
    assert again == "Nothing changed: its 1 line had been imported before.\n"
    assert "a.csv" in in_process("bill", "list").out
    rows = tmp_path / "rows.csv"
    in_process("bill", "reconcile", "--month", MONTH, "--csv", str(rows))
    (row,) = csv.DictReader(rows.read_text().splitlines())
    assert (row["resource"], row["total"], row["currency"]) == ("i-1", "2.005", "USD")
    done = in_process("bill", "correct", "--month", MONTH, "--reason", "bill of November").out
    assert done == "i-1: unmatched 2.005 USD\n1 correction booked in 2023-11.\n"
    other = ("bill", "correct", "--month", MONTH, "--reason", "x", "--resource", "i-2")
    assert in_process(*other).code == 2


def test_a_month_without_a_bill_says_so() -> None:
    (finding,) = told("bill", "reconcile", "--month", MONTH)["findings"]
    assert "no bill of 2023-11 was imported" in finding["message"]


def test_lines_with_ids_of_their_own_are_added_without_a_question(tmp_path: Path) -> None:
    how = tmp_path / "map.toml"
    how.write_text(
        'provider = "us"\ncurrency = "USD"\n[columns]\ncost = "c"\nstart = "s"\nend = "e"\n'
        'line = "n"\nhours = "h"\ntags = "t"\n'
    )
    cells = f'{at(0)},{at(HOUR)},2,1.5,"[{{""key"": ""Name"", ""value"": ""x""}}]"'
    for numbers, new in (("1",), 1), (("1", "2"), 1), (("2",), 0):
        bill = tmp_path / f"{len(numbers)}-{numbers[0]}.csv"
        bill.write_text("n,s,e,c,h,t\n" + "".join(f"{number},{cells}\n" for number in numbers))
        assert told("bill", "import", bill, "--map", how)["new_lines"] == new
    changed = tmp_path / "changed.csv"
    changed.write_text(f"n,s,e,c,h,t\n1,{cells.replace(',2,', ',3,')}\n")
    refused = in_process("bill", "import", str(changed), "--map", str(how))
    assert (refused.code, "line 1 is another one here" in refused.err) == (2, True)


def test_after_a_close_a_log_a_bill_and_a_correction_are_named_rows_of_the_open_month(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "i-1", 10 * HOUR)
    told("collect", tmp_path)
    closed = told("books", "close", MONTH, "--reason", "reported")
    document = (outlay_home() / "closed" / f"{MONTH}.json").read_bytes()
    write_run(tmp_path, "i-2", HOUR)
    told("collect", tmp_path)
    told("bill", "import", focus(tmp_path / "late.csv", hours("i-9", 1, "2.50")))
    correct = ("bill", "correct", "--month", MONTH, "--resource", "i-9", "--reason", "late bill")
    assert "booked in 2023-12" in in_process(*correct).out
    told("cost", "correct", tmp_path / "i-1", "--price", "1 USD/h", "--reason", "mistyped")
    late = told("cost", "allocate", "--by", "user", "--month", "2023-12")["late"]
    named = {(row["run"], row["origin"]): row["cost"]["micros"] for row in late}
    assert {key: micros for key, micros in named.items() if key[0].startswith("i-")} == {
        ("i-1", MONTH): -10_000_000, ("i-2", MONTH): 2_000_000,
    }  # fmt: skip
    assert sorted(named.values()) == [-10_000_000, 2_000_000, 2_500_000]
    assert (
        told("cost", "allocate", "--by", "user", "--month", MONTH)["totals"][0]["total"]["micros"]
        == 20_000_000
    )
    assert (outlay_home() / "closed" / f"{MONTH}.json").read_bytes() == document
    (row,) = told("books", "show")["months"]
    assert row["sha256"] == closed["sha256"]
