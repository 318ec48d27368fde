"""``outlay log``, ``outlay import`` and ``outlay export``: run logs in and out."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import typer
from rich.progress import Progress

from outlay.cli.output import (
    DEFAULT,
    AsJson,
    DefaultGroup,
    RunDir,
    SpendLogs,
    amounts_cell,
    console,
    errors,
    must_be_directory,
    must_exist,
    new_table,
    print_findings,
    print_json,
    print_json_line,
    print_path,
    print_sentence,
)
from outlay.clock import SYSTEM, utc_datetime, utc_text
from outlay.decoding import LARGEST_TABLE, BadDocument, read_text
from outlay.errors import Finding, InvalidValue, MissingExtra, OutlayError
from outlay.export.csv_files import export_csv
from outlay.export.live_runs import LiveReading, LiveRuns
from outlay.export.prometheus import MetricsServer, exposition, read_token, write_textfile
from outlay.export.spend_logs import shown_logs
from outlay.ledger import Price, Record, Unknown, kind_of, read_run
from outlay.prices.current import read_rates
from outlay.runs.accounting.sacct import Accounts, read_accounts
from outlay.runs.accounting.sacct_import import ImportedJobs, import_jobs
from outlay.runs.collect import collect, find_runs, findings_in
from outlay.runs.options import parse_price
from outlay.shipping.storage import (
    check_destination,
    fetch_runs,
    fetched_dir,
    holds_shipped,
    unshipped,
)
from outlay.store import open_store
from outlay.units import Duration, Money
from outlay.units.money import sum_by_unit
from outlay.units.quantity import duration_text
from outlay.units.shown import counted

# ``outlay log``.

log_app = typer.Typer(cls=DefaultGroup, help="Read and check a run's log.", no_args_is_help=True)


@log_app.command("cat", hidden=True)
@log_app.command(DEFAULT, hidden=True)
def print_log(run: RunDir, as_json: AsJson = False) -> None:
    """Print a run's records, segment by segment; with --json one object per line.

    Example: outlay log runs/001 --json
    """
    log = read_run(run)
    for segment in sorted(log.segments):
        for record in log.segments[segment]:
            _print_record(segment.rank, record, as_json=as_json)
    sys.stdout.flush()
    print_findings(log.findings, to=errors if as_json else console)


@log_app.command("verify")
def verify(run: RunDir, as_json: AsJson = False) -> None:
    """Check every line of a run's log; exit 1 if one is damaged.

    Example: outlay log verify runs/001
    """
    log = read_run(run)
    count = sum(len(records) for records in log.segments.values())
    unknown = Counter(each.kind for each in log.records if isinstance(each, Unknown))
    if as_json:
        document = {"records": count, "segments": len(log.segments), "unknown": unknown}
        print_json(document | {"findings": log.findings})
    else:
        for kind, seen in sorted(unknown.items()):
            console.print(f"{counted(seen, 'record')} of unknown kind: {kind}")
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
    print_sentence(f"{when}  r{rank}  {kind_of(record):<20} {text}")


# ``outlay export``.

LOOPBACK = "127.0.0.1"
export_app = typer.Typer(help="Write files for other tools.", no_args_is_help=True)


@export_app.command("csv")
def show_csv(
    run: RunDir,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write; default: the run's directory."),
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
        print_path(path)
    print_findings(exported.findings)


@export_app.command("prometheus")
def show_prometheus(
    port: Annotated[int | None, typer.Option(metavar="N", help="Serve /metrics on a port.")] = None,
    textfile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write this .prom file for node_exporter's textfile collector."
        ),
    ] = None,
    every: Annotated[str | None, typer.Option(help="Interval of rewriting, such as 30s.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one beyond loopback needs --token-file.")
    ] = LOOPBACK,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the scrapers' bearer token.")
    ] = None,
    log: SpendLogs = None,
    as_json: AsJson = False,
) -> None:
    """Export live runs and ceilings as Prometheus metrics: served, in a file, or printed.

    Example: outlay export prometheus --port 9464
    """
    with closing(LiveRuns(open_store(), shown_logs(log))) as live:
        if port is not None:
            if textfile is not None:
                expected = "either --port or --textfile, not both"
                raise InvalidValue("--textfile", str(textfile), expected)
            _serve((host, port), live, None if token_file is None else read_token(token_file))
        elif textfile is not None:
            _write_textfile(textfile, live, every)
        elif every is not None:
            raise InvalidValue("--every", every, "--textfile FILE as well")
        else:
            _print_metrics(live.read(), as_json=as_json)


def _print_metrics(reading: LiveReading, *, as_json: bool) -> None:
    if as_json:
        print_json({"runs": [run.values | run.facts for run in reading.runs],
                    "guards": reading.guards, "findings": reading.findings})  # fmt: skip
    else:
        typer.echo(exposition(reading), nl=False)
    print_findings(reading.findings, to=errors)


def _write_textfile(path: Path, live: LiveRuns, every: str | None) -> None:
    """Write the file once, or at an interval until interrupted."""
    if path.suffix != ".prom":
        raise InvalidValue("--textfile", str(path), "a name that ends in .prom, for the collector")
    if every is None:
        reading = live.read()
        write_textfile(path, reading)
        print_findings(reading.findings, to=errors)
        return
    pause_s = Duration.parse(every, name="--every").seconds
    reported = ""
    while True:
        try:
            write_textfile(path, live.read())
            reported = ""
        except (OutlayError, OSError) as error:  # Retry; print the same error only once.
            if str(error) != reported:
                reported = str(error)
                print_sentence(reported, errors)
        SYSTEM.sleep(pause_s)


def _serve(address: tuple[str, int], live: LiveRuns, token: str | None) -> None:
    host, _ = address
    if token is None and host not in (LOOPBACK, "localhost", "::1"):
        raise InvalidValue("--host", host, f"{LOOPBACK}, or --token-file as well")
    try:
        server = MetricsServer(address, live.read, token)
    except (OSError, OverflowError) as error:
        expected = f"a port that is free on {host} ({error})"
        raise InvalidValue("--port", address[1], expected) from None
    with server:
        errors.print(f"serving http://{host}:{server.server_address[1]}/metrics", soft_wrap=True)
        server.serve_forever()


# ``outlay import``.

import_app = typer.Typer(help="Register runs recorded elsewhere.", no_args_is_help=True)


@import_app.command("runs")
def import_runs(
    places: Annotated[
        list[str],
        typer.Argument(metavar="DIR|URL...", help="Where to search; URLs of shipped runs."),
    ],
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to keep shipped runs; default: the outlay home."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Register every run below directories; fetch and register runs that were shipped there.

    Repeating it fetches and registers what is new.

    Example: outlay import runs experiments/ /mnt/shared/runs s3://bucket/runs
    """
    urls = [check_destination(place, name="URL") for place in places if "://" in place]
    directories = [Path(place) for place in places if "://" not in place]
    for directory in directories:
        must_be_directory(directory)
    urls += [str(each.resolve()) for each in directories if holds_shipped(each)]
    shipped = [fetch_runs(url, to or fetched_dir(url)) for url in urls]
    fetched = [run for each in shipped for run in each.runs]
    run_dirs = [*find_runs(directories), *find_runs(run.dir for run in fetched)]
    collected = collect(open_store(), run_dirs, SYSTEM.wall_ns())
    findings = [*collected.findings, *findings_in(collected.figures)]
    findings += [finding for each in shipped for finding in each.findings]
    status = {row.dir: row.status for row in collected.figures}
    for run in fetched:
        findings += unshipped(run, status.get(str(run.dir.resolve()), ""))
    if as_json:
        document = {"registered": len(collected.figures), "findings": findings}
        print_json(document | ({"shipped": fetched} if urls else {}))
        return
    if urls:
        new_bytes = sum(run.fetched_bytes for run in fetched)
        console.print(f"Fetched {new_bytes:,} bytes of {counted(len(fetched), 'shipped run')}.")
    console.print(f"Registered {counted(len(collected.figures), 'run')}.")
    print_findings(findings)


