"""A run that pays in two currencies is charged in both, beside each other, on every screen."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

import outlay
from command_line import in_process
from outlay.clock import ManualClock
from outlay.cost.cost_book import CostBook, budgeted
from outlay.export.live_runs import LiveReading
from outlay.export.prometheus import exposition
from outlay.report.run_document import run_document
from outlay.runs.collect import collect
from outlay.runs.figures import flat
from outlay.runs.money.spending_reader import read_spending, refresh_books
from outlay.runs.reading import read_run
from outlay.store import open_store
from outlay.units import Money
from outlay.web.book_reader import BookReader

HOUR = 3600 * 10**9
NOVEMBER_NS = 1_699_000_000 * 10**9


@pytest.fixture
def paid_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run of an hour at 2 USD and of two at 3 EUR an hour, registered in a home."""
    monkeypatch.setenv("OUTLAY_HOME", str(tmp_path / "home"))
    clock, run_dir = ManualClock(wall_ns=NOVEMBER_NS), tmp_path / "run"
    with outlay.run("m", dir=run_dir, price="2 USD/h", clock=clock) as run:
        for _ in run.steps(range(3)):
            clock.advance(HOUR)
            if run.step_number == 0:
                run.set_price("3 EUR/h")
    store = open_store()
    collect(store, [run_dir], clock.wall_ns())
    refresh_books(store, clock.wall_ns())
    return run_dir


def output(*words: object) -> str:
    done = in_process(*words)
    assert done.code == 0, done.err
    return done.out


def json_of(*words: object) -> Any:
    done = in_process(*words, "--json")
    assert done.code == 0, done.err
    return done.json


@pytest.mark.parametrize(
    ("hours", "costs"), [(-1, {"2.00 USD", "6.00 EUR"}), (2, {"0.00 USD", "3.00 EUR"})]
)
def test_what_was_spent_since_an_instant_has_every_currency(
    paid_twice: Path, hours: int, costs: set[str]
) -> None:
    books = BookReader(clock=ManualClock(wall_ns=NOVEMBER_NS + 4 * HOUR))
    spent = books.spent_since(NOVEMBER_NS + hours * HOUR)
    assert {str(each) for each in spent} == costs, paid_twice


def test_each_currency_is_charged_for_its_own_time(paid_twice: Path) -> None:
    cost = read_run(paid_twice).cost
    assert cost.cost == Money.parse("2 USD")
    (beside,) = cost.cost_beside
    assert beside.cost == Money.parse("6 EUR")
    assert sum(part.micros for part in beside.by_phase.values()) == beside.cost.micros
    assert not [each for each in cost.findings if "not counted" in each.message]


def test_commands_show_the_other_currency_beside(paid_twice: Path) -> None:
    assert "total in EUR, beside" in output("cost", paid_twice)
    said = output("goodput", paid_twice)
    assert "cost 2.00 USD (assumed)   cost in EUR, beside 6.00 EUR (assumed)" in said
    (beside,) = json_of("cost", paid_twice)["cost"]["cost_beside"]
    assert beside["cost"] == {"micros": 6_000_000, "currency": "EUR"}
    assert json_of("goodput", paid_twice)["cost_beside"][0]["cost"] == beside["cost"]


def test_report_and_run_page_show_the_other_currency_beside(paid_twice: Path) -> None:
    said = str(run_document(read_run(paid_twice)))
    assert "2.00 USD and 6.00 EUR" in said
    assert "cost in EUR, beside" in said
    assert flat(read_run(paid_twice).figures)["outlay/cost_eur"] == 6.0


@pytest.mark.usefixtures("paid_twice")
def test_books_count_both_currencies() -> None:
    totals = json_of("cost", "summary")["totals"]
    assert totals == {"EUR": 6.0, "USD": 2.0}
    rows = json_of("cost", "allocate", "--by", "model", "--month", "2023-11")["rows"]
    assert {row["currency"]: row["total"] for row in rows} == {"EUR": "6", "USD": "2"}
    store = open_store()
    spending = read_spending(store, NOVEMBER_NS + 24 * HOUR).spending
    assert {str(unit): each.cost.micros for unit, each in spending.totals().items()} == {
        "EUR": 6_000_000, "USD": 2_000_000,
    }  # fmt: skip
    assert sum(each.gpu_us for each in spending.spends) == 3 * HOUR // 1000


@pytest.mark.usefixtures("paid_twice")
def test_ceiling_of_a_model_counts_its_own_currency_of_such_a_run() -> None:
    book = CostBook(open_store())
    assert budgeted(book.reports("m"), Money(0, "EUR")).spent == Money.parse("6 EUR")
    assert budgeted(book.reports("m"), Money(0, "USD")).spent == Money.parse("2 USD")


@pytest.mark.usefixtures("paid_twice")
def test_focus_has_a_row_for_each_currency(tmp_path: Path) -> None:
    focus = tmp_path / "focus.csv"
    output("cost", "allocate", "--by", "user", "--month", "2023-11", "--focus", focus)
    rows = csv.DictReader(io.StringIO(focus.read_text()))
    assert sorted((row["BillingCurrency"], row["EffectiveCost"]) for row in rows) == [
        ("EUR", "6.00"), ("USD", "2.00"),
    ]  # fmt: skip


def test_monitors_get_both_currencies(paid_twice: Path) -> None:
    run = read_run(paid_twice)
    assert (run.values["outlay/cost_usd"], run.values["outlay/cost_eur"]) == (2, 6)
    page = exposition(LiveReading(t_ns=0, runs=(run,), guards=(), findings=()))
    assert re.search(r"^outlay_run_cost_usd_total{.*} 2", page, re.MULTILINE)
    assert re.search(r"^outlay_run_cost_eur_total{.*} 6", page, re.MULTILINE)
