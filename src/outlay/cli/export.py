"""Results in the forms that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.options import AsJson, RunDir
from outlay.cli.output import console, print_findings, print_json
from outlay.export.csv_files import export_csv

app = typer.Typer(help="Write results in the forms that other tools read.", no_args_is_help=True)


@app.command("csv")
def show_csv(
    run: RunDir,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the files go; default: the run's directory."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write timings.csv, comms.csv, energy.csv and eval.csv from a run's log.

    Example: outlay export csv runs/001
    """
    exported = export_csv(run, output)
    if as_json:
        print_json({"files": exported.files, "findings": exported.findings})
        return
    for path in exported.files:
        console.print(str(path), soft_wrap=True)
    print_findings(exported.findings)
