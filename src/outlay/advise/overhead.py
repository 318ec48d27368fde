"""Advice on what a run spent beside training: how often it saves, and its dearest badput."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from outlay.advise.recommendation import OptimizationRecommendation, amount_text, confidence_of
from outlay.errors import InvalidValue
from outlay.goodput import phases as ph
from outlay.units.quantity import duration_text

# How often to save a checkpoint, when failures come at random.
#
# The interval that wastes least, which Young 1974 and Daly 2006 approximate, is for exponential
# failures exactly tau = M (1 + W0(-exp(-d/M - 1))), with the time to save d, the mean time to
# failure M and the Lambert function W0. All times share any one unit.

# So many mean times to failure are never gone through without one; and beyond e^709 floats end.
_NEVER = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """What determines the best interval, in one unit of time.

    Attributes:
        save: How long a checkpoint takes while training stands still.
        mttf: Mean time to failure.
        restart: From a failure until training goes on, without the work that is done again.
    """

    save: float
    mttf: float
    restart: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("save", self.save), ("restart", self.restart)):
            if not 0 <= value < math.inf:
                raise InvalidValue(name, value, "a finite time, zero or more")
        if not 0 < self.mttf < math.inf:
            raise InvalidValue("mttf", self.mttf, "a finite time above zero")


def exact(of: Reliability) -> float:
    """Return the interval of work between saves that wastes least."""
    return of.mttf * (1 + _lambert_w0(-math.exp(-of.save / of.mttf - 1)))


def expected_ratio(of: Reliability, interval: float) -> float:
    """Return the expected wall time per time of work, with a save after each interval of work."""
    if not interval > 0:
        raise InvalidValue("interval", interval, "a time above zero")
    exponent = (interval + of.save) / of.mttf
    if max(exponent, of.restart / of.mttf) > _NEVER:
        return math.inf
    return of.mttf * math.exp(of.restart / of.mttf) * math.expm1(exponent) / interval


def _lambert_w0(z: float) -> float:
    """Return the principal Lambert W of ``z`` in [-1/e, 0], by Halley's iteration."""
    if z >= 0:
        return 0.0
    # The series about the branch point starts it off on the right side.
    p = math.sqrt(max(0.0, 2 * (1 + math.e * z)))
    w = -1 + p - p * p / 3 + 11 * p**3 / 72
    for _ in range(50):
        grown = math.exp(w)
        error = w * grown - z
        slope = grown * (w + 1) - (w + 2) * error / (2 * w + 2) if w > -1 else 0.0
        if slope == 0.0 or abs(error) < 1e-300:
            break
        step = error / slope
        w -= step
        if abs(step) <= 1e-16 * abs(w):
            break
    return w


_LEAST_SAVING = 0.10
_LEAST_SHARE = 0.01  # Below this the two intervals are the same for all practical purposes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """How a run saves checkpoints and how often it is disrupted, measured; times in seconds.

    Attributes:
        interval: Work between two checkpoints.
        save: How long one takes while training stands still.
        restart: From a disruption until training goes on.
        mttf: Mean time to failure; None where it was never disrupted.
        mttf_low: The least that is consistent with what was seen; ``mttf_high`` the most.
        cost: What the run cost, and what one like it will.
        currency: Of the cost.
    """

    interval: float
    save: float
    restart: float
    mttf: float | None
    mttf_low: float
    mttf_high: float | None
    cost: float
    currency: str = "USD"

    def __post_init__(self) -> None:
        if not 0 < self.interval < math.inf:
            raise InvalidValue("interval", self.interval, "a finite time above zero")
        if not 0 <= self.cost < math.inf:
            raise InvalidValue("cost", self.cost, "a finite amount, zero or more")


def recommend_checkpoint_interval(of: Checkpointing) -> OptimizationRecommendation | None:
    """Return a better interval between checkpoints; None where it would change next to nothing.

    A run that was never disrupted is judged by the least mean time to failure that fits: even
    then it may be saving too often. That it saves too seldom cannot be concluded.
    """
    if of.save <= 0 or of.cost <= 0:
        return None
    at = of.mttf_low if of.mttf is None else of.mttf
    reliability = Reliability(save=of.save, mttf=at, restart=of.restart)
    best = exact(reliability)
    if best <= 0 or (of.mttf is None and best < of.interval):
        return None
    mttfs = (of.mttf_low, at, of.mttf_high or 10 * at)
    shares = sorted(_saved_share(of, best, mttf) for mttf in mttfs)
    share = _saved_share(of, best, at)
    saved = share * of.cost
    if share < _LEAST_SHARE or saved < _LEAST_SAVING:
        return None
    before, after = (1 / expected_ratio(reliability, tau) for tau in (of.interval, best))
    measured = of.mttf is not None
    now_text, best_text = (duration_text(round(s * 1e9)) for s in (of.interval, best))
    return OptimizationRecommendation(
        category="checkpoint",
        title=f"Save a checkpoint every {best_text} of training instead of every {now_text}",
        description=(
            f"Predicted goodput rises from {before:.1%} to {after:.1%}: in a run like this one "
            f"{amount_text(saved, of.currency)} "
            f"({shares[0] * of.cost:,.2f} to {shares[-1] * of.cost:,.2f})."
        ),
        estimated_savings=saved,
        confidence=confidence_of(
            0.95 if shares[0] > 0 else 0.7, "measured" if measured else "estimated"
        ),
        action=f"Set the checkpoint interval to {best_text} of training",
        risks=["more is lost at a failure"] if best > of.interval else [],
        savings_low=shares[0] * of.cost,
        savings_high=shares[-1] * of.cost,
        grade="measured" if measured else "estimated",
        evidence=[
            f"a save takes {duration_text(round(of.save * 1e9))}",
            f"a restart takes {duration_text(round(of.restart * 1e9))}",
            f"mean time to failure {duration_text(round(at * 1e9))}"
            + ("" if measured else " at least: it never failed"),
        ],
        assumptions=["failures come at random, independently of each other"],
        needed=[] if measured else ["a disruption or two, to know how often they come"],
        currency=of.currency,
    )


def _saved_share(of: Checkpointing, best: float, mttf: float) -> float:
    """Return the share of the run's cost that another interval would have saved."""
    # A restart takes equally long whatever the interval, so that it is no part of the ratio.
    reliability = Reliability(save=of.save, mttf=mttf)
    now, then = expected_ratio(reliability, of.interval), expected_ratio(reliability, best)
    if then == math.inf:
        return 0.0  # Neither would ever get through an interval.
    return 1 - then / now


