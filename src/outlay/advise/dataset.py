"""Advice on the size of the dataset: how much accuracy the last samples bought."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from outlay.advise.curves import LEAST_POINTS, draw_curves
from outlay.advise.recommendation import OptimizationRecommendation, amount_text, confidence_of
from outlay.errors import InvalidValue

_KEEP = 0.95
_MOST_OF_IT = 0.9
_LEAST_SAVING = 1.0
_SURE = 0.9


def recommend_dataset_size(
    size: int, accuracies: Mapping[int, float], full_cost: float, full_hours: float
) -> OptimizationRecommendation | None:
    """Return a smaller dataset that keeps 95 % of the accuracy; None where none is known to.

    Args:
        size: Samples in the dataset.
        accuracies: Accuracy measured on parts of it, by their size.
        full_cost: What a training on all of it costs.
        full_hours: How long that takes.
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
        return None  # More data made it worse: nothing follows about less.
    enough, sure = _smallest(sizes, accuracies)
    saved = (1 - enough / size) * full_cost
    if enough >= _MOST_OF_IT * size or saved < _LEAST_SAVING:
        return None
    fitted = len(sizes) >= LEAST_POINTS
    larger = min((n for n in sizes if n > enough), default=size)
    return OptimizationRecommendation(
        category="dataset",
        title=f"Train on {enough:,} of {size:,} samples",
        description=(
            f"{enough:,} samples reach {_KEEP:.0%} of the best accuracy with {sure:.0%} "
            f"probability. A training on them costs {amount_text(saved, 'USD')} less."
        ),
        estimated_savings=saved,
        estimated_time_saved=(1 - enough / size) * full_hours,
        confidence=confidence_of(sure, "measured" if fitted else "assumed"),
        action=f"Use a sample of {enough:,} for experiments, all of it for the last run",
        risks=["rare cases are lost first", f"up to {1 - _KEEP:.0%} of the accuracy is given up"],
        savings_low=(1 - larger / size) * full_cost,
        savings_high=saved,
        grade="measured" if fitted else "assumed",
        evidence=[f"accuracy at {len(sizes)} sizes from {sizes[0]:,} to {sizes[-1]:,}"],
        assumptions=[] if fitted else ["the accuracies carry no noise"],
        needed=[] if fitted else [f"accuracy at {LEAST_POINTS} or more sizes"],
    )


def _smallest(sizes: list[int], accuracies: Mapping[int, float]) -> tuple[int, float]:
    """Return the smallest measured size that is enough, and how sure that is."""
    values = [accuracies[n] for n in sizes]
    if len(sizes) < LEAST_POINTS:
        wanted = _KEEP * max(values)
        return next(n for n in sizes if accuracies[n] >= wanted), _SURE
    # On the axis of sizes relative to the smallest, power laws keep their form.
    axis = [n / sizes[0] for n in sizes]
    curve = draw_curves(values, axis, at=axis).curve
    probability = (curve >= _KEEP * np.max(curve, axis=1, keepdims=True)).mean(axis=0)
    for n, sure in zip(sizes, probability, strict=True):
        if sure >= _SURE:
            return n, float(sure)
    return sizes[-1], 1.0
