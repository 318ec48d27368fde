"""Advice on overhead: the checkpoint interval, and the most expensive badput."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from outlay.advise.recommendation import (
    LEAST_SHARE,
    OptimizationRecommendation,
    bounded,
    calibrated,
    confidence_of,
    least_saving,
)
from outlay.errors import InvalidValue
from outlay.goodput import phases as ph
from outlay.units.quantity import duration_text
from outlay.units.shown import Grade, amount_text, counted

# The optimal checkpoint interval for random failures.
#
# For exponential failures it is exactly tau = M (1 + W0(-exp(-d/M - 1))), with the time to save d,
# the mean time to failure M and the Lambert function W0; Young 1974 and Daly 2006 approximate it.
# All times share one unit.

_NEVER = 700.0  # No run survives this many mean times to failure; and e^709 overflows a float.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """What determines the optimal interval, in one unit of time.

    Attributes:
        save: How long a checkpoint blocks training.
        restart: From a failure until training resumes, without repeated work.
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


def optimal_interval(of: Reliability) -> float:
    """Return the interval of work between saves with the least expected loss."""
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
    # Start with the series about the branch point.
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


_LEAST_BURST = 3  # Fewer failures show no bursts.
_BURST = 2.5
_OWN_FAILURES = 0.5  # Weight of where failures came, beside where they come on average.

