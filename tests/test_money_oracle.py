"""Every amount that outlay shows of a history equals that of an independent computation."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from command_line import in_process
from money_history import BORDERS, HOUR, MONTHS, SECOND, Charge, History, Run, make_history
from outlay.clock import ManualClock, utc_datetime
from outlay.compat.cost_module.analyzer import CostAnalyzer
from outlay.compat.cost_module.training import TrainingMetrics
from outlay.runs.collect import collect
from outlay.runs.money.spending_reader import read_spending, refresh_books
from outlay.runs.reading import read_run
from outlay.store import open_store

NOW_NS = BORDERS[-1] + 24 * HOUR
pytestmark = pytest.mark.xdist_group("money oracle")


@dataclass(frozen=True)
class Books:
    """A history, the logs of it, and the home in which they are registered."""

    history: History
    logs: Path
    home: Path

    def dir_of(self, run: Run) -> Path:
        return self.logs / run.run_id

    def priced(self) -> list[Run]:
        return [run for run in self.history.runs if run.is_priced]


def state_trainings(history: History) -> None:
    for each in history.stated:
        CostAnalyzer(clock=ManualClock(wall_ns=each.at_ns)).analyze_training_run(
            TrainingMetrics(
                each.run_id, each.model, 1, 1, 1, 0.1, each.minutes / 60, "T4",
                float(Decimal(each.price_micros) / 10**6), gpu_count=each.gpus,
                timestamp=utc_datetime(each.at_ns),
            )
        )  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Books:
    logs, home = tmp_path_factory.mktemp("logs"), tmp_path_factory.mktemp("oracle-home")
    history = make_history(seed=20, runs=200)
    for run in history.runs:
        run.write(logs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTLAY_HOME", str(home))
        store = open_store()
        collect(store, sorted(logs.iterdir()), NOW_NS)
        refresh_books(store, NOW_NS)
        state_trainings(history)
    return Books(history, logs, home)


@pytest.fixture
def books(written: Books, monkeypatch: pytest.MonkeyPatch) -> Books:
    monkeypatch.setenv("OUTLAY_HOME", str(written.home))
    return written


def micros(amount: str | float) -> int:
    """Return an amount in currency units as micro-units; a float means its shortest text."""
    exact = Decimal(str(amount)) * 10**6
    assert exact == int(exact), amount
    return int(exact)


def cost_json(*words: object) -> Any:
    done = in_process("cost", *words, "--json")
    assert done.code == 0, done.err
    return done.json


def unpriced_messages(found: dict[str, Any]) -> list[str]:
    return [each["message"] for each in found["findings"] if "no price" in each["message"]]


def test_history_has_the_difficult_cases(written: Books) -> None:
    runs = written.priced()
    assert {run.currency for run in runs} == {"USD", "EUR"}
    assert {run.kind for run in runs} == {"cash", "showback"}
    assert sum(len(run.attempts) > 1 for run in runs) > 60
    assert sum(run.assumed > 0 for run in runs) > 25
    assert sum(len({charge.month for charge in run.charges()}) > 1 for run in runs) > 30
    assert len(runs) < len(written.history.runs)


def test_cost_of_each_run_equals_the_oracle_to_the_micro_unit(books: Books) -> None:
    for run in books.priced():
        cost = read_run(books.dir_of(run), NOW_NS).cost
        assert cost.cost is not None
        assert cost.cost.unit == (run.currency, run.kind), run.run_id
        assert cost.cost == cost.cost.unit.money(run.micros), run.run_id
        assert cost.assumed == cost.cost.unit.money(run.assumed), run.run_id
        assert {name: part.micros for name, part in cost.by_phase.items()} == run.by_phase()
        assert (cost.gpu_ns // 1000, cost.wall_ns) == (run.gpu_us, run.wall_ns), run.run_id
        assert cost.samples == run.samples * sum(a.steps for a in run.attempts)


def test_cost_show_equals_the_oracle(books: Books) -> None:
    for run in books.priced()[::40]:
        found = cost_json("show", books.dir_of(run))
        cost = found["cost"]
        assert cost["cost"] == {"micros": run.micros, "currency": run.currency}
        assert cost["assumed"] == {"micros": run.assumed, "currency": run.currency}
        assert sum(part["micros"] for part in cost["by_phase"].values()) == run.micros
        samples = run.samples * sum(a.steps for a in run.attempts)
        assert found["per"]["sample"] == pytest.approx(run.micros / 10**6 / samples, rel=1e-12)
        assert found["per_currency"] == run.currency


def rows_by_model(history: History) -> dict[tuple[str, str, str], list[Any]]:
    """Return runs and stated trainings by model, currency and kind."""
    groups: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
    for run in history.runs:
        if run.is_priced:
            groups[run.model, run.currency, run.kind].append(run)
    for each in history.stated:
        groups[each.model, "USD", "cash"].append(each)
    return groups


def check_models(models: dict[str, Any], history: History) -> None:
    expected = rows_by_model(history)
    found = {
        (name.partition(" (")[0], row["currency"], row["kind"]): row for name, row in models.items()
    }
    assert found.keys() == {key for key in expected if key[0] in {name for name, *_ in found}}
    for key, row in found.items():
        mine = expected[key]
        total = sum(each.micros for each in mine)
        assert micros(row["total_cost"]) == total
        assert micros(row["assumed_cost"]) == sum(getattr(each, "assumed", 0) for each in mine)
        assert row["runs"] == len(mine)
        assert row["avg_cost_per_run"] == pytest.approx(total / 10**6 / len(mine), rel=1e-12)
        hours = sum(each.gpu_us for each in mine) / 3.6e9
        assert row["gpu_hours"] == pytest.approx(hours, rel=1e-12)
        accuracies = [a for each in mine if (a := getattr(each, "accuracy", None)) is not None]
        assert row["best_accuracy"] == max(accuracies, default=None)


def test_cost_summary_equals_the_oracle(books: Books) -> None:
    found = cost_json("summary")
    check_models(found["models"], books.history)
    assert len(found["models"]) == len(rows_by_model(books.history))
    for key, kind in (("totals", "cash"), ("showback_totals", "showback")):
        for currency, total in found[key].items():
            unit = (currency, kind)
            mine = [charge for charge in books.history.charges() if charge.unit == unit]
            assert micros(total) == sum(charge.micros for charge in mine)
            name = currency if kind == "cash" else f"{currency} {kind}"
            assert micros(found["assumed"][name]) == sum(charge.assumed for charge in mine)
    unpriced = sum(not run.is_priced for run in books.history.runs)
    (line,) = unpriced_messages(found)
    assert line.startswith(f"{unpriced} have no price")


@pytest.mark.parametrize("model", ["bert", "gpt", "resnet"])
def test_totals_of_a_model_comparison_and_roi_match_its_runs(books: Books, model: str) -> None:
    found = cost_json("model", model)
    check_models(found["figures"], books.history)
    mine = {run.run_id: run for run in books.priced() if run.model == model}
    for row in found["runs"]:
        if row["source"] == "ledger":
            run = mine.pop(row["run_id"])
            assert (row["cost_micros"], row["assumed_micros"]) == (run.micros, run.assumed)
    assert mine == {}
    compared = cost_json("compare", "--model", model)
    check_models(compared["models"], books.history)
    every = {run.run_id: run for run in books.priced()}
    for each in compared["front"]:
        run = every[each["name"]]
        assert (micros(each["cost"]), micros(each["assumed"])) == (run.micros, run.assumed)
        assert (each["currency"], each["metric"]) == (run.currency, run.accuracy)
    check_roi(cost_json("roi", model), books.history, model)


def check_roi(found: dict[str, Any], history: History, model: str) -> None:
    """What is added is of the currency and kind of the run that ended last."""
    ended: list[tuple[int, str, tuple[str, str], Any]] = [
        (run.end_ns, run.run_id, (run.currency, run.kind), run)
        for run in history.runs
        if run.model == model and run.is_priced
    ]
    ended += [(s.at_ns, s.run_id, ("USD", "cash"), s) for s in history.stated if s.model == model]
    ended.sort(key=lambda each: each[:2])
    mine = [each for *_, unit, each in ended if unit == ended[-1][2]]
    assert found["runs"] == len(mine)
    assert micros(found["total_investment"]) == sum(each.micros for each in mine)
    assumed = sum(getattr(each, "assumed", 0) for each in mine)
    assert micros(found["assumed_investment"]) == assumed
    accuracies = [a for each in mine if (a := getattr(each, "accuracy", None)) is not None]
    said = (found["first_accuracy"], found["current_accuracy"], found["best_accuracy"])
    assert said == (accuracies[0], accuracies[-1], max(accuracies))


OWNERS = {
    "user": lambda charge: charge.user,
    "team": lambda charge: charge.team,
    "model": lambda charge: charge.model,
}


@pytest.mark.parametrize("month", MONTHS)
@pytest.mark.parametrize("by", OWNERS)
def test_allocation_charges_each_owner_their_own_attempts(
    books: Books, month: str, by: str
) -> None:
    found = cost_json("allocate", "--by", by, "--month", month)
    expected = books.history.sums(month, OWNERS[by])
    rows = {(row["owner"], row["currency"]): row for row in found["rows"]}
    assert rows.keys() == expected.keys()
    for key, row in rows.items():
        want = expected[key]
        assert micros(row["direct"]) == micros(row["total"]) == want["micros"], key
        assert (micros(row["assumed"]), row["runs"]) == (want["assumed"], want["runs"]), key
        assert row["gpu_hours"] == pytest.approx(want["gpu_us"] / 3.6e9, rel=1e-12), key
    for total in found["totals"]:
        mine = [row for key, row in expected.items() if key[1] == total["total"]["currency"]]
        assert total["total"]["micros"] == sum(row["micros"] for row in mine)
        assert total["assumed"]["micros"] == sum(row["assumed"] for row in mine)


def test_bill_and_shared_owner_preserve_the_sums(books: Books) -> None:
    month, rest = MONTHS[1], 123_456_789
    expected = books.history.sums(month, OWNERS["user"])
    dollars = {owner: row for (owner, unit), row in expected.items() if unit == "USD"}
    bill = sum(row["micros"] for row in dollars.values()) + rest
    amount = f"{Decimal(bill) / 10**6} USD"
    found = cost_json(
        "allocate", "--by", "user", "--month", month, "--bill", amount, "--shared", "ada"
    )
    rows = {row["owner"]: row for row in found["rows"] if row["currency"] == "USD"}
    assert sum(micros(row["total"]) for row in rows.values()) == bill
    assert sum(micros(row["idle"]) for row in rows.values()) == rest
    assert sum(micros(row["shared"]) for row in rows.values()) == 0
    assert {owner: micros(row["direct"]) for owner, row in rows.items()} == {
        owner: row["micros"] for owner, row in dollars.items()
    }
    assert sum(micros(row["assumed"]) for row in rows.values()) == sum(
        row["assumed"] for row in dollars.values()
    )
    euros = sum(row["micros"] for (_, unit), row in expected.items() if unit == "EUR")
    assert found["totals"][0]["total"] == {"micros": euros, "currency": "EUR"}


@pytest.mark.parametrize("month", MONTHS)
def test_focus_rows_are_the_charges(books: Books, month: str, tmp_path: Path) -> None:
    focus, table = tmp_path / "focus.csv", tmp_path / "table.csv"
    cost_json("allocate", "--by", "team", "--month", month, "--focus", focus, "--csv", table)
    rows = list(csv.DictReader(io.StringIO(focus.read_text())))
    charges = [c for c in books.history.charges() if c.month == month and c.unit[1] == "cash"]

    def of_charge(charge: Charge) -> tuple[str, str, str, int, int]:
        owner = charge.team or "(untagged)"
        return charge.run_id, owner, charge.unit[0], charge.micros, charge.assumed

    assert sorted(map(of_charge, charges)) == sorted(
        (
            row["ResourceId"], row["SubAccountId"], row["BillingCurrency"],
            micros(row["EffectiveCost"]), micros(row["x_AssumedCost"]),
        )
        for row in rows
    )  # fmt: skip
    assert {row["BilledCost"] for row in rows} == {"0.00"}
    assert all(row["ChargePeriodStart"] < row["ChargePeriodEnd"] for row in rows)
    assert all(row["PricingQuantity"] for row in rows)
    listed = list(csv.DictReader(io.StringIO(table.read_text())))
    for name, column in (("micros", "total"), ("assumed", "assumed")):
        expected = sum(getattr(charge, name) for charge in charges)
        assert sum(micros(row[column]) for row in listed) == expected


def test_exported_reports_are_imported_unchanged(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cash = {run.run_id: run for run in books.priced() if run.kind == "cash"}
    said = cost_json("export", tmp_path / "files")
    assert said["reports"] == len(cash) + len(books.history.stated)
    assert any("showback" in each["message"] for each in said["findings"])
    history = json.loads((tmp_path / "files" / "cost_history.json").read_text())
    own = json.loads((tmp_path / "files" / "cost_history.outlay.json").read_text())
    for run_id, run in cash.items():
        report = history[run_id] | own[run_id]
        assert (micros(report["total_cost"]), report["currency"]) == (run.micros, run.currency)
        assert micros(report["assumed_cost"]) == run.assumed
        assert report["gpu_hours"] == pytest.approx(run.gpu_us / 3.6e9, rel=1e-9)
    for each in books.history.stated:
        assert micros(history[each.run_id]["total_cost"]) == each.micros
    monkeypatch.setenv("OUTLAY_HOME", str(tmp_path / "elsewhere"))
    assert cost_json("import", tmp_path / "files")["reports"] == len(history)
    totals = cost_json("summary")
    for currency in ("USD", "EUR"):
        unit = (currency, "cash")
        mine = [charge for charge in books.history.charges() if charge.unit == unit]
        assert micros(totals["totals"][currency]) == sum(charge.micros for charge in mine)
        assert micros(totals["assumed"][currency]) == sum(charge.assumed for charge in mine)


@pytest.mark.parametrize(("month", "following"), list(pairwise(MONTHS)))
@pytest.mark.usefixtures("books")
def test_report_of_a_past_month_does_not_change(month: str, following: str) -> None:
    words = ("allocate", "--by", "user", "--month", month)
    now, then = cost_json(*words), cost_json(*words, "--as-of", f"{following}-01T02:00Z")
    assert now["rows"] == then["rows"]
    assert now["totals"] == then["totals"]


def test_spending_as_of_an_instant_equals_the_log_at_that_instant(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then_ns = BORDERS[1] + 2 * HOUR + 17 * SECOND
    before = read_spending(open_store(), NOW_NS, as_of_ns=then_ns).spending
    monkeypatch.setenv("OUTLAY_HOME", str(tmp_path / "then"))
    for run in books.history.runs:
        run.write(tmp_path / "logs", until_ns=then_ns)
    store = open_store()
    collect(store, sorted((tmp_path / "logs").iterdir()), then_ns)
    refresh_books(store, then_ns)
    known = read_spending(store, then_ns).spending
    assert [s for s in before.spends if s.source == "ledger"] == list(known.spends)


def test_budget_counts_one_currency_and_lists_the_others(books: Books) -> None:
    in_process("cost", "budget", "set", "bert", "100000 EUR")
    (row,) = cost_json("budget", "status")["budgets"]
    groups = {
        key[1:]: sum(each.micros for each in mine)
        for key, mine in rows_by_model(books.history).items()
        if key[0] == "bert"
    }
    assert row["spent"] == {"micros": groups["EUR", "cash"], "currency": "EUR"}
    del groups["EUR", "cash"]
    assert groups == {
        (each["currency"], each["kind"]): each["micros"] for each in row["not_counted"]
    }
