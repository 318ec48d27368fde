"""Advice on when to stop: this training now, or the next one after how many epochs.

If the caller states patience and threshold, that rule applies. Otherwise learning curves are
extrapolated, and stopping is recommended only if the best value is unlikely to be beaten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from outlay.advise.curves import (
    DRAWS,
    FAMILIES,
    LEAST_POINTS,
    Outlook,
    draw_curves,
    outlook,
    some_between,
)
from outlay.advise.plateaus import Stretch, is_falling_back, level_from, still_improves, turn_of
from outlay.advise.recommendation import (
    OptimizationRecommendation,
    bounded,
    calibrated,
    confidence_of,
    least_saving,
)
from outlay.errors import InvalidValue
from outlay.units.shown import amount_text, counted

STATED_PROBABILITY = 0.05
_UNTIL_TURNED_BACK = 0.2  # A curve that got worse for a short time often turns back.
_KEEP = 0.98  # A trade keeps this share of the curve's total gain.
_SURE = 0.9
# A curve this close to its best, as a share of its gain, is as good as its best. The stated
# tolerance is wider: differences below half a percent, or the noise of an evaluation, are not seen.
_EQUAL, _STATED = 0.001, 0.005
_LEAST_PLATEAU = 0.1  # Of the training; a shorter one is no plateau.
_LEAST_TRADE = 0.1  # Of the training; how much more a trade must save than the saving.
_LEAST_LEVEL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPrice:
    """Duration and price of one epoch.

    Attributes:
        unit: Its name in texts: epoch, evaluation or step.
        each: How many units one value stands for, if values are means over several.
    """

    hours: float
    price_per_hour: float
    unit: str = "epoch"
    currency: str = "USD"
    each: int = 1

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
    bound: float = math.inf,
    may_change: bool = False,
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
        bound: No value is above it.
        may_change: The learning rate may still fall, so that the curve says little.
    """
    if len(values) < patience + 2:
        return None
    left = patience if total_epochs is None else total_epochs - len(values)
    if left < 1:
        return None
    why = _why_stop(values, left, threshold, patience, bound, ruled=ruled)
    saved, stated = left * epoch.cost, total_epochs is not None
    all_of_it = (len(values) + left) * epoch.cost
    if why is None or saved <= 0 or saved < least_saving(all_of_it):
        return None
    chance = max(why.probability, STATED_PROBABILITY) if may_change else why.probability
    if chance >= probability and not why.is_rule:
        return None
    found = OptimizationRecommendation(
        category="early_stopping",
        title="Stop this training now",
        description=(
            f"{why.text}. Not running the {left * epoch.each} {epoch.unit}s ahead saves "
            f"{amount_text(saved, epoch.currency)}. {why.doubt}"
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
        evidence=[f"{len(values) * epoch.each} {epoch.unit}s, {why.evidence}"],
        assumptions=[] if stated else [f"{left * epoch.each} more {epoch.unit}s would be run"],
        needed=[] if stated else [f"how many {epoch.unit}s will run in all (total_{epoch.unit}s=)"],
        currency=epoch.currency,
        tolerance=threshold,
    )
    found = bounded(found, all_of_it)
    return found if why.is_rule else calibrated(found, "early_stopping")


def undecided(
    values: Sequence[float],
    epoch: EpochPrice,
    total_epochs: int,
    *,
    threshold: float = 0.001,
    bound: float = math.inf,
    may_change: bool = False,
) -> OptimizationRecommendation | None:
    """Return an observation if it cannot be said whether to stop; None if it can.

    Stopping would be wrong with a probability between 5 and 95 %.
    """
    left = total_epochs - len(values)
    if left < 1 or len(values) < LEAST_POINTS:
        return None
    seen = _chance(values, left, threshold, bound)
    chance = max(seen.probability, STATED_PROBABILITY) if may_change else seen.probability
    at_stake = left * epoch.cost
    if not STATED_PROBABILITY <= chance <= 1 - STATED_PROBABILITY or not at_stake:
        return None
    lost = _lost_text(seen.gain, threshold)
    wrong = f"it is wrong in {chance:.0%} of cases, and gives up {lost} then"
    reason = "the learning rate may still fall" if may_change else wrong
    return OptimizationRecommendation(
        category="early_stopping",
        title="Undecided whether to stop this training",
        description=(
            f"Stopping now would save {amount_text(at_stake, epoch.currency)}, but {reason}."
        ),
        estimated_savings=0.0,
        confidence=1.0,
        action="Look again after the next evaluations",
        grade="estimated",
        evidence=[
            f"{len(values) * epoch.each} {epoch.unit}s, {FAMILIES} families of curves, "
            f"{DRAWS} draws"
        ],
        currency=epoch.currency,
        kind="observation",
        at_stake=at_stake,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reason:
    """Why to stop: as text, the evidence, and the probability that it is a mistake.

    Attributes:
        doubt: How probable a mistake is, and what is lost then.
        is_rule: By a rule of the caller, whatever the probability.
    """

    text: str
    evidence: str
    probability: float
    doubt: str
    is_rule: bool = False


def _why_stop(
    values: Sequence[float],
    left: int,
    threshold: float,
    patience: int,
    bound: float,
    *,
    ruled: bool,
) -> _Reason | None:
    if ruled and patience > 0 and max(values[-patience:]) <= max(values[:-patience]) + threshold:
        return _Reason(
            text=f"The last {patience} did not beat the best before them by {threshold:g}",
            evidence="by the patience and threshold that were stated",
            probability=STATED_PROBABILITY,
            doubt="",
            is_rule=True,
        )
    room = bound - max(values)
    if is_level(values, left, threshold):
        often = f"less than {STATED_PROBABILITY:.0%}"
        return _Reason(
            text=f"The values have been within {threshold:g} of each other for half of the time",
            evidence="level at the end",
            probability=STATED_PROBABILITY / 2,
            doubt=_doubt(often, 0.0, threshold, room),
        )
    if len(values) < LEAST_POINTS:
        return None
    seen = _chance(values, left, threshold, bound)
    return _Reason(
        text=(
            f"The chance that what is ahead beats the best so far by {threshold:g} is "
            f"{seen.probability:.1%}"
        ),
        evidence=f"{FAMILIES} families of curves, {DRAWS} draws",
        probability=seen.probability,
        doubt=_doubt(f"{max(seen.probability, 0.001):.1%}", seen.gain, threshold, room),
    )


def _doubt(often: str, gain: float, threshold: float, room: float) -> str:
    """Return how often it is wrong to stop, and what is lost then.

    Args:
        often: In how many cases.
        gain: What is lost on average then; 0 if that is not known.
        threshold: The least that counts as lost.
        room: How much better the metric can get at most.
    """
    if room <= threshold:
        return f"That cannot be wrong: the metric cannot get better by {threshold:g}."
    lost = _lost_text(gain, threshold)
    return f"That is wrong in {often} of cases; then {lost} of the metric is given up."


def _lost_text(gain: float, threshold: float) -> str:
    return f"{gain:.2g}" if gain else f"more than {threshold:g}"


def _chance(values: Sequence[float], left: int, threshold: float, bound: float) -> Outlook:
    """Return the chance that the best is beaten; a curve that just turned may turn back."""
    seen = outlook(values, left, margin=threshold, bound=bound)
    if seen.probability < _UNTIL_TURNED_BACK and is_falling_back(values):
        return replace(seen, probability=_UNTIL_TURNED_BACK)
    return seen


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
    values: Sequence[float],
    epoch: EpochPrice,
    *,
    keep: float = _KEEP,
    negated: bool = False,
    bound: float = math.inf,
    stages: Sequence[int] = (),
) -> list[OptimizationRecommendation]:
    """Recommend fewer epochs at equal quality, and a trade if that saves much more.

    Args:
        values: Of a finished training, one per epoch, higher is better.
        epoch: Duration and price of an epoch.
        keep: The share of the gain that a trade keeps.
        negated: The values are negated losses.
        bound: No value is above it.
        stages: Where the learning rate fell: the first epoch of each stage but the first.
    """
    count = len(values)
    if count < LEAST_POINTS or epoch.cost <= 0:
        return []
    stretches = _level_stretches(values, stages)
    if stretches is not None:
        if not stretches:
            return []
        cut = _without_stretches(values, stretches, epoch, is_staged=bool(stages))
        low, high = sorted(-value if negated else value for value in (min(values), max(values)))
        return [replace(cut, evidence=[f"{count} values from {low:.4g} to {high:.4g}"])]
    asked = some_between(1, count)
    draws = draw_curves(values, asked)
    curve = np.minimum(draws.curve, bound)
    best = curve.max(axis=1, keepdims=True)
    gain = best - curve[:, :1]
    typical = float(np.median(gain))
    if float((gain > 0).mean()) < _SURE:
        return []
    shape = _Curves(asked, curve, best)
    plateau = None if stages else level_from(values, curves_gain=shape.late_gain())
    if plateau is None and not _improves(values):
        return []
    found, most = [], count
    equal = None if still_improves(values) else shape.first_epoch(_EQUAL * typical)
    if equal is not None and count - equal.epochs >= _LEAST_PLATEAU * count:
        tolerance = max(_STATED * typical, float(np.median(draws.noise)))
        found.append(calibrated(_equal_epochs(count, equal, epoch, tolerance), "converged"))
        most = equal.epochs
    elif plateau is not None:
        since = shape.gain_since(plateau.first)
        plateau = replace(plateau, tolerance=max(plateau.tolerance, since))
        return [_without_stretches(values, [plateau], epoch, is_staged=False)]
    enough = shape.first_epoch((1 - keep) * gain)
    if enough is not None and most - enough.epochs >= _LEAST_TRADE * count:
        ends = shape.ends(enough.epochs, sign=-1 if negated else 1)
        found.append(_worse_epochs(count, enough, epoch, ends, keep))
    return found


def _level_stretches(values: Sequence[float], stages: Sequence[int]) -> list[Stretch] | None:
    """Return the stretches that brought nothing; None if curves must decide.

    With a schedule each stage may have one. Without, it is the time after a turn for the worse, or
    a plateau that noise hides from curves.
    """
    if stages:
        edges = [0, *stages, len(values)]
        gain = max(values) - values[0]
        parts = (
            level_from(values[a:b], offset=a, whole_gain=gain, is_stage=True)
            for a, b in pairwise(edges)
        )
        return [each for each in parts if each is not None]
    found = turn_of(values) or level_from(values)
    return None if found is None else [found]


def _without_stretches(
    values: Sequence[float], stretches: Sequence[Stretch], epoch: EpochPrice, *, is_staged: bool
) -> OptimizationRecommendation:
    """Recommend a training without the stretches that brought nothing."""
    count = len(values)
    left = sum(each.length for each in stretches)
    # Short stages show their ends less clearly.
    spread = math.sqrt(sum(each.spread**2 for each in stretches)) * (1.3 if is_staged else 1)
    kept = _Enough(count - left, count - left - spread, count - left + spread)
    found = _fewer_epochs(count, kept, epoch)
    tolerance = max(each.tolerance for each in stretches)
    why = "; ".join(each.text(epoch.unit, epoch.each) for each in stretches)
    found = replace(
        found,
        description=(
            f"{why}. The next training saves "
            f"{amount_text(found.estimated_savings, epoch.currency)}; what this one cost is spent."
        ),
        confidence=confidence_of(0.9, "estimated"),
        tolerance=tolerance,
    )
    return calibrated(found, "stages" if is_staged else stretches[0].kind)


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

    def gain_since(self, epochs: int) -> float:
        """Return by how much a curve gets better after some epochs, at most."""
        at = int(np.searchsorted(self.asked, epochs))
        return float(np.quantile(self.best[:, 0] - self.curve[:, at], _SURE))

    def late_gain(self) -> float:
        """Return by how much the last quarter is better than the one before, at most."""
        asked = np.array(self.asked)
        quarter = asked[-1] // 4
        last = asked > asked[-1] - quarter
        before = ~last & (asked > asked[-1] - 2 * quarter)
        better = self.curve[:, last].mean(axis=1) - self.curve[:, before].mean(axis=1)
        return float(np.quantile(better, _SURE))

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
            f"With {_SURE:.0%} probability the metric is as good by {epoch.unit} "
            f"{enough.epochs * epoch.each} "
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
            f"{enough.epochs * epoch.each}. The next training costs "
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
    shorter = counted(enough.epochs * epoch.each, epoch.unit)
    found = OptimizationRecommendation(
        category="epochs",
        title=f"End after {shorter} instead of {count * epoch.each:,}",
        description="",
        estimated_savings=left * epoch.cost,
        estimated_time_saved=left * epoch.hours,
        action=f"End the next training after {shorter}",
        # Wider by half an epoch: the curve between two epochs is not known.
        savings_low=(count - enough.high - 0.5) * epoch.cost,
        savings_high=(count - enough.low + 0.5) * epoch.cost,
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
