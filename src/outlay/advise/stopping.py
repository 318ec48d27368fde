"""Advice on when to stop: this training now, and the next one after how many epochs.

What a caller states (patience and threshold) is a rule, and applies. Where nobody states one,
curves are extrapolated, and stopping is advised only where beating the best is improbable.
"""

from __future__ import annotations

import math
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
from outlay.advise.recommendation import (
    OptimizationRecommendation,
    bounded,
    confidence_of,
    least_saving,
)
from outlay.errors import InvalidValue
from outlay.units.shown import amount_text

STATED_PROBABILITY = 0.05
_KEEP = 0.98  # A trade keeps this much of what the curve gains in all.
_SURE = 0.9
# A curve that is this close to its best, as a share of its gain, is as good as its best. What is
# stated is wider: nobody can see less than half a percent, or than one evaluation differs by.
_EQUAL, _STATED = 0.001, 0.005
_LEAST_PLATEAU = 0.05  # Of the training; what is shorter is no plateau.
_LEAST_TRADE = 0.1  # A trade that saves little more than what costs no quality is none.
_LEAST_LEVEL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPrice:
    """What one epoch takes and costs.

    Attributes:
        unit: What it is called: an epoch, or an evaluation of a run.
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
    ruled: bool = False,
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
        ruled: Patience and threshold were stated: stop as soon as so many epochs in a row did not
            beat the best before them by so much.
    """
    if len(values) < patience + 2:
        return None
    left = patience if total_epochs is None else total_epochs - len(values)
    if left < 1:
        return None
    if (why := _why_stop(values, left, threshold, patience, probability, ruled=ruled)) is None:
        return None
    saved, stated = left * epoch.cost, total_epochs is not None
    all_of_it = (len(values) + left) * epoch.cost
    if saved <= 0 or saved < least_saving(all_of_it):
        return None
    found = OptimizationRecommendation(
        category="early_stopping",
        title="Stop this training now",
        description=(
            f"{why.text}. Not running the {left} {epoch.unit}s ahead saves "
            f"{amount_text(saved, epoch.currency)}."
        ),
        estimated_savings=saved,
        estimated_time_saved=left * epoch.hours,
        confidence=confidence_of(1 - why.chance, "estimated"),
        action=f"Stop, and keep the checkpoint of the best {epoch.unit}",
        risks=[
            "a learning rate that is about to fall, or data that is about to change, is not seen"
        ],
        savings_low=saved if stated else epoch.cost,
        savings_high=saved,
        grade="estimated",
        evidence=[f"{len(values)} {epoch.unit}s, {why.ground}"],
        assumptions=[] if stated else [f"{patience} more {epoch.unit}s would be run"],
        needed=[] if stated else [f"how many {epoch.unit}s will run in all (total_{epoch.unit}s=)"],
        currency=epoch.currency,
        tolerance=threshold,
    )
    return bounded(found, all_of_it)


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why to stop: in words, on what ground, and the chance that it is a mistake."""

    text: str
    ground: str
    chance: float


def _why_stop(
    values: Sequence[float],
    left: int,
    threshold: float,
    patience: int,
    probability: float,
    *,
    ruled: bool,
) -> _Reason | None:
    if ruled and patience > 0 and max(values[-patience:]) <= max(values[:-patience]) + threshold:
        text = f"The last {patience} did not beat the best before them by {threshold:g}"
        return _Reason(text, "by the patience and threshold that were stated", STATED_PROBABILITY)
    if is_level(values, left, threshold):
        text = f"The values have been within {threshold:g} of each other for half of the time"
        return _Reason(text, "level at the end", STATED_PROBABILITY)
    if len(values) < LEAST_POINTS:
        return None
    chance = probability_of_beating(values, left, margin=threshold)
    if chance >= probability:
        return None
    text = f"The chance that the {left} ahead beat the best so far by {threshold:g} is {chance:.1%}"
    return _Reason(text, f"{FAMILIES} families of curves, {DRAWS} draws", chance)


def is_level(values: Sequence[float], left: int, threshold: float) -> bool:
    """Say whether the later half varies by so little that the time ahead cannot bring more.

    A curve that slows down gains, from half of the time to all of it, at least what it gains each
    time that the time doubles again.
    """
    later = values[len(values) // 2 :]
    if len(later) < _LEAST_LEVEL:
        return False
    doublings = max(1.0, float(np.log2(1 + left / len(values))))
    return (max(later) - min(later)) * doublings <= threshold


def recommend_epoch_count(
    values: Sequence[float], epoch: EpochPrice, *, keep: float = _KEEP
) -> OptimizationRecommendation | None:
    """Return how many epochs the next training needs; None where nothing is to be said.

    A saving where fewer do as well; else a trade that keeps a share of the whole gain. Of the
    values, one per epoch of a finished training, higher is better.
    """
    return next(iter(advise_epoch_count(values, epoch, keep=keep)), None)


def advise_epoch_count(
    values: Sequence[float], epoch: EpochPrice, *, keep: float = _KEEP, negated: bool = False
) -> list[OptimizationRecommendation]:
    """Return how many epochs do as well, and how many lose little where that saves much more.

    Of the values higher is better; ``negated`` says that they are those of a loss, turned round.
    """
    count = len(values)
    if count < LEAST_POINTS or not _improves(values):
        return []
    asked = some_between(1, count)
    draws = draw_curves(values, asked)
    curve = draws.curve
    best = curve.max(axis=1, keepdims=True)
    gain = best - curve[:, :1]
    typical = float(np.median(gain))
    if float((gain > 0).mean()) < _SURE or epoch.cost <= 0:
        return []
    shape = _Curves(asked, curve, best)
    found, most = [], count
    equal = shape.first_epoch(_EQUAL * typical)
    if equal is not None and count - equal.epochs >= _LEAST_PLATEAU * count:
        tolerance = max(_STATED * typical, float(np.median(draws.noise)))
        found.append(_equal_epochs(count, equal, epoch, tolerance))
        most = equal.epochs
    enough = shape.first_epoch((1 - keep) * gain)
    if enough is not None and most - enough.epochs >= _LEAST_TRADE * count:
        ends = shape.ends(enough.epochs, sign=-1 if negated else 1)
        found.append(_fewer_epochs(count, enough, epoch, ends, keep))
    return found


@dataclass(frozen=True, slots=True)
class _Enough:
    """By which epoch a curve is good enough: surely, and between which ends that may be."""

    epochs: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Curves:
    """What a learning curve may be, draw by draw, at the epochs asked about, and its best."""

    asked: Sequence[int]
    curve: NDArray[np.float64]
    best: NDArray[np.float64]

    def first_epoch(self, within: float | NDArray[np.float64]) -> _Enough | None:
        """Return the first epoch that is that close to the best, with enough probability."""
        close = self.curve >= self.best - within
        sure = np.flatnonzero(close.mean(axis=0) >= _SURE)
        if not len(sure):
            return None
        each = np.array(self.asked)[close.argmax(axis=1)]
        low, high = np.quantile(each, [1 - _SURE, _SURE])
        return _Enough(self.asked[sure[0]], float(low), float(high))

    def ends(self, epochs: int, *, sign: int) -> str:
        """Return where the metric ends after so many epochs, and where it would at its best."""
        after = self.curve[:, self.asked.index(epochs)]
        worse, best = float(np.median(self.best[:, 0] - after)), float(np.median(self.best))
        digits = max(4, 2 - math.floor(math.log10(worse / (abs(best) or worse))) if worse else 0)
        return f"{sign * (best - worse):.{digits}g} instead of {sign * best:.{digits}g}"


def _equal_epochs(
    count: int, enough: _Enough, epoch: EpochPrice, tolerance: float
) -> OptimizationRecommendation:
    saved = (count - enough.epochs) * epoch.cost
    found = OptimizationRecommendation(
        category="epochs",
        title=f"Run {enough.epochs} {epoch.unit}s instead of {count}",
        description=(
            f"With {_SURE:.0%} probability the metric is as good by {epoch.unit} {enough.epochs} "
            f"as it gets, within {tolerance:.2g}. The next training saves "
            f"{amount_text(saved, epoch.currency)}; what this one cost is spent."
        ),
        estimated_savings=saved,
        estimated_time_saved=(count - enough.epochs) * epoch.hours,
        confidence=confidence_of(0.95, "estimated"),
        action=f"End the next training after {enough.epochs} {epoch.unit}s",
        # What happens between two of them is not seen.
        savings_low=(count - enough.high - 1) * epoch.cost,
        savings_high=(count - enough.low + 1) * epoch.cost,
        grade="estimated",
        evidence=[f"{count} {epoch.unit}s, {FAMILIES} families of curves, {DRAWS} draws"],
        assumptions=["the next training learns like this one"],
        currency=epoch.currency,
        tolerance=tolerance,
    )
    return bounded(found, count * epoch.cost)


def _fewer_epochs(
    count: int, enough: _Enough, epoch: EpochPrice, ends: str, keep: float
) -> OptimizationRecommendation:
    saved = (count - enough.epochs) * epoch.cost
    lost = f"quality: the metric ends at {ends}, up to {1 - keep:.0%} of what it gained"
    found = OptimizationRecommendation(
        category="epochs",
        title=f"Run {enough.epochs} {epoch.unit}s instead of {count}, and end up worse",
        description=(
            f"With {_SURE:.0%} probability {keep:.0%} of the gain is reached by {epoch.unit} "
            f"{enough.epochs}. The next training costs {amount_text(saved, epoch.currency)} less "
            f"and gives up {lost}; what this one cost is spent."
        ),
        estimated_savings=saved,
        estimated_time_saved=(count - enough.epochs) * epoch.hours,
        confidence=confidence_of(_SURE, "estimated"),
        action=f"End the next training after {enough.epochs} {epoch.unit}s, if that is good enough",
        # What happens between two of them is not seen.
        savings_low=(count - enough.high - 1) * epoch.cost,
        savings_high=(count - enough.low + 1) * epoch.cost,
        grade="estimated",
        evidence=[f"{count} {epoch.unit}s, {FAMILIES} families of curves, {DRAWS} draws"],
        assumptions=["the next training learns like this one"],
        currency=epoch.currency,
        kind="trade",
        quality_loss=lost,
    )
    return bounded(found, count * epoch.cost)


def _improves(values: Sequence[float]) -> bool:
    """Say whether the second half is better than the first: a run that gets worse is no model."""
    half = len(values) // 2
    return float(np.median(values[half:])) > float(np.median(values[:half]))
