"""Sweeps: plan them, run them, go on with them, and look at how they stand."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from outlay.cli.options import AsJson
from outlay.cli.output import console, new_table, print_findings, print_json, print_sentence
from outlay.cli.sweep_live import show_while, standing, status_table
from outlay.clock import SYSTEM
from outlay.errors import Finding
from outlay.report.pictures import read_formats
from outlay.report.sweep_files import SweepFiles, write_sweep_files
from outlay.sweep.detached import catch_up
from outlay.sweep.devices import find_devices
from outlay.sweep.errors import NotAcknowledged, RunsFailed, RunsSkipped
from outlay.sweep.files import plan_file
from outlay.sweep.launch import SWEEP_MARK
from outlay.sweep.lock import holder_of
from outlay.sweep.manifest import counts, read_manifest
from outlay.sweep.plan import Plan
from outlay.sweep.plan_text import budget_text, command_lines, plan_document, planned_command
from outlay.sweep.sweeps import HowToRun, Result, cancel, resume, spent, start
from outlay.units.quantity import duration_text

app = typer.Typer(
    help="Many configurations under the same budget, and which is best.", no_args_is_help=True
)

_INDENT: Final = "  "

GridFile = Annotated[Path, typer.Argument(metavar="GRID", help="A YAML or JSON grid.")]


@app.command("plan")
def show_plan(grid: GridFile, as_json: AsJson = False) -> None:
    """Show the runs of a grid, their budgets, hours, dollars and commands; start nothing.

    Example: outlay sweep plan configs/sweeps/example_iso_time.yaml
    """
    plan = plan_file(grid)
    if as_json:
        print_json(plan_document(plan))
    else:
        render_plan(plan, commands=True)


Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", min=1, help="Runs at the same time. Default: one here, all on a cluster."
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Leave when a cluster has every run; look again later.")
]
Gpus = Annotated[
    str | None,
    typer.Option(help="GPUs to share out, such as 0,1,2,3. Default: those visible here."),
]
SweepDir = Annotated[Path, typer.Argument(metavar="DIR", help="The sweep's directory.")]


@app.command("run")
def show_run(
    grid: GridFile,
    enable_sweeps: Annotated[
        bool, typer.Option("--enable-sweeps", help="Say yes to starting many runs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="The same.")] = False,
    jobs: Jobs = None,
    detach: Detach = False,
    gpus: Gpus = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Where the sweep goes; default: what the grid says.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run every run of a grid, after a yes; exits 1 when one failed, 3 when one did not fit.

    Example: outlay sweep run grid.yaml --enable-sweeps --jobs 4
    """
    plan = plan_file(grid)
    if not (enable_sweeps or yes or os.environ.get("MFCL_SWEEPS_ENABLED") == "1"):
        _ask(plan)
    with show_while(quiet=as_json) as watch:
        devices = find_devices(gpus, os.environ)
        how = HowToRun(jobs=jobs, detach=detach, devices=devices, watch=watch)
        result = start(plan, output_dir, how)
    _conclude(result, as_json=as_json)


@app.command("resume")
def show_resume(
    directory: SweepDir,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also run again what failed.")
    ] = False,
    grid: Annotated[
        Path | None, typer.Option(help="The grid, where it was moved; default: where it was.")
    ] = None,
    jobs: Jobs = None,
    detach: Detach = False,
    gpus: Gpus = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a sweep: run what is not done, never what is.

    Example: outlay sweep resume runs/demo --retry-failed
    """
    with show_while(quiet=as_json) as watch:
        devices = find_devices(gpus, os.environ)
        how = HowToRun(jobs=jobs, detach=detach, devices=devices, watch=watch)
        result = resume(directory, how, grid=grid, retry_failed=retry_failed)
    _conclude(result, as_json=as_json)


@app.command("status")
def show_status(directory: SweepDir, as_json: AsJson = False) -> None:
    """Show how the runs of a sweep stand, running or not.

    Example: outlay sweep status runs/demo
    """
    looked = catch_up(directory)
    manifest = looked.manifest
    holder = holder_of(directory)
    if as_json:
        runs = [
            {
                "id": run,
                "status": state.status,
                "attempts": state.attempts,
                "reason": looked.standing.get(run) or state.reason,
            }
            for run in manifest.runs
            for state in [manifest.state(run)]
        ]
        print_json(
            {
                "counts": counts(manifest), "harness": holder, "spent": spent(manifest),
                "runs": runs, "findings": looked.findings,
            }
        )  # fmt: skip
        return
    console.print(status_table(manifest, SYSTEM.wall_ns(), looked.standing))
    print_findings(looked.findings)
    running = f"run by process {holder}" if holder else "nobody runs it"
    console.print()
    print_sentence(f"{standing(manifest)}; {running}")


@app.command("cancel")
def show_cancel(directory: SweepDir, as_json: AsJson = False) -> None:
    """End a sweep that runs: its runs are told to end, and its books are closed.

    Example: outlay sweep cancel runs/demo
    """
    told = cancel(directory)
    if as_json:
        print_json({"told": told.harness, "jobs": told.jobs})
    elif told.harness is not None:
        console.print(f"Told process {told.harness} to end the sweep; once more forces it.")
    elif told.jobs:
        stand = standing(read_manifest(directory))
        console.print(f"Cancelled {told.jobs} on the cluster; now {stand}.")
    else:
        console.print("Nobody runs this sweep; nothing was left running.")


@app.command("aggregate")
def show_aggregate(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The sweep's directory.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="The same, by name.")] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="Its manifest, instead of its directory.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where the reports go; default: DIR/reports.")
    ] = None,
    enable_aggregator: Annotated[
        bool, typer.Option("--enable-aggregator", help="Accepted; aggregating only reads runs.")
    ] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Go on when a completed run misses files.")
    ] = False,
    pictures: Annotated[
        str | None,
        typer.Option(metavar="FORMATS", help="Also draw the charts as files: png,svg,pdf."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarise a sweep: a CSV with a row per run, and a page that says which was best.

    Example: outlay sweep aggregate runs/demo --pictures png,pdf
    """
    del enable_aggregator
    formats = read_formats(pictures) if pictures is not None else ()
    chosen = directory or root or (manifest.parent if manifest else Path())
    findings = catch_up(chosen).findings
    if not as_json:
        print_findings(findings)  # Now: they may say why what follows cannot be done.
    files = write_sweep_files(
        chosen, SYSTEM.wall_ns(), output=output, allow_missing=allow_missing, pictures=formats
    )
    show_sweep_files(files, findings, as_json=as_json)


