"""The comparison of runs: figures, metrics on one axis, phases, and differing settings. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from outlay.goodput.follower import PhaseRow
from outlay.report.document import Block, ChartBlock, Document, NoteBlock, Table, sections
from outlay.report.drawing.run_charts import MetricView, metric_charts
from outlay.report.files import setup_of
from outlay.report.html import Cell, amount
from outlay.report.run_document import parameters_of
from outlay.runs.figures import AGE, COUNT, FIGURES, MOMENT, TREND, RunFigure
from outlay.runs.reading import RunReading
from outlay.store.run_row import RunRow
from outlay.units import Money
from outlay.units.shown import counted, money_text

_MOST_METRICS: Final = 12
_MOST_COLUMNS: Final = 480
"""Of all lines of a chart, so that a page with many runs is not many times as long."""
_LEAST_COLUMNS: Final = 30
_METRICS: Final = MetricView()


def compare_document(
    readings: Sequence[RunReading],
    wanted: MetricView = _METRICS,
    *,
    link: Callable[[str], str] = lambda _: "",
    hide: Callable[[str], str] = str,
) -> Document:
    """Return the comparison of runs.

    Args:
        readings: The runs, at least one.
        wanted: How the metrics are drawn.
        link: Returns the address of a run's page, by its id; "" for none.
        hide: Removes names of people from a text.
    """
    labels = run_labels(readings)
    return Document(
        title=counted(len(readings), "run"),
        verdict="",
        sections=sections(
            [
                ("Side by side", [_overview(labels, readings, link)]),
                ("Metrics", _metrics(labels, readings, wanted)),
                ("Where time and money went", [_phases(labels, readings)]),
                ("Differences", [_differences(labels, readings, hide)]),
            ],
            whole=("Side by side", "Metrics", "Where time and money went", "Differences"),
        ),
    )


def run_labels(readings: Sequence[RunReading]) -> list[str]:
    """Return unique names of runs: the id is added where names are equal."""
    names = [reading.view.name or reading.run_id for reading in readings]
    return [
        name if names.count(name) == 1 else f"{name} ({reading.run_id[:8]})"
        for name, reading in zip(names, readings, strict=True)
    ]


def _overview(
    labels: Sequence[str], readings: Sequence[RunReading], link: Callable[[str], str]
) -> Table:
    figures = [each for each in FIGURES if each.compared]
    rows = [
        [
            Cell(text=label, href=link(run.run_id), title=label, is_name=True),
            *(figure_cell(figure, run.figures, run.t_ns) for figure in figures),
        ]
        for label, run in zip(labels, readings, strict=True)
    ]
    return Table(("run", *(figure.label for figure in figures)), rows, is_list=True)


def figure_cell(figure: RunFigure, run: RunRow, now_ns: int) -> object:
    """Return a figure as a cell of a page's table."""
    value = figure.of(run)
    if isinstance(value, Money):
        mark = figure.grade(run)
        return amount(value, mark="" if mark == "measured" else mark)
    if figure.name == "status":
        return Cell(text=run.status, value=run.status, chip=run.status)
    if figure.name == "metric_value" and value is not None:
        return Cell(text=f"{run.metric} {value:.4g}", value=value)
    if figure.unit is COUNT:
        return value
    if figure.unit is TREND and value:
        return Cell(text=f"last {value[-1]:.4g}", trend=value, title=figure.about)
    if figure.unit in (AGE, MOMENT) and value is not None:
        return Cell(text=figure.text(run, now_ns), value=figure.cell(run), at_ns=value)
    return Cell(
        text=figure.text(run, now_ns),
        value=figure.cell(run),
        is_number=figure.unit.is_right,
        is_name=figure.name == "model",
    )


def _metrics(
    labels: Sequence[str], readings: Sequence[RunReading], wanted: MetricView
) -> Iterator[Block]:
    views = {label: reading.view for label, reading in zip(labels, readings, strict=True)}
    columns = min(wanted.columns, max(_MOST_COLUMNS // len(views), _LEAST_COLUMNS))
    drawn = list(metric_charts(views, replace(wanted, columns=columns), _MOST_METRICS))
    yield from map(ChartBlock, drawn)
    if not drawn:
        yield NoteBlock("No metric of these runs can be drawn along this axis.")


def _phases(labels: Sequence[str], readings: Sequence[RunReading]) -> Table:
    found = phases_by_run(readings)
    rows = [[phase, *map(_phase_cell, each)] for phase, each in found.items()]
    return Table(("phase", *labels), rows, len(rows) - 1)


def phases_by_run(readings: Sequence[RunReading]) -> dict[str, list[PhaseRow | None]]:
    """Return each phase of any run, and last the total, with its row in each run."""
    found = [{row.phase: row for row in run.goodput.phases} for run in readings]
    names = dict.fromkeys(phase for rows in found for phase in rows)
    wholes = (run.goodput for run in readings)
    totals = [PhaseRow("total", whole.wall_ns, 1.0, whole.cost) for whole in wholes]
    return {name: [rows.get(name) for rows in found] for name in names} | {"total": [*totals]}


def _phase_cell(row: PhaseRow | None) -> Cell:
    if row is None:
        return Cell(text="-")
    cost = "" if row.cost is None else f" · {money_text(row.cost)}"
    return Cell(text=f"{row.share:.1%}{cost}", share=row.share, title=str(row.cost or ""))


def _differences(
    labels: Sequence[str], readings: Sequence[RunReading], hide: Callable[[str], str]
) -> Block:
    every = [_settings(reading, hide) for reading in readings]
    names = dict.fromkeys(name for found in every for name in found)
    rows = [
        [name, *(found.get(name, "") for found in every)]
        for name in names
        if len({found.get(name) for found in every}) > 1
    ]
    if not rows:
        return NoteBlock("No recorded setting differs.")
    return Table(("setting", *labels), rows)


def _settings(reading: RunReading, hide: Callable[[str], str]) -> dict[str, str]:
    header = reading.view.timeline.attempts[-1].header
    setup = setup_of(Path(reading.view.dir or "."))
    stated = {
        "model": reading.view.identity.model, "commit": header.git_commit, "host": header.host,
        "user": hide(header.user), "GPU": header.gpu, "GPUs": str(reading.figures.gpus),
        "command": hide(shlex.join(setup.command or reading.command)),
    }  # fmt: skip
    parameters = {
        name: hide(str(value))
        for name, value in parameters_of(reading, setup).items()
        if value is not None
    }
    found = {**parameters, **stated, **header.tags, **header.versions}
    return {name: str(value) for name, value in found.items() if value not in (None, "")}
