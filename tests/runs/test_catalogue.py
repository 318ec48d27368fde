"""The catalogue of figures: names, and that one entry reaches every screen."""

from __future__ import annotations

from pathlib import Path

import pytest

import outlay
from command_line import outlay as command
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.export.live_runs import LiveReading
from outlay.export.prometheus import exposition
from outlay.report.compared_runs import compare_document
from outlay.report.document import to_markdown
from outlay.runs.collect import collect
from outlay.runs.figures import BY_NAME, FIGURES, figures_named
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


@pytest.mark.parametrize("name_of", ["tracker_name", "prometheus_name"])
def test_exported_names_are_unique(name_of: str) -> None:
    exported = [each for each in FIGURES if each.exported and each.unit.number is not None]
    names = [getattr(figure, name_of)("usd") for figure in exported]
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


def test_one_entry_of_the_catalogue_is_on_every_screen(reading: RunReading) -> None:
    name, value = "tokens_per_cost", 100.0
    listed = command("runs", "--columns", name).out.split()
    assert listed == ["tokens", "per", "unit", "of", "cost", "100"]
    assert command("runs", "--json").json["runs"][0][name] == value
    page = runs_page(PageQuery(path="/runs", query=[("col", name)]), BookReader())
    assert "tokens per unit of cost" in "".join(page.parts)
    assert page.rows[0][name] == value
    assert reading.values["outlay/tokens_per_usd"] == value
    live = LiveReading(runs=(reading,), guards=(), findings=(), t_ns=reading.t_ns)
    assert "\noutlay_run_tokens_per_usd{" in exposition(live)
    assert "| tokens per unit of cost |" in to_markdown(compare_document([reading]))
    assert f"| `{name}` |" in page_of_docs("reference/figures.md")
