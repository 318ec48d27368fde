"""A generated month of 500 machines in three currencies: every sum against an oracle of its own."""

from __future__ import annotations

import csv
import io
import random
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from command_line import in_process
from ledgers import HOUR, START_NS, Segment
from outlay.clock import utc_text
from outlay.ledger import Price

MONTH = "2023-11"
CURRENCIES = ("USD", "EUR", "GBP")
MACHINES = 500
MICROS = 10**6
CAUSES = ("increment", "boot_and_shutdown", "price", "commitment", "unmatched")
BESIDE = ("storage", "network", "tax", "credit", "other", "commitment_fee")
CATEGORIES = {
    "usage": {"ChargeCategory": "Usage", "ServiceCategory": "Compute"},
    "storage": {"ChargeCategory": "Usage", "ServiceCategory": "Storage"},
    "network": {"ChargeCategory": "Usage", "ServiceCategory": "Networking"},
    "tax": {"ChargeCategory": "Tax"},
    "credit": {"ChargeCategory": "Credit"},
    "other": {"ChargeCategory": "Adjustment"},
    "commitment_fee": {"ChargeCategory": "Purchase", "CommitmentDiscountId": "plan"},
    "unused": {
        "ChargeCategory": "Usage",
        "CommitmentDiscountId": "plan",
        "CommitmentDiscountStatus": "Unused",
    },
}


def half_even(exact: Fraction) -> int:
    """Round by hand: the oracle shares no code with outlay."""
    whole, rest = divmod(exact.numerator, exact.denominator)
    twice = 2 * rest
    up = twice > exact.denominator or (twice == exact.denominator and whole % 2)
    return whole + bool(up)