@dataclass(frozen=True, slots=True)
class Remedy:
    """What helps against a phase, and the share of its cost that it usually wins back."""

    low: float
    usual: float
    high: float
    action: str


REMEDIES: Mapping[str, Remedy] = {
    ph.DATA_LOADING: Remedy(0.3, 0.7, 1.0, "load data in more workers, prefetch and cache it"),
    ph.CHECKPOINT_SAVE: Remedy(0.3, 0.7, 0.95, "save asynchronously, beside training"),
    ph.CHECKPOINT_RESTORE: Remedy(0.1, 0.4, 0.8, "restore from local disk or a peer's memory"),
    ph.EVALUATION: Remedy(0.0, 0.5, 0.8, "evaluate less often, or on another machine"),
    ph.ACCELERATOR_INIT: Remedy(0.0, 0.3, 0.6, "keep the process up; start from a warm image"),
    ph.TRAINING_PREP: Remedy(0.0, 0.3, 0.7, "prepare data and compile before renting"),
    ph.PROGRAM_STARTUP: Remedy(0.2, 0.5, 0.9, "keep the compilation cache between starts"),
    ph.WASTED_PROGRESS: Remedy(0.2, 0.5, 0.9, "save checkpoints more often, and on a signal"),
    ph.RECOVERY: Remedy(0.1, 0.5, 0.9, "restart automatically, and give back what is down"),
    ph.STALL: Remedy(0.0, 0.3, 0.8, "look for the slow rank, disk or network in the stalled steps"),
    ph.OTHER: Remedy(0.0, 0.1, 0.5, "put spans around what runs between steps, to see what it is"),
}
_CUSTOM = Remedy(0.0, 0.2, 0.8, "look whether this work can run beside training (overlapped=True)")


def recommend_badput(
    costs: Mapping[str, float], hours: Mapping[str, float], *, currency: str = "USD"
) -> OptimizationRecommendation | None:
    """Return what to do about the phase with the most recoverable money.

    Args:
        costs: What each phase cost, in currency units.
        hours: How long each took.
        currency: Of the costs.
    """
    remedies = {phase: REMEDIES.get(phase, _CUSTOM) for phase in costs if phase != ph.STEP}
    recoverable = {phase: costs[phase] * remedy.usual for phase, remedy in remedies.items()}
    if not recoverable:
        return None
    worst = max(recoverable, key=lambda phase: recoverable[phase])
    saved, remedy = recoverable[worst], remedies[worst]
    if saved < _LEAST_SAVING:
        return None
    total = sum(costs.values())
    share = costs[worst] / total
    return OptimizationRecommendation(
        category="badput",
        title=f"Win back {worst}: {share:.1%} of the cost",
        description=(
            f"{worst} cost {amount_text(costs[worst], currency)}. To {remedy.action} usually wins "
            f"back {remedy.usual:.0%} of that: {amount_text(saved, currency)} in a run like this "
            "one."
        ),
        estimated_savings=saved,
        estimated_time_saved=hours.get(worst, 0.0) * remedy.usual,
        confidence=confidence_of(0.9 if remedy.low > 0 else 0.8, "estimated"),
        action=remedy.action[0].upper() + remedy.action[1:],
        savings_low=remedy.low * costs[worst],
        savings_high=remedy.high * costs[worst],
        grade="estimated",
        evidence=[
            f"{phase}: {amount_text(cost, currency)}"
            for phase, cost in sorted(costs.items(), key=lambda item: -item[1])[:5]
        ],
        assumptions=["how much the remedy wins back is what is usual, not what was measured here"],
        needed=["the same phase after the change: outlay goodput diff"],
        currency=currency,
    )
