"""Runs: filter, sort, choose columns; and some of them beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from outlay.clock import parse_moment, utc_text
from outlay.errors import InvalidValue, OutlayError
from outlay.escaping import html_text
from outlay.report import html
from outlay.report.compared_runs import compare_document, metric_cell, percent_cell
from outlay.report.document import sections_html
from outlay.report.html import Cell, amount
from outlay.report.run_charts import AXES, Axis
from outlay.runs.collect import row_of
from outlay.store.runs import SORTED_BY, RunFilter, RunRow, values_of
from outlay.units.shown import ago_text
from outlay.web.books import BookReader
from outlay.web.page import Page, PageQuery, chip, run_href, select, tabs

PAGE: Final = 100
_MOST_COMPARED: Final = 12
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
        "attempts": row.attempts, "steps": row.steps, "goodput": percent_cell(row.goodput),
        "metric_value": metric_cell(row.metric, row.metric_value),
        "cost_micros": amount(row.cost, kind=row.kind), "kind": row.kind,
        "started_ns": utc_text(row.started_ns),
        "last_seen_ns": ago_text(books.now_ns - row.last_seen_ns),
        "tags": ", ".join(f"{name}={value}" for name, value in row.tags.items()),
        "dir": books.people.text(row.dir),
    }  # fmt: skip
    name = row.name or row.run_id
    return [
        Cell(text=name, check=row.run_id),
        Cell(text=name, href=run_href(row.run_id), title=books.people.text(row.dir)),
        chip(row.status), *(every[column] for column in columns),
    ]  # fmt: skip


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
    return books.cache.get(key, lambda: values_of(books.store, column, limit=_CHOICES))


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
    for reading in readings:
        books.people.name(reading.figures.user)  # Known from here on, and hidden in every text.
    document = compare_document(readings, axis, link=run_href, hide=books.people.text)
    parts = [
        tabs("Axis", {ask.address(axis=each): f"over {each}" for each in AXES}, f"over {axis}"),
        *sections_html(document.sections),
    ]
    return Page(
        title=document.title, tab="Runs", parts=parts, crumbs=crumbs, columns=_CSV,
        rows=[_csv_row(row_of(r.figures, None, books.now_ns), books) for r in readings],
        document=list(map(books.shown_figures, readings)),
    )  # fmt: skip
