"""Comparison of models and runs: averages, return on investment, the best runs. Pure.

Averages skip runs without the figure: a missing accuracy is not an accuracy of 0. Amounts of
different units are never added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import fmean
from typing import Any

from outlay.cost.cost_book import by_currency
from outlay.store.run_row import RunRow
from outlay.units import Money, Unit
from outlay.units.money import Kind, per
from outlay.units.quantity import MILLIJOULES_PER_WH


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """Figures of a model's runs; amounts in currency units, None if unknown.

    Attributes:
        assumed_cost: The part of the total for which no record says that it is charged.
    """

    runs: int
    total_cost: float
    avg_cost_per_run: float
    avg_cost_per_sample: float | None
    avg_cost_per_epoch: float | None
    avg_accuracy: float | None
    best_accuracy: float | None
    best_efficiency_score: float
    gpu_hours: float
    currency: str
    kind: Kind
    assumed_cost: float = 0.0


def by_model(rows: Iterable[RunRow]) -> dict[str, list[RunRow]]:
    """Group rows by model; a model with costs of several units has several groups."""
    groups: dict[tuple[str, Unit], list[RunRow]] = {}
    for row in (part for each in rows for part in by_currency(each)):
        groups.setdefault((row.model, row.paid.unit), []).append(row)
    models = Counter(model for model, _ in groups)
    return {
        f"{model} ({unit})" if models[model] > 1 else model: found
        for (model, unit), found in sorted(groups.items())
    }


def of_last_unit(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return the rows with the unit of the last one."""
    return [row for row in rows if row.paid.unit == rows[-1].paid.unit]


def total_of(rows: Sequence[RunRow]) -> Money:
    """Return the exact sum of rows of one unit."""
    return _sum(row.paid for row in rows)


def assumed_of(rows: Sequence[RunRow]) -> Money:
    """Return the assumed part of that sum."""
    return _sum(row.paid_assumed for row in rows)


def _sum(amounts: Iterable[Money]) -> Money:
    found = list(amounts)
    return sum(found[1:], start=found[0]) if found else Money(0)


