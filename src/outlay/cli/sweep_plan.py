"""How a sweep's plan looks before anything is started."""

from __future__ import annotations

import os
from typing import Final

from outlay.cli.output import console, counted, new_table, print_findings, print_sentence
from outlay.sweep.launch import SWEEP_MARK
from outlay.sweep.plan import Plan
from outlay.sweep.plan_text import (
    budget_text,
    command_lines,
    params_text,
    planned_command,
    start_up_text,
)
from outlay.sweep.redaction import Redactor
from outlay.units.quantity import duration_text

_INDENT: Final = "  "


def print_plan(plan: Plan, *, commands: bool = False) -> None:
    """Print a plan as people read it, and every run's command where that is wanted."""
    table = new_table("run", "parameters", "budget", ">GPUs", ">time", ">cost")
    redact = plan.redactor(os.environ)
    for run in plan.runs:
        ns, cost = run.prediction.ns, run.prediction.cost
        table.add_row(
            run.id, params_text(run, redact), budget_text(run),
            str(run.gpus) if run.gpus is not None else f"≤{run.most_gpus}",
            "?" if ns is None else duration_text(ns), "?" if cost is None else str(cost),
        )  # fmt: skip
    console.print(table)
    console.print()
    if commands:
        _print_commands(plan, redact)
    print_sentence(_total(plan))
    print_sentence(start_up_text(plan))
    print_findings(plan.warnings)


def _print_commands(plan: Plan, redact: Redactor) -> None:
    print_sentence(f"Commands; {SWEEP_MARK} stands for the sweep's directory:")
    for run in plan.runs:
        lines = command_lines(planned_command(plan, run, redact), console.width - len(_INDENT))
        text = "\n".join(f"{_INDENT}{line}" for line in lines)
        console.print(f"\n{run.id}\n{text}", soft_wrap=True)
    console.print()


def _total(plan: Plan) -> str:
    ns, cost, ceiling = plan.predicted_ns, plan.predicted_cost, plan.grid.ceiling
    time = "an unknown time" if ns is None else f"{duration_text(ns)} of training"
    money = "unknown cost" if cost is None else f"{cost} (estimated)"
    room = "" if ceiling is None else f", ceiling {ceiling}"
    if ceiling is not None and cost is not None and cost.currency == ceiling.currency:
        room += ": all of them fit" if cost <= ceiling else ": not all of them will fit"
    return f"{counted(len(plan.runs), 'run')}: {time}, {money}{room}"
