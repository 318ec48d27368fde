"""One run: the page of ``outlay report``, live while it trains, along the axis that was chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from outlay.report.document import Document, sections_html
from outlay.report.files import setup_of
from outlay.report.run_charts import AXES, Axis
from outlay.report.run_document import RunSetup, run_document
from outlay.runs.reading import RunReading
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
    document: Document | None = books.kept.get(key)
    if document is None:
        document = run_document(reading, _setup(Path(row.dir), books), [axis])
        books.kept.put(key, document)
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
        document=_document(reading, document),
    )  # fmt: skip


def is_metrics(part: str) -> bool:
    """Say whether a part of the page is the one whose axis can be chosen."""
    return part.startswith("<section><h2>Metrics</h2>")


def _setup(run_dir: Path, books: BookReader) -> RunSetup:
    setup = setup_of(run_dir)
    command = [books.people.text(word) for word in setup.command]
    return replace(setup, command=command, hide=books.people.text)


def _crumbs(run_dir: Path, books: BookReader) -> str:
    sweep = sweep_id(run_dir.parent)
    inside = sweep in books.sweeps()
    link = f' · <a href="/sweep/{sweep}">its sweep</a>' if inside else ""
    return f'<p class="crumbs"><a href="/runs">Runs</a>{link}</p>'


def _document(reading: RunReading, document: Document) -> dict[str, object]:
    return {
        "title": document.title, "verdict": document.verdict, "figures": reading.figures,
        "goodput": reading.goodput, "cost": reading.cost,
        "budget": None if reading.budget is None else reading.budget.document(),
        "advice": reading.advice, "href": run_href(reading.run_id),
    }  # fmt: skip
