"""Pages of runs and sweeps: the lists, one run, the comparison of runs, one sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

import msgspec

from outlay.clock import parse_moment
from outlay.errors import InvalidValue, OutlayError
from outlay.escaping import html_text
from outlay.ledger import EndStatus
from outlay.report import html
from outlay.report.compared_runs import compare_document, figure_cell
from outlay.report.document import sections_html
from outlay.report.files import setup_of
from outlay.report.html import Cell
from outlay.report.run_document import run_document, run_json, stored_document
from outlay.runs.figures import BY_NAME, FIGURES
from outlay.store.run_row import RunRow
from outlay.store.runs import SORTED_BY, RunFilter, count_runs, values_of
from outlay.sweep.aggregate.rows import columns_of
from outlay.sweep.run.sweep_guard import ceiling_text
from outlay.sweep.state.manifest import SweepManifest, captured, counts, planned, read_manifest
from outlay.sweep.state.setup import holder_of
from outlay.units import Money
from outlay.units.shown import counted
from outlay.web.book_reader import BookReader, sweep_id
from outlay.web.metric_points import MOST_COMPARED, metric_view, points_href, with_controls
from outlay.web.page import Page, PageQuery, chip, run_href, select

PAGE: Final = 100
_CHOICES: Final = 200
_ALWAYS: Final = ("run_id", "name", "status")
COLUMNS: Final = {each.name: each for each in FIGURES if each.name not in _ALWAYS}
_USUAL: Final = ("model", "user", "steps", "goodput", "metric_value", "cost", "last_seen")
_SORT: Final = {"cost": "cost_micros", "started": "started_ns", "last_seen": "last_seen_ns"}
"""The columns of the store by which figures of other names are sorted."""
_STATUSES: Final = ("running", *get_args(EndStatus), "dead")


def wanted_by(ask: PageQuery, books: BookReader) -> RunFilter:
    """Return the filter of a query; an invalid date is ignored."""
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
    """Return the page's stamp."""
    books.refresh()
    wanted = wanted_by(ask, books)
    rows = books.rows(wanted, sort=_sort(ask), limit=PAGE, offset=_offset(ask))
    return (books.stamp([row.dir for row in rows if row.status == "running"]), len(rows))


def runs_page(ask: PageQuery, books: BookReader) -> Page:
    """Return a page of registered runs."""
    wanted = wanted_by(ask, books)
    rows = books.rows(wanted, sort=_sort(ask), limit=PAGE, offset=_offset(ask))
    rows = [_current(row, books) for row in rows]
    count = len(rows) if _offset(ask) == 0 and len(rows) < PAGE else count_runs(books.store, wanted)
    columns = _columns(ask)
    if not ask.every("col") and any(row.log_host for row in rows):
        columns.append("log_host")
    table = [_cells(row, columns, books) for row in rows]
    parts = [_filters(ask, columns, books), _listed(ask, columns, table, count)]
    return Page(
        title="Runs", tab="Runs", parts=parts, columns=_CSV, verdict=_verdict(count, wanted),
        rows=[_csv_row(row, books) for row in rows],
        document={"runs": [_csv_row(row, books) for row in rows], "count": count},
    )  # fmt: skip


def _verdict(count: int, wanted: RunFilter) -> str:
    if wanted == RunFilter():
        return f"{counted(count, 'registered run')}." if count else ""
    return f"{counted(count, 'registered run')} with this filter."


def _sort(ask: PageQuery) -> str:
    found = ask.get("sort")
    return found if found.removeprefix("-") in SORTED_BY else "-started_ns"


def _columns(ask: PageQuery) -> list[str]:
    """Return the chosen figures; older addresses have the names of the store's columns."""
    chosen = ask.every("col") or _USUAL
    return [name for name in COLUMNS if name in chosen or _SORT.get(name) in chosen]


def _offset(ask: PageQuery) -> int:
    return (ask.number("page", 1, most=10**6) - 1) * PAGE


def _current(row: RunRow, books: BookReader) -> RunRow:
    """Return a row from a fresh reading if the run is running."""
    if row.status != "running" or row.log_host:
        return row
    try:
        return books.runs.reading(row.dir).figures
    except (OutlayError, OSError):
        return row


def _cells(row: RunRow, columns: Sequence[str], books: BookReader) -> list[object]:
    name, shown = row.name or row.run_id, _without_people(row, books)
    return [
        Cell(text=name, check=row.run_id),
        Cell(text=name, href=run_href(row.run_id), title=shown.dir),
        chip(row.status),
        *(figure_cell(COLUMNS[column], shown, books.now_ns) for column in columns),
    ]


def _without_people(row: RunRow, books: BookReader) -> RunRow:
    """Return a row with the names of people hidden, if they are to be."""
    people = books.people
    return msgspec.structs.replace(row, user=people.name(row.user), dir=people.text(row.dir))


