"""``outlay sweep``: plan, run, resume, cancel and report sweeps."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from outlay.cli.output import (
    AsJson,
    console,
    new_table,
    print_findings,
    print_head,
    print_json,
    print_path,
    print_sentence,
    shown_path,
)
from outlay.cli.sweep.grid_options import (
    BudgetText,
    CeilingText,
    GridOrProgram,
    Maximize,
    Method,
    Minimize,
    PriceText,
    Records,
    SearchSeed,
    Style,
    TimeoutText,
    Trials,
    Words,
    read_plan,
)
from outlay.cli.sweep.live import (
    losing_of,
    print_failed,
    rung_table,
    search_of,
    show_while,
    status_document,
    status_line,
    status_table,
    totals_document,
)
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue, OutlayError
from outlay.record.redaction import Redactor
from outlay.slurm import SlurmLimit, own_limits
from outlay.sweep.errors import NotAcknowledged, ProbeRefused, RunsFailed, RunsSkipped
from outlay.sweep.grid.command_grid import GridOptions
from outlay.sweep.grid.files import measure_start_up, read_likely_costs
from outlay.sweep.plan.launch import SWEEP_MARK
from outlay.sweep.plan.plan import SweepPlan, rung_totals
from outlay.sweep.plan.planning import (
    budget_text,
    command_lines,
    enough_text,
    make_plan,
    most_text,
    params_text,
    plan_document,
    planned_command,
    search_sentences,
    start_up_text,
    style_text,
    time_and_cost,
)
from outlay.sweep.run.detached import catch_up
from outlay.sweep.run.devices import find_devices
from outlay.sweep.run.harness import SweepOptions
from outlay.sweep.run.sweep_guard import book_room, head_of, predicted_in, shown_book
from outlay.sweep.run.sweeps import Result, cancel, resume, start, stop
from outlay.sweep.search.results import result_sentences
from outlay.sweep.state.failures import failed_runs
from outlay.sweep.state.manifest import read_manifest
from outlay.sweep.state.setup import holder_of
from outlay.units.quantity import duration_text
from outlay.units.shown import counted

# The plan as a table.

_INDENT: Final = "  "
_SLURM: Final = "slurm"
"""The engine whose plan also shows the limits of the cluster."""


def print_plan(plan: SweepPlan, *, commands: bool = False) -> None:
    """Print a plan and, with ``commands``, the command of every run.

    What is likely, but not decided by a budget, has a tilde.
    """
    likely = read_likely_costs(plan)
    table = new_table("run", "parameters", "budget", ">GPUs", ">time", ">cost")
    redact = plan.redactor(os.environ)
    for run in plan.runs:
        table.add_row(
            run.id, params_text(run, redact), budget_text(run),
            str(run.gpus) if run.gpus is not None else f"≤{run.most_gpus}",
            *time_and_cost(run, likely),
        )  # fmt: skip
    console.print(table)
    console.print()
    if commands:
        _print_commands(plan, redact)
    _print_search(plan)
    _print_styles(plan, redact, commands=not commands)
    print_sentence(_total(plan))
    if likely.sentence:
        print_sentence(likely.sentence)
    print_sentence(most_text(plan))
    if plan.grid.book:
        print_sentence(_room_text(plan))
    for limit in _slurm_limits(plan):
        print_sentence(str(limit))
    print_sentence(start_up_text(plan))
    print_findings(plan.warnings)


def _print_search(plan: SweepPlan) -> None:
    """Print how many configurations a search tries, and what each of its rungs costs."""
    for sentence in search_sentences(plan):
        print_sentence(sentence)
    totals = [total for total in rung_totals(plan) if total.rung or total.of_halving]
    if not totals:
        return
    table = new_table("rung", "budget", ">runs", ">each", ">most", ">time")
    for total in totals:
        each = total.each.cost
        table.add_row(
            f"{total.rung + 1}", total.budget, str(total.runs), "?" if each is None else str(each),
            "?" if total.most is None else str(total.most),
            "?" if total.ns is None else duration_text(total.ns),
        )  # fmt: skip
    console.print(table)
    console.print()


def _print_commands(plan: SweepPlan, redact: Redactor) -> None:
    print_sentence(f"Commands ({SWEEP_MARK} is the sweep's directory):")
    for run in plan.runs:
        lines = command_lines(planned_command(plan, run, redact), console.width - len(_INDENT))
        text = "\n".join(f"{_INDENT}{line}" for line in lines)
        console.print(f"\n{run.id}\n{text}", soft_wrap=True)
    console.print()


def _print_styles(plan: SweepPlan, redact: Redactor, *, commands: bool) -> None:
    """Print how parameters are passed; with ``commands``, an example unless as Hydra overrides."""
    examples = {run.entry.arguments: run for run in reversed(plan.runs)}
    for style, run in reversed(examples.items()):
        print_sentence(style_text(style))
        if commands and style != "overrides":
            lines = command_lines(planned_command(plan, run, redact), console.width - len(_INDENT))
            console.print("\n".join(f"{_INDENT}{line}" for line in lines), soft_wrap=True)


def _total(plan: SweepPlan) -> str:
    ns, cost, ceiling = plan.predicted_ns, plan.predicted_cost, plan.grid.ceiling
    time = "an unknown time" if ns is None else f"{duration_text(ns)} of training"
    money = "unknown cost" if cost is None else f"{cost} (estimated)"
    if cost is None and all(run.prediction.cost is not None for run in plan.runs):
        money = "costs that cannot be added (several currencies, or cash and showback)"
    room = "" if ceiling is None else f", ceiling {ceiling}"
    room += "" if ceiling is None else enough_text(plan, ceiling, cost)
    return f"{counted(plan.run_count, 'run')}: {time}, {money}{room}"


def _room_text(plan: SweepPlan) -> str:
    """Return what the book of a grid has left, and whether that is enough."""
    try:
        found = book_room(plan)
    except OutlayError as error:
        return f"No run can be started: {error}"
    enough = enough_text(plan, found.room, predicted_in(plan, found.room.unit))
    return f"Draws on {found.book}, which has {found.room} free now{enough}"


def _slurm_limits(plan: SweepPlan) -> list[SlurmLimit]:
    """Return Slurm's own limits of the accounts that a plan uses; none without runs on Slurm."""
    entries = [run.entry for run in plan.runs if run.entry.engine == _SLURM]
    accounts = {getattr(entry.options, "account", "") for entry in entries}
    return own_limits(accounts) if accounts else []


