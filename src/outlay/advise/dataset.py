"""Advice on data: scaling laws, repeated passes, the size of the dataset."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlay.advise.curves import LEAST_POINTS, draw_curves
from outlay.advise.recommendation import (
    OptimizationRecommendation,
    bounded,
    confidence_of,
    least_saving,
)
from outlay.errors import InvalidValue, MissingExtra
from outlay.units.shown import amount_text

# Scaling laws: the value of repeated data, and the split of compute between model and data.

REPETITION_CONSTANT = 15.39
"""R*: the decay constant of repeated data (Muennighoff et al. 2023, arXiv:2305.16264)."""


def effective_data(unique: float, epochs: float) -> float:
    """Return the amount of fresh data that ``epochs`` passes over ``unique`` data are worth.

    D' = U + U R* (1 - exp(-(epochs - 1) / R*)).
    """
    if unique < 0 or epochs < 1:
        raise InvalidValue("epochs", epochs, "one pass or more")
    decay = -math.expm1(-(epochs - 1) / REPETITION_CONSTANT)
    return unique + unique * REPETITION_CONSTANT * decay


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLaw:
    """L = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv:2203.15556)."""

    e: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss of a model trained on ``tokens``."""
        return float(self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """Return the optimal parameters and tokens for a compute budget, C = 6ND."""
        exponent = 1 / (self.alpha + self.beta)
        g = (self.alpha * self.a / (self.beta * self.b)) ** exponent
        parameters = g * (flops / 6) ** (self.beta * exponent)
        return parameters, flops / 6 / parameters


# Fit of a scaling law to small runs, by variable projection.
#
# For given exponents the law is linear in E, A and B, which are not negative; only the two
# exponents are searched. Fitting parabolas to slices of equal compute instead is biased
# (arXiv:2603.22339). Needs SciPy (the ``advise`` extra); nothing else in this package does.

_STARTS = tuple(itertools.product((0.2, 0.4, 0.7), repeat=2))


class SmallRun(NamedTuple):
    """One training: parameters, tokens and final loss."""

    parameters: float
    tokens: float
    loss: float


def fit_scaling_law(runs: Sequence[SmallRun]) -> ScalingLaw:
    """Return the law with the least squared relative errors, from several starts.

    Raises:
        InvalidValue: There are fewer runs than the law has parameters.
        MissingExtra: SciPy is not installed.
    """
    if len(runs) < 6 or any(min(run) <= 0 for run in runs):
        raise InvalidValue("runs", len(runs), "six or more runs with figures above zero")
    try:
        from scipy.optimize import minimize, nnls
    except ImportError:
        raise MissingExtra("fitting a scaling law", "advise") from None
    parameters, tokens, losses = np.array(runs, dtype=np.float64).T
    # Divided by their geometric means, for columns of one magnitude.
    n, d = (values / np.exp(np.log(values).mean()) for values in (parameters, tokens))

    def project(exponents: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        alpha, beta = exponents
        columns = np.stack([np.ones_like(n), n**-alpha, d**-beta], axis=1) / losses[:, None]
        weights, distance = nnls(columns, np.ones_like(losses))
        return weights, float(distance)

    fits = (
        minimize(lambda x: project(x)[1], start, method="Nelder-Mead", options={"xatol": 1e-7})
        for start in _STARTS
    )
    best = min(fits, key=lambda fit: float(fit.fun))
    alpha, beta = map(float, best.x)
    (e, a, b), _ = project(best.x)
    return ScalingLaw(
        e=float(e),
        a=float(a) * float(np.exp(np.log(parameters).mean())) ** alpha,
        b=float(b) * float(np.exp(np.log(tokens).mean())) ** beta,
        alpha=alpha,
        beta=beta,
    )


# The number of passes over the same data.

# The last pass should be worth at least this share of fresh data; the stricter and the laxer
# threshold give the interval.
_WORTH = 0.5
_STRICT, _LAX = 0.75, 0.25


def passes_worth(least: float) -> int:
    """Return the number of passes after which another is worth less than a share of fresh data.

    The value of a pass is the slope of D' = U + U R* (1 - exp(-(e - 1) / R*)), exp(-(e - 1) / R*).
    """
    if not 0 < least <= 1:
        raise InvalidValue("least", least, "a share of what fresh data is worth, up to 1")
    return 1 + math.floor(REPETITION_CONSTANT * -math.log(least))


def recommend_fewer_passes(
    epochs: float, cost: float, hours: float, *, currency: str = "USD"
) -> OptimizationRecommendation | None:
    """Recommend fewer passes over the same data; None if all of them are worth it.

    A trade: what little the other passes teach is given up.
    """
    enough = passes_worth(_WORTH)
    if not enough < epochs < math.inf:
        return None
    low, saved, high = (
        max(0.0, 1 - passes_worth(worth) / epochs) * cost for worth in (_LAX, _WORTH, _STRICT)
    )
    if saved <= 0 or saved < least_saving(cost):
        return None
    kept = effective_data(1.0, enough) / effective_data(1.0, epochs)
    lost = f"{1 - kept:.0%} of what the passes taught"
    found = OptimizationRecommendation(
        category="dataset",
        title=f"Get fresh data instead of more than {enough} passes over the same",
        description=(
            f"The data was passed over {epochs:g} times; the last pass was worth "
            f"{math.exp(-(epochs - 1) / REPETITION_CONSTANT):.0%} of fresh data. {enough} passes "
            f"cost {amount_text(saved, currency)} less and give up {lost}."
        ),
        estimated_savings=saved,
        estimated_time_saved=(1 - enough / epochs) * hours,
        confidence=confidence_of(0.8, "assumed"),
        action=f"Add data, or stop after {enough} passes",
        savings_low=low,
        savings_high=high,
        grade="assumed",
        evidence=[f"{epochs:g} epochs, as the run reported them"],
        assumptions=[
            f"repeated data loses its worth as in language models, R* = {REPETITION_CONSTANT} "
            "(arXiv:2305.16264)"
        ],
        needed=["accuracy on parts of the dataset (CostOptimizer.recommend_dataset_size)"],
        currency=currency,
        kind="trade",
        quality_loss=lost,
    )
    return bounded(found, cost)


# The size of the dataset.

_KEEP = 0.95
_MOST_OF_IT = 0.9
_SURE = 0.9


def recommend_dataset_size(
    size: int, accuracies: Mapping[int, float], full_cost: float, full_hours: float
) -> OptimizationRecommendation | None:
    """Recommend a smaller dataset that keeps 95 % of the accuracy; None if none is known.

    A trade: up to 5 % of the accuracy is given up. ``accuracies`` are of parts of the dataset, by
    size.
    """
    if size < 1:
        raise InvalidValue("dataset_size", size, "a number of samples, 1 or more")
    for n, accuracy in accuracies.items():
        if n < 1 or not 0 <= accuracy < float("inf"):
            expected = "samples, 1 or more, and the accuracy on them, zero or more"
            raise InvalidValue("validation_accuracy_curve", {n: accuracy}, expected)
    if len(accuracies) < 2:
        return None
    sizes = sorted(accuracies)
    if accuracies[sizes[-1]] < accuracies[sizes[0]]:
        return None  # More data made it worse: that tells nothing about less.
    enough, sure = _smallest(sizes, accuracies)
    saved = (1 - enough / size) * full_cost
    if enough >= _MOST_OF_IT * size or saved < least_saving(full_cost):
        return None
    fitted = len(sizes) >= LEAST_POINTS
    larger = min((n for n in sizes if n > enough), default=size)
    lost = f"up to {1 - _KEEP:.0%} of the accuracy"
    found = OptimizationRecommendation(
        category="dataset",
        title=f"Train on {enough:,} of {size:,} samples",
        description=(
            f"{enough:,} samples reach {_KEEP:.0%} of the best accuracy with {sure:.0%} "
            f"probability. A training on them costs {amount_text(saved, 'USD')} less and gives up "
            f"{lost}."
        ),
        estimated_savings=saved,
        estimated_time_saved=(1 - enough / size) * full_hours,
        confidence=confidence_of(sure, "estimated" if fitted else "assumed"),
        action=f"Use a sample of {enough:,} for experiments, all of it for the last run",
        risks=["rare cases are lost first"],
        savings_low=(1 - larger / size) * full_cost,
        savings_high=saved,
        grade="estimated" if fitted else "assumed",
        evidence=[f"accuracy at {len(sizes)} sizes from {sizes[0]:,} to {sizes[-1]:,}"],
        assumptions=[] if fitted else ["the accuracies carry no noise"],
        needed=[] if fitted else [f"accuracy at {LEAST_POINTS} or more sizes"],
        kind="trade",
        quality_loss=lost,
    )
    return bounded(found, full_cost)


def _smallest(sizes: list[int], accuracies: Mapping[int, float]) -> tuple[int, float]:
    """Return the smallest measured size that is enough, and its probability."""
    values = [accuracies[n] for n in sizes]
    if len(sizes) < LEAST_POINTS:
        wanted = _KEEP * max(values)
        return next(n for n in sizes if accuracies[n] >= wanted), _SURE
    # Power laws keep their form in sizes relative to the smallest.
    axis = [n / sizes[0] for n in sizes]
    curve = draw_curves(values, axis, at=axis).curve
    probability = (curve >= _KEEP * np.max(curve, axis=1, keepdims=True)).mean(axis=0)
    for n, sure in zip(sizes, probability, strict=True):
        if sure >= _SURE:
            return n, float(sure)
    return sizes[-1], 1.0
