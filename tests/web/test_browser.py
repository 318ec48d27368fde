"""The pages in a real browser: they open, filter, sort, and change while a run trains."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from browser import chromium, measure
from command_line import outlay
from halving_on_disk import decided_search
from hostile import TEXTS, good_run
from ledgers import Segment, dollars
from outlay.guard.budget_guard import BudgetGuard
from outlay.ledger import Metric, Note
from outlay.report.document import to_html
from outlay.report.run_document import run_document
from outlay.web.book_reader import sweep_id
from outlay.web.limits import ServerLimits
from report_builders import disrupted_run, report
from sweep_on_disk import Sweep
from waiting import PATIENCE_S, until
from web_server import HOSTILE, Served, serving, training

pytestmark = pytest.mark.xdist_group("web")


@dataclass
class Browser:
    """A page that was let in, and whatever went wrong on it."""

    page: Any
    served: Served
    live_dir: Path
    paths: dict[str, str]
    troubles: list[str] = field(default_factory=list)

    def open(self, path: str) -> Any:
        answer = self.page.goto(self.served.base + path)
        assert answer.status == 200, answer.text()
        return self.page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    home, runs = tmp_path_factory.mktemp("web-home"), tmp_path_factory.mktemp("web-runs")
    fill(runs)
    guard = BudgetGuard("50 USD", home / "spend.jsonl")
    guard.record_actual(HOSTILE[:60], "2 USD")
    guard.authorize("held", "3 USD")
    assert outlay("collect", runs, OUTLAY_HOME=str(home)).code == 0
    with serving(home) as served, chromium() as chrome:
        context = chrome.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(PATIENCE_S * 1000)
        page = context.new_page()
        found = Browser(page, served, runs / "live", paths_of(served, runs))
        watch(page, found)
        page.goto(served.url)
        yield found
        context.close()


def watch(page: Any, found: Browser) -> None:
    """Note every error, every dialogue, and every request that leaves the machine."""
    page.on("console", lambda m: found.troubles.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: found.troubles.append(str(error)))
    page.on("dialog", lambda dialog: note_dialog(dialog, found))
    page.on("request", lambda request: note_request(request.url, found))


def note_dialog(dialog: Any, found: Browser) -> None:
    found.troubles.append(f"dialog: {dialog.message}")
    dialog.dismiss()


def note_request(url: str, found: Browser) -> None:
    if not url.startswith((found.served.base, "data:")):
        found.troubles.append(f"asked for {url}")


def fill(runs: Path) -> None:
    """Write runs of every kind: usual, hostile, damaged, dead, and a sweep."""
    for number in range(3):
        about = {"model": "m", "run_id": f"r{number}", "name": f"run-{number}"}
        story = Segment(about=about | {"price": dollars(number + 1)})
        for step in range(5):
            story.step(1 + number, tokens=10)
            story.add(Metric(t_ns=story.now_ns, name="loss", value=1 / (step + 1), step=step))
        story.checkpoint().end().write(runs / f"run-{number}")
    texts = iter([text for text in TEXTS.values() if "\x00" not in text])
    for number, user in enumerate(texts):  # Three texts a run.
        host, gpu = next(texts, user), next(texts, user)
        tags = {text: text for text in (user, host, gpu)}
        name = f"hostile-{number}"
        good_run(runs / name, name, user=user, host=host, tags=tags, gpu=gpu)
    about = {"model": HOSTILE, "name": HOSTILE, "run_id": HOSTILE}
    evil = Segment(about=about | {"tags": {HOSTILE: HOSTILE}})
    evil.step(1).add(Metric(t_ns=evil.now_ns, name=HOSTILE, value=1.0, step=0)).step(1)
    evil.add(Metric(t_ns=evil.now_ns, name=HOSTILE, value=2.0, step=1))
    evil.add(Note(t_ns=evil.now_ns, text=HOSTILE)).span(HOSTILE, 1).end("failed", HOSTILE)
    evil.write(runs / "evil")
    damaged = good_run(runs / "damaged", "damaged")
    with next((damaged / "ledger").glob("*.jsonl")).open("ab") as stream:
        stream.write(b'{"v":1,"seq":99,"kind":"step"')
    Segment(about={"model": "m", "run_id": "d", "name": "dead run"}).step(1).write(runs / "dead")
    decided_search(runs / "search")
    sweep = Sweep(runs / "sweep")
    for number in range(3):
        story = Segment(about={"price": dollars(3600), "run_id": f"s{number}"}).step(1)
        story.add(Metric(t_ns=story.now_ns, name="acc", value=0.5 + number / 10, step=0))
        story.step(2).add(Metric(t_ns=story.now_ns, name="acc", value=0.6 + number / 10, step=1))
        story.end().write(sweep.add(f"00{number}_a", params={"lr": number, HOSTILE: HOSTILE}))


def paths_of(served: Served, runs: Path) -> dict[str, str]:
    """Return the path of each view."""
    with served.client() as client:
        rows = client.get("/runs.json").json()["runs"]
    ids = {row["name"]: row["run_id"] for row in rows}
    chosen = "&".join(f"run={ids[f'run-{n}']}" for n in range(3))
    return {
        "now": "/", "money": "/money", "runs": "/runs?col=tags&col=dir&col=user&col=gpu",
        "compare": f"/compare?{chosen}", "run": f"/run/{ids['run-1']}",
        "damaged": f"/run/{ids['damaged']}", "sweeps": "/sweeps",
        "sweep": f"/sweep/{sweep_id(runs / 'sweep')}", "guard": "/guard", "prices": "/prices",
        "search": f"/sweep/{sweep_id(runs / 'search')}",
    }  # fmt: skip


VIEWS = (
    "now", "money", "runs", "compare", "run", "damaged", "sweeps", "sweep", "search", "guard",
    "prices",
)  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_opens_without_an_error_and_stays_on_this_machine(
    browser: Browser, view: str
) -> None:
    browser.troubles.clear()
    page = browser.open(browser.paths[view])
    assert page.locator("main h1").count() == 1
    page.wait_for_timeout(150)
    assert browser.troubles == []


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(browser: Browser, view: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = browser.open(browser.paths[view])
    # A policy that forbids foreign scripts forbids the checker's, too: it is put in from outside.
    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in serious] == []


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_is_wider_than_its_window(browser: Browser, view: str) -> None:
    page = browser.open(browser.paths[view])
    try:
        for scheme, width in itertools.product(("dark", "light"), (390, 768, 1920, 1280)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{scheme}, {width} px"
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.parametrize("what", ["run", "sweep"])
def test_charts_of_a_report_file_fit_the_width_of_its_window(
    browser: Browser, tmp_path: Path, what: str
) -> None:
    document = run_document(disrupted_run(tmp_path))
    text, charts = (report(), 6) if what == "sweep" else (to_html(document), len(document.charts()))
    path = tmp_path / "report.html"
    path.write_text(text)
    page = browser.page.context.new_page()
    page.goto(path.as_uri())
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        seen = measure(page)
        assert seen.page_width <= seen.window_width == width
        assert (seen.charts, seen.empty_charts) == (charts, 0)
    page.close()


def test_the_list_filters_sorts_and_keeps_both_in_its_address(browser: Browser) -> None:
    page = browser.open("/runs")
    page.fill("input[name=q]", "run-")
    page.press("input[name=q]", "Enter")
    page.wait_for_url("**q=run-*")
    page.click("th a:has-text('cost')")
    page.wait_for_url("**sort=-cost_micros*")
    names = page.locator("tbody tr a.name").all_text_contents()
    assert names == ["run-2", "run-1", "run-0"]
    assert page.input_value("input[name=q]") == "run-"


def test_chosen_runs_are_drawn_on_one_axis(browser: Browser) -> None:
    page = browser.open("/runs?q=run-&sort=name")
    for box in page.locator("tbody input[type=checkbox]").all()[:2]:
        box.check()
    page.click("#chosen button:text('Compare 2 selected runs')")
    page.wait_for_url("**/compare*")
    chart = page.locator("div:has(> h3:text('loss over steps')) svg[data-x]")
    assert chart.locator("polyline.curve").count() == 2
    page.click("nav.tabs a:has-text('over dollars')")
    page.locator("h3:has-text('loss over USD')").wait_for()


def test_a_chart_reads_out_by_keyboard_and_its_legend_hides_lines(browser: Browser) -> None:
    page = browser.open(browser.paths["compare"])
    chart = page.locator("svg[data-x]").first
    chart.focus()
    page.keyboard.press("End")
    out = page.locator(".readout").first
    assert "run-0" in out.text_content()
    page.locator("button.key").first.click()
    assert chart.locator("polyline.curve.off").count() == 1
    page.keyboard.press("Tab")


def test_names_notes_and_errors_are_text_everywhere(browser: Browser) -> None:
    browser.troubles.clear()
    with browser.served.client() as client:
        ids = [row["run_id"] for row in client.get("/runs.json").json()["runs"]]
    for path in ("/runs?col=tags", *(f"/run/{run}" for run in ids[:40]), "/guard", "/"):
        page = browser.page
        page.goto(browser.served.base + path)
        assert page.locator("main script, main img, main iframe").count() == 0
        hrefs = page.eval_on_selector_all("a", "links => links.map(each => each.protocol)")
        assert set(hrefs) <= {"http:"}
    assert browser.troubles == []


def test_a_page_changes_while_a_run_trains_and_survives_its_being_killed(browser: Browser) -> None:
    browser.troubles.clear()
    page = browser.open("/")
    with training(browser.live_dir, browser.served.home) as process:
        link = page.locator("section:has(h2:text('Runs')) a:has-text('live run')")
        link.wait_for()
        link.click()
        steps = page.locator(".figures div:has(dt:text-is('steps')) dd")
        steps.wait_for()
        before = steps.text_content()
        page.wait_for_function(
            "before => [...document.querySelectorAll('.figures div')].some(each => "
            "each.querySelector('dt').textContent === 'steps' && "
            "each.querySelector('dd').textContent !== before)",
            arg=before,
        )  # fmt: skip
        process.kill()
        process.wait()
        status = page.locator(".figures div:has(dt:text-is('status')) dd:text-is('dead')")
        status.wait_for()
    assert page.locator("text=stopped without recording an end").count() >= 1
    assert browser.troubles == []


def test_a_hidden_page_closes_its_stream(browser: Browser) -> None:
    page = browser.open("/")
    page.locator(".state.live").wait_for()
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    with browser.served.client() as client:

        def is_closed() -> bool:
            page.wait_for_timeout(200)
            return bool(client.get("/health.json").json()["streams"] == 0)

        until(is_closed, "the stream stayed open")


def test_a_browser_opens_two_servers_of_one_host(browser: Browser, tmp_path: Path) -> None:
    context = browser.page.context.browser.new_context()
    page = context.new_page()
    with serving(tmp_path) as other:
        for url in (browser.served.url, other.url, browser.served.base, other.base):
            assert page.goto(url).status == 200
    cookies = context.cookies()
    context.close()
    ports = {browser.served.port, other.port}
    assert {cookie["name"] for cookie in cookies} == {f"outlay-web-{port}" for port in ports}
    assert {(cookie["httpOnly"], cookie["sameSite"]) for cookie in cookies} == {(True, "Strict")}


def test_a_page_beyond_the_limit_is_shown_and_says_that_it_is_not_live(
    browser: Browser, tmp_path: Path
) -> None:
    with serving(tmp_path) as served, served.client() as client, ExitStack() as streams:
        for _ in range(ServerLimits().streams):
            streams.enter_context(client.stream("GET", "/events/"))
        page = browser.page.context.new_page()
        page.goto(served.url)
        page.locator(".state:text-is('not live: too many pages open')").wait_for()
        assert page.locator("main h1").text_content() == "Now"
        page.close()
