"""Pages about money, made without a server: waste by month, kinds of price, spend logs."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from command_line import in_process
from ledgers import HOUR, START_NS, Segment, dollars
from outlay.clock import ManualClock, utc_text
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
from outlay.web.runs import run_page, runs_page
from outlay.web.spending.spent import spent_page

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
    page = money_page(PageQuery(path="/money"), BookReader(clock=clock))
    forecast = amounts_of(section(page, "What the next run would cost"))
    assert [text for text, _ in forecast] == ["3.00 USD", "15.00 USD showback"]


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


def section(page: Page, heading: str) -> str:
    found = shown(page).partition(f"<h2>{heading}</h2>")[2]
    assert found, heading
    return found.partition("</section>")[0]


def amounts_of(part: str) -> list[tuple[str, str]]:
    """Return the exact amounts of a table, each with where it leads."""
    return re.findall(r'<td class="n"[^>]* title="([^"]+)"[^>]*>(?:<a href="([^"]+)">)?', part)


def behind(href: str, books: BookReader) -> Page:
    asked = parse_qsl(urlsplit(unescape(href)).query)
    return spent_page(PageQuery(path="/spent", query=asked), books)


def test_amounts_of_an_owned_machine_lead_to_runs_that_sum_to_them(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Two runs of 2 h on a node of 8 USD/h; one has half of it. It is owned from 1 h before."""
    start_ns = clock.wall_ns()
    for name, price, start_s in (("half", 4, H), ("whole", 8, 3 * H)):
        about = {
            "run_id": name, "name": name, "model": "bert", "user": "ada", "host": "node7",
            "price": Price(micros_per_hour=price * 10**6, kind="showback"),
        }  # fmt: skip
        Segment(start=start_s, about=about).step(2 * H).end().write(tmp_path / name)
    collect(open_store(), [tmp_path / "half", tmp_path / "whole"], start_ns + 6 * HOUR)
    since = utc_text(start_ns).replace(" ", "T")
    stated = ("cost", "machines", "set", "node7", "8 USD/h", "--since", since)
    assert in_process(*stated).code == 0
    clock.advance(6 * HOUR)
    books = BookReader(clock=clock)
    page = money_page(PageQuery(path="/money"), books)
    amounts = amounts_of(section(page, "Owned machines"))
    assert [text for text, _ in amounts] == [
        "48.00 USD showback", "24.00 USD showback", "24.00 USD showback",
    ]  # fmt: skip
    for (text, href), of in zip(
        amounts, (["half", "node7", "whole"], ["half", "whole"], ["node7"]), strict=True
    ):
        found = behind(href, books)
        assert str(found.document["total"]) == text
        assert sum(row["cost"] for row in found.document["rows"]) == found.document["total"].amount
        assert sorted(row["run_id"] for row in found.document["rows"]) == of
    assert 'href="/run/half"' in shown(behind(amounts[1][1], books))
    assert run_page(PageQuery(path="/run/half", name="half"), books).title == "half"


def test_what_was_booked_late_leads_to_its_run(tmp_path: Path, clock: ManualClock) -> None:
    """November is closed with one run; two of its runs become known in December."""
    record(tmp_path / "known", dollars(1))
    assert in_process("books", "close", "2023-11", "--reason", "invoices seen").code == 0
    for name, price in (("late", 3), ("later", 5)):
        record(tmp_path / name, dollars(price), run_id=name)
    books = BookReader(clock=clock)
    query = [("month", "2023-12"), ("by", "user")]
    page = money_page(PageQuery(path="/money", query=query), books)
    amounts = amounts_of(section(page, "Booked late"))
    assert [text for text, _ in amounts] == ["15.00 USD", "9.00 USD"], "the largest first"
    for (text, href), run in zip(amounts, ("later", "late"), strict=True):
        found = behind(href, books)
        assert (str(found.document["total"]), len(found.rows)) == (text, 1)
        assert "of 2023-11, which was closed before" in found.verdict
        assert f'href="/run/{run}"' in shown(found)


