"""The list of runs and a run in a real browser: what is in sight, keys, Back, and no script."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from browser import chromium
from outlay.runs.collect import FIGURES_VERSION
from outlay.store import open_store
from outlay.store.runs import register
from outlay.units import Money
from report_builders import run_row
from run_scene import LONG, TEAMS, collect_runs, write_runs
from waiting import PATIENCE_S
from web_server import Served, serving, training

pytestmark = pytest.mark.xdist_group("web")
WIDTHS = (390, 768, 1280, 1920)


@dataclass(frozen=True)
class Reader:
    """A browser that was let in, and the server it reads."""

    served: Served
    chrome: Any
    page: Any

    def open(self, path: str) -> Any:
        assert self.page.goto(self.served.base + path).status == 200
        return self.page

    def other(self, **about: Any) -> Any:
        """Return a page of a browser that differs; whoever asks closes its context."""
        page = self.chrome.new_context(**about).new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.goto(self.served.url)
        return page

    def names(self) -> list[str]:
        found: list[str] = self.page.locator("tbody a.name").all_text_contents()
        return found


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    home, runs = tmp_path_factory.mktemp("runs-home"), tmp_path_factory.mktemp("runs")
    write_runs(runs)
    collect_runs(runs, home)
    with serving(home) as served, chromium() as chrome:
        page = chrome.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.goto(served.url)
        yield Reader(served, chrome, page)


BOXES = """() => {
    const out = [];
    for (const row of document.querySelectorAll("table.list tbody tr:has(a.name)")) {
        const cells = [...row.children], head = [...document.querySelectorAll("thead th")];
        for (const name of ["run", "status", "cost", "goodput"]) {
            const cell = cells[head.findIndex(each => each.textContent.trim() === name)];
            const inside = document.createRange();
            inside.selectNodeContents(cell.querySelector(".tail") ?? cell);
            const box = inside.getBoundingClientRect();
            if (!(box.width > 0 && box.left >= 0 && box.right <= innerWidth))
                out.push([name, box.left, box.right]);
        }
    }
    return [document.documentElement.scrollWidth, out];
}"""


@pytest.mark.parametrize(
    "path", ["/runs", "/runs?group=team", "/compare?run=run0000&run=run0001&run=run0005"]
)
def test_status_cost_and_goodput_are_in_sight_at_every_width(reader: Reader, path: str) -> None:
    page = reader.open(path)
    assert len(LONG) == 72
    assert page.locator("table.list tbody td:has-text('12,345,766.95')").count() >= 2
    try:
        for width, scheme in itertools.product(WIDTHS, ("light", "dark")):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(BOXES) == [width, []], (width, scheme)
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


def test_names_stay_in_sight_while_other_columns_scroll(reader: Reader) -> None:
    page = reader.open(
        "/runs?" + "&".join(f"col={name}" for name in ("cost", "dir", "host", "tags"))
    )
    name = page.locator("tbody a.name").first
    before = name.bounding_box()
    page.evaluate("document.querySelector('.wide').scrollLeft = 400")
    assert name.bounding_box() == before
    assert page.locator("#chosen button").bounding_box()["y"] < 900


@pytest.mark.parametrize(
    "path", ["/runs?group=team&status=failed", "/run/run0001", "/compare?run=run0001&run=run0002"]
)
def test_axe_finds_nothing_in_the_dark(reader: Reader, path: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = reader.open(path)
    page.emulate_media(color_scheme="dark")
    for each in page.locator("main details").all():
        each.evaluate("each => { each.open = true; }")
    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in serious] == []


def test_runs_are_found_selected_and_compared_without_a_mouse(reader: Reader) -> None:
    page = reader.open("/runs?sort=name")
    for key in ("j", "j", "x", "k", "x"):
        page.keyboard.press(key)
    assert page.locator("#chosen button").text_content() == "Compare 2 selected runs"
    assert page.locator("tr.current a.name").text_content() == reader.names()[0]
    page.keyboard.press("c")
    page.wait_for_url("**/compare?run=*&run=*")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/runs")
    page.keyboard.press("g")
    page.keyboard.press("m")
    page.wait_for_url("**/money")
    page.keyboard.press("g")
    page.keyboard.press("n")
    page.wait_for_url(reader.served.base + "/")


def test_keys_are_explained_and_are_text_where_one_types(reader: Reader) -> None:
    page = reader.open("/runs")
    page.keyboard.press("?")
    shown = page.locator("dialog#keys[open]")
    assert "compare the selected runs" in shown.text_content()
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    assert shown.count() == page.locator("tr.current").count() == 0
    page.keyboard.press("/")
    page.keyboard.type("gm?jx")
    assert page.input_value("input[name=q]") == "gm?jx"
    assert page.locator("tr.current").count() == shown.count() == 0
    assert page.url.endswith("/runs")


def test_back_shows_the_filter_that_is_applied(reader: Reader) -> None:
    page = reader.open("/runs")
    every = reader.names()
    page.select_option("select[name=status]", "failed")
    page.wait_for_url("**/runs?status=failed")
    failed = reader.names()
    page.select_option("select[name=status]", "dead")
    page.wait_for_url("**/runs?status=dead")
    page.go_back()
    page.wait_for_url("**/runs?status=failed")
    assert page.input_value("select[name=status]") == "failed"
    assert reader.names() == failed
    assert page.locator("ul.active b").all_text_contents() == ["failed"]
    page.go_back()
    page.wait_for_url("**/runs")
    assert page.input_value("select[name=status]") == ""
    assert page.locator("ul.active").count() == 0
    page.go_forward()
    page.locator("ul.active a").click()
    page.wait_for_url("**/runs")
    assert reader.names() == every


def test_columns_are_kept_in_the_address(reader: Reader) -> None:
    page = reader.open("/runs?status=failed")
    page.locator("form.filters summary").click()
    page.locator("input[name=col][value=host]").check()
    page.wait_for_url("**col=host*")
    assert "status=failed" in page.url
    page.reload()
    assert "host" in page.locator("thead th").all_text_contents()
    page.locator("form.filters summary").click()
    page.locator("text=The usual columns").click()
    page.wait_for_url("**/runs?status=failed")


def test_a_view_is_saved_in_the_browser_and_forgotten(reader: Reader) -> None:
    page = reader.open("/runs?group=team&sort=goodput")
    page.locator(".saved summary").click()
    page.fill(".saved input", "worst by team")
    page.keyboard.press("Enter")
    reader.open("/runs").locator(".saved a:text('worst by team')").click()
    page.wait_for_url("**/runs?group=team&sort=goodput")
    assert page.locator(".saved a[aria-current]").text_content() == "worst by team"
    page.locator(".saved button[aria-label='Forget the view worst by team']").click()
    assert reader.open("/runs").locator(".saved a").count() == 0


def test_an_update_leaves_the_selection_and_what_was_opened(reader: Reader, tmp_path: Path) -> None:
    with training(tmp_path / "live", reader.served.home):
        page = reader.open("/runs?col=steps&q=run")
        live = page.locator("tbody tr:has(a.name:text('live run'))")
        live.wait_for()
        live.locator("input").check()
        page.locator("form.filters summary").click()
        assert page.locator("tr.current a.name").text_content() == "live run"
        steps = int(live.locator("td").nth(2).text_content().replace(",", ""))
        page.wait_for_function(
            "before => parseInt(document.querySelector('tr.current td:nth-child(3)')?.textContent)"
            " > before",
            arg=steps,
        )
        assert page.locator("tr.current a.name").text_content() == "live run"
        assert live.locator("input").is_checked()
        assert page.locator("#chosen button").text_content() == "Compare 1 selected run"
        assert page.locator("form.filters details[open]").count() == 1


def test_without_script_lists_and_runs_answer_their_questions(reader: Reader) -> None:
    page = reader.other(java_script_enabled=False)
    try:
        page.goto(reader.served.base + "/runs?group=team")
        assert "which cost 12,345,857.98 EUR" in page.locator(".verdict").text_content()
        assert page.locator("tr.group a").all_text_contents() == sorted(TEAMS)
        page.select_option("select[name=status]", "failed")
        page.click("form.filters button")
        assert page.locator("ul.active b").all_text_contents() == ["failed"]
        for box in page.locator("tbody input").all()[:2]:
            box.check()
        page.click("#chosen button")
        assert page.locator("h1").text_content() == "2 runs"
        page.goto(reader.served.base + "/run/run0001")
        assert "91.03 USD" in page.locator(".verdict").text_content()
        assert page.locator("[data-copy]:visible, .scripted:visible").count() == 0
        page.locator("#how-the-figures-are-known summary").click()
        assert page.locator("#how-the-figures-are-known p").first.is_visible()
    finally:
        page.context.close()


def test_a_run_has_local_times_copies_and_links_to_its_sections(reader: Reader) -> None:
    page = reader.other(timezone_id="Asia/Tokyo", locale="en-GB")
    try:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(reader.served.base + "/run/run0001#how-the-figures-are-known")
        assert page.locator("#how-the-figures-are-known details[open]").count() == 1
        started = page.locator(".figures div:has(dt:text-is('started')) time")
        at, shown = started.get_attribute("datetime"), started.get_attribute("data-local")
        assert at is not None
        assert f"{(int(at[11:13]) + 9) % 24:02d}:{at[14:16]}" in str(shown)
        assert started.text_content() == at.replace("T", " ")
        page.locator("button[aria-label='Copy the commit']").click()
        assert page.evaluate("navigator.clipboard.readText()") == "01" * 20
        page.click("nav.contents a:text('What was run')")
        assert page.url.endswith("#what-was-run")
    finally:
        page.context.close()


DRAWN = """(() => {
    window.drawn = [];
    const draw = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.drawn.push(text);
        return draw.call(this, text, ...rest);
    };
})()"""


def test_an_axis_of_steps_has_ticks_at_whole_steps_in_a_wide_window(reader: Reader) -> None:
    context = reader.chrome.new_context(viewport={"width": 1920, "height": 900})
    context.set_default_timeout(PATIENCE_S * 1000)
    page = context.new_page()
    page.goto(reader.served.url)
    page.add_init_script(DRAWN)
    page.goto(f"{reader.served.base}/compare?run=run0000&run=run0001")
    page.wait_for_function("() => window.drawn.includes('50')")
    texts = page.evaluate("window.drawn")
    assert {"0", "10", "20", "50"} <= set(texts)
    assert [text for text in texts if "." in text] == []
    context.close()


def test_a_list_of_ten_thousand_runs_transfers_little(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("many-home")
    monkeypatch.setenv("OUTLAY_HOME", str(home))
    register(open_store(), (
        run_row(
            run_id=f"{number:032x}", name=f"{LONG}-{number}", dir=f"/runs/{number}",
            started_ns=number, last_seen_ns=number + 1, ended_ns=number + 1,
            cost=Money(12_345_678_000_000 + number, "USD"), tags={"team": f"team {number % 7}"},
            loss_trend=tuple(8.0 / (step + 1) for step in range(24)),
            figures_version=FIGURES_VERSION,
        )
        for number in range(10_000)
    ))  # fmt: skip
    with serving(home) as served:
        page = reader.chrome.new_context().new_page()
        page.goto(served.url)
        sizes: dict[str, int] = {}
        page.on("response", lambda answer: note_size(answer, sizes))
        page.goto(served.base + "/runs?group=team")
        page.wait_for_load_state("load")
        assert page.locator("tbody a.name").count() == 100
        assert "10,000 registered runs" in page.locator(".verdict").text_content()
        assert page.locator("tr.group td").nth(1).text_content() == "1,429 runs"
        page.context.close()
    assert 60_000 < sum(sizes.values()) <= 250_000, json.dumps(sizes)


def note_size(answer: Any, sizes: dict[str, int]) -> None:
    if "/events" not in answer.url:
        sizes[answer.url] = len(answer.body())