def show_sweep_files(files: SweepFiles, findings: Sequence[Finding] = (), *, as_json: bool) -> None:
    """Say which configuration was best and where the reports are; JSON holds findings as well."""
    if as_json:
        about = {
            "verdict": files.verdict, "pictures": files.pictures, "runs": files.summary.rows,
            "findings": findings,
        }  # fmt: skip
        print_json(files.written | about)
        return
    print_sentence(files.verdict)
    for path in (*files.written.values(), *files.pictures):
        console.print(str(path), soft_wrap=True)


def _ask(plan: Plan) -> None:
    """Show the plan on a terminal and ask; without one, refuse."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NotAcknowledged
    render_plan(plan)
    if not typer.confirm("Start these runs?"):
        raise NotAcknowledged


def _conclude(result: Result, *, as_json: bool) -> None:
    """Say how the sweep went, and exit with what that means."""
    failed = result.of_status("error", "cancelled", "preempted")
    skipped = result.of_status("skipped")
    if as_json:
        print_json(
            {
                "root": result.root, "counts": result.counts, "failed": failed,
                "skipped": skipped, "spent": spent(result.manifest), "findings": result.findings,
            }
        )  # fmt: skip
    else:
        print_findings(result.findings)
        print_sentence(standing(result.manifest))
        then = "Look at it" if result.of_status("running") else "Summarise it"
        command = "status" if result.of_status("running") else "aggregate"
        console.print(f"{then} with: outlay sweep {command} {result.root}", soft_wrap=True)
    if result.cancelled:
        raise typer.Exit(130)
    if failed:
        raise RunsFailed(failed)
    if skipped:
        raise RunsSkipped(skipped)


def render_plan(plan: Plan, *, commands: bool = False) -> None:
    """Print a plan as people read it, and every run's command where that is wanted."""
    table = new_table("run", "parameters", "budget", ">GPUs", ">time", ">cost")
    for run in plan.runs:
        ns, cost = run.prediction.ns, run.prediction.cost
        params = " ".join(f"{k}={v}" for k, v in run.params.items() if k != "world_size")
        table.add_row(
            run.id, params, budget_text(run),
            str(run.gpus) if run.gpus is not None else f"≤{run.most_gpus}",
            "?" if ns is None else duration_text(ns), "?" if cost is None else str(cost),
        )  # fmt: skip
    console.print(table)
    console.print()
    if commands:
        _render_commands(plan)
    print_sentence(_total(plan))
    print_findings(plan.warnings)


def _render_commands(plan: Plan) -> None:
    print_sentence(f"Commands; {SWEEP_MARK} stands for the sweep's directory:")
    for run in plan.runs:
        lines = command_lines(planned_command(plan, run), console.width - len(_INDENT))
        text = "\n".join(f"{_INDENT}{line}" for line in lines)
        console.print(f"\n{run.id}\n{text}", soft_wrap=True)
    console.print()


def _total(plan: Plan) -> str:
    noun = "run" if len(plan.runs) == 1 else "runs"
    ns, cost, ceiling = plan.predicted_ns, plan.predicted_cost, plan.grid.ceiling
    time = "an unknown time" if ns is None else f"{duration_text(ns)} of training"
    money = "unknown cost" if cost is None else f"{cost} (estimated)"
    room = "" if ceiling is None else f", ceiling {ceiling}"
    if ceiling is not None and cost is not None and cost.currency == ceiling.currency:
        room += ": all of them fit" if cost <= ceiling else ": not all of them will fit"
    return f"{len(plan.runs)} {noun}: {time}, {money}{room}"
