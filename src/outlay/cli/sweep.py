"""Sweeps: plan them, run them, go on with them, and summarise what they found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from outlay.cli.output import AsJson, console, new_table, print_findings, print_json
from outlay.sweep.files import plan_file
from outlay.sweep.plan import Plan
from outlay.sweep.plan_text import budget_text, plan_document
from outlay.units.quantity import duration_text

app = typer.Typer(
    help="Many configurations under the same budget, and which is best.", no_args_is_help=True
)

GridFile = Annotated[Path, typer.Argument(metavar="GRID", help="A YAML or JSON grid.")]


@app.command("plan")
def show_plan(grid: GridFile, as_json: AsJson = False) -> None:
    """Show the runs of a grid, their budgets, hours and dollars; start nothing.

    Example: outlay sweep plan configs/sweeps/example_iso_time.yaml
    """
    plan = plan_file(grid)
    if as_json:
        print_json(plan_document(plan))
    else:
        render_plan(plan)


def render_plan(plan: Plan) -> None:
    """Print a plan as people read it."""
    table = new_table("run", "parameters", "budget", ">GPUs", ">hours", ">cost")
    for run in plan.runs:
        ns, cost = run.prediction.ns, run.prediction.cost
        params = " ".join(f"{k}={v}" for k, v in run.params.items() if k != "world_size")
        table.add_row(
            escape(run.id), escape(params), budget_text(run),
            str(run.gpus) if run.gpus is not None else f"≤{run.most_gpus}",
            "?" if ns is None else duration_text(ns), "?" if cost is None else str(cost),
        )  # fmt: skip
    console.print(table)
    console.print(f"\n{_total(plan)}", soft_wrap=True, markup=False)
    print_findings(plan.warnings)


def _total(plan: Plan) -> str:
    noun = "run" if len(plan.runs) == 1 else "runs"
    ns, cost, ceiling = plan.predicted_ns, plan.predicted_cost, plan.grid.ceiling
    time = "an unknown time" if ns is None else f"{duration_text(ns)} of training"
    money = "unknown cost" if cost is None else f"{cost} (estimated)"
    room = "" if ceiling is None else f", ceiling {ceiling}"
    if ceiling is not None and cost is not None and cost.currency == ceiling.currency:
        room += ": all of them fit" if cost <= ceiling else ": not all of them will fit"
    return f"{len(plan.runs)} {noun}: {time}, {money}{room}"
