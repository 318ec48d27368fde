"""When a run must stop: how its budget stands, and what another one would mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.budget.dimensions import MODES
from outlay.budget.report import BudgetReport, plan_from, read_report
from outlay.budget.terms import Budget
from outlay.cli.options import AsJson, RunDir
from outlay.cli.output import console, new_table, print_findings, print_json
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue, choices
from outlay.runs.figures import RunFigures, read_figures
from outlay.units.quantity import duration_text

budget = typer.Typer(help="When a run must stop, and how much is left.", no_args_is_help=True)


@budget.command("show")
def show(run: RunDir, as_json: AsJson = False) -> None:
    """Show what a run may use, what it used, and when it will stop.

    Example: outlay budget show runs/001
    """
    figures = read_figures(run, SYSTEM.wall_ns())
    report = read_report(run, _present_ns(figures))
    if as_json:
        print_json({"run": figures.name, "status": figures.status, **report.document()})
        return
    console.print(_limits_table(report))
    for name, spent_ns in report.clocks_ns.items():
        if spent_ns:
            console.print(f"{name}: {duration_text(spent_ns)}")
    console.print(_verdict(report, figures), soft_wrap=True)
    print_findings(report.findings)


@budget.command("plan")
def plan(
    mode: Annotated[str, typer.Option(help=f"What is limited: {', '.join(MODES)}.")],
    limit: Annotated[str, typer.Option(help='How much, such as "2h", "50k" or "5 USD".')],
    run: Annotated[
        Path, typer.Option("--from", metavar="RUN", help="A run whose pace and price to assume.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a budget would mean in steps, tokens and dollars, judged by a measured run.

    Example: outlay budget plan --mode iso_time --limit 2h --from runs/001
    """
    if mode not in MODES:
        raise InvalidValue("--mode", mode, choices(MODES))
    figures = read_figures(run, SYSTEM.wall_ns())
    limits = {MODES[mode].key: limit}
    if mode == "iso_epochs":
        limits |= _epoch_of(run, figures)
    result = plan_from(run, Budget.of(mode, limits), _present_ns(figures))
    if as_json:
        print_json(result.document())
        return
    table = new_table("what", ">estimate")
    for name, text in result.lines():
        table.add_row(name, text)
    console.print(table)
    console.print(f"Estimated from {result.measured_steps:,} measured steps of {figures.name}.")
    print_findings(result.findings)


def _epoch_of(run: Path, figures: RunFigures) -> dict[str, str]:
    steps = read_report(run, _present_ns(figures)).budget.steps_per_epoch
    if steps is None:
        raise InvalidValue("--from", str(run), "a run that recorded its steps_per_epoch")
    return {"steps_per_epoch": str(steps)}


def _present_ns(figures: RunFigures) -> int:
    return SYSTEM.wall_ns() if figures.status == "running" else figures.last_seen_ns


def _limits_table(report: BudgetReport) -> object:
    table = new_table("limit", ">used", ">of", ">left", ">share")
    for bound in report.budget.bounds_known:
        text, used = bound.dimension.text, bound.used(report.used)
        table.add_row(
            bound.dimension.key,
            text(used),
            text(bound.limit),
            text(bound.left(report.used)),
            f"{used / bound.limit:.1%}",
        )
    return table


def _verdict(report: BudgetReport, figures: RunFigures) -> str:
    if report.stop_reason is not None:
        return f"Stopped by {report.stop_reason}"
    if figures.status != "running":
        return f"No limit was reached; the run is {figures.status}."
    if report.forecast is None:
        return "Running; no step was measured yet."
    ahead = report.forecast
    return (
        f"Running; will stop at {ahead.bound.dimension.key} in about "
        f"{duration_text(ahead.time_left_ns)}, after {ahead.steps_left:,} more steps (estimated)."
    )
