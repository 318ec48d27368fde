"""The catalogue of figures: names, and that one entry reaches every screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import outlay
from command_line import outlay as command
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.export.live_runs import LiveReading
from outlay.export.prometheus import exposition
from outlay.export.tracker_sinks import OtlpSink
from outlay.report.compared_runs import compare_document
from outlay.report.document import to_markdown
from outlay.runs.collect import collect
from outlay.runs.figures import BY_NAME, FIGURES, RunFigure, exported_numbers, figures_named
from outlay.runs.reading import RunReading
from outlay.store import open_store
from outlay.web.book_reader import BookReader
from outlay.web.page import PageQuery
from outlay.web.runs import runs_page
from papers import page as page_of_docs

HOUR = 3600 * 10**9


def test_names_are_unique_and_every_figure_is_explained() -> None:
    assert len(BY_NAME) == len(FIGURES)
    assert [figure.name for figure in FIGURES if not figure.about.endswith(".")] == []


@pytest.mark.parametrize(
    "name_of",
    [
        lambda figure: figure.tracker_name("usd"),
        lambda figure: figure.prometheus_name("usd"),
        lambda figure: figure.otlp_name.replace(".", "_"),  # As Prometheus would store it.
    ],
)
def test_exported_names_are_unique(name_of: Callable[[RunFigure], str]) -> None:
    names = [name_of(figure) for figure in exported_numbers()]
    assert len(set(names)) == len(names) > 10


def test_an_unknown_column_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match=r"costs.*one of run_id, name, status"):
        figures_named(["name", "costs"])


@pytest.fixture
def reading(tmp_path: Path, clock: ManualClock) -> RunReading:
    """A run of two hours at 1 USD/h with 100 tokens in each of two steps."""
    with outlay.run("m", dir=tmp_path / "r", clock=clock, price="1 USD/h") as run:
        for _ in run.steps("ab", tokens=100):
            clock.advance(HOUR)
    collect(open_store(), [tmp_path / "r"], clock.wall_ns())
    return outlay.read_run(tmp_path / "r", clock.wall_ns())


def test_a_column_is_listed_by_name(reading: RunReading) -> None:
    listed = command("runs", "--columns", "name,goodput,gpu_hours").out.splitlines()
    assert listed[0].split() == ["run", "goodput", "GPU", "hours"]
    assert listed[1].split() == [reading.figures.name, "100.0%", "2.00"]


def test_every_figure_is_in_json_and_csv(reading: RunReading) -> None:
    (found,) = command("runs", "--json").json["runs"]
    assert BY_NAME.keys() <= found.keys()
    page = runs_page(PageQuery(path="/runs"), BookReader())
    (row,) = page.rows
    assert list(row) == list(BY_NAME)
    assert row["wall_s"] == 7200.0
    assert reading.figures.wall_ns == 2 * HOUR


def exposed(run: RunReading) -> str:
    return exposition(LiveReading(runs=(run,), guards=(), findings=(), t_ns=run.t_ns))


def otlp_metrics(run: RunReading) -> dict[str, Any]:
    """What the sink hands to OpenTelemetry's exporter, by name."""
    pytest.importorskip("opentelemetry.sdk")
    data = OtlpSink("http://127.0.0.1:9/")._data(run)
    return {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}


def test_every_figure_can_be_a_column_of_the_terminal_and_of_the_page(reading: RunReading) -> None:
    assert command("runs", "--columns", ",".join(BY_NAME)).code == 0
    page = "".join(runs_page(PageQuery(path="/runs"), BookReader()).parts)
    always_shown = ["run_id", "name", "status"]
    assert [name for name in BY_NAME if f'name="col" value="{name}"' not in page] == always_shown
    assert reading.figures.cost is not None


def test_every_known_number_is_in_every_monitor(reading: RunReading) -> None:
    known = [each for each in exported_numbers() if each.number(reading.figures) is not None]
    page, points = exposed(reading), otlp_metrics(reading)
    assert [f.name for f in known if f"\n{f.prometheus_name('usd')}{{" not in page] == []
    assert [f.name for f in known if f"outlay/{f.tracker_name('usd')}" not in reading.values] == []
    assert [f.name for f in known if f.otlp_name not in points] == []
    assert len(known) > 12


def test_every_compared_figure_is_in_the_comparison(reading: RunReading) -> None:
    page = to_markdown(compare_document([reading]))
    assert [f.name for f in FIGURES if f.compared and f"| {f.label} |" not in page] == []


def test_every_figure_is_in_the_table_of_the_docs() -> None:
    page = page_of_docs("reference/figures.md")
    assert [name for name in BY_NAME if f"| `{name}` |" not in page] == []


def test_a_point_of_opentelemetry_has_the_unit_and_the_words_of_its_figure(
    reading: RunReading,
) -> None:
    found = otlp_metrics(reading)
    units = {name.removeprefix("outlay.run."): metric.unit for name, metric in found.items()}
    assert {
        "attempts": "{attempt}", "tokens": "{token}", "tokens.rate": "{token}/s",
        "tokens.per_cost": "{token}/{USD}", "cost": "{USD}", "burn": "{USD}/h", "duration": "s",
        "gpu.duration": "s", "goodput": "1",
    }.items() <= units.items()  # fmt: skip
    gpu_time = found["outlay.run.gpu.duration"]
    assert gpu_time.description == BY_NAME["gpu_hours"].about
    assert gpu_time.data.data_points[0].value == 7200.0


def test_one_entry_of_the_catalogue_is_on_every_screen(reading: RunReading) -> None:
    name, value = "tokens_per_cost", 100.0
    listed = command("runs", "--columns", name).out.split()
    assert listed == ["tokens", "per", "unit", "of", "cost", "100"]
    assert command("runs", "--json").json["runs"][0][name] == value
    page = runs_page(PageQuery(path="/runs", query=[("col", name)]), BookReader())
    assert "tokens per unit of cost" in "".join(page.parts)
    assert page.rows[0][name] == value
    assert reading.values["outlay/tokens_per_usd"] == value
    assert "\noutlay_run_tokens_per_usd{" in exposed(reading)
    assert otlp_metrics(reading)["outlay.run.tokens.per_cost"].data.data_points[0].value == value
    assert "| tokens per unit of cost |" in to_markdown(compare_document([reading]))
    assert f"| `{name}` |" in page_of_docs("reference/figures.md")
