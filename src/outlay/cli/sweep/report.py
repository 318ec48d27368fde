"""``outlay sweep report``: every report of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.output import AsJson, console, print_findings, print_json, print_sentence
from outlay.clock import SYSTEM
from outlay.sweep.run.detached import catch_up


def show_sweep_report(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="The sweep's directory; default: this one."),
    ] = None,
    root: Annotated[Path | None, typer.Option("--root", hidden=True)] = None,
    manifest: Annotated[Path | None, typer.Option("--manifest", hidden=True)] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the reports go; default: DIR/reports."),
    ] = None,
    enable_aggregator: Annotated[bool, typer.Option("--enable-aggregator", hidden=True)] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Go on when a completed run misses files.")
    ] = False,
    pictures: Annotated[
        str | None,
        typer.Option(
            metavar="FORMATS",
            help="Also draw the charts as files, such as png,svg,pdf; needs the extra `report`.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarise a sweep: a CSV with a row per run, and a page that says which was best.

    Example: outlay sweep report runs/demo --pictures png,pdf
    """
    # Here: the other commands of a sweep draw nothing, and need not wait for what draws.
    from outlay.report.files import read_sweep, write_sweep_files
    from outlay.report.pictures import read_formats

    del enable_aggregator
    formats = read_formats(pictures) if pictures is not None else ()
    chosen = directory or root or (manifest.parent if manifest else Path())
    findings, now_ns = catch_up(chosen).findings, SYSTEM.wall_ns()
    if not as_json:
        print_findings(findings)  # Now: they may say why what follows cannot be done.
    account = read_sweep(chosen, now_ns, allow_missing=allow_missing)
    files = write_sweep_files(account, output or account.reports, now_ns, formats)
    if as_json:
        about = {
            "verdict": account.verdict, "pictures": files.pictures, "runs": account.summary.rows,
            "head": account.summary.head, "findings": findings,
        }  # fmt: skip
        print_json(files.written | about)
        return
    print_sentence(account.verdict)
    for path in (*files.written.values(), *files.pictures):
        console.print(str(path), soft_wrap=True)
