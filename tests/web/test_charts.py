"""Charts to read, in a real browser: zoom, cursor, addresses, live updates, brushes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from browser import chromium
from command_line import outlay
from ledgers import Segment, dollars
from outlay.ledger import Metric
from outlay.web.book_reader import sweep_id
from sweep_on_disk import Sweep
from waiting import PATIENCE_S
from web_server import Served, serving, training

pytestmark = pytest.mark.xdist_group("web")

STEPS = 1_200
SPIKE = 734
METRICS = 12
NAME = "a-name-of-a-run-with-seventy-two-characters-as-experiments-are-named-now"


def loss_at(step: int) -> float:
    return 8.0 if step == SPIKE else 1 + 1 / (1 + step / 100) + (step * 7919 % 97) / 997


@dataclass
class Charts:
    """A browser's page that was let in, and where everything is."""

    page: Any
    served: Served
    runs: Path
    troubles: list[str]

    def open(self, path: str) -> Any:
        answer = self.page.goto(self.served.base + path)
        assert answer.status == 200, answer.text()
        self.page.locator(".state.live").wait_for()
        return self.page

    def plot(self, metric: str = "loss") -> Any:
        """Return where uPlot takes pointers."""
        chart = self.page.locator(f".drawing:has(svg[data-metric='{metric}']) .u-over")
        chart.scroll_into_view_if_needed()
        return chart

    def point(self, share: float, metric: str = "loss") -> tuple[float, float]:
        """Return where a share of a chart's axis is on the screen."""
        box = self.plot(metric).bounding_box()
        return box["x"] + share * box["width"], box["y"] + box["height"] / 2

    def zoom(self, begin: float, end: float) -> None:
        """Drag over a part of the loss."""
        self.page.mouse.move(*self.point(begin))
        self.page.mouse.down()
        self.page.mouse.move(*self.point(end), steps=4)
        self.page.mouse.up()

    def seen(self) -> str:
        """Return the part of the axis that the drawing of the loss has."""
        return self.page.locator("svg[data-metric='loss']").get_attribute("data-seen") or ""

    def readout(self, metric: str = "loss") -> Any:
        return self.page.locator(f".chart:has(svg[data-metric='{metric}']) .readout")


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Charts]:
    home, runs = tmp_path_factory.mktemp("charts-home"), tmp_path_factory.mktemp("charts-runs")
    fill(runs)
    assert outlay("collect", runs, OUTLAY_HOME=str(home)).code == 0
    with serving(home) as served, chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE_S * 1000)
        troubles: list[str] = []
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda m: troubles.append(m.text) if m.type == "error" else None)
        page.goto(served.url)
        yield Charts(page, served, runs, troubles)
        assert troubles == []


def fill(runs: Path) -> None:
    """Write a run that was killed and went on, with many metrics, and a sweep of long names."""
    about = {"model": "m", "run_id": "long", "name": "long", "price": dollars(3600)}
    parts = (range(int(STEPS * 0.6)), range(int(STEPS * 0.5), STEPS))
    start = 0.0
    for steps in parts:
        story = Segment(start=start, about=about)
        for step in steps:
            story.step(1, number=step)
            story.add(Metric(t_ns=story.now_ns, name="loss", value=loss_at(step), step=step))
            for number in range(1, METRICS if step % 4 == 0 else 0):
                value = loss_at(step) / number
                story.add(Metric(t_ns=story.now_ns, name=f"m{number}", value=value, step=step))
        start += len(steps) + 100
        (story if start < STEPS else story.end()).write(runs / "long")
    sweep = Sweep(runs / "sweep")
    for number, (lr, width, seed) in enumerate(
        itertools.product((0.001, 0.01), (256, 512), (0, 1))
    ):
        name = f"{number:03d}_{NAME[4:]}"
        story = Segment(about={"price": dollars(1.736e9), "run_id": name, "name": name})
        story.step(width / 10).add(
            Metric(t_ns=story.now_ns, name="acc", value=0.9 + lr * 4 + seed / 25, step=0)
        ).end()
        story.write(sweep.add(name, params={"learning_rate_of_all": lr, "width": width}))
        sweep.events[-1] |= {"cost_micros": 12_345_678 * 10**6, "currency": "USD"}
    sweep.write_journal()


