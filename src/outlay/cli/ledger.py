"""``outlay ledger``: look into a run's log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from outlay.cli.options import AsJson
from outlay.cli.output import console, print_findings, print_json, print_json_line
from outlay.clock import utc_text
from outlay.ledger import Record, kind_of, read_run

app = typer.Typer(help="Look into a run's log.", no_args_is_help=True)

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")]


@app.command("cat")
def cat(run: RunDir, as_json: AsJson = False) -> None:
    """Print a run's records, oldest first; with --json one object per line.

    Example: outlay ledger cat runs/001 --json
    """
    log = read_run(run)
    for segment in sorted(log.segments):
        for record in log.segments[segment]:
            _print_record(segment.rank, record, as_json=as_json)
    if not as_json:
        print_findings(log.findings)


@app.command("verify")
def verify(run: RunDir, as_json: AsJson = False) -> None:
    """Check every line of a run's log; exit 1 when something is wrong.

    Example: outlay ledger verify runs/001
    """
    log = read_run(run)
    count = sum(len(records) for records in log.segments.values())
    if as_json:
        print_json({"records": count, "segments": len(log.segments), "findings": log.findings})
    else:
        print_findings(log.findings)
        verdict = f"{len(log.findings)} findings" if log.findings else "all good"
        console.print(f"{count:,} records in {len(log.segments)} segments: {verdict}")
    if log.findings:
        raise typer.Exit(1)


def _print_record(rank: int, record: Record, *, as_json: bool) -> None:
    fields = msgspec.to_builtins(record)
    fields.pop("kind", None)
    if as_json:
        print_json_line({"kind": kind_of(record), "rank": rank} | fields)
        return
    when = utc_text(fields.pop("t_ns"))
    fields.pop("seq")
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    console.print(f"{when}  r{rank}  {kind_of(record):<20} {text}", soft_wrap=True)
