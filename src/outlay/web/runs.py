"""Runs: filter, sort, choose columns; and some of them beside each other."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from outlay.clock import parse_moment, utc_text
from outlay.errors import InvalidValue, OutlayError
from outlay.escaping import html_text
from outlay.goodput.summary import PhaseRow
from outlay.report import html
from outlay.report.files import setup_of
from outlay.report.html import Cell, amount, money_text
from outlay.report.run_charts import AXES, Axis, metric_charts
from outlay.runs.collect import row_of
from outlay.runs.reading import RunReading
from outlay.store.runs import SORTED_BY, RunFilter, RunRow, values_of
from outlay.units.quantity import duration_text
from outlay.web.books import BookReader
from outlay.web.now import ago, metric_cell
from outlay.web.page import Page, PageQuery, chip, run_href, select, tabs

PAGE: Final = 100
_MOST_COMPARED: Final = 12
_MOST_METRICS: Final = 12
_CHOICES: Final = 200
COLUMNS: Final = {
    "model": "model", "user": "user", "host": "host", "gpu": "GPU", "attempts": "attempts",
    "steps": "steps", "goodput": "goodput", "metric_value": "metric", "cost_micros": "cost",
    "kind": "kind", "started_ns": "started", "last_seen_ns": "last seen", "tags": "tags",
    "dir": "directory",
}  # fmt: skip
_USUAL: Final = ("model", "user", "steps", "goodput", "metric_value", "cost_micros", "last_seen_ns")
_STATUSES: Final = ("running", "completed", "failed", "preempted", "cancelled", "dead")


def wanted_by(ask: PageQuery, books: BookReader) -> RunFilter:
    """Return which runs a query asks for; a date that cannot be read asks for nothing else."""
    tag, equals, value = ask.get("tag").partition("=")
    return RunFilter(
        text=ask.get("q")[:200], status=ask.get("status") or None, model=ask.get("model") or None,
        user=books.people.user_of(ask.get("user")) or None, tag=tag or None,
        tag_value=value if equals else None, since_ns=_moment(ask, "since", books),
        until_ns=_moment(ask, "until", books),
    )  # fmt: skip


def _moment(ask: PageQuery, name: str, books: BookReader) -> int | None:
    try:
        return (
            parse_moment(ask.get(name), name=name, now_ns=books.now_ns) if ask.get(name) else None
        )
    except InvalidValue:
        return None


def runs_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return what changes when the page does."""
    books.refresh()
    wanted = wanted_by(ask, books)
    rows = books.rows(wanted, sort=_sort(ask), limit=PAGE, offset=_offset(ask))
    return (books.stamp([row.dir for row in rows if row.status == "running"]), len(rows))


def runs_page(ask: PageQuery, books: BookReader) -> Page:
    """Return a page of registered runs."""
    wanted = wanted_by(ask, books)
    rows = books.rows(wanted, sort=_sort(ask), limit=PAGE, offset=_offset(ask))
    rows = [_current(row, books) for row in rows]
    count = len(rows) if _offset(ask) == 0 and len(rows) < PAGE else books.count(wanted)
    columns = [name for name in COLUMNS if name in (ask.every("col") or _USUAL)]
    table = [_cells(row, columns, books) for row in rows]
    parts = [_filters(ask, columns, books), _listed(ask, columns, table, count)]
    return Page(
        title="Runs", tab="Runs", parts=parts, columns=_CSV, verdict=_verdict(count, wanted),
        rows=[_csv_row(row, books) for row in rows],
        document={"runs": [_csv_row(row, books) for row in rows], "count": count},
    )  # fmt: skip


def _verdict(count: int, wanted: RunFilter) -> str:
    if wanted == RunFilter():
        return f"{count:,} registered." if count else ""
    return f"{count:,} of the registered runs."


def _sort(ask: PageQuery) -> str:
    found = ask.get("sort")
    return found if found.removeprefix("-") in SORTED_BY else "-started_ns"


def _offset(ask: PageQuery) -> int:
    return (ask.number("page", 1, most=10**6) - 1) * PAGE


def _current(row: RunRow, books: BookReader) -> RunRow:
    """Return a row as the run stands, where it runs; an ended one is as it was registered."""
    if row.status != "running":
        return row
    try:
        figures = books.reading(row.dir).figures
    except (OutlayError, OSError):
        return row
    return row_of(figures, None, books.now_ns)


def _cells(row: RunRow, columns: Sequence[str], books: BookReader) -> list[object]:
    every: Mapping[str, object] = {
        "model": row.model, "user": books.people.name(row.user), "host": row.host, "gpu": row.gpu,
        "attempts": row.attempts, "steps": row.steps, "goodput": _percent(row.goodput),
        "metric_value": metric_cell(row.metric, row.metric_value),
        "cost_micros": amount(row.cost, kind=row.kind), "kind": row.kind,
        "started_ns": utc_text(row.started_ns),
        "last_seen_ns": ago(books.now_ns - row.last_seen_ns),
        "tags": ", ".join(f"{name}={value}" for name, value in row.tags.items()),
        "dir": books.people.text(row.dir),
    }  # fmt: skip
    name = row.name or row.run_id
    return [
        Cell(text=name, check=row.run_id),
        Cell(text=name, href=run_href(row.run_id), title=books.people.text(row.dir)),
        chip(row.status), *(every[column] for column in columns),
    ]  # fmt: skip