def _plan_document(plan: SweepPlan) -> dict[str, Any]:
    document = plan_document(plan, os.environ, read_likely_costs(plan))
    if any(run.entry.engine == _SLURM for run in plan.runs):
        document["slurm_limits"] = _slurm_limits(plan)
    if not plan.grid.book:
        return document
    book: dict[str, Any] = {"book": shown_book(plan.grid.book), "room": None, "problem": None}
    try:
        book["room"] = str(book_room(plan).room)
    except OutlayError as error:
        book["problem"] = str(error)
    return document | book


# Commands.

app = typer.Typer(help="Compare configurations on equal budgets.", no_args_is_help=True)

Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", min=1, help="Runs at the same time; default: one here, all on a cluster."
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Exit once the cluster has all runs.")]
Gpus = Annotated[str | None, typer.Option(help="GPUs to use: 0,1,2,3; default: all visible.")]
EnableSweeps = Annotated[bool, typer.Option("--enable-sweeps", hidden=True)]
Probe = Annotated[
    bool,
    typer.Option(
        "--probe",
        help="First one run alone, to measure start-up; then the plan again, and the rest.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Start without asking.")]
SweepDir = Annotated[Path, typer.Argument(metavar="DIR", help="The sweep's directory.")]


@app.command("plan")
def show_plan(
    grid: GridOrProgram,
    words: Words = None,
    budget: BudgetText = None,
    ceiling: CeilingText = None,
    price: PriceText = None,
    timeout: TimeoutText = None,
    style: Style = None,
    maximize: Maximize = None,
    minimize: Minimize = None,
    method: Method = None,
    trials: Trials = None,
    seed: SearchSeed = None,
    records: Records = False,
    as_json: AsJson = False,
) -> None:
    """Show the runs of a grid, or of a program, with budget, time, cost and command; start nothing.

    Example: outlay sweep plan configs/sweeps/example_iso_time.yaml
    """
    stated = GridOptions(
        budget=budget, ceiling=ceiling, price=price, timeout=timeout, style=style,
        maximize=maximize, minimize=minimize, method=method, trials=trials, seed=seed,
        records=records or None,
    )  # fmt: skip
    plan = read_plan(grid, words, stated)
    if as_json:
        print_json(_plan_document(plan))
    else:
        print_plan(plan, commands=True)


