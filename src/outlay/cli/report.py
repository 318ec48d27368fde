"""``outlay report``: one page about a run or a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outlay.cli.options import AsJson
from outlay.cli.output import console, print_json
from outlay.clock import SYSTEM
from outlay.report.rendering import to_html, to_markdown
from outlay.report.run_account import RunAccount, read_account
from outlay.report.run_document import run_document
from outlay.report.sweep_files import write_sweep_files
from outlay.sweep.manifest import is_sweep


def show_report(
    path: Annotated[Path, typer.Argument(metavar="RUN|SWEEP", help="Its directory.")],
    html: Annotated[bool, typer.Option("--html", help="Write report.html (the default).")] = False,
    md: Annotated[bool, typer.Option("--md", help="Write report.md.")] = False,
    png: Annotated[
        bool, typer.Option("--png", help="Write report.png; needs the extra `report`.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Where to write; default: the run itself, or SWEEP/reports."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one page about a run or a sweep: what it got for its time and money, and how sure.

    Example: outlay report runs/001 --html --md
    """
    if is_sweep(path):
        from outlay.cli.sweep import show_sweep_files

        pictures = ("png",) if png else ()
        files = write_sweep_files(
            path, SYSTEM.wall_ns(), output=output, allow_missing=True, pictures=pictures
        )
        show_sweep_files(files, as_json=as_json)
        return
    account = read_account(path, SYSTEM.wall_ns())
    if as_json and not (html or md or png):
        print_json(_json_of(account, []))
        return
    written = _write(account, output or path, html=html or not (md or png), md=md, png=png)
    if as_json:
        print_json(_json_of(account, written))
        return
    console.print(run_document(account).verdict)
    for file in written:
        console.print(str(file), soft_wrap=True)


def _write(account: RunAccount, directory: Path, *, html: bool, md: bool, png: bool) -> list[Path]:
    document, written = run_document(account), []
    directory.mkdir(parents=True, exist_ok=True)
    for wanted, name, render in (
        (html, "report.html", to_html),
        (md, "report.md", to_markdown),
    ):
        if wanted:
            (directory / name).write_text(render(document), encoding="utf-8")
            written.append(directory / name)
    if png:
        from outlay.report.run_picture import save_picture

        save_picture(account, directory / "report.png")
        written.append(directory / "report.png")
    return written


def _json_of(account: RunAccount, written: list[Path]) -> dict[str, Any]:
    document = run_document(account)
    return {
        "title": document.title,
        "verdict": document.verdict,
        "figures": [
            {"section": section, "label": f.label, "value": f.value, "text": f.text,
             "grade": f.grade}
            for section, f in document.figures()
        ],
        "goodput": account.summary,
        "cost": account.cost,
        "budget": None if account.budget is None else account.budget.document(),
        "advice": account.advice,
        "files": written,
    }  # fmt: skip
