"""Cost forecasts: a model's next runs, and the rest of a live run. Pure.

Each has an interval that contains the true figure with the stated probability if the future has the
same distribution as the past. Planned runs are a bootstrap of past ones. A small sample
underestimates its spread and the uncertainty of its mean; a factor drawn from the chi-square
distribution of the variance widens the draws, as in a predictive t interval. The rest of a run is a
ratio estimate over past intervals with a predictive t interval. ``month_forecast`` forecasts a
month's total.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outlay.cost.compare import of_last_unit
from outlay.cost.cost_book import ModelBudget, budgeted
from outlay.errors import InvalidValue
from outlay.goodput.follower import RunView
from outlay.rates import NS_PER_HOUR
from outlay.store.run_row import RunRow
from outlay.units import Money
from outlay.units.money import MICROS
from outlay.units.shown import counted

# Progress of a live run

_INTERVALS = 20


def run_paces(view: RunView) -> list[Pace]:
    """Return progress, duration and cost of the run so far in equal time intervals."""
    start_ns, end_ns = view.timeline.start_ns, view.timeline.end_ns
    instants = [start_ns + (end_ns - start_ns) * i // _INTERVALS for i in range(_INTERVALS + 1)]
    rows = list(zip(instants, steps_reached(view, instants), _costs(view, instants), strict=True))
    return [
        Pace(s1 - s0, (t1 - t0) / 1e9, c1 - c0) for (t0, s0, c0), (t1, s1, c1) in pairwise(rows)
    ]


def steps_reached(view: RunView, instants_ns: Sequence[int]) -> list[float]:
    """Return the run's progress at each instant: its last step plus one."""
    every = [view.account.of(a).steps for a in view.timeline.attempts]
    ends = np.concatenate([steps.end for steps in every])
    numbers = np.concatenate([steps.number for steps in every])
    counts = np.concatenate([steps.count for steps in every])
    order = np.argsort(ends, kind="stable")
    ended = np.searchsorted(ends[order], np.array(instants_ns), side="right")
    # Before the first record, progress is that record's first step.
    begun = numbers[order][:1] if len(order) else np.zeros(1)
    reached = np.concatenate([begun, (numbers + counts)[order]])
    return [float(reached[records]) for records in ended]


