"""What is still going to be spent: the next runs of a model, the rest of a live run. Pure.

Each has an interval that holds the true figure with the stated probability if the future is drawn
from the same distribution as the past. Planned runs are a bootstrap of past ones. A small sample
shows too little of its spread, and less of where its middle is; a factor drawn from the chi-
square distribution of its variance widens the draws, as in a predictive t interval. The rest of a
run is a ratio estimate over the stretches so far, with the predictive t interval itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from outlay.errors import InvalidValue
from outlay.goodput.follower import RunView
from outlay.rates import NS_PER_HOUR
from outlay.units.money import MICROS

# The rest of a live run: how fast it got further so far, and what is left to its target.

_STRETCHES = 20


def run_paces(view: RunView, stretches: int = _STRETCHES) -> list[Pace]:
    """Return the run so far in equal stretches of time: progress, duration, cost of each."""
    start_ns, end_ns = view.timeline.start_ns, view.timeline.end_ns
    instants = [start_ns + (end_ns - start_ns) * i // stretches for i in range(stretches + 1)]
    return paces_of(instants, steps_reached(view, instants), _costs(view, instants))


def steps_reached(view: RunView, instants_ns: Sequence[int]) -> list[float]:
    """Return how far the run had come at each instant: its last step then, plus one."""
    every = [view.account.segments[a.segment].steps for a in view.timeline.attempts]
    ends = np.concatenate([steps.end for steps in every])
    numbers = np.concatenate([steps.number for steps in every])
    counts = np.concatenate([steps.count for steps in every])
    order = np.argsort(ends, kind="stable")
    ended = np.searchsorted(ends[order], np.array(instants_ns), side="right")
    # Before its first record the run stood where that record begins.
    begun = numbers[order][:1] if len(order) else np.zeros(1)
    reached = np.concatenate([begun, (numbers + counts)[order]])
    return [float(reached[records]) for records in ended]


def rest_of(view: RunView, target_steps: int) -> Rest | None:
    """Return what the run still needs to reach ``target_steps`` steps; None without progress."""
    paces = run_paces(view)
    done = steps_reached(view, [view.timeline.end_ns])[0]
    return forecast_rest(paces, max(0.0, target_steps - done))


def _costs(view: RunView, instants_ns: Sequence[int]) -> list[float]:
    rates = view.rates
    if rates is None:
        return [0.0] * len(instants_ns)
    start_ns = view.timeline.start_ns
    return [rates.units_between(start_ns, t) / NS_PER_HOUR / MICROS for t in instants_ns]


Floats = NDArray[np.float64]

CONFIDENCE = 0.8
THIN = 8
"""With fewer runs than this the history is thin, and the forecast says so."""
LEAST = 4
"""With fewer runs than this there is no interval: often all are of one kind among several."""
_DRAWS = 1000
_SEED = 20261115
_LARGEST_LOG = 600.0  # So that a sum of exponentials stays a number.
_MOST_DRAWN = 200  # Beyond this the doubt about the mean is all that is left of the spread.


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its interval.

    Attributes:
        low: The interval's lower end; None where too little was measured for one.
        confidence: The probability that the interval holds the true figure.
        samples: How many measurements it rests on.
        note: What weakens it; empty where nothing does.
    """

    point: float
    low: float | None
    high: float | None
    samples: int
    confidence: float = CONFIDENCE
    note: str = ""


def forecast_runs(
    history: Sequence[float], planned: int, *, confidence: float = CONFIDENCE
) -> Estimate | None:
    """Return what ``planned`` more runs will cost together; None without any history.

    Args:
        history: What each run cost, in any one currency.
        planned: How many more, 0 or more.
        confidence: Of the interval.
    """
    if planned < 0:
        raise InvalidValue("planned_runs", planned, "a whole number of runs, zero or more")
    if not history:
        return None
    costs = np.array(history, dtype=np.float64)
    point = float(costs.mean()) * planned
    if planned == 0:
        return Estimate(point=0.0, low=0.0, high=0.0, samples=len(costs))
    if len(costs) < LEAST:
        note = f"thin history: {_runs(len(costs))}; how much runs differ shows from {LEAST} on"
        return Estimate(point=point, low=None, high=None, samples=len(costs), note=note)
    low, high = _interval(_totals(costs, planned), confidence)
    note = f"thin history: {_runs(len(costs))}" if len(costs) < THIN else ""
    return Estimate(point=point, low=low, high=high, samples=len(costs), note=note)


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"