def test_a_drag_zooms_all_metrics_into_the_address_and_back_and_a_link_shows_the_same(
    charts: Charts,
) -> None:
    page = charts.open("/run/long")
    charts.zoom(0.25, 0.5)
    page.wait_for_url("**zoom=*")
    low, high = map(float, re.findall(r"zoom=([\d.]+)\.\.([\d.]+)", page.url)[0])
    assert (low, high) == pytest.approx((STEPS / 4, STEPS / 2), rel=0.05)
    page.wait_for_function("() => document.querySelector('svg[data-metric=loss]').dataset.seen")
    seen = charts.seen()
    address = page.url
    charts.zoom(0.4, 0.6)
    page.wait_for_function("before => location.href !== before", arg=address)
    page.go_back()
    assert page.url == address
    page.wait_for_function(
        "seen => document.querySelector('svg[data-metric=loss]').dataset.seen === seen", arg=seen
    )
    charts.open(address.removeprefix(charts.served.base))
    assert charts.seen() == seen
    page.mouse.dblclick(*charts.point(0.5))
    page.wait_for_url("**/run/long")
    page.wait_for_function("() => !document.querySelector('svg[data-metric=loss]').dataset.seen")


def test_a_zoom_fetches_the_recorded_values_that_the_whole_left_out(charts: Charts) -> None:
    page = charts.open("/run/long")
    with page.expect_response("**/points.json*") as answer:
        charts.zoom(0.3, 0.33)
    lines = next(c for c in answer.value.json() if c["metric"] == "loss")["lines"]
    points = lines[0]["points"]
    steps = [step for step, _ in points]
    assert steps == [float(step) for step in range(int(steps[0]), int(steps[-1]) + 1)]
    assert [value for _, value in points] == [loss_at(int(step)) for step in steps]
    page.mouse.move(*charts.point(0.5))
    said = charts.readout().text_content()
    step, value = re.findall(r"^steps ([\d,]+): loss ([\d.]+)", said)[0]
    assert float(value) == pytest.approx(loss_at(int(step.replace(",", ""))), rel=1e-5)


@pytest.mark.parametrize(
    "query",
    [
        "zoom=5e5..6e5", "zoom=100.2..100.3&smoothing=0.9&log=1", "zoom=1..1", "zoom=nan..2",
        "zoom=-1e308..1e308", "zoom=1e17..1e18&axis=dollars", "smoothing=7&axis=moons&log=yes",
        "zoom=1e-300..2e-300&axis=time", "columns=0", "columns=99999999",
    ],
)  # fmt: skip
def test_an_address_that_makes_no_sense_is_still_a_page(charts: Charts, query: str) -> None:
    with charts.served.client() as client:
        assert client.get(f"/run/long?{query}").text.count("data-metric=") == METRICS
        for form in ("", ".json", ".csv"):
            answer = client.get(f"/points{form}?run=long&metric=loss&{query}")
            assert answer.status_code == 200, answer.text


def test_times_of_steps_are_fetched_for_the_part_that_is_seen(charts: Charts) -> None:
    with charts.served.client() as client:
        address = "/points.json?run=long&steps=1&zoom-steps=100..110&columns=500"
        (part,) = client.get(address).json()
        (whole,) = client.get("/points.json?run=long&steps=1&columns=100").json()
        text = client.get("/run/long?zoom-steps=100..110").text
    assert part["lines"][0]["points"] == [[float(step), 1.0] for step in range(100, 111)]
    assert [len(line["points"]) for line in whole["lines"]] == [100, 100]
    assert 'data-seen="100 110"' in text


def test_one_cursor_is_on_every_chart_of_the_run_and_its_timeline(charts: Charts) -> None:
    page = charts.open("/run/long")
    page.mouse.move(*charts.point(0.25))
    step = int(re.findall(r"^steps ([\d,]+)", charts.readout().text_content())[0].replace(",", ""))
    place = page.locator("svg.strip line.cursor").get_attribute("x1")
    wall = float(page.locator("svg.strip").get_attribute("data-seconds"))
    assert float(place.rstrip("%")) / 100 * wall == pytest.approx(step + 1, abs=1)
    assert page.locator("svg[data-zoom] line.cursor").count() == METRICS + 1  # And the step times.
    strip = page.locator("svg.strip").bounding_box()
    page.mouse.move(strip["x"] + strip["width"] * 0.1, strip["y"] + 40)
    moved = page.locator("svg[data-metric=loss] line.cursor").get_attribute("x1")
    assert float(moved.rstrip("%")) == pytest.approx(0.1 * wall / STEPS * 100, abs=1.5)