# Without a failure in a time T, the mean time to failure is at least T / ln 20 with 95 %
# probability, and T / ln 2 with 50 %.
_LIKELY = math.log(20) / math.log(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHistory:
    """What saves and failures took of a run; times in seconds.

    Attributes:
        uptimes: How long each disrupted attempt trained before it was disrupted.
        work: Time of the steps that survived; ``step`` of one of them.
        waste: Cost of saves and of repeated work: all that another interval can save.
        price: Cost of a second.
    """

    uptimes: tuple[float, ...]
    work: float
    step: float
    waste: float
    price: float

    @property
    def dispersion(self) -> float:
        """The variance of the uptimes over their squared mean; about 1 if failures are random."""
        count = len(self.uptimes)
        if count < 2 or not sum(self.uptimes):
            return 1.0
        mean = sum(self.uptimes) / count
        return sum((each - mean) ** 2 for each in self.uptimes) / (count - 1) / mean**2

    @property
    def is_burst(self) -> bool:
        """Whether failures came in short order after a long time without any."""
        return len(self.uptimes) >= _LEAST_BURST and self.dispersion > _BURST

    def loss(self, interval: float, save: float) -> float:
        """Return the expected cost of saves and repeated work with another interval.

        An attempt that was disrupted before its first save repeats all, one that was disrupted
        later the whole steps in half an interval; the step in which it was is lost with any.
        """
        cycle = interval + save
        half = (cycle - self.step) / 2
        repeated = sum(half if each >= cycle else each for each in self.uptimes)
        return self.price * (self.work / interval * save + repeated)

    def usual_waste(self, interval: float, save: float) -> float:
        """Return what saves and repeated work usually cost a run that fails as often.

        Where in an interval failures came is chance, and the next run's come elsewhere. What
        exponential failures with this run's mean uptime cost is therefore a part of the estimate.
        """
        if self.is_burst or len(self.uptimes) < 2:
            return self.waste
        mean, cycle = sum(self.uptimes) / len(self.uptimes), interval + save
        since_save = mean - cycle / math.expm1(min(cycle / mean, _NEVER))
        repeated = len(self.uptimes) * (since_save - self.step / 2)
        at_random = self.price * (self.work / interval * save + repeated)
        return _OWN_FAILURES * self.waste + (1 - _OWN_FAILURES) * at_random

    def spread(self, interval: float) -> float:
        """Return the standard deviation of what another interval saves.

        Two things are random: where in an interval a failure comes, and how many there are.
        """
        count = len(self.uptimes)
        if not count:
            return 0.0
        repeated = max(0.0, self.waste - self.price * self.work / interval)
        where = self.price * interval * math.sqrt(count / 12)
        return math.hypot(where, repeated / math.sqrt(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Measured checkpoints and disruptions of a run; times in seconds.

    Attributes:
        interval: Time between two checkpoints, without the saves themselves.
        save: How long a checkpoint blocks training.
        restart: From a disruption until training resumes.
        mttf: Mean time to failure; None if the run was never disrupted.
        mttf_low: The lower end of its interval; ``mttf_high`` the upper.
        cost: Cost of the time that the interval affects: all but starts and recovery.
        whole: Total cost of the run; default: ``cost``.
        history: What the run paid for saves and repeated work; None if not measured.
    """

    interval: float
    save: float
    restart: float
    mttf: float | None
    mttf_low: float
    mttf_high: float | None
    cost: float
    currency: str = "USD"
    whole: float | None = None
    history: CheckpointHistory | None = None

    def __post_init__(self) -> None:
        if not 0 < self.interval < math.inf:
            raise InvalidValue("interval", self.interval, "a finite time above zero")
        if not 0 <= self.cost < math.inf:
            raise InvalidValue("cost", self.cost, "a finite amount, zero or more")


def recommend_checkpoint_interval(of: Checkpointing) -> OptimizationRecommendation | None:
    """Return a better checkpoint interval; None if it would save next to nothing.

    For a run that was never disrupted the lower end of the mean time to failure is used: even then
    it may save too often, but it cannot be concluded that it saves too seldom. The saving is for
    the median mean time to failure.
    """
    if of.save <= 0 or of.cost <= 0:
        return None
    at = of.mttf_low if of.mttf is None else of.mttf
    likely = at * _LIKELY if of.mttf is None else at
    reliability = Reliability(save=of.save, mttf=at, restart=of.restart)
    best = optimal_interval(reliability)
    if best <= 0 or (of.mttf is None and best < of.interval):
        return None
    if of.history is not None:
        return _of_history(of, of.history, best, at)
    mttfs = (of.mttf_low, likely, of.mttf_high or 10 * likely)
    # With the true mean time to failure known, its optimal interval may save even more.
    shares = sorted(
        _saved_share(of, interval, mttf)
        for mttf in mttfs
        for interval in (best, optimal_interval(Reliability(save=of.save, mttf=mttf)))
    )
    share = _saved_share(of, best, likely)
    saved, whole = share * of.cost, of.cost if of.whole is None else of.whole
    # For such a small share the two intervals are practically the same.
    if share < LEAST_SHARE or saved < least_saving(whole):
        return None
    low, high = shares[0] * of.cost, shares[-1] * of.cost
    steady = Reliability(save=of.save, mttf=likely)
    before, after = (1 / expected_ratio(steady, tau) for tau in (of.interval, best))
    measured = of.mttf is not None
    now_text, best_text = (duration_text(round(s * 1e9)) for s in (of.interval, best))
    found = OptimizationRecommendation(
        category="checkpoint",
        title=f"Save a checkpoint every {best_text} of training instead of every {now_text}",
        description=(
            f"Training, without saves and repeated work, is {before:.1%} of the time between "
            f"starts now, and {after:.1%} with that interval: {amount_text(saved, of.currency)} "
            "saved in a run like this one."
        ),
        estimated_savings=saved,
        confidence=confidence_of(0.95 if low > 0 else 0.7, "estimated"),
        action=f"Set the checkpoint interval to {best_text} of training",
        risks=["more is lost at a failure"] if best > of.interval else [],
        savings_low=low,
        savings_high=high,
        grade="estimated",
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
    return bounded(found, whole)


def _of_history(
    of: Checkpointing, history: CheckpointHistory, best: float, mttf: float
) -> OptimizationRecommendation | None:
    """Return a better interval for the failures that a run had; its saving is below its waste."""
    tried = [best * 2 ** (step / 4) for step in range(-12, 13)] if history.uptimes else [best]
    tried = [each for each in tried if each >= history.step] or [history.step]
    best = min(tried, key=lambda interval: history.loss(interval, of.save))
    usual = history.usual_waste(of.interval, of.save) - history.loss(best, of.save)
    saved = min(usual, history.waste)
    whole = of.cost if of.whole is None else of.whole
    least = max(LEAST_SHARE * of.cost, least_saving(whole), _LEAST_OF_WASTE * history.waste)
    # What an interval costs on average, not by bad luck, must be worth a change.
    expected = history.loss(of.interval, of.save) - history.loss(best, of.save)
    is_luck = len(history.uptimes) != 1 and expected < least / 2
    if saved < least or is_luck:
        return None
    # The interval is of one run: with bursts, the next one may have none.
    off = history.spread(best) * (0.5 if history.is_burst else 0.55)
    if saved < _LEAST_OF_SPREAD * history.spread(best):
        return None  # As likely by chance.
    now_text, best_text = (duration_text(round(s * 1e9)) for s in (of.interval, best))
    failures = len(history.uptimes)
    found = OptimizationRecommendation(
        category="checkpoint",
        title=f"Save a checkpoint every {best_text} of training instead of every {now_text}",
        description=(
            f"Saves and repeated work cost {amount_text(history.waste, of.currency)}. That "
            f"interval saves {amount_text(saved, of.currency)} in a run that fails as often."
        ),
        estimated_savings=saved,
        confidence=confidence_of(0.95, "estimated"),
        action=f"Set the checkpoint interval to {best_text} of training",
        risks=["more is lost at a failure"] if best > of.interval else [],
        savings_low=saved - off,
        # Without a failure, a longer interval yet may be as good.
        savings_high=saved + off if failures else history.waste,
        grade="estimated",
        evidence=[
            f"a save takes {duration_text(round(of.save * 1e9))}",
            f"{counted(failures, 'disruption')}, mean time to failure "
            f"{duration_text(round(mttf * 1e9))}" + ("" if failures else " at least"),
        ],
        assumptions=[_BURST_TEXT if history.is_burst else _RANDOM_TEXT],
        needed=[] if failures else ["a disruption or two, to know how often they come"],
        currency=of.currency,
    )
    return bounded(calibrated(found, "bursts" if history.is_burst else "checkpoint"), whole)


_LEAST_OF_WASTE = 0.2  # Intervals whose waste differs by less are practically the same.
_LEAST_OF_SPREAD = 0.4
_RANDOM_TEXT = "the next run fails as often as this one"
_BURST_TEXT = "failures came in a burst, which the next run may not have: the interval is wider"


def _saved_share(of: Checkpointing, best: float, mttf: float) -> float:
    """Return the share of the run's cost that another interval would have saved."""
    # Without the restart time, which does not depend on the interval.
    reliability = Reliability(save=of.save, mttf=mttf)
    now, then = expected_ratio(reliability, of.interval), expected_ratio(reliability, best)
    if then == math.inf:
        return 0.0  # No interval would ever be completed.
    return 1 - then / now


@dataclass(frozen=True, slots=True)
class Remedy:
    """What helps against a phase, and the share of its cost that it usually saves."""

    low: float
    usual: float
    high: float
    action: str
    grade: Grade = "assumed"


COMPILE = ph.phase_of_span("compile")
"""The phase of a program that compiles in a span of this name, not in its first step."""

REMEDIES: Mapping[str, Remedy] = {
    ph.DATA_LOADING: Remedy(
        0.87, 0.95, 1.0, "load data in more workers, prefetch and cache it", grade="estimated"
    ),
    # Shorter saves also lose less at a failure.
    ph.CHECKPOINT_SAVE: Remedy(0.6, 0.95, 1.35, "save asynchronously, beside training"),
    ph.CHECKPOINT_RESTORE: Remedy(0.1, 0.4, 0.8, "restore from local disk or a peer's memory"),
    ph.EVALUATION: Remedy(
        0.475, 0.5, 0.525, "evaluate half as often, or on another machine", grade="estimated"
    ),
    ph.ACCELERATOR_INIT: Remedy(0.0, 0.3, 0.6, "keep the process up; start from a warm image"),
    ph.TRAINING_PREP: Remedy(0.2, 0.7, 1.0, "prepare data before renting"),
    ph.PROGRAM_STARTUP: Remedy(
        0.68, 0.8, 0.91, "keep what the first step compiles in a cache between starts"
    ),
    COMPILE: Remedy(0.68, 0.8, 0.91, "keep what is compiled in a cache between starts"),
    ph.WASTED_PROGRESS: Remedy(0.2, 0.5, 0.9, "save checkpoints more often, and on a signal"),
    ph.RECOVERY: Remedy(0.75, 0.82, 0.95, "restart automatically, and give back what is down"),
    ph.STALL: Remedy(
        0.745, 0.87, 0.985, "look for the slow rank, disk or network in the stalled steps"
    ),
}
_CUSTOM = Remedy(0.0, 0.2, 0.8, "look whether this work can run beside training (overlapped=True)")
_OF_DISRUPTIONS = (
    ph.RECOVERY, ph.CHECKPOINT_RESTORE, ph.WASTED_PROGRESS, ph.PROGRAM_STARTUP, COMPILE,
)  # fmt: skip
_LEAST_PHASE = 0.05  # Every training has phases below this share.
_LEAST_SAVES = 0.07  # So has one that fails often, and saves as often as is best.


def recommend_badput(
    costs: Mapping[str, float],
    hours: Mapping[str, float],
    *,
    currency: str = "USD",
    without: Collection[str] = (),
    disruptions: int = 0,
    imports: float = 0.0,
) -> OptimizationRecommendation | None:
    """Return a remedy for the phase with the largest recoverable cost.

    Args:
        costs: Cost of each phase, in currency units.
        hours: Duration of each phase.
        currency: Of the costs.
        without: Phases for which there is better advice than a general remedy.
        disruptions: How many there were; the next run may have more or fewer.
        imports: The part of ``program_startup`` before the first record, which no remedy for the
            first step affects.
    """
    total = sum(costs.values())
    costs = dict(costs)
    if ph.PROGRAM_STARTUP in costs:
        costs[ph.PROGRAM_STARTUP] -= imports
    remedies = {
        phase: REMEDIES.get(phase, _CUSTOM)
        for phase, cost in costs.items()
        if phase not in (ph.STEP, ph.PAUSED, ph.OTHER, *without)
        and cost >= (_LEAST_SAVES if phase == ph.CHECKPOINT_SAVE else _LEAST_PHASE) * total
    }
    recoverable = {phase: costs[phase] * remedy.usual for phase, remedy in remedies.items()}
    worst = max(recoverable, key=lambda phase: recoverable[phase], default=None)
    if worst is None or recoverable[worst] < least_saving(total) or not recoverable[worst]:
        return None
    saved, remedy = recoverable[worst], remedies[worst]
    # The standard deviation of a Poisson count is its root. Not all of its 1.28 for 80 %, because
    # the interval of the remedy is beside it.
    spread = 0.6 / math.sqrt(disruptions) if disruptions and worst in _OF_DISRUPTIONS else 0.0
    found = OptimizationRecommendation(
        category="badput",
        title=f"Win back {worst}: {costs[worst] / total:.1%} of the cost",
        description=(
            f"{worst} cost {amount_text(costs[worst], currency)}. To {remedy.action} usually wins "
            f"back {remedy.usual:.0%} of that: {amount_text(saved, currency)} in this run."
        ),
        estimated_savings=saved,
        estimated_time_saved=hours.get(worst, 0.0) * remedy.usual,
        confidence=confidence_of(0.9 if remedy.low > 0 else 0.8, remedy.grade),
        action=remedy.action[0].upper() + remedy.action[1:],
        savings_low=_least_share(worst, costs, remedy) * costs[worst] * (1 - spread),
        savings_high=remedy.high * costs[worst] * (1 + spread),
        grade=remedy.grade,
        evidence=[
            f"{phase}: {amount_text(cost, currency)}"
            for phase, cost in sorted(costs.items(), key=lambda item: -item[1])[:5]
        ],
        assumptions=[_assumption(worst)],
        needed=["the same phase after the change: outlay goodput diff"],
        currency=currency,
    )
    return bounded(calibrated(found, worst), total)


def _least_share(phase: str, costs: Mapping[str, float], remedy: Remedy) -> float:
    """Return the share of a phase's cost that its remedy saves at least.

    One more process that loads data hides it behind steps only as far as it is shorter.
    """
    if phase != ph.DATA_LOADING:
        return remedy.low
    return min(remedy.low, remedy.usual * costs.get(ph.STEP, 0.0) / costs[phase])


def _assumption(phase: str) -> str:
    if phase == ph.EVALUATION:
        return "nobody needs the evaluations that are left out"
    if phase == ph.DATA_LOADING:
        return "data is loaded by the training process, or by too few workers"
    return "how much the remedy wins back is what is usual, not what was measured here"