def _totals(costs: Floats, planned: int) -> Floats:
    """Return draws of the sum of ``planned`` future runs.

    Costs are positive and skewed, so they are drawn as logarithms where none is 0.
    """
    logarithmic = bool((costs > 0).all())
    values = np.log(costs) if logarithmic else costs
    generator = np.random.default_rng(_SEED)
    count = len(values)
    residuals = (values - values.mean()) * math.sqrt(count / (count - 1))
    spread = np.sqrt((count - 1) / generator.chisquare(count - 1, _DRAWS))
    # The middle of several kinds of runs moves with how many of each were seen, which a resample
    # shows too little of; the single run moves less, since kinds are not spread like a bell.
    centre = values.mean() + (1 + 1 / count) * spread * _means(residuals, count, generator)
    drawn: Floats = np.zeros(_DRAWS)
    for _ in range(min(planned, _MOST_DRAWN)):
        each = centre + np.sqrt(spread) * _smooth(residuals, generator)
        drawn += np.exp(np.minimum(each, _LARGEST_LOG)) if logarithmic else each
    return drawn * (planned / min(planned, _MOST_DRAWN))


def _means(residuals: Floats, count: int, generator: np.random.Generator) -> Floats:
    means: Floats = generator.choice(residuals, (_DRAWS, count)).mean(axis=1)
    return means


def _smooth(residuals: Floats, generator: np.random.Generator) -> Floats:
    """Return residuals drawn with replacement, smoothed: the next run is none of the past ones."""
    width = 0.5 * float(residuals.std()) * len(residuals) ** -0.2
    noise: Floats = width * generator.standard_normal(_DRAWS)
    drawn: Floats = generator.choice(residuals, _DRAWS) + noise
    # The noise widens what it smooths; scaled back, the spread is that of the sample again.
    return drawn / math.sqrt(1 + 0.25 * len(residuals) ** -0.4)


def _interval(draws: Floats, confidence: float) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise InvalidValue("confidence", confidence, "a probability between 0 and 1")
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Pace:
    """A stretch of a run: how many steps it got further, how long it took, what it cost."""

    steps: float
    seconds: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What a live run still needs to its target."""

    steps_left: float
    seconds: Estimate
    cost: Estimate


def forecast_rest(
    paces: Sequence[Pace], steps_left: float, *, confidence: float = CONFIDENCE
) -> Rest | None:
    """Return what ``steps_left`` more steps take, from the stretches so far; None without progress.

    Interruptions, checkpoints and stalls are taken to recur as often as they did.
    """
    steps = np.array([pace.steps for pace in paces], dtype=np.float64)
    if steps_left < 0:
        raise InvalidValue("steps_left", steps_left, "a number of steps, zero or more")
    if steps.sum() <= 0:
        return None
    figures = (
        np.array([pace.seconds for pace in paces], dtype=np.float64),
        np.array([pace.cost for pace in paces], dtype=np.float64),
    )
    seconds, cost = (_rest(steps, figure, steps_left, confidence) for figure in figures)
    return Rest(steps_left=steps_left, seconds=seconds, cost=cost)


def _rest(steps: Floats, figure: Floats, steps_left: float, confidence: float) -> Estimate:
    count = len(steps)
    per_step = float(figure.sum() / steps.sum())
    point = per_step * steps_left
    if count < 2:
        return Estimate(
            point=point, low=None, high=None, samples=count, note="too short to see it vary"
        )
    residuals = figure - per_step * steps
    # Two doubts add up: about the mean so far, and about the stretches still to come.
    stretches_left = steps_left / float(steps.mean())
    variance = float((residuals**2).sum()) / (count - 1)
    spread = math.sqrt(variance * (stretches_left + stretches_left**2 / count))
    draws = point + spread * np.random.default_rng(_SEED).standard_t(count - 1, _DRAWS)
    low, high = _interval(draws, confidence)
    note = f"thin: {count} stretches" if count < THIN else ""
    return Estimate(point=point, low=low, high=high, samples=count, note=note)


def paces_of(
    instants_ns: Sequence[int], steps: Sequence[float], costs: Sequence[float]
) -> list[Pace]:
    """Return the stretches between instants, from cumulative steps and costs at each of them."""
    rows = list(zip(instants_ns, steps, costs, strict=True))
    return [
        Pace(s1 - s0, (t1 - t0) / 1e9, c1 - c0) for (t0, s0, c0), (t1, s1, c1) in pairwise(rows)
    ]
