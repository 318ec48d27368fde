"""A plan as a document, and in words: the same bytes for the same plan. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from outlay.sweep.launch import SWEEP_MARK, Place, command_of
from outlay.sweep.plan import Plan, PlannedRun
from outlay.sweep.redaction import Redactor
from outlay.units.quantity import duration_text

_GOES_ON: Final = " \\"


def plan_document(plan: Plan, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the whole plan as plain data, the same for the same grid and earlier runs.

    Args:
        plan: What is shown.
        environ: Whose secrets may stand in it, and are left out.
    """
    cost = plan.predicted_cost
    grid, redact = plan.grid, plan.redactor(environ)
    return {
        "name": grid.name,
        "output_dir": grid.output_dir,
        "ceiling": None if grid.ceiling is None else str(grid.ceiling),
        "predicted_cost": None if cost is None else str(cost),
        "predicted_hours": _hours(plan.predicted_ns),
        "start_up_seconds": None if plan.start_up is None else plan.start_up.ns / 1e9,
        "start_up_attempts": 0 if plan.start_up is None else plan.start_up.attempts,
        "runs": [_run_document(plan, run, redact) for run in plan.runs],
        "warnings": [str(warning) for warning in plan.warnings],
    }


def _run_document(plan: Plan, run: PlannedRun, redact: Redactor) -> dict[str, Any]:
    settings, prediction = run.settings, run.prediction
    budget = settings.budget
    return {
        "id": run.id,
        "fingerprint": run.fingerprint,
        "engine": settings.engine,
        "params": redact.data(run.params),
        "command": planned_command(plan, run, redact),
        "env": redact.environment(run.env),
        "metadata": redact.data(run.metadata),
        "budget": None if budget is None else {"mode": budget.mode, **budget.limits},
        "gpus": run.gpus,
        "price": None if settings.price is None else settings.price.text,
        "price_from": None if settings.price is None else settings.price.origin,
        "predicted_hours": _hours(prediction.ns),
        "predicted_cost": None if prediction.cost is None else str(prediction.cost),
        "predicted_from": prediction.basis,
    }


def planned_command(plan: Plan, run: PlannedRun, redact: Redactor) -> list[str]:
    """Return a run's command without secrets; the directory and the port are not known yet."""
    port = None if run.settings.engine == "slurm" else 0
    place = Place(root=SWEEP_MARK, run_dir=run.id, python="python", port=port)
    return redact.command(command_of(plan, run, place))


def command_lines(words: Sequence[str], width: int) -> list[str]:
    """Return a command as a shell reads it, broken between words where it is wider than that."""
    lines = [shlex.quote(words[0])]
    for word in map(shlex.quote, words[1:]):
        if len(lines[-1]) + len(word) + len(" ") + len(_GOES_ON) <= width:
            lines[-1] += f" {word}"
        else:
            lines[-1] += _GOES_ON
            lines.append(f"  {word}")
    return lines


def params_text(run: PlannedRun, redact: Redactor) -> str:
    """Return a run's parameters in a line, without secrets."""
    shown = redact.data(run.params)
    return " ".join(f"{name}={value}" for name, value in shown.items() if name != "world_size")


def _hours(ns: int | None) -> float | None:
    return None if ns is None else ns / 3.6e12


def budget_text(run: PlannedRun) -> str:
    """Return a run's limits as people read them."""
    budget = run.settings.budget
    if budget is None:
        return "none"
    if budget.needs_steps_per_epoch:
        return f"{budget.mode} {budget.limits['max_epochs']} epochs"
    texts = [bound.dimension.text(bound.limit) for bound in budget.bounds]
    return f"{budget.mode} {', '.join(texts)}"


def start_up_text(plan: Plan) -> str:
    """Return in words what is known of the time before each run's first step."""
    if plan.start_up is None:
        return "Start-up is unknown: no earlier run of this sweep has a log."
    took, attempts = duration_text(plan.start_up.ns), plan.start_up.attempts
    times = "one start" if attempts == 1 else f"{attempts:,} starts"
    return f"Start-up takes about {took} a run, measured on {times} of earlier runs."
