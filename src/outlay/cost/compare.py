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
from typing import TYPE_CHECKING

from outlay.units import Money, Unit
from outlay.units.money import Kind, per
from outlay.units.quantity import MILLIJOULES_PER_WH

if TYPE_CHECKING:
    from outlay.cost.cost_book import CostRow


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


def by_model(rows: Iterable[CostRow]) -> dict[str, list[CostRow]]:
    """Group rows by model; a model with costs of several units has several groups."""
    groups: dict[tuple[str, Unit], list[CostRow]] = {}
    for row in (part for each in rows for part in each.by_currency()):
        groups.setdefault((row.model, row.unit), []).append(row)
    models = Counter(model for model, _ in groups)
    return {
        f"{model} ({unit})" if models[model] > 1 else model: found
        for (model, unit), found in sorted(groups.items())
    }


def of_last_unit(rows: Sequence[CostRow]) -> list[CostRow]:
    """Return the rows with the unit of the last one."""
    return [row for row in rows if row.unit == rows[-1].unit]


def total_of(rows: Sequence[CostRow]) -> Money:
    """Return the exact sum of rows of one unit."""
    return sum((row.cost for row in rows), start=_nothing(rows))


def assumed_of(rows: Sequence[CostRow]) -> Money:
    """Return the assumed part of that sum."""
    return sum((row.assumed for row in rows), start=_nothing(rows))


def _nothing(rows: Sequence[CostRow]) -> Money:
    return rows[0].cost * 0 if rows else Money(0)


def compare(rows: Sequence[CostRow]) -> ModelComparison:
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
        best_efficiency_score=max(efficiency(row.cost, row.accuracy) for row in rows),
        gpu_hours=sum(row.gpu_us for row in rows) / 3.6e9,
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


def return_on_investment(model: str, rows: Sequence[CostRow]) -> Roi:
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


def _gains(rows: Sequence[CostRow]) -> list[Gain]:
    gains: list[Gain] = []
    best: float | None = None
    since: list[CostRow] = []
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A run as a point: a higher metric is better, and less of everything else."""

    name: str
    metric: float
    cost: float
    hours: float
    energy_wh: float | None = None
    currency: str = "USD"
    kind: Kind = "cash"
    assumed: float = 0.0

    @property
    def unit(self) -> Unit:
        """The unit of its cost."""
        return Unit(self.currency, self.kind)


def candidates_of(rows: Iterable[CostRow]) -> list[Candidate]:
    """Return runs as points, without those that have no accuracy."""
    return [
        Candidate(
            name=row.run_id,
            metric=row.accuracy,
            cost=float(row.cost.amount),
            hours=row.wall_us / 3.6e9,
            energy_wh=None if row.energy_mj is None else row.energy_mj / MILLIJOULES_PER_WH,
            currency=row.currency,
            kind=row.kind,
            assumed=float(row.assumed.amount),
        )
        for row in rows
        if row.accuracy is not None
    ]


def pareto_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the non-dominated candidates, cheapest first.

    A candidate dominates another if it is at least as good in everything and better in something.
    Energy counts only if all candidates have it. Candidates of different units are not
    compared.
    """
    with_energy = all(candidate.energy_wh is not None for candidate in candidates)

    def losses(one: Candidate) -> tuple[float, ...]:
        energy = (one.energy_wh or 0.0,) if with_energy else ()
        return (one.cost, one.hours, -one.metric, *energy)

    front: list[Candidate] = []
    for unit in {one.unit for one in candidates}:
        mine = [one for one in candidates if one.unit == unit]
        front += compress(mine, non_dominated([losses(one) for one in mine]))
    return sorted(front, key=lambda one: (losses(one), one.name, one.unit))


def non_dominated(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """Return for each point whether no other is as low in every coordinate and lower in one."""
    front: list[tuple[float, ...]] = []
    # In sorted order a later point cannot dominate an earlier one.
    for point in sorted(set(points)):
        if not any(all(a <= b for a, b in zip(kept, point, strict=True)) for kept in front):
            front.append(point)
    kept = set(front)
    return [point in kept for point in points]
