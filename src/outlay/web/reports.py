"""One run, and one sweep: the pages of ``outlay report``, live; and which sweeps there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from outlay.errors import OutlayError
from outlay.report import html
from outlay.report.document import Document, sections_html
from outlay.report.files import setup_of
from outlay.report.html import Cell
from outlay.report.run_charts import AXES, Axis
from outlay.report.run_document import run_document
from outlay.runs.reading import RunReading
from outlay.sweep.aggregate.rows import columns_of
from outlay.sweep.state.manifest import SweepManifest, captured, counts, planned, read_manifest
from outlay.sweep.state.setup import holder_of
from outlay.units import Money
from outlay.web.books import BookReader, sweep_id
from outlay.web.page import Page, PageQuery, run_href, tabs


def run_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return what changes when the page does."""
    row = books.row(ask.name)
    return (books.stamp([row.dir]), books.reading(row.dir).status)


def run_page(ask: PageQuery, books: BookReader) -> Page:
    """Return everything that is known about a run."""
    row = books.row(ask.name)
    reading = books.reading(row.dir)
    books.people.name(row.user)
    axis: Axis = next(each for each in AXES if each == ask.one_of("axis", AXES, "steps"))
    key = (row.run_id, axis, id(reading))

    def make() -> Document:
        setup = replace(setup_of(Path(row.dir)), hide=books.people.text)
        return run_document(reading, setup, [axis])

    document = books.cache.get(key, make)
    choices = {ask.address(axis=each): f"over {each}" for each in AXES}
    parts = [
        tabs("Axis of the metrics", choices, f"over {axis}") + part if is_metrics(part) else part
        for part in sections_html(document.sections)
    ]
    return Page(
        title=document.title, tab="Runs", verdict=document.verdict, parts=parts,
        crumbs=_crumbs(Path(row.dir), books), lives=True,
        columns=("section", "label", "value", "text", "grade"),
        rows=[
            {
                "section": title, "label": f.label, "value": f.value, "text": f.text,
                "grade": f.grade,
            }
            for title, f in document.figures()
        ],
        document=_document(reading, document, books),
    )  # fmt: skip


def is_metrics(part: str) -> bool:
    """Say whether a part of the page is the one whose axis can be chosen."""
    return part.startswith("<section><h2>Metrics</h2>")


def _crumbs(run_dir: Path, books: BookReader) -> str:
    sweep = sweep_id(run_dir.parent)
    inside = sweep in books.sweeps()
    link = f' · <a href="/sweep/{sweep}">its sweep</a>' if inside else ""
    return f'<p class="crumbs"><a href="/runs">Runs</a>{link}</p>'


def _document(reading: RunReading, document: Document, books: BookReader) -> dict[str, object]:
    return {
        "title": document.title, "verdict": document.verdict,
        "figures": books.shown_figures(reading), "goodput": reading.goodput, "cost": reading.cost,
        "command": [books.people.text(word) for word in reading.command],
        "budget": None if reading.budget is None else reading.budget.document(),
        "advice": reading.advice, "href": run_href(reading.run_id),
        "config": _without_people(reading.config, books),
    }  # fmt: skip


def _without_people(value: Any, books: BookReader) -> Any:
    if isinstance(value, dict):
        return {name: _without_people(each, books) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_people(each, books) for each in value]
    return books.people.text(value) if isinstance(value, str) else value


# Sweeps


def sweeps_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return what changes when the page does."""
    del ask
    return tuple(map(books.sweep_stamp, books.sweeps().values()))


def sweeps_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the sweeps that registered runs belong to."""
    del ask
    found = [(name, root, _read(root)) for name, root in books.sweeps().items()]
    if not found:
        said = "No sweep is known here. The same money for each configuration begins with"
        parts = [html.section("Sweeps", html.empty(said, "outlay sweep run grid.yaml"))]
        return Page(title="Sweeps", tab="Sweeps", parts=parts, document=[])
    rows = [_row(name, root, manifest, books) for name, root, manifest in found]
    headings = ("sweep", "runs", "completed", "running", "planned", "spent", "ceiling", "directory")
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
        return [Cell(text=root.name, href=f"/sweep/{name}"), *[None] * 6, place]
    stands = counts(manifest)
    title = str(manifest.about.get("name") or root.name)
    return [
        Cell(text=title, href=f"/sweep/{name}"), len(manifest.runs), stands.get("completed", 0),
        stands.get("running", 0), _sum(planned(manifest)), _sum(captured(manifest)),
        str(manifest.about.get("ceiling") or "none"), place,
    ]  # fmt: skip


def _sum(amounts: list[Money]) -> object:
    return amounts[0] if len(amounts) == 1 else ", ".join(map(str, amounts))


def _sweep_about(
    name: str, root: Path, manifest: SweepManifest | None, books: BookReader
) -> dict[str, object]:
    known = {} if manifest is None else counts(manifest)
    return {
        "sweep": root.name, "id": name, "directory": books.people.text(str(root)),
        "runs": 0 if manifest is None else len(manifest.runs),
        "counts": ", ".join(f"{count} {status}" for status, count in known.items()),
        "spent": ", ".join(map(str, [] if manifest is None else captured(manifest))),
    }  # fmt: skip


def sweep_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return what changes when the page does."""
    return books.sweep_stamp(books.sweep_root(ask.name))


def sweep_page(ask: PageQuery, books: BookReader) -> Page:
    """Return one sweep: ranking, what each dollar bought, fairness, runs."""
    root = books.sweep_root(ask.name)
    account = books.sweep(root)
    summary = account.summary
    dirs = {subject.run.id: root / subject.run.run_dir for subject in summary.subjects}
    ids = books.ids_in(root)

    def link(run: str) -> str:
        return run_href(ids[str(dirs[run])]) if str(dirs[run]) in ids else ""

    document = account.document(link)
    return Page(
        title=document.title, tab="Sweeps", verdict=document.verdict,
        parts=[_standing(root), *sections_html(document.sections)],
        crumbs='<p class="crumbs"><a href="/sweeps">Sweeps</a></p>',
        columns=columns_of(summary.rows), rows=summary.rows,
        document={"name": summary.name, "verdict": document.verdict, "runs": summary.rows},
    )  # fmt: skip


def _standing(root: Path) -> str:
    """Return how many runs stand how, and whether somebody runs the sweep."""
    manifest = _read(root)
    if manifest is None:
        return ""
    said = ", ".join(f"{count} {status}" for status, count in counts(manifest).items())
    holder = holder_of(root)
    by = f"Process {holder} runs it." if holder else "No process runs it now."
    return html.note(f"{said}. {by}")
