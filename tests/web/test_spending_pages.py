"""Pages of a team's two months: what is behind each amount, what is exceeded, how wide they are."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from browser import chromium
from command_line import outlay
from outlay import BudgetGuard
from outlay.clock import ManualClock
from outlay.guard.rental.watch import remember_log
from outlay.report import html
from outlay.runs.inventory.machine_hours import HOUR_STATES
from outlay.units import Money
from outlay.web.book_reader import BookReader
from outlay.web.guard import guard_page
from outlay.web.money import money_page
from outlay.web.now import now_page
from outlay.web.page import Page, PageQuery, frame
from outlay.web.runs import run_page
from outlay.web.spending.spent import spent_page
from two_months import DEAD, TwoMonths, write_two_months
from waiting import PATIENCE_S
from web_server import serving

pytestmark = pytest.mark.xdist_group("web")

LINK = re.compile(r'title="([0-9.,-]+) ([A-Z]{3})"><a href="(/spent\?[^"]+)"')
BAR = re.compile(r'<a href="(/spent\?[^"]+)" tabindex="-1" aria-label="[^"]+: ([^"]+) ([A-Z]{3})"')


@dataclass
class Scene:
    """The scene, and the variables with which it is found."""

    home: Path
    two: TwoMonths
    now_ns: int

    def books(self) -> BookReader:
        return BookReader(clock=ManualClock(self.now_ns))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    home, now_ns = tmp_path_factory.mktemp("two-months"), time.time_ns()  # noqa: TID251
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTLAY_HOME", str(home))
        return Scene(home, write_two_months(home / "team", now_ns), now_ns)


@pytest.fixture
def books(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> BookReader:
    monkeypatch.setenv("OUTLAY_HOME", str(scene.home))
    return scene.books()


def shown(page: Page) -> str:
    return "".join(page.parts)


def asked(href: str) -> PageQuery:
    split = urlsplit(unescape(href))
    query = parse_qsl(split.query, keep_blank_values=True)
    return PageQuery(path=split.path, query=query)


@pytest.mark.parametrize("by", ["team", "user", "project", "model"])
def test_every_amount_leads_to_runs_and_machines_that_sum_to_it(books: BookReader, by: str) -> None:
    page = shown(money_page(PageQuery(path="/money", query=[("by", by)]), books))
    links = {(number, unit, href) for number, unit, href in LINK.findall(page)}
    assert len(links) > 20
    for number, unit, href in links:
        behind = spent_page(asked(href), books).document
        assert str(behind["total"]) == f"{number} {unit}", href
        rows = behind["rows"]
        assert sum(row["cost"] for row in rows) == behind["total"].amount, href
        assert {row["currency"] for row in rows} == {unit}


CELL = re.compile(
    r'<td class="n"(?: data-label="([^"]*)")? title="(-?[0-9.]+ [A-Z]{3}[a-z ]*)">'
    r'(?:<a href="([^"]+)")?'
)


def test_every_amount_of_a_table_leads_on_except_what_is_left_of_a_limit(books: BookReader) -> None:
    query = [("by", "team"), ("wasted", "1")]
    page = shown(money_page(PageQuery(path="/money", query=query), books))
    cells = [each for each in CELL.findall(page) if float(each[1].split()[0])]
    assert len(cells) > 60
    assert {label for label, _, href in cells if not href} == {"limit", "remaining"}
    led = {(label, urlsplit(unescape(href)).path.split("r0")[0]) for label, _, href in cells}
    assert led >= {
        ("the next run", "/runs"), ("wasted", "/run/"), ("whole cost", "/run/"),
        ("spent", "/guard"), ("spent", "/runs"), ("held", "/guard"), ("cost", "/spent"),
    }  # fmt: skip


def test_what_the_month_before_had_leads_to_its_runs(books: BookReader) -> None:
    page = shown(money_page(PageQuery(path="/money"), books))
    notes = re.findall(
        r'class="below"><a href="([^"]+)">[^<]* against ([^ ]+) ([A-Z]{3}) from', page
    )
    assert {unit for _, _, unit in notes} >= {"USD", "EUR"}
    for href, number, unit in notes:
        found = spent_page(asked(href), books).document["total"]
        assert abs(found.micros - Money.parse(f"{number.replace(',', '')} {unit}").micros) <= 5_000


def test_a_bar_leads_to_the_runs_of_its_day_and_they_to_their_pages(books: BookReader) -> None:
    page = shown(money_page(PageQuery(path="/money", query=[("by", "team")]), books))
    bars = BAR.findall(page)
    assert bars
    for href, number, unit in bars:
        found = spent_page(asked(href), books)
        rounded = Money.parse(number.replace(",", "").lstrip("<"), currency=unit)
        assert abs(found.document["total"].micros - rounded.micros) < 10_000, href
    run = next(h for h in re.findall(r'href="/run/([^"]+)"', shown(found)))
    assert run_page(PageQuery(path=f"/run/{run}", name=run), books).title


def test_a_phase_of_waste_leads_to_the_runs_that_wasted_it(books: BookReader) -> None:
    page = shown(money_page(PageQuery(path="/money"), books))
    phases = [each for each in LINK.findall(page) if "phase=data_loading" in each[2]]
    assert {unit for _, unit, _ in phases} >= {"USD"}
    for number, unit, href in phases:
        assert str(spent_page(asked(href), books).document["total"]) == f"{number} {unit}"


def test_days_in_json_sum_to_the_month(books: BookReader) -> None:
    found = money_page(PageQuery(path="/money", query=[("by", "team")]), books).document
    for unit in {row["currency"] for row in found["rows"]}:
        months = sum(row["cost"] for row in found["rows"] if row["currency"] == unit)
        days = sum(row["cost"].amount for row in found["days"] if row["cost"].currency == unit)
        assert months == days


@pytest.mark.parametrize(("view", "limits"), [(now_page, 2), (money_page, 2), (guard_page, 1)])
def test_what_is_over_its_limit_is_first_and_counted(
    books: BookReader, view: Any, limits: int
) -> None:
    page = view(PageQuery(path="/"), books)
    assert page.alarms == limits
    first = shown(page).partition("</p>")[0]
    assert first.startswith('<p class="alarm"><strong>')
    assert "by 542.00 USD" in first
    assert frame(page, PageQuery(path="/")).partition("<title>")[2].startswith(f"({limits}) ")
    assert 'class="chip exceeded"' in shown(page)
    assert ">54.2% over<" in shown(page)


def test_errors_are_red_and_each_leads_somewhere(books: BookReader) -> None:
    page = now_page(PageQuery(path="/"), books)
    text = shown(page)
    assert '<div class="lead bad-news"><dt>errors</dt><dd><a href="#wrong">2</a></dd>' in text
    wrong = text.partition('id="wrong"')[2].partition("</section>")[0]
    assert wrong.startswith("><h2>What is wrong: 2 errors</h2>")
    rows = wrong.count("<tr>") - 1
    assert rows == 2 == len(re.findall(r'<td class="text"[^>]*><a href="/(?:guard|runs)\?', wrong))
    assert DEAD not in text, "it died 35 days ago"
    assert text.index('id="wrong"') < text.index('id="machines"')


def test_a_bar_has_two_tones_and_three_states(books: BookReader) -> None:
    text = shown(money_page(PageQuery(path="/money"), books))
    assert '<svg class="share near"' in text
    assert '<rect class="held"' in text
    assert ">80%, nearly used up<" in text
    assert re.search(r"used up on \d+ \w+", text)
    assert html.share_bar(0.2) == html.share_bar(0.2, 0.0)


def test_the_last_day_of_each_machine_is_what_its_runs_and_rentals_were(books: BookReader) -> None:
    found = now_page(PageQuery(path="/"), books).document["last_hours"]
    sums = {
        each["name"]: {s: sum(hour.get(s, 0) for hour in each["shares"]) for s in HOUR_STATES}
        for each in found["machines"]
    }
    assert sums["pod-8-in-no-run"]["in no run"] == pytest.approx(9, abs=0.1)
    assert sums["pod-7"]["productive"] == pytest.approx(16.5, abs=0.2)
    assert sum(sums["pod-7"].values()) == pytest.approx(22, abs=0.1)
    cost = {each["hours"][0].currency: each["hours"] for each in found["cost"]}
    assert cost["USD"][-1].amount == pytest.approx(38, abs=0.1), "33 + 2.50 + 2.50"


def test_an_open_hold_is_shown_with_its_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_HOME", str(tmp_path / "home"))
    BudgetGuard(5.0, tmp_path / "spend.jsonl").authorize("lab02-train", 3.0)
    page = shown(guard_page(PageQuery(path="/guard"), BookReader(clock=ManualClock())))
    table = page.partition("Open holds")[2].partition("</table>")[0]
    headings = re.findall(r"<th[^>]*>(?:<[^>]+>)*([^<]+)", table)
    assert headings[:5] == ["operation", "held", "state", "project", "user"]
    assert "lab02-train" in table


# In a browser


@pytest.fixture(scope="module")
def site(scene: Scene) -> Iterator[tuple[Any, str, str]]:
    with serving(scene.home) as served, chromium() as chrome:
        yield chrome, served.base, served.url


GUARD = "/guard?log=by-hand/spend.jsonl"
COLUMNS = {
    "/money?by=team": ("cost", "share used", "spent", "wasted", "status"),
    GUARD: ("share used", "spent", "what", "actual"),
    "/spent?unit=USD&by=team": ("cost",),
}


@pytest.mark.parametrize("path", ["/", "/money?by=team", GUARD, "/spent?unit=USD&by=team"])
def test_pages_fit_their_window_and_columns_that_matter_are_in_it(
    site: tuple[Any, str, str], path: str
) -> None:
    chrome, base, url = site
    context = chrome.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_S * 1000)
    page = context.new_page()
    page.goto(url)
    page.goto(base + path)
    for scheme, width in itertools.product(("dark", "light"), (390, 768, 1280, 1920)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        names = COLUMNS.get(path, ())
        assert set(names) <= set(page.locator("thead th").all_text_contents())
        wide = page.evaluate(OUTSIDE, [names, width])
        assert wide == [], f"{scheme}, {width} px"
    context.close()


OUTSIDE = """([names, width]) => [...document.querySelectorAll(".wide > table")].flatMap(
(table) => {
    const heads = [...table.querySelectorAll("thead th")];
    const areCards = table.tHead.getBoundingClientRect().width <= 1;
    return heads.flatMap((head, n) => !names.includes(head.textContent.trim()) ? [] :
        [...(areCards ? [] : [head]), ...table.querySelectorAll(`tbody tr td:nth-child(${n + 1})`)]
            .map((cell) => [cell, cell.getBoundingClientRect(),
                table.parentElement.getBoundingClientRect()])
            .filter(([cell, box, room]) => box.width && (box.right > Math.min(width, room.right + 1)
                || box.left < 0))
            .map(([cell, box]) => `${head.textContent}: ${cell.textContent} ${box.right}`));
})"""


@pytest.mark.parametrize("path", ["/", "/money?by=team", GUARD, "/spent?unit=USD&by=team"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(site: tuple[Any, str, str], path: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    chrome, base, url = site
    context = chrome.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(url)
    page.goto(base + path)
    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in serious] == []
    context.close()


def test_without_javascript_a_bar_leads_in_two_clicks_to_a_run(site: tuple[Any, str, str]) -> None:
    chrome, base, url = site
    context = chrome.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(url)
    page.goto(f"{base}/money?by=team")
    assert page.locator("p.alarm").is_visible()
    page.locator("svg.days a rect").first.click()
    assert "/spent?" in page.url
    assert "day=" in page.url
    page.locator("td a[href^='/run/']").first.click()
    assert "/run/" in page.url
    context.close()


CARDS = """(width) => {
    const lists = [...document.querySelectorAll("table.list")];
    return [lists.length, lists.flatMap((table) => [...table.querySelectorAll("td")])
        .map((cell) => [cell.textContent, cell.getBoundingClientRect()])
        .filter(([, box]) => box.width && (box.left < 0 || box.right > width))
        .map(([text, box]) => `${text}: ${box.left} to ${box.right}`)];
}"""


def test_machines_runs_hours_and_ceilings_are_cards_on_a_phone(site: tuple[Any, str, str]) -> None:
    chrome, base, url = site
    context = chrome.new_context(viewport={"width": 390, "height": 900})
    page = context.new_page()
    page.goto(url)
    page.goto(base)
    assert page.evaluate(CARDS, 390) == [5, []]
    burn = page.locator("#machines td[data-label='burn per hour']")
    assert burn.count() == 4
    assert burn.first.is_visible()
    assert page.locator("#machines thead").bounding_box()["width"] <= 1
    context.close()


def test_a_long_name_of_a_group_leaves_room_for_the_columns(site: tuple[Any, str, str]) -> None:
    chrome, base, url = site
    context = chrome.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(url)
    page.goto(f"{base}/runs?group=team")
    widths = page.evaluate(
        "[...document.querySelectorAll('tr.group a')].map((a) => a.getBoundingClientRect().width)"
    )
    assert len(widths) == 3
    assert max(widths) <= 0.25 * 1280
    assert page.locator("thead th", has_text="model").bounding_box()["x"] < 1000
    context.close()


def test_what_a_gpu_costs_is_in_sight_on_a_phone(
    site: tuple[Any, str, str], tmp_path: Path
) -> None:
    chrome, _, _ = site
    for number in range(3):
        vendor = f"a-vendor-with-a-name-of-many-letters-{number}" * 2
        told = ("prices", "set", "H100", f"{number + 1}.50 USD/h", "--provider", vendor)
        assert outlay(*told, OUTLAY_HOME=str(tmp_path)).code == 0
    with serving(tmp_path) as served:
        context = chrome.new_context(viewport={"width": 390, "height": 900})
        page = context.new_page()
        page.goto(served.url)
        page.goto(f"{served.base}/prices")
        assert page.evaluate(CARDS, 390) == [1, []]
        prices = page.locator("td[data-label='per GPU-hour']")
        assert prices.all_text_contents() == ["1.50 USD", "2.50 USD", "3.50 USD"]
        context.close()


def test_the_title_of_the_window_counts_a_limit_that_is_exceeded_while_it_is_open(
    site: tuple[Any, str, str], tmp_path: Path
) -> None:
    chrome, _, _ = site
    guard = BudgetGuard("10 USD", tmp_path / "spend.jsonl")
    guard.record_actual("lab01-train", 4)
    remember(guard, tmp_path)
    with serving(tmp_path) as served:
        context = chrome.new_context()
        context.set_default_timeout(PATIENCE_S * 1000)
        page = context.new_page()
        page.goto(served.url)
        page.locator(".state.live").wait_for()
        assert page.title() == "Now · outlay"
        guard.record_actual("lab01-train", 8)
        page.wait_for_function("() => document.title === '(1) Now · outlay'")
        assert page.locator("p.alarm").is_visible()
        context.close()


def remember(guard: BudgetGuard, home: Path) -> None:
    """Note a spend log in a home, as its commands do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTLAY_HOME", str(home))
        remember_log(guard.log_path)