@app.command("run")
def show_run(
    grid: GridOrProgram,
    words: Words = None,
    budget: BudgetText = None,
    ceiling: CeilingText = None,
    price: PriceText = None,
    timeout: TimeoutText = None,
    style: Style = None,
    maximize: Maximize = None,
    minimize: Minimize = None,
    method: Method = None,
    trials: Trials = None,
    seed: SearchSeed = None,
    records: Records = False,
    probe: Probe = False,
    yes: Yes = False,
    enable_sweeps: EnableSweeps = False,
    jobs: Jobs = None,
    detach: Detach = False,
    gpus: Gpus = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="The sweep's directory; default: as the grid states."
        ),
    ] = None,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Run a grid, or a program with parameters, after confirmation.

    Exits with 1 if a run failed, and with 3 if the ceiling refused one.

    Example: outlay sweep run train.py lr=0.1,0.2 --budget "iso_cost=2 USD" --price "1.50 USD/h"
    """
    stated = GridOptions(
        budget=budget, ceiling=ceiling, price=price, timeout=timeout, style=style,
        maximize=maximize, minimize=minimize, method=method, trials=trials, seed=seed,
        records=records or None,
    )  # fmt: skip
    if probe and detach:
        raise InvalidValue("--probe", "--detach", "one of them: a probe is waited for")
    plan = read_plan(grid, words, stated)
    acknowledged = enable_sweeps or yes or os.environ.get("MFCL_SWEEPS_ENABLED") == "1"
    if not acknowledged:
        _ask(plan, "Start one run, to measure start-up?" if probe else "Start these runs?")
    how = SweepOptions(jobs=jobs, detach=detach, devices=find_devices(gpus, os.environ))
    with show_while(quiet=as_json) as watch:
        runs = plan.runs[:1] if probe else None
        result = start(plan, directory or output_dir, replace(how, watch=watch), runs)
    if probe and _goes_on(plan, result, acknowledged=acknowledged, quiet=as_json):
        with show_while(quiet=as_json) as watch:
            rest = replace(how, watch=watch)
            result = resume(result.root, rest, grid=None, retry_failed=False)
    _conclude(result, as_json=as_json)


@app.command("resume")
def show_resume(
    directory: SweepDir,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also rerun failed runs.")
    ] = False,
    retry_stopped: Annotated[
        bool, typer.Option("--retry-stopped", help="Also rerun what `sweep stop` stopped.")
    ] = False,
    grid: Annotated[Path | None, typer.Option(metavar="FILE", help="The grid, if moved.")] = None,
    yes: Yes = False,
    enable_sweeps: EnableSweeps = False,
    jobs: Jobs = None,
    detach: Detach = False,
    gpus: Gpus = None,
    as_json: AsJson = False,
) -> None:
    """Resume a sweep: run everything that is not done, pruned or stopped.

    Asks for no confirmation; the flags of ``run`` are accepted.

    Example: outlay sweep resume runs/demo --retry-failed
    """
    del enable_sweeps, yes
    with show_while(quiet=as_json) as watch:
        devices = find_devices(gpus, os.environ)
        how = SweepOptions(jobs=jobs, detach=detach, devices=devices, watch=watch)
        result = resume(
            directory, how, grid=grid, retry_failed=retry_failed, retry_stopped=retry_stopped
        )
    _conclude(result, as_json=as_json)


@app.command("status")
def show_status(directory: SweepDir, as_json: AsJson = False) -> None:
    """Show the status of a sweep and its runs.

    Example: outlay sweep status runs/demo
    """
    looked = catch_up(directory)
    manifest, standings, now_ns = looked.manifest, looked.standing, SYSTEM.wall_ns()
    holder = holder_of(directory)
    if as_json:
        print_json(status_document(looked, now_ns, None if holder is None else holder.pid))
        return
    console.print(status_table(manifest, now_ns, standings))
    print_failed(manifest)
    print_findings(looked.findings)
    running = f"run by {holder}" if holder else "not running"
    console.print()
    if (found := search_of(manifest)) is not None:
        console.print(rung_table(found))
        console.print()
        for sentence in result_sentences(found):
            print_sentence(sentence)
    for each in losing_of(manifest, now_ns):
        print_sentence(each.suggestion(shown_path(directory)))
    print_sentence(f"{status_line(manifest, now_ns, standings)}; {running}")
    print_head(head_of(directory))


@app.command("cancel")
def show_cancel(
    directory: SweepDir,
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN...", help="Runs to end; default: all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a sweep or some of its runs with SIGTERM; their cost is recorded.

    Example: outlay sweep cancel runs/demo 003_lr_01
    """
    ended = cancel(directory, runs or ())
    if as_json:
        print_json({"told": ended.harness, "jobs": ended.jobs})
    elif ended.harness is not None:
        console.print(f"Sent SIGINT to process {ended.harness}; a second cancel forces it.")
    elif ended.jobs:
        line = status_line(read_manifest(directory), SYSTEM.wall_ns())
        print_sentence(f"Cancelled {counted(ended.jobs, 'job')} on the cluster; now {line}.")
    else:
        console.print("The sweep is not running; there was nothing to end.")


@app.command("stop")
def show_stop(
    directory: SweepDir,
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs to stop.")],
    as_json: AsJson = False,
) -> None:
    """Stop single runs for good with SIGTERM; the others go on, and what they cost is recorded.

    A resume does not start them again, unless with --retry-stopped.

    Example: outlay sweep stop runs/demo 003_lr_01
    """
    done = stop(directory, runs)
    if as_json:
        print_json({"told": done.harness, "runs": done.jobs})
    elif done.harness is not None:
        print_sentence(f"Asked process {done.harness} to stop {', '.join(runs)}.")
    else:
        line = status_line(read_manifest(directory), SYSTEM.wall_ns())
        print_sentence(f"Stopped {counted(done.jobs, 'run')}; now {line}.")