def test_axis_scale_and_smoothing_change_in_place_and_are_in_the_address(charts: Charts) -> None:
    page = charts.open("/run/long")
    charts.plot()
    page.evaluate("window.stays = true")
    before = page.evaluate("scrollY")
    page.click(".look a:text-is('over time')")
    page.locator("h3:text-is('loss over minutes')").wait_for()
    assert (page.evaluate("window.stays"), page.evaluate("scrollY")) == (True, before)
    page.check("input[name=log]")
    page.locator("svg[data-metric=loss][data-log]").wait_for()
    page.select_option("select[name=smoothing]", "0.9")
    page.locator("svg[data-metric=loss] polyline.faint").wait_for(state="attached")
    assert set(page.url.split("?")[1].split("&")) == {"axis=time", "log=1", "smoothing=0.9"}
    for _ in range(3):
        page.go_back()
    page.locator("h3:text-is('loss over steps')").wait_for()
    assert page.evaluate("window.stays")
    with charts.served.client() as client:
        assert client.get("/health.json").json()["streams"] <= 2


def test_without_script_a_link_shows_the_same_part_scale_and_smoothing(charts: Charts) -> None:
    context = charts.page.context.browser.new_context(java_script_enabled=False)
    context.add_cookies(charts.page.context.cookies())
    page = context.new_page()
    page.goto(f"{charts.served.base}/run/long?zoom=500..700&log=1&smoothing=0.5")
    chart = page.locator("svg[data-metric=loss]")
    assert (chart.get_attribute("data-seen"), chart.get_attribute("data-log")) == ("500 700", "1")
    assert chart.locator("polyline.curve:not(.faint)").bounding_box()["width"] > 200
    assert page.locator(".look button").is_visible()
    page.click("a:text-is('Show all')")
    assert page.url.endswith("/run/long?log=1&smoothing=0.5#metrics")
    context.close()


# Advice comes and goes while a run trains, and moves what is below it.
WITHOUT_ADVICE = """() => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(".verdict, #what-to-change { display: none }");
    document.adoptedStyleSheets = [sheet];
}"""
PLACE = "document.querySelector('svg[data-metric=loss]').getBoundingClientRect().top"


def last_step(charts: list[dict[str, Any]]) -> float:
    points = [point for chart in charts for line in chart["lines"] for point in line["points"]]
    return max((step for step, _ in points), default=-1)


def test_a_live_run_goes_on_under_a_resting_pointer_and_stays_where_it_is(charts: Charts) -> None:
    home = charts.served.home
    with training(charts.runs / "live", home):
        with charts.served.client() as client:
            charts.page.wait_for_timeout(0)
            for _ in range(int(PATIENCE_S * 10)):
                rows = client.get("/runs.json").json()["runs"]
                ids = [row["run_id"] for row in rows if row["name"] == "live run"]
                if (
                    ids
                    and last_step(client.get(f"/points.json?run={ids[0]}&metric=loss").json()) > 4
                ):
                    break  # All of the part that will be seen.
                charts.page.wait_for_timeout(100)
        page = charts.open(f"/run/{ids[0]}?zoom=0..4")
        page.evaluate(WITHOUT_ADVICE)
        page.mouse.move(*charts.point(0.5))
        said, place = charts.readout().text_content(), page.evaluate(PLACE)
        assert re.match(r"steps \d: loss 0\.\d+", said)
        page.evaluate(
            "said => { window.wiped = []; new MutationObserver(() => {"
            "const text = document.querySelector('.chart:has(svg[data-metric=loss]) .readout')"
            ".textContent; if (text !== said) window.wiped.push(text); })"
            ".observe(document.querySelector('#view'), {subtree: true, childList: true, "
            "characterData: true}); }",
            said,
        )
        for _ in range(2):
            steps = page.locator(".figures div:has(dt:text-is('steps')) dd")
            before = steps.first.text_content()
            page.wait_for_function(
                "before => [...document.querySelectorAll('.figures div')].some(each => "
                "each.querySelector('dt').textContent === 'steps' && "
                "each.querySelector('dd').textContent !== before)",
                arg=before,
            )
        page.evaluate("new Promise(requestAnimationFrame)")
        assert charts.readout().text_content() == said
        assert charts.seen() == "0 4"
        assert page.evaluate(PLACE) == pytest.approx(place, abs=2)
        assert page.locator(".drawing:has(svg[data-metric=loss]) canvas").count() == 1


