"""Pages about money, made without a server: waste by month, kinds of price, spend logs."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from command_line import in_process
from ledgers import HOUR, START_NS, Segment, dollars
from outlay.clock import ManualClock
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Rental, Vendor
from outlay.guard.rental.watch import remember_log
from outlay.ledger.price import Price
from outlay.report.run_document import run_document
from outlay.runs.collect import collect
from outlay.runs.reading import read_run
from outlay.store import open_store
from outlay.units import Unit
from outlay.web.book_reader import BookReader
from outlay.web.guard import guard_page
from outlay.web.money import money_page
from outlay.web.now import now_page
from outlay.web.page import Page, PageQuery
from outlay.web.runs import runs_page

DECEMBER_S = 1_701_388_800 - START_NS / 1e9
H = 3600.0
START = "2023-11-14T22:13:20.000000Z"


def record(
    directory: Path, price: Price, start: float = 0.0, *, end: bool = True, run_id: str = "one"
) -> int:
    """Write a run of two hours of steps, then one hour of evaluation; return its end."""
    about = {"run_id": run_id, "user": "ada", "model": "bert", "name": "one", "price": price}
    story = Segment(start=start, about=about).step(H).step(H).span("evaluation", H)
    if end:
        story.end()
    story.write(directory)
    collect(open_store(), [directory], story.now_ns)
    return story.now_ns


def shown(page: Page) -> str:
    return "".join(page.parts)


@pytest.mark.parametrize(("month", "is_wasted"), [("2023-11", False), ("2023-12", True)])
def test_waste_of_a_month_is_that_of_its_own_hours(
    tmp_path: Path, clock: ManualClock, month: str, *, is_wasted: bool
) -> None:
    end_ns = record(tmp_path / "run", dollars(1), start=DECEMBER_S - 1.5 * H)
    clock.advance(end_ns + HOUR - clock.wall_ns())
    query = PageQuery(path="/money", query=[("month", month)])
    text = shown(money_page(query, BookReader(clock=clock)))
    assert ("Wasted, by phase" in text) is is_wasted
    if is_wasted:
        assert "<td>evaluation</td>" in text
        assert "66.7%" in text, "one of the 1.5 hours in December"


def test_the_next_run_of_a_model_is_forecast_for_cash_and_showback_apart(
    tmp_path: Path, clock: ManualClock
) -> None:
    prices = (dollars(1), Price(micros_per_hour=5_000_000, kind="showback"))
    for number, price in enumerate(prices):
        record(tmp_path / str(number), price, run_id=str(number))
    clock.advance(START_NS + 4 * HOUR - clock.wall_ns())
    page = shown(money_page(PageQuery(path="/money"), BookReader(clock=clock)))
    forecast = page.partition("What the next run would cost")[2]
    for text in ("3.00 USD <", "15.00 USD showback <"):
        assert text in forecast


def test_spend_logs_used_by_hand_in_folders_of_the_same_name_are_all_listed(
    tmp_path: Path, clock: ManualClock
) -> None:
    for parent in ("a", "b"):
        (tmp_path / parent / "sweep").mkdir(parents=True)
        path = tmp_path / parent / "sweep" / "spend.jsonl"
        BudgetGuard("10", path, clock=clock).authorize(f"lab-{parent}", "1.00")
    page = shown(guard_page(PageQuery(path="/guard"), BookReader(clock=clock)))
    for parent in ("a", "b"):
        assert f">{tmp_path}/{parent}/sweep/spend.jsonl</a>" in page


def test_a_rental_that_is_not_listed_is_marked_on_every_page(
    tmp_path: Path, clock: ManualClock
) -> None:
    guard = BudgetGuard("10", tmp_path / "spend.jsonl", clock=clock)
    ends = "2023-11-15T22:13:20.000000Z"
    vendor = Vendor(name="own", list=("list",), terminate=("end", "{id}"))
    pod = Rental(name="pod", rate="1 USD/h", started=START, deadline=ends, vendor=vendor)
    hold = guard.authorize("lab02-pod", "5", rental=pod)
    guard.note("created", hold=hold, detail={"resource": "pod-1"})
    guard.note("listed", hold=hold)
    guard.note("not-listed", hold=hold)
    remember_log(guard.log_path)
    now = shown(now_page(PageQuery(path="/"), BookReader(clock=clock)))
    assert "pod-1 (not listed since 2023-11-14 22:13:20Z)" in now
    assert "which is not listed since" in now, "as a finding"
    page = shown(guard_page(PageQuery(path="/guard"), BookReader(clock=clock)))
    assert ">not listed since 2023-11-14 22:13:20Z</td>" in page


def test_an_owned_node_without_a_run_is_a_machine_that_burns() -> None:
    stated = ("cost", "machines", "set", "atlas", "1.20 EUR/h", "--since", "2d")
    assert in_process(*stated).code == 0
    now = now_page(PageQuery(path="/"), BookReader()).document
    assert [(each["name"], list(each["runs"])) for each in now["machines"]] == [("atlas", [])]
    burn = {"kind": "showback", "money": Unit("EUR", "showback").money(1_200_000)}
    assert now["burn_per_hour"] == [burn]
    page = shown(money_page(PageQuery(path="/money"), BookReader()))
    assert "Owned machines" in page
    in_terminal = in_process("--json").json
    assert in_terminal["showback_per_hour"] == [{"micros": 1_200_000, "currency": "EUR"}]
    assert "Burning now: 1.20 EUR/h showback" in in_process().out


def test_showback_is_named_wherever_a_runs_cost_is(tmp_path: Path, clock: ManualClock) -> None:
    price = Price(micros_per_hour=2_000_000, kind="showback")
    end_ns = record(tmp_path / "run", price, end=False)
    clock.advance(end_ns - clock.wall_ns())
    table = shown(now_page(PageQuery(path="/"), BookReader(clock=clock)))
    assert table.count("USD showback") >= 3, "the machine's burn, the run's cost and its burn"
    document = run_document(read_run(tmp_path / "run"))
    texts = {figure.label: figure.text for _, figure in document.figures()}
    assert texts["cost"] == "6.00 USD showback"
    assert "6.00 USD showback" in document.verdict


def test_an_amount_leads_to_the_runs_that_it_is_of(tmp_path: Path) -> None:
    record(tmp_path / "run", dollars(3))
    record(tmp_path / "later", dollars(3), start=DECEMBER_S + H, run_id="later")
    query = PageQuery(path="/money", query=[("month", "2023-11")])
    (link,) = re.findall(r'href="(/runs\?[^"]*user=[^"]*)"', shown(money_page(query, BookReader())))
    asked = parse_qsl(urlsplit(unescape(link)).query)
    assert ("user", "ada") in asked
    listed = runs_page(PageQuery(path="/runs", query=asked), BookReader())
    assert [row["run_id"] for row in listed.rows] == ["one"]
