"""Pages of runs and sweeps: the lists, one run, the comparison of runs, one sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from outlay.errors import OutlayError
from outlay.report import html
from outlay.report.compared_runs import compare_document
from outlay.report.document import contents_html, sections_html
from outlay.report.files import setup_of
from outlay.report.html import Cell
from outlay.report.run_document import run_document, run_json, stored_document
from outlay.runs.figures import BY_NAME, FIGURES
from outlay.store.run_row import RunRow
from outlay.sweep.aggregate.rows import columns_of
from outlay.sweep.run.sweep_guard import ceiling_text
from outlay.sweep.state.manifest import SweepManifest, captured, counts, planned, read_manifest
from outlay.sweep.state.setup import holder_of
from outlay.units import Money
from outlay.web.book_reader import BookReader, sweep_id
from outlay.web.metric_points import MOST_COMPARED, metric_view, points_href, with_controls
from outlay.web.page import Page, PageQuery, run_href
from outlay.web.run_list import (
    list_parts,
    list_verdict,
    total_of,
    wanted_groups,
    wanted_rows,
    without_people,
)


def runs_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    books.refresh()
    rows = wanted_rows(ask, books)
    return (books.stamp([row.dir for row in rows if row.status == "running"]), len(rows))


def runs_page(ask: PageQuery, books: BookReader) -> Page:
    """Return a page of registered runs."""
    rows = [_current(row, books) for row in wanted_rows(ask, books)]
    groups = wanted_groups(ask, books)
    count, costs = sum(each.count for each in groups), total_of(groups)
    listed = [_csv_row(row, books) for row in rows]
    return Page(
        title="Runs", tab="Runs", parts=list_parts(ask, rows, groups, books), columns=_CSV,
        verdict=list_verdict(ask, count, costs), rows=listed,
        document={"runs": listed, "count": count, "costs": costs, "groups": groups},
    )  # fmt: skip


def _current(row: RunRow, books: BookReader) -> RunRow:
    """Return a row from a fresh reading if the run is running."""
    if row.status != "running" or row.log_host:
        return row
    try:
        return books.runs.reading(row.dir).figures
    except (OutlayError, OSError):
        return row


_CSV: Final = tuple(BY_NAME)


def _csv_row(row: RunRow, books: BookReader) -> dict[str, object]:
    shown = without_people(row, books)
    return {figure.name: figure.cell(shown) for figure in FIGURES}


# Comparison


def compare_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    rows = [books.row(run) for run in ask.every("run")[:MOST_COMPARED]]
    return books.stamp([row.dir for row in rows])


def compare_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the comparison of the selected runs."""
    every = ask.every("run")
    chosen = every[:MOST_COMPARED]
    said = f"The first {len(chosen)} of the {len(every)} selected runs are compared."
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
        verdict=said if len(every) > len(chosen) else "",
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
        parts=[contents_html(document.sections), *with_controls(document, ask)],
        points=points_href([reading.run_id]),
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
    row = without_people(row, books)
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
        parts=[html.section("Sweeps", html.table(headings, rows, caption="Sweeps", is_list=True))],
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