def test_a_page_with_script_is_transferred_in_250_kilobytes(charts: Charts) -> None:
    with charts.served.client() as client:
        page = client.get("/run/long")
        linked = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page.text)
        parts = [page, *(client.get(path) for path in linked)]
    assert len(linked) == 4
    assert page.text.count("data-metric=") == METRICS
    assert sum(part.num_bytes_downloaded for part in parts) < 250_000


def test_a_brush_filters_the_table_and_the_charts_and_is_in_the_address(charts: Charts) -> None:
    page = charts.open(f"/sweep/{sweep_id(charts.runs / 'sweep')}")
    rows, points = page.locator("tr[data-brushed]:visible"), page.locator("circle.mark:visible")
    shown = points.count()
    assert rows.count() == 8
    grip = page.locator("svg.parallel .axis").first
    grip.scroll_into_view_if_needed()
    box = grip.locator("rect.grip").bounding_box()
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + box["height"] * 0.6)
    page.mouse.down()
    page.mouse.move(x, box["y"] + box["height"] + 2, steps=4)
    page.mouse.up()
    assert rows.count() == 4
    assert points.count() < shown
    assert "4 of 8 runs chosen" in page.locator(".chart:has(svg.parallel) .readout").text_content()
    assert "brush=0" in page.url
    page.reload()
    page.wait_for_function("() => document.querySelectorAll('tr.out').length === 4")
    page.locator("svg.parallel .axis").nth(1).focus()
    page.keyboard.press("ArrowUp")
    assert rows.count() == 2
    page.keyboard.press("Escape")
    assert (rows.count(), "brush" in page.url) == (8, False)


def test_status_and_cost_are_in_sight_in_a_sweep_report_file_on_a_phone(
    charts: Charts, tmp_path: Path
) -> None:
    path = tmp_path / "sweep.html"
    assert outlay("report", charts.runs / "sweep", "--output", path).code == 0
    context = charts.page.context.browser.new_context(viewport={"width": 390, "height": 900})
    page = context.new_page()
    page.goto(path.as_uri())
    for heading in ("status", "cost"):
        column = page.locator(f".wide[aria-label=Runs] th:text-is('{heading}')")
        box = column.bounding_box()
        assert 0 < box["x"] < box["x"] + box["width"] <= 390, heading
    context.close()


def test_a_sweep_shows_status_cost_and_verdict_at_every_width_and_cuts_no_label_to_the_same(
    charts: Charts,
) -> None:
    page = charts.open(f"/sweep/{sweep_id(charts.runs / 'sweep')}")
    wanted = {"status": "Runs", "cost": "Runs", "against the best": "Configurations",
              "mean cost": "Configurations"}  # fmt: skip
    try:
        for scheme, width in itertools.product(("light", "dark"), (390, 768, 1280, 1920)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for heading, table in wanted.items():
                column = page.locator(f".wide[aria-label={table}] th:text-is('{heading}')")
                box = column.bounding_box()
                assert box["x"] + box["width"] <= width, f"{heading}, {scheme}, {width} px"
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})
    chart = page.locator("div:has(> h3:text-is('Ranking')) svg text.tick[text-anchor=end]")
    names = [text.split("acc")[-1] for text in chart.all_text_contents()]
    assert len(set(names)) == 4
    ends = page.locator("div:has(> h3:text-is('Ranking')) line.interval").evaluate_all(
        "lines => lines.map(each => parseFloat(each.getAttribute('x2')))"
    )
    assert max(ends) <= 100