@import_app.command("sacct")
def import_sacct(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Output of sacct --parsable2.")],
    timezone: Annotated[
        str | None, typer.Option(help="Of the file, such as Europe/Paris; default: this machine's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Register Slurm jobs as runs, priced by partition; settle runs that outlay recorded.

    Example: outlay import sacct october.txt --timezone UTC
    """
    accounts = read_accounts(_text(file), source=str(file), zone=_zone(timezone))
    done = import_jobs(open_store(), accounts.jobs, read_rates(), SYSTEM.wall_ns())
    findings = [*accounts.findings, *done.findings, *_omissions(file, accounts, done)]
    rows = _by_partition(done)
    if as_json:
        print_json(
            {
                "registered": len(done.jobs), "recorded": done.recorded,
                "settled": done.settled, "withdrawn": done.withdrawn,
                "unfinished": accounts.unfinished, "partitions": rows, "findings": findings,
            }
        )  # fmt: skip
        return
    _print_jobs(rows, done)
    print_findings(findings)


@import_app.command("wandb")
def import_wandb(
    directories: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR]...", help="Where to find offline runs.")
    ] = None,
    project: Annotated[
        str | None, typer.Option(metavar="ENTITY/PROJECT", help="Fetch a project's runs from W&B.")
    ] = None,
    price: Annotated[
        str | None, typer.Option(help='Per GPU-hour, such as "2.50 USD/h" or lambda:8xH100.')
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs per run; default: W&B's.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name; default: from its config.")] = None,
    as_json: AsJson = False,
) -> None:
    """Convert W&B runs into run logs: history, steps, runtime, GPU load; report what is missing.

    Repeat it to resume, or to import new runs; runs already imported stay the same.

    Example: outlay import wandb ~/project/wandb --price "2.50 USD/h"
    """
    from outlay.integrations.wandb_import import (
        ImportTerms,
        find_offline_runs,
        import_api_runs,
        import_offline_runs,
    )

    if bool(directories) == bool(project):
        raise InvalidValue("DIR", directories, "directories of offline runs, or --project")
    for directory in directories or []:
        must_exist(directory, name="DIR")
    terms = ImportTerms(price=_old_price(price), gpus=gpus, model=model)
    now_ns, store = SYSTEM.wall_ns(), open_store()
    with Progress(console=errors, transient=True, disable=as_json) as bar:
        if project is not None:
            runs = _api_runs(project)
            task = bar.add_task("importing", total=len(runs))
            done = import_api_runs(store, runs, terms, now_ns, lambda: bar.advance(task))
        else:
            paths = find_offline_runs(directories or [])
            task = bar.add_task("importing", total=len(paths))
            done = import_offline_runs(store, paths, terms, now_ns, lambda: bar.advance(task))
    if as_json:
        print_json(done)
    else:
        console.print(
            f"Imported {counted(len(done.imported), 'run')}, {done.unchanged} unchanged, "
            f"{len(done.failed)} failed."
        )
        if done.recorded:
            recorded = counted(done.recorded, "W&B run")
            print_sentence(f"Not imported, since outlay has its own log of them: {recorded}")
        for what, count in done.missing.items():
            print_sentence(f"Not in W&B for {counted(count, 'run')}: {what}")
        print_findings([*done.failed, *done.findings])
    if done.failed:
        raise typer.Exit(1)


def _old_price(stated: str | None) -> Price | None:
    """Parse ``--price``; refuse ``auto``, since the runs were not on this machine."""
    if stated is None:
        return None
    if stated.strip().lower().startswith("auto"):
        expected = '"2.50 USD/h" or PROVIDER:GPU: auto is the price of this machine'
        raise InvalidValue("--price", stated, expected)
    return parse_price(stated, name="--price", source="import", environ={})


def _api_runs(project: str) -> Any:
    try:
        import wandb
    except ImportError:
        raise MissingExtra("fetching runs from W&B", "wandb") from None
    return wandb.Api().runs(project)


def _text(file: Path) -> str:
    try:
        return read_text(file.expanduser(), largest=LARGEST_TABLE)
    except (OSError, BadDocument) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise InvalidValue("FILE", str(file), f"a file that can be read ({problem})") from None


def _zone(name: str | None) -> ZoneInfo | None:
    try:
        return None if name is None else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise InvalidValue("--timezone", name, "a time zone such as Europe/Paris") from None


def _omissions(file: Path, accounts: Accounts, done: ImportedJobs) -> list[Finding]:
    """Return findings on jobs without a price and jobs that have not ended."""
    messages = [
        f'no price on {name}: outlay prices partition set {name} "1.20 USD/h", and import again'
        for name in done.unpriced
    ]
    if accounts.unfinished:
        messages.append(f"{counted(accounts.unfinished, 'job')} not ended yet; import again later")
    return [Finding(source=str(file), message=text, severity="warning") for text in messages]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    """Totals of the jobs of one partition; ``cost`` has an amount per currency."""

    partition: str
    jobs: int
    gpu_hours: float
    cost: list[Money]


def _by_partition(done: ImportedJobs) -> list[_Partition]:
    """Return totals by partition, most GPU-hours first."""
    pairs = list(zip(done.jobs, done.figures, strict=True))
    rows = []
    for name in dict.fromkeys(job.partition for job in done.jobs):
        mine = [(job, figures) for job, figures in pairs if job.partition == name]
        costs = (figures.cost for _, figures in mine if figures.cost is not None)
        rows.append(
            _Partition(
                partition=name,
                jobs=len(mine),
                gpu_hours=sum(job.gpu_ns for job, _ in mine) / 3.6e12,
                cost=sum_by_unit(costs),
            )
        )
    return sorted(rows, key=lambda row: -row.gpu_hours)


def _print_jobs(rows: list[_Partition], done: ImportedJobs) -> None:
    table = new_table("partition", ">jobs", ">GPU-hours", ">cost")
    for row in rows:
        cost = amounts_cell(row.cost, "no price")
        table.add_row(row.partition, str(row.jobs), f"{row.gpu_hours:,.2f}", cost)
    console.print(table)
    recorded = f"; {done.recorded} already had run logs" if done.recorded else ""
    print_sentence(f"\nRegistered {counted(len(done.jobs), 'job')}{recorded}.")
    if done.settled:
        more_ns = sum(each.difference_ns for each in done.settled)
        sign = "more" if more_ns >= 0 else "less"
        print_sentence(
            f"Settled {counted(len(done.settled), 'job')} by sacct's times: "
            f"{duration_text(abs(more_ns))} {sign} than in their logs."
        )
    if done.withdrawn:
        console.print(f"Removed {done.withdrawn} imported earlier that have logs of their own.")
    if done.jobs:
        month = f"{utc_datetime(done.jobs[-1].starts[-1].end_ns):%Y-%m}"
        console.print(f"Allocate the cost with: outlay cost allocate --by user --month {month}")
