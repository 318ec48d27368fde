"""Prediction of a run's cost from its configuration, learned from recorded runs. Pure.

A Bayesian linear regression of the logarithm of cost on the logarithms of tokens (else samples,
else steps), parameters, sequence length and GPUs, with an effect for each model and each kind of
GPU that is drawn towards zero (partial pooling). Before any run is seen, cost is proportional to
tokens and parameters, and does not depend on the number of GPUs; runs correct that. The noise is
averaged over a grid by its likelihood. Extrapolates, and says from where.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outlay.errors import InvalidValue
from outlay.ledger import exact_gpus
from outlay.store.run_row import RunRow
from outlay.units.shown import counted, number_text

Floats = NDArray[np.float64]
Work = Literal["tokens", "samples", "steps"]

CONFIDENCE = 0.8
LEAST_RUNS = 3
_DRAWS = 4000
_SEED = 20261118
_WORKS: tuple[Work, ...] = ("tokens", "samples", "steps")
_SIZES = ("parameters", "sequence_length", "gpus")
# Mean and standard deviation of each exponent, before any run is seen.
_PRIORS = {
    "work": (1.0, 0.2),
    "parameters": (1.0, 0.4),
    "sequence_length": (0.0, 0.4),
    "gpus": (0.0, 0.25),
}
_OF_MODELS, _OF_GPUS = 1.0, 0.8  # Standard deviations of the effects, as logarithms.
_NOISES = np.geomspace(0.02, 1.5, 16)
_BEYOND = 1.5  # So many times the largest run seen, or below the smallest, is an extrapolation.


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What is known of a run before it starts; None where it is not."""

    model: str = ""
    gpu: str = ""
    tokens: float | None = None
    samples: float | None = None
    steps: float | None = None
    parameters: float | None = None
    sequence_length: float | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        for name in (*_WORKS, *_SIZES):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidValue(name, value, "a finite number above zero")

    def log(self, name: str) -> float | None:
        """Return the logarithm of a figure, if it is known."""
        value = getattr(self, name)
        return None if value is None else math.log(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A recorded run: its configuration and its cost in currency units."""

    run_id: str
    of: Configuration
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPrediction:
    """The predicted cost of a run, in currency units.

    Attributes:
        low: The lower end of an 80 % interval; ``high`` the upper.
        runs: The runs that it rests on.
        features: The figures that it depends on.
        beyond: What it extrapolates, as text.
    """

    cost: float
    low: float
    high: float
    runs: tuple[str, ...]
    features: tuple[str, ...]
    beyond: tuple[str, ...]
    confidence: float = CONFIDENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTest:
    """Errors of predictions of each run from all others, beside the median of its model's others.

    Attributes:
        error: The median of |log(predicted / true)|; ``median_error`` that of the median.
        held: How many of the intervals contained the cost.
    """

    runs: int
    error: float
    median_error: float
    held: int

    @property
    def is_better(self) -> bool:
        """Whether predictions are better than the median."""
        return self.error < self.median_error


def past_runs(rows: Iterable[RunRow]) -> list[PastRun]:
    """Return the finished runs with a cost, as far as they recorded their configuration."""
    return [
        PastRun(run_id=row.run_id, of=configuration_of(row), cost=float(row.paid.amount))
        for row in rows
        if row.status == "completed" and row.cost is not None and row.cost.micros > 0
    ]


def configuration_of(row: RunRow) -> Configuration:
    """Return the configuration of a recorded run."""
    return Configuration(
        model=row.model,
        gpu=row.gpu,
        tokens=row.tokens or None,
        samples=row.samples or None,
        steps=row.steps or None,
        parameters=row.parameters,
        sequence_length=row.sequence_length,
        gpus=float(exact_gpus(row.gpus)) or None,
    )


def predict_cost(asked: Configuration, past: Sequence[PastRun]) -> CostPrediction | None:
    """Predict the cost of a run; None with fewer than three runs that recorded the same figures."""
    work = _work_of(asked, past)
    if work is None:
        return None
    used = [each for each in past if each.of.log(work) is not None]
    sizes = [
        name
        for name in _SIZES
        if asked.log(name) is not None and all(each.of.log(name) is not None for each in used)
    ]
    features = (work, *sizes)
    design = _Design.of(features, [each.of for each in used], asked)
    drawn = _draw(design, np.log([each.cost for each in used]))
    tail = (1 - CONFIDENCE) / 2
    low, point, high = (float(each) for each in np.exp(np.quantile(drawn, [tail, 0.5, 1 - tail])))
    return CostPrediction(
        cost=point,
        low=low,
        high=high,
        runs=tuple(each.run_id for each in used),
        features=features,
        beyond=tuple(_beyond(asked, features, [each.of for each in used])),
    )


def backtest_prediction(past: Sequence[PastRun]) -> PredictionTest | None:
    """Predict each run from all others; None if there are too few runs."""
    errors, naive, held = [], [], 0
    for index, run in enumerate(past):
        others = [*past[:index], *past[index + 1 :]]
        alike = [each.cost for each in others if each.of.model == run.of.model]
        found = predict_cost(run.of, others)
        if found is None or not alike:
            continue
        errors.append(abs(math.log(found.cost / run.cost)))
        naive.append(abs(math.log(median(alike) / run.cost)))
        held += found.low <= run.cost <= found.high
    if not errors:
        return None
    return PredictionTest(
        runs=len(errors), error=median(errors), median_error=median(naive), held=held
    )


def changed(of: Configuration, **figures: float | str | None) -> Configuration:
    """Return a configuration with some figures replaced; steps and samples follow the tokens.

    What is not stated stays. If tokens are stated, samples and steps are unknown, and so on.
    """
    stated = {name: value for name, value in figures.items() if value is not None}
    works = [name for name in _WORKS if name in stated]
    unknown = dict.fromkeys(_WORKS) if works else {}
    return replace(of, **(unknown | stated))  # type: ignore[arg-type]


def _work_of(asked: Configuration, past: Sequence[PastRun]) -> Work | None:
    """Return the measure of work that was asked for and that enough runs recorded."""
    for name in _WORKS:
        known = sum(each.of.log(name) is not None for each in past)
        if asked.log(name) is not None and known >= LEAST_RUNS:
            return name
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Design:
    """The regression: a row per run, then that of the asked one; means and deviations of priors."""

    rows: Floats
    asked: Floats
    mean: Floats
    deviation: Floats

    @classmethod
    def of(
        cls, features: Sequence[str], runs: Sequence[Configuration], asked: Configuration
    ) -> _Design:
        every = [*runs, asked]
        logs = np.array([[each.log(name) or 0.0 for name in features] for each in every])
        logs -= logs[:-1].mean(axis=0)
        priors = [_PRIORS["work" if name in _WORKS else name] for name in features]
        groups = [
            _members([each.model for each in every], _OF_MODELS),
            _members([each.gpu for each in every], _OF_GPUS),
        ]
        ones = np.ones((len(every), 1))
        columns = np.hstack([ones, logs, *(columns for columns, _ in groups)])
        wide = [10.0, *(each for _, each in priors), *(d for _, many in groups for d in many)]
        mean = np.zeros(columns.shape[1])
        mean[1 : 1 + len(priors)] = [each for each, _ in priors]
        return cls(rows=columns[:-1], asked=columns[-1], mean=mean, deviation=np.array(wide))


def _members(names: Sequence[str], deviation: float) -> tuple[Floats, list[float]]:
    """Return a column per group, and the standard deviation of its effect."""
    groups = sorted(set(names))
    columns = np.array([[float(name == group) for group in groups] for name in names])
    return columns, [deviation] * len(groups)


def _draw(design: _Design, logs: Floats) -> Floats:
    """Return draws of the logarithm of the asked run's cost."""
    centre = float(logs.mean())
    y = logs - centre - design.rows @ design.mean
    prior = (design.rows * design.deviation**2) @ design.rows.T
    reach = (design.asked * design.deviation**2) @ design.rows.T
    own = float((design.asked * design.deviation**2) @ design.asked)
    weights, means, variances = [], [], []
    for noise in _NOISES:
        covariance = prior + noise**2 * np.eye(len(y))
        solved = np.linalg.solve(covariance, np.column_stack([y, reach]))
        _, size = np.linalg.slogdet(covariance)
        weights.append(-0.5 * (float(y @ solved[:, 0]) + size))
        means.append(float(reach @ solved[:, 0]))
        variances.append(max(0.0, own - float(reach @ solved[:, 1])) + noise**2)
    chances = np.exp(np.array(weights) - max(weights))
    generator = np.random.default_rng(_SEED)
    chosen = generator.choice(len(_NOISES), _DRAWS, p=chances / chances.sum())
    off = generator.standard_normal(_DRAWS) * np.sqrt(np.array(variances))[chosen]
    drawn: Floats = centre + float(design.asked @ design.mean) + np.array(means)[chosen] + off
    return drawn


def _beyond(
    asked: Configuration, features: Sequence[str], runs: Sequence[Configuration]
) -> Iterable[str]:
    """Yield what lies beyond all runs that were seen."""
    for name in features:
        seen = [value for each in runs if (value := getattr(each, name)) is not None]
        value, text = getattr(asked, name), name.replace("_", " ")
        if value > _BEYOND * max(seen):
            yield f"{text}: {value / max(seen):.3g} times the largest ({number_text(max(seen))})"
        elif value * _BEYOND < min(seen):
            yield f"{text}: {value / min(seen):.2g} of the smallest ({number_text(min(seen))})"
    for name in ("model", "gpu"):
        known = {getattr(each, name) for each in runs}
        value = getattr(asked, name)
        if value and value not in known:
            yield f"no run of {name} {value} is known, only {counted(len(known), 'other')}"
