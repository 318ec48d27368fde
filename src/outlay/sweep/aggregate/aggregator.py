"""A sweep's summary: reads every run once, checks that nothing is missing, writes the reports."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from outlay.budget.display import read_document
from outlay.clock import utc_datetime
from outlay.errors import Finding
from outlay.escaping import write_csv
from outlay.files import write_whole
from outlay.sweep.aggregate.comparison import page
from outlay.sweep.aggregate.reading import missing_files, read_artefacts, read_ledger, totals_in
from outlay.sweep.aggregate.rows import Row, RunFacts, Subject, columns_of, rows_of
from outlay.sweep.errors import IncompleteRuns
from outlay.sweep.run.money import head_of
from outlay.sweep.state.manifest import read_manifest
from outlay.sweep.state.outcomes import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """A sweep's summary in memory.

    Attributes:
        head: The hash of the last line of its spend log; empty without a ceiling.
    """

    name: str
    subjects: tuple[Subject, ...]
    rows: tuple[Row, ...]
    head: str = ""


@dataclass(frozen=True, slots=True)
class Reports:
    """Where the reports were written."""

    csv: Path
    markdown: Path


def aggregate(root: Path, now_ns: int, *, allow_missing: bool = False) -> Aggregate:
    """Return the summary of a sweep.

    Raises:
        NotASweep: There is none.
        IncompleteRuns: Completed runs miss what is required; names all of it.
    """
    manifest = read_manifest(root)
    subjects, missing = [], []
    for run, static in manifest.runs.items():
        directory = root / static["run_dir"]
        subject = _subject(static, manifest.state(run), directory, now_ns)
        subjects.append(subject)
        if subject.completed:
            missing += [Finding(source=run, message=text) for text in subject.problems]
    if missing and not allow_missing:
        raise IncompleteRuns(missing)
    return Aggregate(
        name=manifest.about["name"], subjects=tuple(subjects), rows=rows_of(subjects),
        head=head_of(root),
    )  # fmt: skip


def _subject(static: dict[str, Any], state: RunState, directory: Path, now_ns: int) -> Subject:
    facts = read_ledger(directory, now_ns)
    problems: list[str] = []
    if facts is None or not facts.trained:
        told = read_artefacts(directory)
        problems = [f"{name} is missing" for name in missing_files(directory)]
        if told is None:
            problems.append("there is no run log of its training either (see `outlay.run`)")
        facts = _beside(told, facts)
    return Subject(
        static=static, state=state, facts=facts, totals=_totals(directory),
        problems=tuple(problems) if state.status == "completed" else (),
    )  # fmt: skip


def _beside(told: RunFacts | None, watched: RunFacts | None) -> RunFacts | None:
    """Return what a training's files say, with the time and the money that its supervisor saw."""
    if told is None or watched is None:
        return told or watched
    seen = ("cost_micros", "assumed_micros", "currency", "wall_ns", "started_ns", "attempts",
            "phases", "phase_micros", "assumptions", "findings")  # fmt: skip
    return msgspec.structs.replace(told, **{name: getattr(watched, name) for name in seen})


def _totals(directory: Path) -> dict[str, Any]:
    """Return what the run itself says it used of its budget."""
    document = read_document(directory)
    if document is None:
        return {}
    stated = dict(totals_in(document))
    for name in document.get("unmeasured") or ():
        stated.pop(name, None)  # Its zero says nothing.
    return stated | {"steps_per_epoch": document.get("steps_per_epoch")}


def write_reports(root: Path, summary: Aggregate, now_ns: int, output: Path | None) -> Reports:
    """Write the CSV and the Markdown page; an earlier CSV is never overwritten."""
    directory = output or root / "reports"
    directory.mkdir(parents=True, exist_ok=True)
    table = _free_name(directory, f"summary_{utc_datetime(now_ns):%Y%m%d_%H%M%S}")
    table.write_text(_csv(summary.rows))
    markdown = directory / "summary.md"
    text = page(summary.name, summary.subjects, summary.rows, head=summary.head)
    write_whole(markdown, text.encode())
    return Reports(table, markdown)


def _free_name(directory: Path, stem: str) -> Path:
    path, number = directory / f"{stem}.csv", 1
    while path.exists():
        path, number = directory / f"{stem}_{number}.csv", number + 1
    return path


def _csv(rows: tuple[Row, ...]) -> str:
    stream = io.StringIO()
    write_csv(stream, columns_of(rows), rows)
    return stream.getvalue()
