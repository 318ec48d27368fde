"""Advice on when to stop: this training now, or the next one after how many epochs.

If the caller states patience and threshold, that rule applies. Otherwise learning curves are
extrapolated, and stopping is recommended only if the best value is unlikely to be beaten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
_KEEP = 0.98  # A trade keeps this share of the curve's total gain.
_SURE = 0.9
# A curve this close to its best, as a share of its gain, is as good as its best. The stated
# tolerance is wider: differences below half a percent, or the noise of an evaluation, are not seen.
_EQUAL, _STATED = 0.001, 0.005
_LEAST_PLATEAU = 0.05  # Of the training; a shorter one is no plateau.
_LEAST_TRADE = 0.1  # Of the training; how much more a trade must save than the saving.
_LEAST_LEVEL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPrice:
    """Duration and price of one epoch.

    Attributes:
        unit: Its name in texts: epoch, or evaluation.
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
        """The cost of one epoch, in currency units."""
        return self.hours * self.price_per_hour


def higher_is_better(values: Sequence[float], score_type: str) -> list[float]:
    """Return values of which higher is better: losses are negated."""
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
    """Recommend to stop if the best value is unlikely to be beaten by the end.

    Args:
        values: One per epoch so far, higher is better.
        epoch: Duration and price of an epoch.
        threshold: By how much the best must be beaten.
        patience: At least this many epochs plus two are needed; also the number of epochs ahead if
            the total is unknown.
        total_epochs: How many epochs the training will run in total.
        probability: Stop if the probability to beat the best is below this.
        ruled: Patience and threshold were stated by the caller: stop as soon as ``patience`` epochs
            in a row did not beat the best before them by ``threshold``.
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
        confidence=confidence_of(1 - why.probability, "estimated"),
        action=f"Stop, and keep the checkpoint of the best {epoch.unit}",
        risks=[
            "a learning rate that is about to fall, or data that is about to change, is not seen"
        ],
        savings_low=saved if stated else epoch.cost,
        savings_high=saved,
        grade="estimated",
        evidence=[f"{len(values)} {epoch.unit}s, {why.evidence}"],
        assumptions=[] if stated else [f"{patience} more {epoch.unit}s would be run"],
        needed=[] if stated else [f"how many {epoch.unit}s will run in all (total_{epoch.unit}s=)"],
        currency=epoch.currency,
        tolerance=threshold,
    )
    return bounded(found, all_of_it)


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why to stop: as text, the evidence, and the probability that it is a mistake."""

    text: str
    evidence: str
    probability: float


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
    """Return whether the second half varies so little that no gain is left in the time ahead.

    A curve that slows down gains from half of the time to all of it at least as much as with each
    further doubling of the time.
    """
    later = values[len(values) // 2 :]
    if len(later) < _LEAST_LEVEL:
        return False
    doublings = max(1.0, float(np.log2(1 + left / len(values))))
    return (max(later) - min(later)) * doublings <= threshold


def recommend_epoch_count(
    values: Sequence[float], epoch: EpochPrice, *, keep: float = _KEEP
) -> OptimizationRecommendation | None:
    """Recommend the number of epochs of the next training; None if there is nothing to recommend.

    A saving if fewer epochs do as well; else a trade that keeps a share of the total gain.
    ``values`` are of a finished training, one per epoch, higher is better.
    """
    return next(iter(advise_epoch_count(values, epoch, keep=keep)), None)


def advise_epoch_count(
    values: Sequence[float], epoch: EpochPrice, *, keep: float = _KEEP, negated: bool = False
) -> list[OptimizationRecommendation]:
    """Recommend fewer epochs at equal quality, and a trade if that saves much more.

    Higher values are better; ``negated`` means that they are negated losses.
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
        found.append(_worse_epochs(count, enough, epoch, ends, keep))
    return found


@dataclass(frozen=True, slots=True)
class _Enough:
    """The epoch by which a curve is good enough with high probability, and an interval of it."""

    epochs: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Curves:
    """Draws of a learning curve at the queried epochs, and the best of each."""

    asked: Sequence[int]
    curve: NDArray[np.float64]
    best: NDArray[np.float64]

    def first_epoch(self, within: float | NDArray[np.float64]) -> _Enough | None:
        """Return the first epoch that is within a distance of the best with high probability."""
        close = self.curve >= self.best - within
        sure = np.flatnonzero(close.mean(axis=0) >= _SURE)
        if not len(sure):
            return None
        each = np.array(self.asked)[close.argmax(axis=1)]
        low, high = np.quantile(each, [1 - _SURE, _SURE])
        return _Enough(self.asked[sure[0]], float(low), float(high))

    def ends(self, epochs: int, *, sign: int) -> str:
        """Return the metric after some epochs and at its best, as text."""
        after = self.curve[:, self.asked.index(epochs)]
        worse, best = float(np.median(self.best[:, 0] - after)), float(np.median(self.best))
        digits = max(4, 2 - math.floor(math.log10(worse / (abs(best) or worse))) if worse else 0)
        return f"{sign * (best - worse):.{digits}g} instead of {sign * best:.{digits}g}"


def _equal_epochs(
    count: int, enough: _Enough, epoch: EpochPrice, tolerance: float
) -> OptimizationRecommendation:
    found = _fewer_epochs(count, enough, epoch)
    return replace(
        found,
        description=(
            f"With {_SURE:.0%} probability the metric is as good by {epoch.unit} {enough.epochs} "
            f"as it gets, within {tolerance:.2g}. The next training saves "
            f"{amount_text(found.estimated_savings, epoch.currency)}; what this one cost is spent."
        ),
        confidence=confidence_of(0.95, "estimated"),
        tolerance=tolerance,
    )


def _worse_epochs(
    count: int, enough: _Enough, epoch: EpochPrice, ends: str, keep: float
) -> OptimizationRecommendation:
    found = _fewer_epochs(count, enough, epoch)
    lost = f"quality: the metric ends at {ends}, up to {1 - keep:.0%} of what it gained"
    return replace(
        found,
        title=f"{found.title}, and end up worse",
        description=(
            f"With {_SURE:.0%} probability {keep:.0%} of the gain is reached by {epoch.unit} "
            f"{enough.epochs}. The next training costs "
            f"{amount_text(found.estimated_savings, epoch.currency)} less and gives up {lost}; "
            "what this one cost is spent."
        ),
        confidence=confidence_of(_SURE, "estimated"),
        action=f"{found.action}, if that is good enough",
        kind="trade",
        quality_loss=lost,
    )


def _fewer_epochs(count: int, enough: _Enough, epoch: EpochPrice) -> OptimizationRecommendation:
    """Return what a saving and a trade have in common; the description is left empty."""
    left = count - enough.epochs
    found = OptimizationRecommendation(
        category="epochs",
        title=f"Run {enough.epochs} {epoch.unit}s instead of {count}",
        description="",
        estimated_savings=left * epoch.cost,
        estimated_time_saved=left * epoch.hours,
        action=f"End the next training after {enough.epochs} {epoch.unit}s",
        # One epoch wider: the curve between two epochs is not known.
        savings_low=(count - enough.high - 1) * epoch.cost,
        savings_high=(count - enough.low + 1) * epoch.cost,
        grade="estimated",
        evidence=[f"{count} {epoch.unit}s, {FAMILIES} families of curves, {DRAWS} draws"],
        assumptions=["the next training learns like this one"],
        currency=epoch.currency,
    )
    return bounded(found, count * epoch.cost)


def _improves(values: Sequence[float]) -> bool:
    """Return whether the second half is better than the first; else the run is no example."""
    half = len(values) // 2
    return float(np.median(values[half:])) > float(np.median(values[:half]))
