"""``outlay report``: one page about a run or a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from outlay.cli.output import AsJson, console, print_findings, print_json, print_sentence
from outlay.clock import SYSTEM
from outlay.errors import Finding
from outlay.report.document import Document
from outlay.report.files import Form, read_sweep, write_run_report, write_sweep_report
from outlay.report.run_document import run_document
from outlay.runs.reading import RunReading, read_run
from outlay.sweep.run.detached import catch_up
from outlay.sweep.state.manifest import is_sweep


def show_report(
    path: Annotated[Path, typer.Argument(metavar="RUN|SWEEP", help="Its directory.")],
    html: Annotated[bool, typer.Option("--html", help="Write report.html (the default).")] = False,
    md: Annotated[bool, typer.Option("--md", help="Write report.md.")] = False,
    png: Annotated[
        bool,
        typer.Option(
            "--png",
            help="Write report.png, of a sweep its charts in pictures/; needs the extra `report`.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write; default: RUN, or SWEEP/reports."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one page about a run or a sweep.

    What it got for its time and money, and how sure that is. With --json alone nothing is written.

    Example: outlay report runs/001 --html --md
    """
    asked: dict[Form, bool] = {"html": html, "md": md, "png": png}
    forms = [form for form, wanted in asked.items() if wanted]
    if not forms and not as_json:
        forms = ["html"]
    report = (_sweep_report if is_sweep(path) else _run_report)(path, output, forms)
    if as_json:
        print_json(report.document | {"files": report.files})
        return
    print_findings(report.findings)
    print_sentence(report.verdict)
    for file in report.files:
        console.print(str(file), soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """What is shown of a report: its verdict and files to people, a document to programs."""

    verdict: str
    files: Sequence[Path]
    document: dict[str, Any]
    findings: Sequence[Finding] = ()


def _run_report(path: Path, output: Path | None, forms: Sequence[Form]) -> _Report:
    run = read_run(path)
    document = run_document(run)
    files = write_run_report(run, document, output or path, forms) if forms else []
    return _Report(verdict=document.verdict, files=files, document=_run_json(run, document))


def _sweep_report(path: Path, output: Path | None, forms: Sequence[Form]) -> _Report:
    findings = catch_up(path).findings
    account = read_sweep(path, SYSTEM.wall_ns(), allow_missing=True)
    files = write_sweep_report(account, output or account.reports, forms) if forms else []
    return _Report(
        verdict=account.verdict,
        files=files,
        document={
            "title": account.summary.name, "verdict": account.verdict,
            "runs": account.summary.rows, "findings": findings,
        },
        findings=findings,
    )  # fmt: skip


def _run_json(run: RunReading, document: Document) -> dict[str, Any]:
    return {
        "title": document.title,
        "verdict": document.verdict,
        "figures": [
            {"section": section, "label": f.label, "value": f.value, "text": f.text,
             "grade": f.grade}
            for section, f in document.figures()
        ],
        "goodput": run.goodput,
        "cost": run.cost,
        "budget": None if run.budget is None else run.budget.document(),
        "advice": run.advice,
    }  # fmt: skip
