"""Forecasts of spending: a model's next runs, the rest of a live run, a month's total. Pure.

Each has an interval that holds the true figure with the stated probability if the future is drawn
from the same distribution as the past. Planned runs are a bootstrap of past ones. A small sample
shows too little of its spread, and less of where its middle is; a factor drawn from the chi-
square distribution of its variance widens the draws, as in a predictive t interval. The rest of a
run (stretches of it) or a month (days) is a ratio estimate with the predictive t interval itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outlay.clock import utc_datetime
from outlay.cost.charges import month_window
from outlay.errors import InvalidValue
from outlay.goodput.follower import RunView
from outlay.rates import NS_PER_HOUR
from outlay.units.money import MICROS
from outlay.units.shown import counted

if TYPE_CHECKING:
    from outlay.cost.spending import Spending, Unit

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
_NEXT_TO_NOTHING = 0.02  # Of the median run: a run that crashed as it began.
_FOLLOWED = 0.9  # Akaike weight from which on a trend is what is expected.
_LOOKS_LIKE_A_TREND = 0.8  # Of the variance, explained by a line through the logarithms.
_TOO_FEW = "too few to show a trend or rare kinds of runs; the interval may not hold"
_UNSEEN = "a trend that does not show yet is not in the interval"
_FEW_AMOUNTS = 3  # With so few an interval holds one of them or does not, and nothing between.
_MOST_DRAWN = 200  # Beyond this the doubt about the mean is all that is left of the spread.


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its interval.

    Attributes:
        low: The interval's lower end; None where too little was measured for one.
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

    The history is in one currency, in order of time. Runs that cost next to nothing beside the
    others, such as those that crash at once, are a kind of their own: each run to come may be one.
    Where costs grow or shrink from run to run, that is followed, and said. Where too little is
    known for an interval there is none, and the note says why.
    """
    if planned < 0:
        raise InvalidValue("planned_runs", planned, "a whole number of runs, zero or more")
    _check(confidence)
    if not history:
        return None
    costs = np.array(history, dtype=np.float64)
    count, seen = len(costs), counted(len(costs), "run")
    point = float(costs.mean()) * planned
    if planned == 0:
        return Estimate(point=0.0, low=0.0, high=0.0, samples=count)
    if count < LEAST:
        note = f"thin history: {seen}; how much runs differ shows from {LEAST} on"
        return Estimate(point=point, low=None, high=None, samples=count, note=note)
    if costs.min() == costs.max():
        note = f"all {seen} cost the same, so that nothing shows how much they may differ"
        return Estimate(point=point, low=point, high=point, samples=count, note=note)
    ordinary = costs > _NEXT_TO_NOTHING * float(np.median(costs[costs > 0]))
    known, notes = int(ordinary.sum()), list[str]()
    ordinary_runs = counted(known, "run")
    if known < count:
        notes.append(f"{count - known} of {seen} cost next to nothing")
    if known < LEAST:
        notes.append(f"{ordinary_runs} besides: how much those differ shows from {LEAST} on")
        return Estimate(point=point, low=None, high=None, samples=count, note="; ".join(notes))
    trend = _trend_of(np.flatnonzero(ordinary).astype(np.float64), np.log(costs[ordinary]))
    if trend.doubtful:
        notes.append(f"{ordinary_runs} may show a trend, and are too few to tell")
        return Estimate(point=point, low=None, high=None, samples=count, note="; ".join(notes))
    if trend.weight > _FOLLOWED:
        ahead = np.arange(count, count + planned, dtype=np.float64)
        point = known / count * float((np.exp(trend.at(ahead)) * trend.smearing).sum())
        notes.append(f"costs {trend.way} from run to run, which is followed")
    elif trend.weight > 0.5:
        notes.append(f"costs may {trend.way} from run to run, which the interval allows for")
    if count < THIN:
        notes.append(f"thin history: {seen}, {_TOO_FEW}")
    elif planned > count // 2:
        notes.append(f"{counted(planned, 'run')} ahead of {count} that are known: {_UNSEEN}")
    amounts = len(set(history))
    if planned == 1 and amounts <= min(_FEW_AMOUNTS, count // 2):
        notes.append(f"runs cost one of {amounts} amounts: {confidence:.0%} cannot be met exactly")
    low, high = _interval(_totals(costs, ordinary, trend, planned), confidence)
    return Estimate(point=point, low=low, high=high, samples=count, note="; ".join(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """How forecasts from the first runs of a history fared against the runs that followed.

    Attributes:
        forecasts: How many there were: one after each run from the fourth on.
        with_interval: How many of them had an interval.
        held: Of those, how many held what then was spent.
        error: Mean absolute error over what then was spent, as a share.
        naive_error: The same of expecting each run to cost as much as the last one.
    """

    planned: int
    forecasts: int
    with_interval: int
    held: int
    error: float | None
    naive_error: float | None
    confidence: float = CONFIDENCE

    @property
    def coverage(self) -> float | None:
        """The share of intervals that held; None without any."""
        return self.held / self.with_interval if self.with_interval else None


def backtest(history: Sequence[float], planned: int, *, confidence: float = CONFIDENCE) -> Backtest:
    """Forecast ``planned`` runs after each run of a history, and compare with what followed."""
    if planned < 1:
        raise InvalidValue("planned_runs", planned, "a whole number of runs, one or more")
    errors, naive, spent, held, ranged = [], [], [], 0, 0
    for known in range(LEAST, len(history) - planned + 1):
        found = forecast_runs(history[:known], planned, confidence=confidence)
        assert found is not None, "there is a history"
        future = sum(history[known : known + planned])
        errors.append(abs(found.point - future))
        naive.append(abs(planned * history[known - 1] - future))
        spent.append(future)
        if found.low is not None and found.high is not None:
            ranged += 1
            held += found.low <= future <= found.high
    total = sum(spent)
    return Backtest(
        planned=planned,
        forecasts=len(spent),
        with_interval=ranged,
        held=held,
        error=sum(errors) / total if total else None,
        naive_error=sum(naive) / total if total else None,
        confidence=confidence,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trend:
    """A straight line through the logarithms of costs, and how far it is believed.

    Attributes:
        middle: The mean of the positions; ``level`` is the line's value there.
        spread: Of the positions: the root of the sum of their squared distances.
        residuals: What the line leaves, widened for the figures that it was fitted with.
        weight: Akaike's, beside no trend at all.
        doubtful: It looks like a trend, and there are too few runs to tell.
    """

    middle: float
    level: float
    slope: float
    spread: float
    residuals: Floats
    weight: float
    doubtful: bool

    def at(self, positions: Floats) -> Floats:
        """Return the line at some positions."""
        line: Floats = self.level + self.slope * (positions - self.middle)
        return line

    @property
    def way(self) -> str:
        """Which way costs go, and by how much each time."""
        change = math.expm1(self.slope)
        return f"{'grow' if change > 0 else 'fall'} by {abs(change):.1%}"

    @property
    def smearing(self) -> float:
        """By how much a mean of costs is above the exponential of a mean of logarithms."""
        return float(np.exp(self.residuals).mean())


def _trend_of(positions: Floats, logs: Floats) -> _Trend:
    count, middle = len(logs), float(positions.mean())
    away = positions - middle
    spread = math.sqrt(float((away**2).sum()))
    slope = float((away * logs).sum()) / spread**2
    residuals = logs - logs.mean() - slope * away
    left, without = (max(float((each**2).sum()), 1e-18) for each in (residuals, logs - logs.mean()))
    # Half of the corrected criterion's penalty: a trend that is there and not followed misses
    # more often than one that is not there and is. With four runs none can be told.
    penalty = math.inf if count <= LEAST else (1 + 12 / (count - 4) - 6 / (count - 3)) / 2
    gained = count / 2 * math.log(without / left)
    weight = 1 / (1 + math.exp(min(penalty - gained, 700.0)))
    explained = 1 - left / without
    return _Trend(
        middle=middle,
        level=float(logs.mean()),
        slope=slope,
        spread=spread,
        residuals=residuals * math.sqrt(count / (count - 2)),
        weight=weight,
        doubtful=weight <= _FOLLOWED and count < THIN and explained > _LOOKS_LIKE_A_TREND,
    )


def _totals(costs: Floats, ordinary: NDArray[np.bool_], trend: _Trend, planned: int) -> Floats:
    """Return draws of the sum of ``planned`` future runs.

    Costs are positive and skewed, so they are drawn as logarithms.
    """
    generator = np.random.default_rng(_SEED)
    values = np.log(costs[ordinary])
    count = len(values)
    residuals = (values - values.mean()) * math.sqrt(count / (count - 1))
    spread = np.sqrt((count - 1) / generator.chisquare(count - 1, _DRAWS))
    # The middle of several kinds of runs moves with how many of each were seen, which a resample
    # shows too little of; the single run moves less, since kinds are not spread like a bell.
    centre = values.mean() + (1 + 1 / count) * spread * _means(residuals, count, generator)
    follows = generator.random(_DRAWS) < trend.weight
    nothing = _CrashedRuns.of(costs[~ordinary], len(costs), generator)
    noise = float(trend.residuals.std())
    level = trend.level + spread * noise / math.sqrt(count) * generator.standard_normal(_DRAWS)
    slope = trend.slope + spread * noise / trend.spread * generator.standard_normal(_DRAWS)
    drawn: Floats = np.zeros(_DRAWS)
    for ahead in range(min(planned, _MOST_DRAWN)):
        steady = centre + np.sqrt(spread) * _smooth(residuals, generator)
        line = level + slope * (len(costs) + ahead - trend.middle)
        along = line + np.sqrt(spread) * _smooth(trend.residuals, generator)
        each = np.exp(np.minimum(np.where(follows, along, steady), _LARGEST_LOG))
        drawn += nothing.mixed_into(each, generator)
    return drawn * (planned / min(planned, _MOST_DRAWN))


@dataclass(frozen=True, slots=True)
class _CrashedRuns:
    """Runs that cost next to nothing: what they cost, and how often they come, draw by draw."""

    costs: Floats
    often: Floats | None

    @classmethod
    def of(cls, costs: Floats, count: int, generator: np.random.Generator) -> _CrashedRuns:
        """Return how often such runs come, in doubt as a share of a few runs is."""
        if not len(costs):
            return cls(costs, None)
        return cls(costs, generator.beta(len(costs) + 0.5, count - len(costs) + 0.5, _DRAWS))

    def mixed_into(self, drawn: Floats, generator: np.random.Generator) -> Floats:
        """Return draws of a run, some of them of next to nothing."""
        if self.often is None:
            return drawn
        crashed = generator.random(_DRAWS) < self.often
        return np.where(crashed, generator.choice(self.costs, _DRAWS), drawn)


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


def _check(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InvalidValue("confidence", confidence, "a probability between 0 and 1")


def _interval(draws: Floats, confidence: float) -> tuple[float, float]:
    _check(confidence)
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
    if not point or not spread:
        note = "no stretch differed from another" if point else ""
        return Estimate(point=point, low=point, high=point, samples=count, note=note)
    # On the scale of logarithms, since nothing takes less than no time.
    draws = np.random.default_rng(_SEED).standard_t(count - 1, _DRAWS) * (spread / point)
    low, high = _interval(point * np.exp(np.minimum(draws, _LARGEST_LOG)), confidence)
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


# The total of the present month.

PAST_DAYS = 28
_DAY_NS = 86_400 * 10**9


def forecast_month(spending: Spending, now_ns: int) -> dict[Unit, Estimate]:
    """Return the total of the present UTC month in micro-units, by currency and kind.

    It is what is booked in the month so far, plus the rest of the month at the daily cost of the
    last ``PAST_DAYS`` full days (fewer where the books begin later). Nothing of a currency that was
    first spent today.
    """
    month = month_window(utc_datetime(now_ns).strftime("%Y-%m"))
    today, found = now_ns // _DAY_NS, {}
    for unit in spending.units():
        items = [(each.booked_ns // _DAY_NS, each.cost.micros) for each in spending.of_unit(unit)]
        first = max(min(day for day, _ in items), today - PAST_DAYS)
        paces = [
            Pace(steps=1, seconds=86_400, cost=sum(micros for day, micros in items if day == each))
            for each in range(first, today)
        ]
        rest = forecast_rest(paces, (month.end_ns - now_ns) / _DAY_NS)
        if rest is not None:
            spent = sum(micros for day, micros in items if day >= month.start_ns // _DAY_NS)
            low, high = (
                None if end is None else spent + end for end in (rest.cost.low, rest.cost.high)
            )
            found[unit] = replace(rest.cost, point=spent + rest.cost.point, low=low, high=high)
    return found