def compare(rows: Sequence[RunRow]) -> ModelComparison:
    """Return the figures of one model's runs; ``rows`` must not be empty."""
    total = total_of(rows)
    per_sample = [per(row.cost, row.samples) for row in rows]
    per_epoch = [per(row.cost, row.epochs) for row in rows]
    accuracies = [row.accuracy for row in rows if row.accuracy is not None]
    return ModelComparison(
        runs=len(rows),
        total_cost=float(total.amount),
        avg_cost_per_run=per(total, len(rows)) or 0.0,
        avg_cost_per_sample=_mean([cost for cost in per_sample if cost is not None]),
        avg_cost_per_epoch=_mean([cost for cost in per_epoch if cost is not None]),
        avg_accuracy=_mean(accuracies),
        best_accuracy=max(accuracies, default=None),
        best_efficiency_score=max(efficiency(row.paid, row.accuracy) for row in rows),
        gpu_hours=sum(row.gpu_ns // 1000 for row in rows) / 3.6e9,
        currency=total.currency,
        kind=total.kind,
        assumed_cost=float(assumed_of(rows).amount),
    )


def efficiency(total: Money, accuracy: float | None) -> float:
    """Return the documented score, 0 to 1: accuracy per currency unit, over 10."""
    if accuracy is None or accuracy <= 0:
        return 0.0
    if not total:
        return 1.0  # The limit as the cost approaches 0.
    return min(1.0, accuracy / float(total.amount) / 10)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A run with a new best accuracy, and its cost.

    Attributes:
        gained: Improvement over the previous best.
        spent: Total cost since the previous best, including this run.
        per_dollar: ``gained`` per currency unit; None at a cost of 0.
        assumed: The assumed part of ``spent``.
    """

    run_id: str
    accuracy: float
    gained: float
    spent: float
    per_dollar: float | None
    assumed: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Roi:
    """Return on investment: the total cost of a model's runs and the accuracy gained.

    Attributes:
        accuracy_improvement: Last minus first, as documented.
        best_improvement: Best minus first.
        gains: Runs with a new best, in order; the last is the marginal one.
        assumed_investment: The assumed part of the total.
    """

    model_name: str
    runs: int
    total_investment: float
    first_accuracy: float | None
    current_accuracy: float | None
    best_accuracy: float | None
    accuracy_improvement: float | None
    best_improvement: float | None
    improvement_per_dollar: float
    best_improvement_per_dollar: float
    gains: list[Gain]
    currency: str
    assumed_investment: float = 0.0


def return_on_investment(model: str, rows: Sequence[RunRow]) -> Roi:
    """Return the figures of a model's runs, oldest first and of one currency."""
    total = total_of(rows)
    accuracies = [row.accuracy for row in rows if row.accuracy is not None]
    first, last, best = (
        (accuracies[0], accuracies[-1], max(accuracies)) if accuracies else (None, None, None)
    )
    improvement = None if first is None or last is None else last - first
    best_improvement = None if first is None or best is None else best - first
    return Roi(
        model_name=model,
        runs=len(rows),
        total_investment=float(total.amount),
        first_accuracy=first,
        current_accuracy=last,
        best_accuracy=best,
        accuracy_improvement=improvement,
        best_improvement=best_improvement,
        improvement_per_dollar=_per_dollar(improvement, total) or 0.0,
        best_improvement_per_dollar=_per_dollar(best_improvement, total) or 0.0,
        gains=_gains(rows),
        currency=total.currency,
        assumed_investment=float(assumed_of(rows).amount),
    )


def _gains(rows: Sequence[RunRow]) -> list[Gain]:
    gains: list[Gain] = []
    best: float | None = None
    since: list[RunRow] = []
    for row in rows:
        since.append(row)
        if row.accuracy is None or (best is not None and row.accuracy <= best):
            continue
        if best is not None:
            gained, spent = row.accuracy - best, total_of(since)
            gains.append(
                Gain(
                    run_id=row.run_id,
                    accuracy=row.accuracy,
                    gained=gained,
                    spent=float(spent.amount),
                    per_dollar=_per_dollar(gained, spent),
                    assumed=float(assumed_of(since).amount),
                )
            )
        best, since = row.accuracy, []
    return gains


def _per_dollar(improvement: float | None, cost: Money) -> float | None:
    return None if improvement is None or not cost else improvement / float(cost.amount)


def with_accuracy(rows: Iterable[RunRow]) -> list[RunRow]:
    """Return the runs that have an accuracy."""
    return [row for row in rows if row.accuracy is not None]


def point_of(row: RunRow) -> dict[str, Any]:
    """Return a run as a point: a higher metric is better, and less of everything else."""
    return {
        "name": row.run_id,
        "metric": row.accuracy,
        "cost": float(row.paid.amount),
        "hours": row.wall_ns / 3.6e12,
        "energy_wh": row.energy_mj / MILLIJOULES_PER_WH if row.energy_mj else None,
        "currency": row.paid.currency,
        "kind": row.kind,
        "assumed": float(row.paid_assumed.amount),
    }


def pareto_front(rows: Iterable[RunRow]) -> list[RunRow]:
    """Return the non-dominated runs, cheapest first, without those that have no accuracy.

    A run dominates another if it is at least as good in everything and better in something. Energy
    counts only if all of them have it. Runs of different units are not compared.
    """
    known = with_accuracy(rows)
    with_energy = all(row.energy_mj for row in known)

    def losses(row: RunRow) -> tuple[float, ...]:
        energy = row.energy_mj if with_energy else 0
        return (row.paid.micros, row.wall_ns, -(row.accuracy or 0.0), energy)

    front: list[RunRow] = []
    for unit in {row.paid.unit for row in known}:
        mine = [row for row in known if row.paid.unit == unit]
        front += compress(mine, non_dominated([losses(row) for row in mine]))
    return sorted(front, key=lambda row: (losses(row), row.run_id, row.paid.unit))


def non_dominated(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """Return for each point whether no other is as low in every coordinate and lower in one."""
    front: list[tuple[float, ...]] = []
    # In sorted order a later point cannot dominate an earlier one.
    for point in sorted(set(points)):
        if not any(all(a <= b for a, b in zip(kept, point, strict=True)) for kept in front):
            front.append(point)
    kept = set(front)
    return [point in kept for point in points]
