"""A plan as a document, the same bytes for the same grid, and in words. Pure."""

from __future__ import annotations

from typing import Any

from outlay.sweep.launch import SWEEP_MARK, Place, command_of
from outlay.sweep.plan import Plan, PlannedRun
from outlay.sweep.redaction import Redactor


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the whole plan as plain data; nothing in it depends on the time or the machine."""
    cost = plan.predicted_cost
    grid = plan.grid
    return {
        "name": grid.name,
        "output_dir": grid.output_dir,
        "ceiling": None if grid.ceiling is None else str(grid.ceiling),
        "predicted_cost": None if cost is None else str(cost),
        "predicted_hours": hours(plan.predicted_ns),
        "runs": [run_document(plan, run) for run in plan.runs],
        "warnings": [str(warning) for warning in plan.warnings],
    }


def run_document(plan: Plan, run: PlannedRun) -> dict[str, Any]:
    """Return one run of a plan."""
    settings, prediction = run.settings, run.prediction
    redact = Redactor([run.env])
    budget = settings.budget
    port = None if settings.engine == "slurm" else 0
    place = Place(root=SWEEP_MARK, run_dir=run.id, python="python", port=port)
    return {
        "id": run.id,
        "fingerprint": run.fingerprint,
        "engine": settings.engine,
        "params": redact.data(run.params),
        "command": redact.data(command_of(plan, run, place)),
        "env": redact.environment(run.env),
        "metadata": redact.data(run.metadata),
        "budget": None if budget is None else {"mode": budget.mode, **budget.limits},
        "gpus": run.gpus,
        "price": None if settings.price is None else str(settings.price),
        "predicted_hours": hours(prediction.ns),
        "predicted_cost": None if prediction.cost is None else str(prediction.cost),
        "predicted_from": prediction.basis,
    }


def hours(ns: int | None) -> float | None:
    """Return nanoseconds as hours, for showing."""
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
