"""Sweeps: which there are, and one as ``outlay report`` shows it, with links to its runs; live."""

from __future__ import annotations

from pathlib import Path

from outlay.errors import OutlayError
from outlay.report import html
from outlay.report.html import Cell
from outlay.report.sweep_page import parts as sweep_parts
from outlay.sweep.aggregate.rows import columns_of
from outlay.sweep.state.manifest import SweepManifest, captured, counts, planned, read_manifest
from outlay.sweep.state.setup import holder_of
from outlay.units import Money
from outlay.web.books import BookReader
from outlay.web.page import Page, PageQuery, run_href


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
    documents = [_about(name, root, manifest, books) for name, root, manifest in found]
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


def _about(
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
    dirs = {subject.static["id"]: root / subject.static["run_dir"] for subject in summary.subjects}
    ids = books.ids_in(root)

    def link(run: str) -> str:
        return run_href(ids[str(dirs[run])]) if str(dirs[run]) in ids else ""

    parts = [
        _standing(root),
        *sweep_parts(summary.subjects, summary.rows, account.events, head=summary.head, link=link),
    ]
    return Page(
        title=summary.name, tab="Sweeps", verdict=account.verdict, parts=parts,
        crumbs='<p class="crumbs"><a href="/sweeps">Sweeps</a></p>',
        columns=columns_of(summary.rows), rows=summary.rows,
        document={"name": summary.name, "verdict": account.verdict, "runs": summary.rows},
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