def _percent(share: float | None) -> Cell:
    return Cell(text="" if share is None else f"{share:.1%}", value=share, is_number=True)


def _filters(ask: PageQuery, columns: Sequence[str], books: BookReader) -> str:
    """Return the form; every choice is a parameter of the address."""
    models, users = (_values(name, books) for name in ("model", "user"))
    users = [books.people.name(user) for user in users]
    boxes = "".join(
        f'<label><input type="checkbox" name="col" value="{name}"'
        f"{' checked' if name in columns else ''}>{html_text(title)}</label>"
        for name, title in COLUMNS.items()
    )
    sort = html_text(ask.get("sort"))
    return (
        '<form class="filters" action="/runs" data-apply role="search">'
        '<label class="wider">Search<input type="search" name="q" '
        f'value="{html_text(ask.get("q"))}" placeholder="name, id, host, tag, directory"></label>'
        f"{select('status', 'Status', _STATUSES, ask.get('status'))}"
        f"{select('model', 'Model', models, ask.get('model'))}"
        f"{select('user', 'User', users, ask.get('user'))}"
        f"{_text_input(ask, 'tag', 'Tag', 'team=nlp')}{_text_input(ask, 'since', 'Since', '7d')}"
        f"{_text_input(ask, 'until', 'Until', '2026-11-01')}"
        f'<input type="hidden" name="sort" value="{sort}"><button>Filter</button>'
        '<details><summary>Columns</summary><fieldset class="checks">'
        f'<legend class="hidden">Columns</legend>{boxes}</fieldset></details></form>'
    )


def _values(column: str, books: BookReader) -> list[str]:
    """Return what a column holds, as of when runs were last registered."""
    key = (column, books.stamp([]))
    known: list[str] | None = books.kept.get(key)
    if known is None:
        known = books.kept.put(key, values_of(books.store, column, limit=_CHOICES))
    return known


def _text_input(ask: PageQuery, name: str, label: str, example: str) -> str:
    return (
        f'<label>{label}<input type="text" name="{name}" value="{html_text(ask.get(name))}" '
        f'placeholder="{example}" size="10"></label>'
    )


def _listed(
    ask: PageQuery, columns: Sequence[str], rows: Sequence[Sequence[object]], count: int
) -> str:
    if not rows:
        said = "No run is like that." if ask.query else "No runs are registered. Register some with"
        return html.section("Runs", html.empty(said, "" if ask.query else "outlay import runs DIR"))
    shown = {"name": "run", "status": "status"} | {name: COLUMNS[name] for name in columns}
    headings = ["choose", *(_heading(ask, name, title) for name, title in shown.items())]
    table = html.table(headings, rows, caption="Runs")
    chosen = (
        '<form id="chosen" action="/compare"><p class="pages"><button>Compare the chosen</button>'
        f"{_pager(ask, count)}</p></form>"
    )
    return f"<section>{table}{chosen}</section>"


def _heading(ask: PageQuery, name: str, title: str) -> str | Cell:
    """Return a heading that sorts by its column, the other way round the second time."""
    if name not in SORTED_BY:
        return title
    sort = _sort(ask)
    turned = name if sort == f"-{name}" else f"-{name}"
    order = {name: "ascending", f"-{name}": "descending"}.get(sort, "")
    return Cell(text=title, href=ask.address(sort=turned, page=""), chip=order)


def _pager(ask: PageQuery, count: int) -> str:
    page, pages = _offset(ask) // PAGE + 1, -(-count // PAGE)
    links = [(page - 1, "Earlier page", page > 1), (page + 1, "Next page", page < pages)]
    drawn = "".join(
        f'<a href="{html_text(ask.address(page=str(number)))}">{text}</a>'
        for number, text, there in links
        if there
    )
    return f"<span>Page {page:,} of {max(pages, 1):,}</span>{drawn}"


_CSV: Final = (
    "run_id", "name", "status", "model", "user", "host", "gpu", "gpus", "attempts", "steps",
    "tokens", "goodput", "metric", "metric_value", "cost", "currency", "kind", "started",
    "last_seen", "dir", "tags",
)  # fmt: skip


def _csv_row(row: RunRow, books: BookReader) -> dict[str, object]:
    known = RunRow.__struct_fields__
    found: dict[str, object] = {str(n): getattr(row, n) for n in _CSV if n in known}
    return found | {
        "user": books.people.name(row.user),
        "dir": books.people.text(row.dir),
        "cost": None if row.cost is None else row.cost.amount,
        "started": utc_text(row.started_ns),
        "last_seen": utc_text(row.last_seen_ns),
        "tags": ", ".join(f"{name}={value}" for name, value in row.tags.items()),
    }