@app.command("report")
@app.command("aggregate", hidden=True)
def show_sweep_report(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Its directory; default: this one.")
    ] = None,
    root: Annotated[Path | None, typer.Option("--root", hidden=True)] = None,
    manifest: Annotated[Path | None, typer.Option("--manifest", hidden=True)] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write; default: DIR/reports.")
    ] = None,
    enable_aggregator: Annotated[bool, typer.Option("--enable-aggregator", hidden=True)] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Continue if a completed run lacks files.")
    ] = False,
    pictures: Annotated[
        str | None,
        typer.Option(
            metavar="FORMATS",
            help="Also write charts, such as png,svg,pdf; needs the extra `report`.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarise a sweep: a CSV with a row per run, and a page with the ranking.

    Example: outlay sweep report runs/demo --pictures png,pdf
    """
    # Imported here: the other commands need no charts.
    from outlay.report.files import read_sweep, write_sweep_files
    from outlay.report.pictures import read_formats

    del enable_aggregator
    formats = read_formats(pictures) if pictures is not None else ()
    chosen = directory or root or (manifest.parent if manifest else Path())
    looked, now_ns = catch_up(chosen), SYSTEM.wall_ns()
    findings = looked.findings
    if not as_json:
        print_findings(findings)  # First, since they may explain an error below.
        print_failed(looked.manifest)
    account = read_sweep(chosen, now_ns, allow_missing=allow_missing)
    files = write_sweep_files(account, output or account.reports, now_ns, formats)
    if as_json:
        about = {
            "verdict": account.verdict, "pictures": files.pictures, "runs": account.summary.cells,
            "search": account.summary.search, "head": account.summary.head, "findings": findings,
            "failures": failed_runs(looked.manifest, os.environ),
        }  # fmt: skip
        print_json(files.written | about)
        return
    print_sentence(account.verdict)
    for path in (*files.written.values(), *files.pictures):
        print_path(path)


def _ask(plan: SweepPlan, question: str) -> None:
    """Show the plan and ask for confirmation; refuse without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NotAcknowledged
    print_plan(plan)
    if not typer.confirm(question):
        raise NotAcknowledged


def _goes_on(plan: SweepPlan, result: Result, *, acknowledged: bool, quiet: bool) -> bool:
    """Show the plan with the start-up of the one run that was started; say whether to go on.

    Raises:
        ProbeRefused: Nobody is asked, and the money is not enough.
    """
    first = plan.runs[0].id
    if result.cancelled or result.manifest.state(first).status not in ("completed", "paused"):
        return False
    again = make_plan(plan.grid, measure_start_up([result.root / first]))
    if not quiet:
        print_plan(again)
        if again.start_up is None:
            print_sentence(f"{first} recorded no steps, so that its start-up stays unknown.")
    ceiling, cost = plan.grid.ceiling, again.predicted_cost
    if acknowledged and ceiling is not None and again.is_enough(ceiling, cost) is False:
        raise ProbeRefused(str(result.root), f"{cost} is expected, and the ceiling is {ceiling}")
    return plan.run_count > 1 and (acknowledged or typer.confirm("Start the other runs?"))


def _conclude(result: Result, *, as_json: bool) -> None:
    """Print the result and exit with its code."""
    ended = result.of_status("error", "cancelled", "preempted")
    failed = [run for run in ended if not result.manifest.state(run).is_stopped]
    skipped = result.of_status("skipped")
    if as_json:
        print_json(
            {
                "root": result.root, "counts": result.counts, "failed": failed,
                "failures": failed_runs(result.manifest, os.environ),
                "skipped": skipped, **totals_document(result.manifest),
                "head": head_of(result.root),
                "findings": result.findings,
            }
        )  # fmt: skip
    else:
        print_findings(result.findings)
        print_sentence(status_line(result.manifest, SYSTEM.wall_ns()))
        print_head(head_of(result.root))
        if paused := result.of_status("paused"):
            continued = f"outlay sweep resume {shown_path(result.root)}"
            wait = "wait" if len(paused) > 1 else "waits"
            print_sentence(f"{counted(len(paused), 'run')} {wait} at a rung: {continued}")
        command = "status" if result.of_status("running") else "report"
        print_sentence(f"Show it with: outlay sweep {command} {shown_path(result.root)}")
        if result.of_status("pending"):
            print_sentence(f"Run the rest with: outlay sweep resume {shown_path(result.root)}")
    if result.cancelled:
        raise typer.Exit(130)
    if failed:
        raise RunsFailed(failed)
    if skipped:
        raise RunsSkipped(skipped)
