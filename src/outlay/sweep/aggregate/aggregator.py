"""A sweep's summary: reads every run once, checks that nothing is missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from outlay.budget.display import read_document
from outlay.errors import Finding
from outlay.sweep.aggregate.reading import missing_files, read_artefacts, read_ledger, totals_in
from outlay.sweep.aggregate.rows import Row, RunFacts, Subject, rows_of
from outlay.sweep.errors import IncompleteRuns
from outlay.sweep.run.money import head_of
from outlay.sweep.state.manifest import ManifestRun, read_manifest
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


def aggregate(root: Path, now_ns: int, *, allow_missing: bool = False) -> Aggregate:
    """Return the summary of a sweep.

    Raises:
        NotASweep: There is none.
        IncompleteRuns: Completed runs miss what is required; names all of it.
    """
    manifest = read_manifest(root)
    subjects, missing = [], []
    for name, run in manifest.runs.items():
        subject = _subject(run, manifest.state(name), root / run.run_dir, now_ns)
        subjects.append(subject)
        if subject.completed:
            missing += [Finding(source=name, message=text) for text in subject.problems]
    if missing and not allow_missing:
        raise IncompleteRuns(missing)
    return Aggregate(
        name=manifest.about["name"], subjects=tuple(subjects), rows=rows_of(subjects),
        head=head_of(root),
    )  # fmt: skip


def _subject(run: ManifestRun, state: RunState, directory: Path, now_ns: int) -> Subject:
    facts = read_ledger(directory, now_ns)
    problems: list[str] = []
    if facts is None or not facts.trained:
        written = read_artefacts(directory)
        problems = [f"{name} is missing" for name in missing_files(directory)]
        if written is None:
            problems.append("there is no run log of its training either (see `outlay.run`)")
        facts = _beside(written, facts)
    return Subject(
        run=run, state=state, facts=facts, totals=_totals(directory),
        problems=tuple(problems) if state.status == "completed" else (),
    )  # fmt: skip


def _beside(written: RunFacts | None, watched: RunFacts | None) -> RunFacts | None:
    """Return what a training's files say, with the time and the money that its supervisor saw."""
    if written is None or watched is None:
        return written or watched
    seen = ("cost_micros", "assumed_micros", "currency", "kind", "wall_ns", "started_ns",
            "attempts", "phases", "phase_micros", "assumptions", "findings")  # fmt: skip
    return msgspec.structs.replace(written, **{name: getattr(watched, name) for name in seen})


def _totals(directory: Path) -> dict[str, Any]:
    """Return what the run itself says it used of its budget."""
    document = read_document(directory)
    if document is None:
        return {}
    stated = dict(totals_in(document))
    for name in document.get("unmeasured") or ():
        stated.pop(name, None)  # Its zero says nothing.
    return stated | {"steps_per_epoch": document.get("steps_per_epoch")}
