"""``outlay ledger``: look into a run's log."""

from __future__ import annotations

import sys

import msgspec
import typer

from outlay.cli.options import AsJson, RunDir
from outlay.cli.output import (
    console,
    counted,
    errors,
    print_findings,
    print_json,
    print_json_line,
)
from outlay.clock import utc_text
from outlay.ledger import Record, kind_of, read_run

app = typer.Typer(help="Look into a run's log.", no_args_is_help=True)


@app.command("cat")
def cat(run: RunDir, as_json: AsJson = False) -> None:
    """Print a run's records, segment after segment; with --json one object per line.

    Example: outlay ledger cat runs/001 --json
    """
    log = read_run(run)
    for segment in sorted(log.segments):
        for record in log.segments[segment]:
            _print_record(segment.rank, record, as_json=as_json)
    sys.stdout.flush()
    print_findings(log.findings, to=errors if as_json else console)


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
        verdict = counted(len(log.findings), "finding") if log.findings else "all good"
        segments = counted(len(log.segments), "segment")
        console.print(f"{counted(count, 'record')} in {segments}: {verdict}")
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