def rest_of(view: RunView, target_steps: int) -> Rest | None:
    """Forecast the remaining time and cost to ``target_steps`` steps; None without progress."""
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
"""With fewer runs than this the forecast has a note about its thin history."""
LEAST = 4
"""With fewer runs than this there is no interval: they are often all of one kind."""
_DRAWS = 1000
_SEED = 20261115
_MAX_LOG = 600.0  # Avoids overflow of a sum of exponentials.
_CRASHED_SHARE = 0.02  # Of the median cost: below this a run crashed at its start.
_TREND_WEIGHT = 0.9  # Minimum Akaike weight for extrapolating a trend.
_TREND_VARIANCE = 0.72  # Share of variance explained by a line through the logs: maybe a trend.
_TOO_FEW = "too few to show a trend or rare kinds of runs; the interval may not hold"
_UNSEEN = "the interval ignores a trend that is not visible yet"
_FEW_AMOUNTS = 3  # With so few distinct amounts no interval has the exact probability.
_WARN_PERCENT = 90  # Of a budget, spent or forecast.
_MAX_DRAWN = 200  # With more runs the uncertainty of the mean dominates the spread.


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its interval.

    Attributes:
        low: Lower end of the interval; None if there is too little data for one.
        note: Caveats, or "".
    """

    point: float
    low: float | None
    high: float | None
    samples: int
    confidence: float = CONFIDENCE
    note: str = ""


def forecast_runs(history: Sequence[float], planned: int) -> Estimate | None:
    """Return the total cost of ``planned`` more runs; None without history.

    The history is in one currency, in order of time. Runs that cost almost nothing compared to the
    others, such as those that crash at once, are modelled separately, with their own frequency. A
    trend from run to run is extrapolated, with a note. With too little data there is no interval,
    and the note says why.
    """
    if planned < 0:
        raise InvalidValue("planned_runs", planned, "a whole number of runs, zero or more")
    if not history:
        return None
    costs = np.array(history, dtype=np.float64)
    count, seen = len(costs), counted(len(costs), "run")
    point = float(costs.mean()) * planned
    if planned == 0:
        return Estimate(point=0.0, low=0.0, high=0.0, samples=count)
    if count < LEAST:
        note = f"thin history: {seen}; the spread of costs shows from {LEAST} on"
        return Estimate(point=point, low=None, high=None, samples=count, note=note)
    if costs.min() == costs.max():
        note = f"all {seen} cost the same, so their spread is unknown"
        return Estimate(point=point, low=point, high=point, samples=count, note=note)
    ordinary = costs > _CRASHED_SHARE * float(np.median(costs[costs > 0]))
    known, notes = int(ordinary.sum()), list[str]()
    ordinary_runs = counted(known, "run")
    if known < count:
        notes.append(f"{count - known} of {seen} cost almost nothing")
    if known < LEAST:
        notes.append(f"only {ordinary_runs} otherwise: their spread shows from {LEAST} on")
        return Estimate(point=point, low=None, high=None, samples=count, note="; ".join(notes))
    places, logs = np.flatnonzero(ordinary).astype(np.float64), np.log(costs[ordinary])
    trend = _trend_of(places, logs)
    if trend.gain < _gain_of_correlation(logs) - 2:
        trend = replace(trend, weight=0.0, doubtful=False)  # Runs in a row are alike.
    if (since := _changed_at(logs, trend)) is not None:
        return _since_change(costs, int(places[since]), planned, logs[:since])
    pattern = _pattern_of(places, logs, trend)
    if pattern.is_doubtful:
        notes.append(f"{ordinary_runs} seem alike from one to the next, too few to be sure")
        return Estimate(point=point, low=None, high=None, samples=count, note="; ".join(notes))
    if pattern.period:
        trend = _trend_of(places, logs - pattern.of(places))
        notes.append(f"costs repeat every {pattern.period} runs, which is continued")
    if pattern.last:
        notes.append("runs in a row cost alike, which widens the interval")
    if trend.doubtful:
        notes.append(f"{ordinary_runs} may show a trend, but are too few to be sure")
        return Estimate(point=point, low=None, high=None, samples=count, note="; ".join(notes))
    if trend.weight > _TREND_WEIGHT:
        ahead = np.arange(count, count + planned, dtype=np.float64)
        point = known / count * float((np.exp(trend.at(ahead)) * trend.smearing).sum())
        notes.append(f"costs {trend.direction} from run to run, which is extrapolated")
    elif trend.weight > 0.5:
        notes.append(f"costs may {trend.direction} from run to run, which the interval includes")
    if count < THIN:
        notes.append(f"thin history: {seen}, {_TOO_FEW}")
    elif planned > count // 2:
        notes.append(f"{counted(planned, 'run')} planned from a history of {count}: {_UNSEEN}")
    amounts = len(set(history))
    if planned == 1 and amounts <= min(_FEW_AMOUNTS, count // 2):
        notes.append(f"runs cost one of {amounts} amounts: {CONFIDENCE:.0%} cannot be met exactly")
    totals = _totals(costs, ordinary, trend, planned, pattern)
    if pattern.period or pattern.last:
        point = known / count * pattern.expected(costs[ordinary], places, count, planned)
    low, high = interval_of(totals)
    return Estimate(point=point, low=low, high=high, samples=count, note="; ".join(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """Accuracy of forecasts made from the first runs of a history against the later ones.

    Attributes:
        forecasts: Their number: one after each run from the fourth on.
        with_interval: Number of forecasts with an interval.
        held: Number of intervals that contained the true cost.
        error: Total absolute error as a share of the total true cost.
        naive_error: The same if each run is expected to cost as much as the last one.
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
        """The share of intervals that held, or None."""
        return self.held / self.with_interval if self.with_interval else None