@dataclass
class World:
    """What was run and what was billed, as the generator knows it."""

    rows: list[dict[str, str]] = field(default_factory=list)
    billed: dict[tuple[str, str, str], Fraction] = field(
        default_factory=lambda: defaultdict(Fraction)
    )
    invoices: dict[tuple[str, str], Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    booked: dict[tuple[str, str], int] = field(default_factory=dict)
    states: dict[tuple[str, str], str] = field(default_factory=dict)
    used_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    billed_ns: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    covered_ns: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def bill(
        self,
        currency: str,
        invoice: str,
        kind: str,
        cost: Decimal,
        resource: str = "",
        **cells: str,
    ) -> None:
        usual = {
            "BilledCost": str(cost), "BillingCurrency": currency, "InvoiceId": invoice,
            "BillingPeriodStart": "2023-11-01T00:00:00Z", "ChargePeriodStart": utc_text(START_NS),
            "ChargePeriodEnd": utc_text(START_NS + HOUR), "ProviderName": "ourcloud",
            "ResourceId": resource, "ServiceCategory": "", "PricingQuantity": "",
            "PricingUnit": "", "CommitmentDiscountId": "", "CommitmentDiscountStatus": "",
        }  # fmt: skip
        self.rows.append(usual | CATEGORIES[kind] | cells)
        name = "commitment_fee" if kind == "unused" else kind
        # A fee without a resource is that of its commitment.
        owner = "plan" if name == "commitment_fee" else resource
        self.billed[currency, owner, name] += Fraction(cost)
        self.invoices[currency, invoice] += Fraction(cost)


def write_world(root: Path, seed: int) -> World:
    chance, world = random.Random(seed), World()
    for number in range(MACHINES):
        currency, machine = CURRENCIES[number % 3], f"i-{number}"
        invoice = f"{currency}-{number % 2}"
        state = chance.choice(("matched", "matched", "matched", "bill", "books"))
        world.states[currency, machine] = f"only in the {state}" if state != "matched" else state
        ns = chance.randrange(60, 20 * 3600) * 10**9 + chance.randrange(10**9)
        price = chance.randrange(100_000, 40_000_000)
        if state != "bill":
            facts = {
                "run_id": f"r{number}", "name": f"r{number}", "user": f"u{number % 7}",
                "model": "m", "nodes": 1, "gpus": 1, "instance_id": machine,
                "price": Price(price, currency),
            }  # fmt: skip
            story = Segment(about=facts).after(0)
            story.now_ns += ns
            story.end().write(root / f"r{number}")
            world.used_ns[currency, machine] = ns
            world.booked[currency, machine] = half_even(Fraction(price * ns, HOUR))
        if state != "books":
            bill_machine(world, chance, currency, invoice, machine, ns, price)
    for currency in CURRENCIES:
        for part in (0, 1):
            invoice = f"{currency}-{part}"
            tax = Decimal(chance.randrange(10**9)) / 10**8
            world.bill(currency, invoice, "tax", tax)
            world.bill(currency, invoice, "commitment_fee", Decimal("12.3456789"))
            world.bill(currency, invoice, "unused", Decimal("3.000000000001"))
            world.bill(currency, invoice, "other", Decimal("-0.0000005"))
    return world


def bill_machine(
    world: World,
    chance: random.Random,
    currency: str,
    invoice: str,
    machine: str,
    ns: int,
    price: int,
) -> None:
    """Bill a machine in slices of an hour, some covered by a commitment, and what is beside."""
    left = Decimal(ns + chance.randrange(600) * 10**9)
    place = 0
    while left > 0:
        part = min(left, Decimal(HOUR))
        covered = chance.random() < 0.1
        rate = Decimal(price + chance.randrange(-50_000, 50_000)) / MICROS
        quantity = part / HOUR
        cost = Decimal(0) if covered else (rate * quantity).quantize(Decimal("1e-12"))
        cells = {"PricingQuantity": str(quantity), "PricingUnit": "Hours"}
        cells["ChargePeriodStart"] = utc_text(START_NS + place * HOUR)
        cells["ChargePeriodEnd"] = utc_text(START_NS + (place + 1) * HOUR)
        world.billed_ns[currency, machine] += int(part)
        world.covered_ns[currency, machine] += int(part) * covered
        if covered:
            cells |= {"CommitmentDiscountId": "plan", "CommitmentDiscountStatus": "Used"}
        world.bill(currency, invoice, "usage", cost, machine, **cells)
        left, place = left - part, place + 1
    for kind in ("storage", "network", "credit"):
        if chance.random() < 0.3:
            amount = Decimal(chance.randrange(1, 10**9)) / 10**10
            world.bill(currency, invoice, kind, -amount if kind == "credit" else amount, machine)


def told(*words: object) -> Any:
    done = in_process(*map(str, words), "--json")
    assert done.code == 0, done.err or done.out
    return done.json


def micros(text: str) -> int:
    value = Decimal(text) * MICROS
    assert value == int(value)
    return int(value)


@pytest.mark.parametrize("seed", [36])
def test_parts_sum_to_the_bill_and_to_the_books_to_the_micro_unit(
    tmp_path: Path, seed: int
) -> None:
    world = write_world(tmp_path / "runs", seed)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(world.rows[0]))
    writer.writeheader()
    writer.writerows(world.rows)
    file = tmp_path / "bill.csv"
    file.write_text(text.getvalue())
    told("import", "runs", tmp_path / "runs")
    assert told("bill", "import", file)["new_lines"] == len(world.rows)
    found = told("bill", "reconcile", "--month", MONTH)

    exact: dict[str, Fraction] = defaultdict(Fraction)
    for (currency, _, _), cost in world.billed.items():
        exact[currency] += cost
    for each in found["currencies"]:
        currency = each["currency"]
        mine = [row for row in found["rows"] if row["currency"] == currency]
        assert sum(micros(row["total"]) for row in mine) == half_even(exact[currency] * MICROS)
        assert micros(each["billed"]) == half_even(exact[currency] * MICROS)
        booked = sum(cost for (of, _), cost in world.booked.items() if of == currency)
        assert sum(micros(row["our_cost"]) for row in mine) == booked == micros(each["booked"])
        sums = [each[part] for part in ("matched", "only_in_the_bill", "only_in_the_books")]
        assert sum(micros(part["billed"]) for part in sums) == micros(each["billed"])
        assert sum(micros(part["booked"]) for part in sums) == booked
        for invoice in each["invoices"]:
            whole = world.invoices[currency, invoice["invoice"]]
            assert Fraction(Decimal(invoice["total"])) == whole
            assert Decimal(invoice["to_the_cent"]) * 100 == half_even(whole * 100)
    for row in found["rows"]:
        check_row(row, world)
    machines = {(row["currency"], row["resource"]) for row in found["rows"] if row["our_hours"]}
    assert machines == set(world.booked)

    assert told("bill", "import", file)["new_lines"] == 0
    assert told("bill", "reconcile", "--month", MONTH) == found


def check_row(row: dict[str, Any], world: World) -> None:
    """Compare a row with what the generator billed and ran."""
    key = row["currency"], row["resource"]
    assert row["state"] == world.states.get(key, "only in the bill")
    assert micros(row["our_cost"]) == (0 if "bill" in row["state"] else world.booked[key])
    for name in ("usage", *BESIDE):
        shown = micros(row["billed_usage" if name == "usage" else name])
        assert abs(shown - world.billed[(*key, name)] * MICROS) < 1
    causes = sum(micros(row[cause]) for cause in CAUSES)
    assert causes == micros(row["billed_usage"]) - micros(row["our_cost"])
    if row["state"] == "matched":
        rate = Fraction(world.booked[key], world.used_ns[key])
        longer = rate * (world.billed_ns[key] - world.used_ns[key])
        assert abs(micros(row["boot_and_shutdown"]) - longer) <= 1
        assert abs(micros(row["commitment"]) + rate * world.covered_ns[key]) <= 1
    beside = sum(micros(row[name]) for name in BESIDE)
    assert micros(row["our_cost"]) + causes + beside == micros(row["total"])
