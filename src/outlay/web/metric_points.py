"""Metrics of runs on pages: how they are drawn, and the points of the part that is seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from outlay.escaping import html_text
from outlay.report import html
from outlay.report.compared_runs import run_labels
from outlay.report.document import Document, sections_html
from outlay.report.drawing.run_charts import AXES, MetricView, metric_charts, step_times
from outlay.web.book_reader import BookReader
from outlay.web.page import Page, PageQuery, tabs

if TYPE_CHECKING:
    from outlay.report.drawing.charts import LineChart

MOST_COMPARED: Final = 12
"""Runs whose metrics are drawn on one axis."""
_SMOOTHINGS: Final = ("0", "0.5", "0.9", "0.97", "0.99")
_MOST_COLUMNS: Final = 2_000
_MOST_ROWS: Final = 200
_FARTHEST: Final = 1e18
"""Beyond this no axis goes."""


def metric_view(ask: PageQuery) -> MetricView:
    """Return how a page draws metrics; what makes no sense in its address is ignored."""
    smoothing = _number(ask.get("smoothing"))
    return MetricView(
        axis=next((each for each in AXES if each == ask.get("axis")), "steps"),
        zoom=_range(ask.get("zoom")),
        steps=_range(ask.get("zoom-steps")),
        is_log=ask.get("log") == "1",
        smoothing=smoothing if smoothing is not None and 0 <= smoothing < 1 else 0.0,
    )


def _range(text: str) -> tuple[float, float] | None:
    low, _, high = text.partition("..")
    ends = _number(low), _number(high)
    if ends[0] is None or ends[1] is None or ends[0] >= ends[1]:
        return None
    return ends[0], ends[1]


def _number(text: str) -> float | None:
    try:
        found = float(text[:40])
    except ValueError:
        return None
    return found if abs(found) <= _FARTHEST else None


def with_controls(document: Document, ask: PageQuery) -> list[str]:
    """Return a document's sections; above its metrics are axis, scale and smoothing."""
    heading = "<section><h2>Metrics</h2>"
    controls = heading + _controls(ask)
    return [part.replace(heading, controls, 1) for part in sections_html(document.sections)]


def _controls(ask: PageQuery) -> str:
    wanted = metric_view(ask)
    choices = {f"{ask.address(axis=each, zoom='')}#metrics": f"over {each}" for each in AXES}
    kept = "".join(
        f'<input type="hidden" name="{html_text(name)}" value="{html_text(value)}">'
        for name, value in ask.query
        if name not in ("log", "smoothing")
    )
    options = "".join(
        f'<option value="{value}"{" selected" if float(value) == wanted.smoothing else ""}>'
        f"{value if float(value) else 'none'}</option>"
        for value in _smoothings(wanted.smoothing)
    )
    whole = ""
    if wanted.zoom is not None:
        whole = f'<a data-whole href="{html_text(ask.address(zoom=""))}#metrics">Show all</a>'
    return (
        f'<div class="look">{tabs("Axis of the metrics", choices, f"over {wanted.axis}")}'
        f'<form action="{html_text(ask.path)}#metrics" data-look>{kept}'
        f'<label><input type="checkbox" name="log" value="1"{" checked" if wanted.is_log else ""}>'
        f'log scale</label><label>smoothing <select name="smoothing">{options}</select></label>'
        f"<button>Apply</button>{whole}</form></div>"
    )


def _smoothings(chosen: float) -> Iterable[str]:
    return _SMOOTHINGS if any(float(s) == chosen for s in _SMOOTHINGS) else (
        *_SMOOTHINGS, f"{chosen:g}",
    )  # fmt: skip


# Points of the part that is seen, for pages that zoom.


def points_href(runs: Sequence[str]) -> str:
    """Return where the charts of runs get further points."""
    return f"/points?{urlencode([('run', run) for run in runs])}"


def points_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    return books.stamp([books.row(run).dir for run in _runs(ask)])


def _runs(ask: PageQuery) -> list[str]:
    return ask.every("run")[:MOST_COMPARED]


def points_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the points of metrics in the part of an axis that is seen, and their charts."""
    charts = list(_charts(ask, books))
    rows = [row for chart in charts for row in _rows(chart)]
    parts = [html.section(chart.title, html.chart(chart)) for chart in charts]
    if rows:
        cells = [tuple(row.values()) for row in rows[:_MOST_ROWS]]
        more = f"The first {_MOST_ROWS} of {len(rows):,} points are shown; the CSV has all."
        note = html.note(more) if len(rows) > _MOST_ROWS else ""
        parts.append(html.section("Points", html.table(_COLUMNS, cells, caption="Points"), note))
    else:
        said = "No metric was recorded there, or none was asked for, as by"
        parts = [html.section("Points", html.empty(said, "/points?run=ID&metric=NAME"))]
    return Page(
        title="Points of metrics", tab="Runs", parts=parts, columns=_COLUMNS, rows=rows,
        document=[_chart_json(chart) for chart in charts],
    )  # fmt: skip


_COLUMNS: Final = ("metric", "line", "x", "value", "seconds")


def _charts(ask: PageQuery, books: BookReader) -> Iterator[LineChart]:
    readings = [books.runs.reading(books.row(run).dir) for run in _runs(ask)]
    labels = run_labels(readings)
    views = {label: each.view for label, each in zip(labels, readings, strict=True)}
    columns = ask.number("columns", MetricView().columns, most=_MOST_COLUMNS)
    wanted = replace(metric_view(ask), columns=columns)
    yield from metric_charts(views, wanted, names=set(ask.every("metric")))
    if ask.get("steps") == "1":
        times = (step_times(view.timeline, wanted.steps, columns) for view in views.values())
        yield from (chart for chart in times if chart is not None)


def _chart_json(chart: LineChart) -> dict[str, object]:
    return {
        "metric": chart.y_title, "axis": chart.x_title,
        "is_steps": chart.zoom is not None and chart.zoom.is_steps,
        "per": 1 if chart.zoom is None else chart.zoom.per,
        "lines": [
            {
                "label": curve.label, "look": curve.look, "faint": curve.is_faint,
                "points": curve.points, "times": curve.times,
            }
            for curve in chart.curves
        ],
    }  # fmt: skip


def _rows(chart: LineChart) -> Iterator[dict[str, object]]:
    for curve in chart.curves:
        for number, (x, y) in enumerate(curve.points):
            seconds = curve.times[number] if curve.times else x * (chart.seconds or math.nan)
            at = seconds if math.isfinite(seconds) else None
            yield dict(zip(_COLUMNS, (chart.y_title, curve.label, x, y, at), strict=True))
