"""What planned runs are likely to cost, by recorded runs of like configuration. Pure.

Only for runs whose cost no budget decides. Holds and ceilings ignore it: they need what a run costs
at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from outlay.budget.limits import TOKENS
from outlay.cost.prediction import (
    LEAST_RUNS,
    Configuration,
    PastRun,
    ProvenPrediction,
    changed,
    configuration_of,
    past_gpu_hours,
    proven_predictions,
    rests_on,
)
from outlay.guard.lease import Terms
from outlay.rates import NS_PER_HOUR
from outlay.store.run_row import RunRow
from outlay.sweep.plan.plan import LikelyCost, LikelyCosts, PlannedRun, SweepPlan
from outlay.units.shown import counted

# Parameters that say how much a run does, and how large its model is; without the words before the
# last dot, and without "max", "total", "num" or "train".
_FIGURES: Final = {
    "tokens": "tokens",
    "samples": "samples",
    "steps": "steps",
    "parameters": "parameters",
    "sequence_length": "sequence_length",
    "seq_len": "sequence_length",
}
_WORK: Final = ("tokens", "samples", "steps")
_BEFORE: Final = ("max_", "total_", "num_", "train_")
_MOST_SHOWN: Final = 3
_BY_TIMEOUT: Final = "its timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """A completed run of an earlier sweep of the grid, with its parameters."""

    row: RunRow
    params: Mapping[str, Any]


def open_runs(plan: SweepPlan) -> list[PlannedRun]:
    """Return the runs whose cost nothing decides but perhaps a timeout."""
    return [
        run
        for run in plan.runs
        if not run.rungs and run.prediction.basis in ("", _BY_TIMEOUT) and run.charged_gpus
    ]


def likely_costs(
    plan: SweepPlan, earlier: Sequence[EarlierRun], rows: Sequence[RunRow]
) -> LikelyCosts:
    """Predict the time of runs, where that is better than the median, and price it.

    Args:
        plan: The plan.
        earlier: Runs of earlier sweeps of its grid, the newest first.
        rows: All recorded runs, oldest first; their GPU-hours are learned from.
    """
    past = past_gpu_hours(rows)
    asked = {run.id: asked_of(run, earlier) for run in open_runs(plan)}
    distinct = list(dict.fromkeys(of for of in asked.values() if _has_work(of)))
    proven = dict(zip(distinct, proven_predictions(distinct, past), strict=True))
    found = {
        run.id: _priced(run, each)
        for run in open_runs(plan)
        if (each := proven.get(asked[run.id])) is not None
    }
    if not found:
        is_tested = distinct and len(past) > LEAST_RUNS
        return LikelyCosts(runs={}, basis=_none_text(past) if is_tested else "")
    return LikelyCosts(runs=found, basis=_basis([one for one in proven.values() if one]))


def says_its_work(run: PlannedRun) -> bool:
    """Whether a run states how much it does, by its parameters or its budget."""
    return _has_work(asked_of(run, ()))


def _has_work(of: Configuration) -> bool:
    return any(getattr(of, name) is not None for name in _WORK)


def asked_of(run: PlannedRun, earlier: Sequence[EarlierRun]) -> Configuration:
    """Return a planned run's configuration: as it states, else as the most similar earlier run."""
    entry = run.entry
    like = max(earlier, key=lambda each: _shared(each.params, run.params), default=None)
    of = Configuration() if like is None else configuration_of(like.row)
    stated: dict[str, float | str | None] = {
        "gpus": float(run.charged_gpus),
        "gpu": entry.gpu or None,
        "model": None if of.model else str(run.params.get("model", "")) or None,
    }
    for name, value in run.params.items():
        figure, number = _figure_of(name), _number(value)
        if figure is not None and number is not None:
            stated[figure] = number
    bounds = () if entry.budget is None else entry.budget.bounds_known
    limit = next((float(each.limit) for each in bounds if each.dimension == TOKENS), None)
    return changed(of, **stated | ({} if limit is None else {"tokens": limit}))


def _shared(params: Mapping[str, Any], others: Mapping[str, Any]) -> int:
    return sum(name != "seed" and others.get(name) == value for name, value in params.items())


def _figure_of(name: str) -> str | None:
    last = name.rpartition(".")[2].lower().replace("-", "_")
    for before in _BEFORE:
        last = last.removeprefix(before)
    return _FIGURES.get(last)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def _priced(run: PlannedRun, proven: ProvenPrediction) -> LikelyCost:
    found, rate = proven.prediction, run.rate
    point, low, high = (
        round(hours * NS_PER_HOUR / float(run.charged_gpus))
        for hours in (found.cost, found.low, found.high)
    )
    cost, least, most = (
        None if rate is None else Terms(rate=rate).cost(ns) for ns in (point, low, high)
    )
    return LikelyCost(ns=point, low_ns=low, high_ns=high, cost=cost, low=least, high=most)


def _basis(proven: Sequence[ProvenPrediction]) -> str:
    """Return the basis of several predictions in one line; they rest on the same runs."""
    first = proven[0]
    error, usual = (
        max(getattr(each.test, name) for each in proven) for name in ("error", "median_error")
    )
    beyond = list(dict.fromkeys(text for each in proven for text in each.prediction.beyond))
    more = f" and {len(beyond) - _MOST_SHOWN} more" if len(beyond) > _MOST_SHOWN else ""
    said = f"; extrapolates {'; '.join(beyond[:_MOST_SHOWN])}{more}" if beyond else ""
    return (
        f"{rests_on(first.prediction)}: median error {error:.0%}, of the median {usual:.0%}{said}"
    )


def _none_text(past: Sequence[PastRun]) -> str:
    of = counted(len(past), "recorded run")
    return f"{of} predict no cost better than the median of their model does."
