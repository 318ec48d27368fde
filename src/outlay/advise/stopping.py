"""Advice on when to stop: this training now, and the next one after how many epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlay.advise.curves import (
    DRAWS,
    FAMILIES,
    LEAST_POINTS,
    draw_curves,
    probability_of_beating,
    some_between,
)
from outlay.advise.recommendation import OptimizationRecommendation, amount_text, confidence_of
from outlay.errors import InvalidValue

STATED_PROBABILITY = 0.05
_LEAST_SAVING = 0.10
_KEEP = 0.98  # Of what the curve gains in all, this much is enough.
_SURE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPrice:
    """What one epoch takes and costs.

    Attributes:
        unit: What it is called: an epoch, or an evaluation of a run.
        currency: Of the price.
    """

    hours: float
    price_per_hour: float
    unit: str = "epoch"
    currency: str = "USD"

    def __post_init__(self) -> None:
        for name in ("hours", "price_per_hour"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidValue(name, getattr(self, name), "a finite number, zero or more")

    @property
    def cost(self) -> float:
        """What one costs, in currency units."""
        return self.hours * self.price_per_hour


def higher_is_better(values: Sequence[float], score_type: str) -> list[float]:
    """Return values of which more is better: a loss is negated."""
    if score_type not in ("accuracy", "loss"):
        raise InvalidValue("score_type", score_type, "accuracy or loss")
    return [-value if score_type == "loss" else value for value in values]


def recommend_early_stopping(
    values: Sequence[float],
    epoch: EpochPrice,
    *,
    threshold: float = 0.001,
    patience: int = 3,
    total_epochs: int | None = None,
    probability: float = STATED_PROBABILITY,
) -> OptimizationRecommendation | None:
    """Return the advice to stop where beating the best by the end is improbable.

    Args:
        values: One per epoch so far, higher is better.
        epoch: What one epoch costs.
        threshold: By how much the best must be beaten.
        patience: At least this many epochs beyond two must be known; and how many more are
            looked at where the total is not stated.
        total_epochs: How many the training will run in all.
        probability: Stop when the chance of beating the best is below this.
    """
    if len(values) < max(patience + 2, LEAST_POINTS):
        return None
    left = patience if total_epochs is None else total_epochs - len(values)
    if left < 1:
        return None
    chance = probability_of_beating(values, left, margin=threshold)
    if chance >= probability:
        return None
    saved = left * epoch.cost
    stated = total_epochs is not None
    return OptimizationRecommendation(
        category="early_stopping",
        title="Stop this training now",
        description=(
            f"The chance that the {left} {epoch.unit}s ahead beat the best so far by "
            f"{threshold:g} is {chance:.1%}. Not running them saves "
            f"{amount_text(saved, epoch.currency)}."
        ),
        estimated_savings=saved,
        estimated_time_saved=left * epoch.hours,
        confidence=confidence_of(1 - chance, "measured" if stated else "estimated"),
        action=f"Stop, and keep the checkpoint of the best {epoch.unit}",
        risks=[
            "a learning rate that is about to fall, or data that is about to change, is not seen"
        ],
        savings_low=saved if stated else epoch.cost,
        savings_high=saved,
        grade="measured" if stated else "estimated",
        evidence=[f"{len(values)} {epoch.unit}s, {FAMILIES} families of curves, {DRAWS} draws"],
        assumptions=[] if stated else [f"{patience} more {epoch.unit}s would be run"],
        needed=[] if stated else [f"how many {epoch.unit}s will run in all (total_{epoch.unit}s=)"],
        currency=epoch.currency,
    )


def recommend_epoch_count(
    values: Sequence[float], epoch: EpochPrice, *, keep: float = _KEEP
) -> OptimizationRecommendation | None:
    """Return how many epochs the next training needs; None where fewer would lose something.

    Args:
        values: One per epoch of a finished training, higher is better.
        epoch: What one epoch costs.
        keep: The share of the whole gain that must be kept.
    """
    count = len(values)
    if count < LEAST_POINTS or not _improves(values):
        return None
    asked = some_between(1, count)
    curve = draw_curves(values, asked).curve
    gain = curve[:, -1:] - curve[:, :1]
    if float((gain > 0).mean()) < _SURE:
        return None
    needed = _settled(curve >= curve[:, :1] + keep * gain, asked)
    low, middle, high = np.quantile(needed, [0.1, 0.5, _SURE])
    epochs = int(np.ceil(high))
    saved = (count - epochs) * epoch.cost
    if epochs >= count or saved < _LEAST_SAVING:
        return None
    return OptimizationRecommendation(
        category="epochs",
        title=f"Run {epochs} {epoch.unit}s instead of {count}",
        description=(
            f"With {_SURE:.0%} probability {keep:.0%} of the gain is reached by {epoch.unit} "
            f"{epochs}. The next training saves {amount_text(saved, epoch.currency)}; what this "
            "one cost is spent."
        ),
        estimated_savings=saved,
        estimated_time_saved=(count - epochs) * epoch.hours,
        confidence=confidence_of(_SURE, "measured"),
        action=f"End the next training after {epochs} {epoch.unit}s",
        risks=[f"up to {1 - keep:.0%} of the gain is given up"],
        savings_low=saved,
        savings_high=(count - float(low)) * epoch.cost,
        grade="measured",
        evidence=[f"{count} {epoch.unit}s; the median curve is there by {middle:.0f}"],
        assumptions=["the next training learns like this one"],
        currency=epoch.currency,
    )


def _settled(enough: NDArray[np.bool_], asked: Sequence[int]) -> NDArray[np.int64]:
    """Return, draw by draw, the first epoch asked about from which on all are enough.

    Where not even the last one is, it is one beyond it.
    """
    short = enough.shape[1] - np.argmin(np.flip(enough, axis=1), axis=1)
    epochs = np.array([*asked, asked[-1] + 1])
    found: NDArray[np.int64] = epochs[np.where(enough.all(axis=1), 0, short)]
    return found


def _improves(values: Sequence[float]) -> bool:
    """Say whether the second half is better than the first: a run that gets worse is no model."""
    half = len(values) // 2
    return float(np.median(values[half:])) > float(np.median(values[:half]))