# Some runs beside each other


def compare_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return what changes when the page does."""
    rows = [books.row(run) for run in ask.every("run")[:_MOST_COMPARED]]
    return books.stamp([row.dir for row in rows])


def compare_page(ask: PageQuery, books: BookReader) -> Page:
    """Return chosen runs: curves on one axis, phases side by side, how they were set up."""
    chosen = ask.every("run")[:_MOST_COMPARED]
    readings = [books.reading(books.row(run).dir) for run in chosen]
    axis: Axis = next(each for each in AXES if each == ask.one_of("axis", AXES, "steps"))
    crumbs = '<p class="crumbs"><a href="/runs">Runs</a></p>'
    if not readings:
        parts = [html.section("Compare", html.empty("Choose runs in the list, then compare them."))]
        return Page(title="Compare", tab="Runs", parts=parts, crumbs=crumbs, document=[])
    parts = [
        tabs("Axis", {ask.address(axis=each): f"over {each}" for each in AXES}, f"over {axis}"),
        _overview(readings),
        _curves(readings, axis),
        _phases(readings),
        *_differences(readings, books),
    ]
    return Page(
        title=f"{len(readings)} runs", tab="Runs", parts=parts, crumbs=crumbs, columns=_CSV,
        rows=[_csv_row(row_of(r.figures, None, books.now_ns), books) for r in readings],
        document=list(map(books.shown_figures, readings)),
    )  # fmt: skip


def _labels(readings: Sequence[RunReading]) -> list[str]:
    """Return what runs are called on one page, each its own."""
    names = [reading.view.name or reading.run_id for reading in readings]
    return [
        name if names.count(name) == 1 else f"{name} ({reading.run_id[:8]})"
        for name, reading in zip(names, readings, strict=True)
    ]


def _overview(readings: Sequence[RunReading]) -> str:
    rows = [
        [
            Cell(text=label, href=run_href(reading.run_id)), chip(reading.status),
            reading.figures.steps, _percent(reading.figures.goodput),
            metric_cell(reading.figures.metric, reading.figures.metric_value),
            Cell(text=duration_text(reading.figures.wall_ns), is_number=True),
            amount(reading.figures.cost, kind=reading.figures.kind),
        ]
        for label, reading in zip(_labels(readings), readings, strict=True)
    ]  # fmt: skip
    headings = ("run", "status", "steps", "goodput", "metric", "wall time", "cost")
    return html.section("Side by side", html.table(headings, rows, caption="Compared runs"))


def _curves(readings: Sequence[RunReading], axis: Axis) -> str:
    """Return the metrics of the runs, each on one axis."""
    views = {label: r.view for label, r in zip(_labels(readings), readings, strict=True)}
    drawn = list(metric_charts(views, axis, _MOST_METRICS))
    if not drawn:
        said = "No metric of these runs can be drawn along this axis."
        return html.section("Metrics", html.empty(said))
    charts = "".join(html.section(each.title, html.chart(each)) for each in drawn)
    return f'<div class="two">{charts}</div>'


def _phases(readings: Sequence[RunReading]) -> str:
    """Return each phase's share of every run's time."""
    shares = [{row.phase: row for row in reading.goodput.phases} for reading in readings]
    order = dict.fromkeys(phase for found in shares for phase in found)
    rows = [[phase, *(_phase_cell(found.get(phase)) for found in shares)] for phase in order]
    headings = ("phase", *_labels(readings))
    return html.section("Where time and money went", html.table(headings, rows, caption="Phases"))


def _phase_cell(row: PhaseRow | None) -> Cell:
    if row is None:
        return Cell(text="-")
    cost = "" if row.cost is None else f" · {money_text(row.cost)}"
    return Cell(text=f"{row.share:.1%}{cost}", share=row.share, title=str(row.cost or ""))


def _differences(readings: Sequence[RunReading], books: BookReader) -> list[str]:
    """Return the settings in which the runs differ."""
    every = [_settings(reading, books) for reading in readings]
    names = dict.fromkeys(name for found in every for name in found)
    rows = [
        [name, *(found.get(name, "") for found in every)]
        for name in names
        if len({found.get(name) for found in every}) > 1
    ]
    if not rows:
        return [
            html.section("Differences", html.empty("They were set up alike, as far as is known."))
        ]
    headings = ("setting", *_labels(readings))
    return [html.section("Differences", html.table(headings, rows, caption="Differences"))]


def _settings(reading: RunReading, books: BookReader) -> dict[str, str]:
    header = reading.view.timeline.attempts[-1].header
    setup = setup_of(Path(reading.view.dir or "."))
    stated = {
        "model": reading.view.identity.model, "commit": header.git_commit, "host": header.host,
        "user": books.people.name(header.user), "GPU": header.gpu, "GPUs": str(header.gpus),
        "command": books.people.text(shlex.join(setup.command or reading.command)),
    }  # fmt: skip
    found = {**setup.configuration, **header.config, **stated, **header.tags, **header.versions}
    return {name: str(value) for name, value in found.items() if value not in (None, "")}