def past_costs(rows: Sequence[RunRow]) -> list[float]:
    """Return what a model's runs cost, in the currency and of the kind of the last one."""
    return [float(row.paid.amount) for row in of_last_unit(rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelForecast:
    """The cost of a model's planned runs, and what that does to its budget; in currency units.

    Attributes:
        history: Number of runs that the forecast is from.
        budget_status: OVER if spent and estimate exceed the budget, WARNING above 90 % of it, OK
            below or without a budget, UNKNOWN without history or with a budget in another currency.
        overage: By how much the budget is exceeded.
    """

    model_name: str
    planned_runs: int
    avg_cost_per_run: float | None
    currency: str
    estimated_total: float | None
    low: float | None
    high: float | None
    confidence: float | None
    history: int
    note: str
    budget: float | None = None
    spent: float | None = None
    budget_status: Literal["OK", "WARNING", "OVER", "UNKNOWN"] = "UNKNOWN"
    overage: float = 0.0


def forecast_model(
    model: str,
    rows: Sequence[RunRow],
    budget: ModelBudget | None,
    planned: int,
    stated: object = None,
) -> ModelForecast:
    """Forecast the cost of a model's planned runs, and the state of its budget after them.

    Args:
        model: The model.
        rows: The reports of its runs, oldest first.
        budget: Its budget, if it has one.
        planned: Number of further runs.
        stated: The cost of one run, instead of the history.
    """
    history = past_costs(rows)
    unspent_in = "USD" if budget is None else budget.limit.currency
    currency = rows[-1].paid.currency if rows else unspent_in
    if stated is not None:
        each = Money.parse(stated, name="avg_cost_per_run", currency=currency)
        history = [float(each.amount)]
    estimate = forecast_runs(history, planned)
    if estimate is None:
        note = "no run of this model is known: state avg_cost_per_run"
        estimate = Estimate(point=0.0, low=None, high=None, samples=0, note=note)
    elif stated is not None:
        note = "a stated cost per run"
        estimate = replace(estimate, low=None, high=None, samples=0, note=note)
    found = ModelForecast(
        model_name=model,
        planned_runs=planned,
        avg_cost_per_run=sum(history) / len(history) if history else None,
        currency=currency,
        estimated_total=estimate.point if history else None,
        low=estimate.low,
        high=estimate.high,
        confidence=estimate.confidence if history else None,
        history=estimate.samples,
        note=estimate.note,
    )
    if budget is None:
        return replace(found, budget_status="OK" if history else "UNKNOWN")
    if unspent_in != currency:
        other = f"the budget is in {unspent_in}, the runs are in {currency}"
        return replace(found, note="; ".join(filter(None, [found.note, other])))
    so_far = budgeted(rows, budget.limit)
    spent, limit = so_far.spent, so_far.limit
    found = replace(found, budget=float(limit.amount), spent=float(spent.amount))
    if not history:
        return found
    projected = spent + Money.parse(estimate.point, currency=currency).as_kind(spent.kind)
    if projected > limit:
        over = float((projected - limit).amount)
        return replace(found, budget_status="OVER", overage=over)
    is_near = projected * 100 > limit * _WARN_PERCENT
    return replace(found, budget_status="WARNING" if is_near else "OK")


def backtest(history: Sequence[float], planned: int) -> Backtest:
    """Forecast ``planned`` runs after each run of a history, and compare with the true cost."""
    if planned < 1:
        raise InvalidValue("planned_runs", planned, "a whole number of runs, one or more")
    errors, naive, spent, held, ranged = [], [], [], 0, 0
    for known in range(LEAST, len(history) - planned + 1):
        found = forecast_runs(history[:known], planned)
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
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trend:
    """A line through the logarithms of costs, and its likelihood.

    Attributes:
        middle: Mean position; ``level`` is the line's value there.
        spread: Root of the sum of squared distances of the positions.
        residuals: Scaled up for the fitted parameters.
        weight: Akaike weight against a model without a trend.
        doubtful: Looks like a trend, but there are too few runs.
        gain: The log likelihood that the trend adds.
    """

    middle: float
    level: float
    slope: float
    spread: float
    residuals: Floats
    weight: float
    doubtful: bool
    gain: float

    def at(self, positions: Floats) -> Floats:
        line: Floats = self.level + self.slope * (positions - self.middle)
        return line

    @property
    def direction(self) -> str:
        change = math.expm1(self.slope)
        return f"{'grow' if change > 0 else 'fall'} by {abs(change):.1%}"

    @property
    def smearing(self) -> float:
        """The ratio of the mean cost to the exponential of the mean logarithm."""
        return float(np.exp(self.residuals).mean())


def _trend_of(positions: Floats, logs: Floats) -> _Trend:
    count, middle = len(logs), float(positions.mean())
    away = positions - middle
    spread = math.sqrt(float((away**2).sum()))
    slope = float((away * logs).sum()) / spread**2
    residuals = logs - logs.mean() - slope * away
    left, without = (max(float((each**2).sum()), 1e-18) for each in (residuals, logs - logs.mean()))
    # Half of the corrected criterion's penalty: ignoring a real trend misses more often than
    # extrapolating a spurious one. Four runs cannot show a trend.
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
        doubtful=weight <= _TREND_WEIGHT and count < THIN and explained > _TREND_VARIANCE,
        gain=gained,
    )


# Changes of level, seasons, and runs in a row that cost alike.

_LEAST_BEFORE = 4  # Runs before a change of level, to be sure of it.
_LEAST_SINCE = 2
_MOST_PERIOD = 12
_FEW = 10  # With fewer runs, correlation is suspected and not estimated.
_MANY = 25
_SUSPECTED = 0.25
# What few runs hide, trends and that runs in a row are alike, widens the draws by such a factor;
# over ten planned runs or more, what runs in a row have in common averages out.
_HIDDEN = {4: 1.45, 5: 1.5, 6: 1.5, 7: 1.45, 8: 1.4, 9: 1.3}
_HIDDEN_OF_MANY, _FEW_PLANNED, _MANY_PLANNED = 1.08, 4, 10


def _changed_at(logs: Floats, trend: _Trend) -> int | None:
    """Return the index of the first run after a change of level; None if there was none.

    By the likelihood of two levels against one, and against a trend. The threshold grows with the
    number of places at which the change may be, as in Schwarz's criterion.
    """
    count = len(logs)
    best, found = 0.0, None
    whole = max(float(((logs - logs.mean()) ** 2).sum()), 1e-18)
    for at in range(_LEAST_BEFORE, count - _LEAST_SINCE + 1):
        parts = logs[:at], logs[at:]
        left = max(sum(float(((part - part.mean()) ** 2).sum()) for part in parts), 1e-18)
        if (gain := count / 2 * math.log(whole / left)) > best:
            best, found = gain, at
    rivals = max(trend.gain, _gain_of_correlation(logs))
    return found if best > max(rivals + 4, 4 + 1.5 * math.log(count)) else None


def _gain_of_correlation(logs: Floats) -> float:
    """Return the log likelihood that correlation of runs in a row adds; 0 if there are too few."""
    if len(logs) < _FEW:
        return 0.0
    row = _lag_one(logs - logs.mean())
    return -len(logs) / 2 * math.log(1 - min(row, 0.99) ** 2) if row > 0 else 0.0


def _lag_one(rest: Floats) -> float:
    power = float((rest**2).sum())
    return float((rest[1:] * rest[:-1]).sum()) / power if power > 1e-12 else 0.0


def _since_change(costs: Floats, at: int, planned: int, before: Floats) -> Estimate:
    """Forecast from the runs since a change of level."""
    since = costs[at:]
    found = forecast_runs(since.tolist(), planned)
    assert found is not None, "there are runs since the change"
    times = float(since.mean() / np.exp(before).mean())
    note = f"costs changed by a factor of {times:.2g}; only the {counted(len(since), 'run')} since"
    return replace(found, note="; ".join(filter(None, [f"{note} count", found.note])))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """How the costs of runs depend on each other.

    Attributes:
        period: After how many runs costs repeat; 0 if they do not.
        effects: What each run of a period adds to the logarithm.
        correlation: Of one run with the next, after trend and season; 0 if they are independent.
        last: How far the last run is from what was expected, as a logarithm; 0 if the correlation
            is too uncertain to follow.
        is_doubtful: There may be correlation, but there are too few runs.
    """

    period: int = 0
    effects: Floats
    correlation: float = 0.0
    last: float = 0.0
    is_doubtful: bool = False

    def of(self, places: Floats) -> Floats:
        """Return the effect of the season on each run."""
        if not self.period:
            return np.zeros(len(places))
        found: Floats = self.effects[places.astype(np.intp) % self.period]
        return found

    def expected(self, costs: Floats, places: Floats, count: int, planned: int) -> float:
        """Return the expected cost of the next runs, without a trend."""
        ahead = np.arange(count, count + planned, dtype=np.float64)
        each = float((costs / np.exp(self.of(places))).mean())
        follows = self.last * self.correlation ** (ahead - count + 1)
        return each * float(np.exp(self.of(ahead) + follows).sum())


def _pattern_of(places: Floats, logs: Floats, trend: _Trend) -> _Pattern:
    line = trend.at(places) if trend.weight > 0.5 else np.full(len(logs), logs.mean())
    season = _season_of(places, logs - line)
    rest = logs - line - season.of(places)
    known, row = len(rest), _lag_one(rest)
    if season.period or known <= LEAST + 1:
        return season
    if known < _FEW:
        return replace(season, is_doubtful=row > _SUSPECTED)
    # Few runs hide correlation more often than they feign it.
    surely = row >= 1.3 / math.sqrt(known)
    if not surely and (known >= _MANY or row < 0.25 / math.sqrt(known)):
        return season
    # The correlation of a short series is underestimated (Kendall 1954).
    correlation = min(0.95, row + 1.5 * (1 + 4 * row) / known)
    return replace(season, correlation=correlation, last=float(rest[-1]) if surely else 0.0)


def _season_of(places: Floats, rest: Floats) -> _Pattern:
    """Return the season that explains the most; two and a half of it must have been seen."""
    count, whole = len(rest), max(float((rest**2).sum()), 1e-18)
    best, found = 0.0, _Pattern(effects=np.zeros(1))
    for period in range(2, min(_MOST_PERIOD, count * 2 // 5) + 1):
        at = places.astype(np.intp) % period
        seen = np.bincount(at, minlength=period)
        effects = np.bincount(at, weights=rest, minlength=period) / np.maximum(seen, 1)
        left = max(float(((rest - effects[at]) ** 2).sum()), 1e-18)
        gain = count / 2 * math.log(whole / left) - 2 * (period - 1) - 3.5
        if seen.min() >= 2 and gain > best and left > 1e-6 * whole:
            best, found = gain, _Pattern(period=period, effects=effects)
    return found


def _totals(
    costs: Floats, ordinary: NDArray[np.bool_], trend: _Trend, planned: int, pattern: _Pattern
) -> Floats:
    """Return draws of the sum of ``planned`` future runs.

    Costs are positive and skewed, so they are drawn as logarithms.
    """
    generator = np.random.default_rng(_SEED)
    season = pattern.of(np.arange(len(costs) + planned, dtype=np.float64))
    values = np.log(costs[ordinary]) - season[: len(costs)][ordinary]
    count = len(values)
    rho = pattern.correlation
    # Runs that are alike say less: there are fewer independent ones, and they seem to vary less.
    fewer = math.sqrt((1 + rho) / (1 - rho))
    hidden = 0.87 * math.sqrt(1 - min(0.7, fewer**2 / count)) if rho else 1.0
    residuals = (values - values.mean()) * math.sqrt(count / (count - 1)) / hidden
    freedom = count - 1
    spread = _hidden(count, planned) * np.sqrt(freedom / generator.chisquare(freedom, _DRAWS))
    # With several kinds of runs the mean varies with the number seen of each, which a resample
    # underestimates; a single run varies less, since kinds are not normally distributed.
    means = generator.choice(residuals, (_DRAWS, count)).mean(axis=1)
    centre = values.mean() + (1 + 1 / count) * spread * means
    follows = generator.random(_DRAWS) < trend.weight
    crashes = _CrashedRuns.of(costs[~ordinary], len(costs), generator)
    noise = float(trend.residuals.std())
    level = trend.level + spread * noise / math.sqrt(count) * generator.standard_normal(_DRAWS)
    slope = trend.slope + spread * noise / trend.spread * generator.standard_normal(_DRAWS)
    drawn: Floats = np.zeros(_DRAWS)
    deviation, scale = float(residuals.std()), np.sqrt(spread)
    centre = values.mean() + fewer * (centre - values.mean())
    # An uncertain correlation is not followed: the next run may be anywhere.
    anywhere = scale * _smooth(residuals, deviation, generator) if rho else np.zeros(_DRAWS)
    kept = np.full(_DRAWS, pattern.last) if pattern.last else anywhere
    new = math.sqrt(1 - rho**2)
    for ahead in range(min(planned, _MAX_DRAWN)):
        off = scale * _smooth(residuals, deviation, generator)
        line = level + slope * (len(costs) + ahead - trend.middle)
        beside = scale * _smooth(trend.residuals, noise, generator)
        if rho:
            kept = rho * kept + new * np.where(follows, beside, off)
            off = beside = kept
        each = np.where(follows, line + beside, centre + off) + season[len(costs) + ahead]
        drawn += crashes.mix_into(np.exp(np.minimum(each, _MAX_LOG)), generator)
    return drawn * (planned / min(planned, _MAX_DRAWN))


def _hidden(count: int, planned: int) -> float:
    """Return the factor by which few known runs widen the draws of some planned ones."""
    if count >= _FEW:
        return 1.0
    many = (planned - _FEW_PLANNED) / (_MANY_PLANNED - _FEW_PLANNED)
    return float(np.interp(many, [0, 1], [_HIDDEN[count], _HIDDEN_OF_MANY]))


@dataclass(frozen=True, slots=True)
class _CrashedRuns:
    """Runs that cost almost nothing: their costs, and a drawn frequency for each draw."""

    costs: Floats
    frequency: Floats | None

    @classmethod
    def of(cls, costs: Floats, count: int, generator: np.random.Generator) -> _CrashedRuns:
        """Draw frequencies from the Jeffreys posterior of the share of crashed runs."""
        if not len(costs):
            return cls(costs, None)
        return cls(costs, generator.beta(len(costs) + 0.5, count - len(costs) + 0.5, _DRAWS))

    def mix_into(self, drawn: Floats, generator: np.random.Generator) -> Floats:
        """Replace some draws by the cost of a crashed run."""
        if self.frequency is None:
            return drawn
        crashed = generator.random(_DRAWS) < self.frequency
        return np.where(crashed, generator.choice(self.costs, _DRAWS), drawn)


def _smooth(residuals: Floats, deviation: float, generator: np.random.Generator) -> Floats:
    """Return residuals drawn with replacement and smoothed (kernel density)."""
    width = 0.5 * deviation * len(residuals) ** -0.2
    noise: Floats = width * generator.standard_normal(_DRAWS)
    drawn: Floats = generator.choice(residuals, _DRAWS) + noise
    # Scaled, since the noise adds to the variance of the sample.
    return drawn / math.sqrt(1 + 0.25 * len(residuals) ** -0.4)


def interval_of(draws: Floats) -> tuple[float, float]:
    """Return the ends between which ``CONFIDENCE`` of the draws lie."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Pace:
    """Progress, duration and cost of an interval of a run."""

    steps: float
    seconds: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The remaining time and cost of a live run to its target."""

    steps_left: float
    seconds: Estimate
    cost: Estimate


def forecast_rest(paces: Sequence[Pace], steps_left: float) -> Rest | None:
    """Forecast time and cost of ``steps_left`` more steps; None without progress.

    Assumes that interruptions, checkpoints and stalls recur as often as before.
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
    seconds, cost = (_rest(steps, figure, steps_left) for figure in figures)
    return Rest(steps_left=steps_left, seconds=seconds, cost=cost)


def _rest(steps: Floats, figure: Floats, steps_left: float) -> Estimate:
    count = len(steps)
    per_step = float(figure.sum() / steps.sum())
    point = per_step * steps_left
    if count < 2:
        return Estimate(
            point=point, low=None, high=None, samples=count, note="too short to show a spread"
        )
    residuals = figure - per_step * steps
    # The variances of the mean so far and of the intervals to come add up.
    intervals_left = steps_left / float(steps.mean())
    variance = float((residuals**2).sum()) / (count - 1)
    spread = math.sqrt(variance * (intervals_left + intervals_left**2 / count))
    if not point or not spread:
        note = "all intervals of the run are alike" if point else ""
        return Estimate(point=point, low=point, high=point, samples=count, note=note)
    # In logarithms, since a duration is never negative.
    draws = np.random.default_rng(_SEED).standard_t(count - 1, _DRAWS) * (spread / point)
    low, high = interval_of(point * np.exp(np.minimum(draws, _MAX_LOG)))
    note = f"thin: {count} intervals" if count < THIN else ""
    return Estimate(point=point, low=low, high=high, samples=count, note=note)
