"""Charts as files for papers: real pictures, the same bytes for the same figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import image
from matplotlib.colors import to_rgb

from command_line import in_process
from ledgers import Segment, dollars
from outlay.errors import InvalidValue, MissingExtra
from outlay.ledger import Metric
from outlay.report.drawing.charts import (
    Bar,
    Chart,
    ChartStretch,
    Curve,
    GridCell,
    GridChart,
    IntervalChart,
    IntervalRow,
    LineChart,
    ParallelAxis,
    ParallelChart,
    ParallelLine,
    PhaseStrip,
    Plane,
    Point,
    RungBar,
    RungChart,
    SpanChart,
    StripPart,
    Waterfall,
    of_phase,
)
from outlay.report.drawing.pictures import FORMATS, read_formats, write_pictures
from sweep_on_disk import Sweep

ABOUT: dict[str, Any] = {"title": "t", "note": "n"}
CHARTS: list[Chart] = [
    Plane(
        name="plane", x_title="USD", y_title="a$b$ & _c", **ABOUT,
        points=(Point(x=1, y=2, label="one", on_front=True), Point(x=2, y=1, label="two")),
    ),
    LineChart(
        name="lines", x_title="USD", y_title="acc", labels=("lr=1", "lr=2"), **ABOUT,
        curves=(
            Curve(label="one", points=((0, 0), (1, 0.5)), look=0),
            Curve(label="two", points=((0, 0), (1, 0.7)), look=1),
            Curve(label="three", points=((0, 0), (1, 0.6)), look=0),
        ),
    ),
    Waterfall(
        name="waterfall", x_title="USD", **ABOUT,
        bars=(
            Bar(label="step", value=2e6, text="2.00 USD"),
            Bar(label="to go", value=1e6, text="", ends=(5e5, 2e6)),
        ),
    ),
    PhaseStrip(
        name="strip", seconds=90, phases=(("step", "80.0%"), ("stall", "20.0%")), **ABOUT,
        parts=(
            StripPart(start=0, end=60, shares=(("step", 1.0),)),
            StripPart(start=60, end=90, shares=(("step", 0.4), ("stall", 0.6))),
        ),
    ),
    SpanChart(
        name="spans", **ABOUT,
        stretches=(
            ChartStretch(row="one", start=0, end=60, mark="error: killed"),
            ChartStretch(row="one", start=60, end=300),
        ),
    ),
    IntervalChart(
        name="ranking", x_title="acc", **ABOUT,
        rows=(
            IntervalRow(label="lr=1", values=(0.8, 0.9), mean=0.85, ends=(0.75, 0.95)),
            IntervalRow(label="lr=2", values=(0.7,), mean=0.7),
        ),
    ),
    ParallelChart(
        name="parallel", **ABOUT,
        axes=(
            ParallelAxis(title="lr", ticks=((0, "1"), (1, "2"))),
            ParallelAxis(title="acc", ticks=((0, "0"), (1, "1"))),
        ),
        lines=(
            ParallelLine(label="one", places=(0, 1), text="lr 1", goodness=1),
            ParallelLine(label="two", places=(1, 0), text="lr 2", goodness=0),
        ),
    ),
    GridChart(
        name="grid", x_title="lr", y_title="width", columns=("1", "2"), rows=("8",), **ABOUT,
        cells=(GridCell(column=0, row=0, text="0.9", said="lr 1: 0.9", goodness=1),),
    ),
    RungChart(
        name="rungs", outcomes=("went on", "pruned"), **ABOUT,
        bars=(RungBar(label="rung 1", parts=(("went on", 1), ("pruned", 2)), text="3.00 USD"),),
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("pictures")
    return {path.name: path for path in write_pictures(CHARTS, directory, FORMATS)}


@pytest.mark.parametrize(
    "chart", [c for c in CHARTS if not isinstance(c, PhaseStrip)], ids=lambda chart: chart.name
)
def test_a_png_shows_something_in_colour_on_white(chart: Chart, drawn: dict[str, Path]) -> None:
    pixels = image.imread(drawn[f"{chart.name}.png"])[:, :, :3]
    assert min(pixels.shape[:2]) >= 200
    assert (pixels == 1).all(axis=2).mean() > 0.5
    assert np.ptp(pixels, axis=2).max() > 0.3  # Not only grey text.


def test_a_strip_has_as_much_of_each_colour_as_its_phase_took(drawn: dict[str, Path]) -> None:
    pixels = image.imread(drawn["strip.png"])[:, :, :3]
    step, stall = (
        (np.abs(pixels - np.array(to_rgb(of_phase(phase)))).max(axis=2) < 0.01).sum()
        for phase in ("step", "stall")
    )
    assert stall / (step + stall) == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_an_svg_is_well_formed_and_a_pdf_is_whole(chart: Chart, drawn: dict[str, Path]) -> None:
    root = ElementTree.parse(drawn[f"{chart.name}.svg"]).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 5
    pdf = drawn[f"{chart.name}.pdf"].read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert pdf.rstrip().endswith(b"%%EOF")


def test_the_same_figures_give_the_same_bytes_and_a_users_settings_change_nothing(
    tmp_path: Path, drawn: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mpl.rcParams, "font.size", 30)
    for path in write_pictures(CHARTS, tmp_path, FORMATS):
        assert path.read_bytes() == drawn[path.name].read_bytes(), path.name
    assert mpl.rcParams["font.size"] == 30


def test_formats_are_read_once_each_and_an_unknown_one_is_named() -> None:
    assert read_formats("PNG, svg,png") == ("png", "svg")
    with pytest.raises(InvalidValue, match="bmp"):
        read_formats("bmp")


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"outlay\[report\]"):
        write_pictures(CHARTS, tmp_path, ("png",))
    assert write_pictures(CHARTS, tmp_path, ()) == []


def test_aggregate_draws_what_it_has_figures_for(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    story = Segment(about={"price": dollars(3600)}).step(1, samples=4)
    story.add(Metric(t_ns=story.now_ns, name="acc", value=0.9, step=0))
    story.end().write(sweep.add("001_a"))
    shown = in_process("sweep", "aggregate", tmp_path, "--pictures", "svg,pdf", "--json")
    assert shown.code == 0, shown.err
    names = {Path(path).name for path in shown.json["pictures"]}
    assert {"metric_against_cost.svg", "learning_for_the_money.pdf"} <= names
    assert all(Path(path).stat().st_size > 1000 for path in shown.json["pictures"])
    assert (tmp_path / "reports" / "table.tex").read_text().startswith(r"\begin{tabular}")


def test_a_wrong_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    Sweep(tmp_path).add("001_a", status="error")
    shown = in_process("sweep", "aggregate", tmp_path, "--pictures", "gif")
    assert shown.code == 2
    assert "png, svg" in shown.err
    assert not (tmp_path / "reports").exists()