def test_forecasts_lead_to_the_runs_that_they_rest_on(tmp_path: Path, clock: ManualClock) -> None:
    """Eight runs of a model, a day apart: the next one, and the rest of the month."""
    start_ns = clock.wall_ns()
    for number in range(8):
        record(tmp_path / f"{number}", dollars(2), start=number * 24 * H, run_id=f"r{number}")
    clock.advance(start_ns + 8 * 24 * HOUR - clock.wall_ns())
    books = BookReader(clock=clock)
    page = money_page(PageQuery(path="/money"), books)
    month_end = re.search(
        r"<dt>by the end of the month</dt><dd[^>]*><a href=\"([^\"]+)\"", shown(page)
    )
    assert month_end is not None
    ((text, following),) = amounts_of(section(page, "What the next run would cost"))
    assert text == "6.00 USD"
    for href in (month_end[1], following):
        asked = parse_qsl(urlsplit(unescape(href)).query)
        listed = runs_page(PageQuery(path="/runs", query=asked), BookReader(clock=clock))
        assert {row["run_id"] for row in listed.rows} == {f"r{number}" for number in range(8)}


def chart_of(costs: list[int], tmp_path: Path, clock: ManualClock) -> str:
    """Return the chart of a month, of which each day has one run; costs are in USD."""
    start_ns = clock.wall_ns()
    for day, cost in enumerate(costs):
        about = {"run_id": f"r{day}", "name": "x", "user": "ada", "price": dollars(cost)}
        story = Segment(start=day * 24 * H - 12 * H, about=about).step(H).end()
        story.write(tmp_path / f"{day}")
        collect(open_store(), [tmp_path / f"{day}"], story.now_ns)
    clock.advance(start_ns + (len(costs) + 1) * 24 * HOUR - clock.wall_ns())
    query = PageQuery(path="/money", query=[("month", "2023-11")])
    return section(money_page(query, BookReader(clock=clock)), "Cash per day, USD, by user")


def heights_of(chart: str) -> list[float]:
    columns = re.findall(r'<rect class="part[^>]* height="([0-9.]+)%"', chart.partition("<ul")[0])
    return [float(each) for each in columns]


def test_a_day_that_would_flatten_the_others_is_cut_and_says_its_cost(
    tmp_path: Path, clock: ManualClock
) -> None:
    chart = chart_of([20, 40, 30, 12345, 25, 35, 40, 30], tmp_path, clock)
    assert 'class="days cut"' in chart
    assert chart.count('<line class="break"') == 1
    assert re.findall(r'text-anchor="middle">([0-9,]+)</text>', chart) == ["12,345"]
    assert "Columns that are cut: 12,345.00 USD on 2023-11-17." in chart
    assert 'aria-label="17 Nov, ada: 12,345.00 USD"' in chart
    heights = heights_of(chart)
    assert max(heights) == heights[3] == 100
    assert min(heights) >= 40, "20 of an axis that ends at 50 at most"


@pytest.mark.parametrize(
    "costs",
    [[20, 40, 30, 35, 25, 35, 160, 30], [10, 10, 9000], [1, 2, 4, 8, 16, 32, 64, 128]],
    ids=["four times as much", "few days", "days that differ"],
)
def test_days_that_are_no_exception_are_not_cut(
    tmp_path: Path, clock: ManualClock, costs: list[int]
) -> None:
    chart = chart_of(costs, tmp_path, clock)
    assert 'class="days"' in chart
    assert "cut" not in chart
    heights = heights_of(chart)
    assert heights[-1] == pytest.approx(max(heights) * costs[-1] / max(costs), abs=0.01)


def test_waste_and_ceilings_lead_to_the_run_or_the_log(tmp_path: Path, clock: ManualClock) -> None:
    record(tmp_path / "run", dollars(3))
    guard = BudgetGuard("10", tmp_path / "spend.jsonl", clock=clock)
    guard.record_actual("lab01-train", 4)
    guard.authorize("lab01-next", "2")
    remember_log(guard.log_path)
    page = money_page(PageQuery(path="/money"), BookReader(clock=clock))
    wasted, whole = amounts_of(section(page, "Runs by waste"))
    assert wasted == ("3.00 USD", "/run/one"), "the evaluation"
    assert whole == ("9.00 USD", "/run/one")
    spent, limit, held, left = amounts_of(section(page, "Ceilings"))
    log = "/guard?log=" + quote(f"{tmp_path.name}/spend.jsonl", safe="")
    assert (spent, held) == (("4.00 USD", log), ("2.00 USD", log))
    assert (limit, left) == (("10.00 USD", ""), ("4.00 USD", ""))