def _filters(ask: PageQuery, columns: Sequence[str], books: BookReader) -> str:
    models, users = (_values(name, books) for name in ("model", "user"))
    users = [books.people.name(user) for user in users]
    boxes = "".join(
        f'<label><input type="checkbox" name="col" value="{name}"'
        f"{' checked' if name in columns else ''}>{html_text(each.label)}</label>"
        for name, each in COLUMNS.items()
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
    """Return the distinct values of a column, as of the last refresh."""
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
        if ask.query:
            return html.section("Runs", html.empty("No run matches the filter."))
        said = "No runs are registered. Register some with"
        return html.section("Runs", html.empty(said, "outlay import runs DIR"))
    shown = {"name": "run", "status": "status"} | {name: COLUMNS[name].label for name in columns}
    headings = ["select", *(_heading(ask, name, title) for name, title in shown.items())]
    table = html.table(headings, rows, caption="Runs")
    chosen = (
        '<form id="chosen" action="/compare"><p class="pages">'
        f"<button>Compare selected runs</button>{_pager(ask, count)}</p></form>"
    )
    return f"<section>{table}{chosen}</section>"


def _heading(ask: PageQuery, name: str, title: str) -> str | Cell:
    """Return a heading that sorts by its column; a second click reverses the order."""
    name, sort = _SORT.get(name, name), _sort(ask)
    if name not in SORTED_BY:
        return title
    turned = name if sort == f"-{name}" else f"-{name}"
    order = {name: "ascending", f"-{name}": "descending"}.get(sort, "")
    return Cell(text=title, href=ask.address(sort=turned, page=""), chip=order)


def _pager(ask: PageQuery, count: int) -> str:
    page, pages = _offset(ask) // PAGE + 1, -(-count // PAGE)
    links = [(page - 1, "Previous page", page > 1), (page + 1, "Next page", page < pages)]
    drawn = "".join(
        f'<a href="{html_text(ask.address(page=str(number)))}">{text}</a>'
        for number, text, there in links
        if there
    )
    return f"<span>Page {page:,} of {max(pages, 1):,}</span>{drawn}"


_CSV: Final = tuple(BY_NAME)


def _csv_row(row: RunRow, books: BookReader) -> dict[str, object]:
    shown = _without_people(row, books)
    return {figure.name: figure.cell(shown) for figure in FIGURES}


# Comparison


def compare_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    rows = [books.row(run) for run in ask.every("run")[:MOST_COMPARED]]
    return books.stamp([row.dir for row in rows])


def compare_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the comparison of the selected runs."""
    chosen = ask.every("run")[:MOST_COMPARED]
    readings = [books.runs.reading(books.row(run).dir) for run in chosen]
    crumbs = '<p class="crumbs"><a href="/runs">Runs</a></p>'
    if not readings:
        parts = [html.section("Compare", html.empty("Select runs in the list, then compare them."))]
        return Page(title="Compare", tab="Runs", parts=parts, crumbs=crumbs, document=[])
    for reading in readings:
        books.people.name(reading.figures.user)  # Hidden in every text from here on.
    document = compare_document(readings, metric_view(ask), link=run_href, hide=books.people.text)
    return Page(
        title=document.title, tab="Runs", crumbs=crumbs, columns=_CSV,
        parts=with_controls(document, ask), points=points_href(chosen),
        rows=[_csv_row(reading.figures, books) for reading in readings],
        document=[reading.figures for reading in readings],
    )  # fmt: skip


# One run


def run_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    row = books.row(ask.name)
    if row.log_host:
        return (row.as_of_ns, row.status)
    return (books.stamp([row.dir]), books.runs.reading(row.dir).status)


def run_page(ask: PageQuery, books: BookReader) -> Page:
    """Return a run's report."""
    row = books.row(ask.name)
    if row.log_host:
        return _stored_page(row, books)
    reading = books.runs.reading(row.dir)
    books.people.name(row.user)
    made, wanted = books.documents.setdefault(reading, {}), metric_view(ask)
    if wanted not in made:
        if len(made) >= _MOST_VIEWS:
            made.clear()
        setup = replace(setup_of(Path(row.dir)), hide=books.people.text)
        made[wanted] = run_document(reading, setup, [wanted])
    document = made[wanted]
    return Page(
        title=document.title, tab="Runs", verdict=document.verdict,
        parts=with_controls(document, ask), points=points_href([reading.run_id]),
        crumbs=_crumbs(Path(row.dir), books),
        columns=_REPORT_COLUMNS, rows=document.rows(),
        document=run_json(reading, document) | {
            "figures": reading.figures, "command": reading.command,
            "href": run_href(reading.run_id),
        },
    )  # fmt: skip


_MOST_VIEWS: Final = 4
_REPORT_COLUMNS: Final = ("section", "label", "value", "text", "grade")


def _stored_page(row: RunRow, books: BookReader) -> Page:
    """Return what the store has of a run whose log is on another host."""
    row = _without_people(row, books)
    document = stored_document(row, books.now_ns)
    return Page(
        title=document.title, tab="Runs", verdict=document.verdict,
        parts=[*sections_html(document.sections)], crumbs=_crumbs(Path(row.dir), books),
        columns=_REPORT_COLUMNS, rows=document.rows(),
        document={
            "title": document.title, "verdict": document.verdict, "figures": row,
            "href": run_href(row.run_id),
        },
    )  # fmt: skip


def _crumbs(run_dir: Path, books: BookReader) -> str:
    sweep = sweep_id(run_dir.parent)
    inside = sweep in books.sweeps()
    link = f' · <a href="/sweep/{sweep}">its sweep</a>' if inside else ""
    return f'<p class="crumbs"><a href="/runs">Runs</a>{link}</p>'


# Sweeps


def sweeps_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    del ask
    return tuple(map(books.sweep_stamp, books.sweeps().values()))


def sweeps_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the sweeps that registered runs belong to."""
    del ask
    found = [(name, root, _read(root)) for name, root in books.sweeps().items()]
    if not found:
        said = "No sweep is registered. Start one with"
        parts = [html.section("Sweeps", html.empty(said, "outlay sweep run grid.yaml"))]
        return Page(title="Sweeps", tab="Sweeps", parts=parts, document=[])
    rows = [_row(name, root, manifest, books) for name, root, manifest in found]
    headings = (
        "sweep", "runs", "completed", "running", "paused", "pruned", "planned", "spent", "ceiling",
        "directory",
    )  # fmt: skip
    documents = [_sweep_about(name, root, manifest, books) for name, root, manifest in found]
    return Page(
        title="Sweeps", tab="Sweeps", columns=list(documents[0]), rows=documents,
        parts=[html.section("Sweeps", html.table(headings, rows, caption="Sweeps"))],
        document=documents,
    )  # fmt: skip


def _read(root: Path) -> SweepManifest | None:
    try:
        return read_manifest(root)
    except (OutlayError, OSError):
        return None


def _row(name: str, root: Path, manifest: SweepManifest | None, books: BookReader) -> list[object]:
    place = books.people.text(str(root))
    if manifest is None:
        return [Cell(text=root.name, href=f"/sweep/{name}"), *[None] * 8, place]
    by_status = counts(manifest)
    title = str(manifest.about.get("name") or root.name)
    return [
        Cell(text=title, href=f"/sweep/{name}"), len(manifest.runs),
        *(by_status.get(status, 0) for status in ("completed", "running", "paused", "pruned")),
        _sum(planned(manifest)), _sum(captured(manifest)), ceiling_text(manifest), place,
    ]  # fmt: skip


def _sum(amounts: Sequence[Money]) -> object:
    """Return the sums of a sweep, one per unit."""
    return amounts[0] if len(amounts) == 1 else ", ".join(map(str, amounts))


def _sweep_about(
    name: str, root: Path, manifest: SweepManifest | None, books: BookReader
) -> dict[str, object]:
    known = {} if manifest is None else counts(manifest)
    return {
        "sweep": root.name, "id": name, "directory": books.people.text(str(root)),
        "runs": 0 if manifest is None else len(manifest.runs),
        "counts": ", ".join(f"{count} {status}" for status, count in known.items()),
        "spent": "" if manifest is None else str(_sum(captured(manifest))),
    }  # fmt: skip


def sweep_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    return books.sweep_stamp(books.sweep_root(ask.name))


def sweep_page(ask: PageQuery, books: BookReader) -> Page:
    """Return a sweep's report."""
    root = books.sweep_root(ask.name)
    account = books.sweep(root)
    summary = account.summary
    dirs = {row.run.id: root / row.run.run_dir for row in summary.rows}
    ids = books.ids_in(root)

    def link(run: str) -> str:
        return run_href(ids[str(dirs[run])]) if str(dirs[run]) in ids else ""

    document = account.document(link, books.people.text(str(root)))
    return Page(
        title=document.title, tab="Sweeps", verdict=document.verdict,
        parts=[_progress(root), *sections_html(document.sections)],
        crumbs='<p class="crumbs"><a href="/sweeps">Sweeps</a></p>', points="",
        columns=columns_of(summary.rows), rows=summary.cells,
        document={
            "name": summary.name, "verdict": document.verdict, "runs": summary.cells,
            "search": summary.search, "losing": summary.losing,
        },
    )  # fmt: skip


def _progress(root: Path) -> str:
    """Return the number of runs by status, and which process runs the sweep."""
    manifest = _read(root)
    if manifest is None:
        return ""
    said = ", ".join(f"{count} {status}" for status, count in counts(manifest).items())
    holder = holder_of(root)
    by = f"Process {holder} runs it." if holder else "It is not running."
    return html.note(f"{said}. {by}")
