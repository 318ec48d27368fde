"""The total of the present month, forecast from the days on which money was used. Pure.

A charge counts on the days of its use, whenever it is booked. The rest of the month has two parts:

- What is running now goes on at its present hourly cost. One that has lived for some time ends
  before it has lived as long again with probability one half (its remaining life has the survival
  function ``age / (age + t)``, which does not depend on a unit of time). Owned machines go on.
- What begins later is drawn by day: as on a past day, with all that was used of what began then,
  for as long as the month lasts. Days have random weights (Rubin's Bayesian bootstrap, 1981), so
  that few days give a wide interval, and so does cost that few beginnings make up. If the cost of
  what began by day grows or shrinks, that is extrapolated, as far as the days show it (a regression
  of logarithms with a normal prior).

The constants were chosen on generated months; ``tests/cost/test_month_forecast.py`` reports on
others.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlay.clock import utc_datetime
from outlay.cost.charges import month_window
from outlay.cost.forecast import Estimate, Floats, interval_of
from outlay.cost.spending import Spending, SpendItem
from outlay.ledger.attempts import DEAD_AFTER_NS
from outlay.units import Unit
from outlay.units.shown import counted

Chosen = NDArray[np.bool_] | NDArray[np.intp]
"""Elements of arrays, by truth or by place."""
PAST_DAYS: Final = 28
LEAST_DAYS: Final = 4
"""With fewer days than this there is no interval."""
_DAY_NS: Final = 86_400 * 10**9
_DRAWS: Final = 1000
_SEED: Final = 20261118
_TREND_DAYS: Final = 6
_TREND_SHARE: Final = 0.7
"""The share of days on which something began from which a trend is looked for."""
_TREND_PRIOR: Final = 0.03
"""Standard deviation of the growth of a day in logarithms: that doubles in 23 days."""
_MOST_GROWTH: Final = 3.0
_EARLIER: Final = 50
"""The most that is drawn from of what began before the past days."""
_LEVEL_PRIOR: Final = 0.15
"""How far the month's level may be from that of the past, as a standard deviation in logarithms."""
_FEW_PRIOR: Final = 0.8
"""The variance that is added to it if one beginning had all of the cost; 1/n of it for n alike."""


@dataclass(frozen=True, slots=True)
class _Used:
    """What used money, one element each; times are days before the present.

    Attributes:
        age: Since its begin.
        life: Until its end, or the present.
        per_day: Its daily cost: of what is running, during the last day.
        alive: Whether it is running.
        endless: Whether it goes on whatever its age is.
    """

    age: Floats
    life: Floats
    per_day: Floats
    alive: NDArray[np.bool_]
    endless: NDArray[np.bool_]


def forecast_month(
    spending: Spending, now_ns: int, running: Container[str]
) -> dict[Unit, Estimate]:
    """Return the total of the present UTC month in micro-units, by unit.

    It is what is booked in the month so far, and a forecast of the rest. ``running`` are the runs
    that go on. Nothing of a unit that was first spent today and is not being spent now.
    """
    month, found = month_window(utc_datetime(now_ns).strftime("%Y-%m")), {}
    for unit in spending.units():
        spends = spending.of_unit(unit)
        used = _used(spends, now_ns, running)
        is_new = min(spend.start_ns for spend in spends) // _DAY_NS == now_ns // _DAY_NS
        days = min(PAST_DAYS, max(int(used.age.max(initial=0)), 0 if is_new else 1))
        rest = _forecast_rest(used, days, (month.end_ns - now_ns) / _DAY_NS)
        if rest is not None:
            booked = [s for s in spends if month.start_ns <= s.booked_ns < month.end_ns]
            spent = sum(spend.cost.micros for spend in booked)
            low, high = (None if end is None else spent + end for end in (rest.low, rest.high))
            found[unit] = Estimate(
                point=spent + rest.point, low=low, high=high, samples=rest.samples, note=rest.note
            )
    return found


def _used(spends: list[SpendItem], now_ns: int, running: Container[str]) -> _Used:
    groups: dict[tuple[str, str], list[SpendItem]] = {}
    for spend in spends:
        if spend.start_ns < now_ns and not spend.origin:
            groups.setdefault((spend.source, spend.run_id), []).append(spend)
    start_ns = np.array([min(s.start_ns for s in each) for each in groups.values()], dtype=float)
    end_ns = np.array([max(s.end_ns for s in each) for each in groups.values()], dtype=float)
    cost = np.array([sum(s.cost.micros for s in each) for each in groups.values()], dtype=float)
    age, since_end = (now_ns - start_ns) / _DAY_NS, (now_ns - end_ns) / _DAY_NS
    goes_on = [s in ("rental", "owned") or run_id in running for s, run_id in groups]
    alive = np.array(goes_on, dtype=bool) & (since_end <= DEAD_AFTER_NS / _DAY_NS)
    life = np.maximum(age - np.maximum(since_end, 0), 1e-9)
    lately = np.array([_last_day(each, now_ns) for each in groups.values()], dtype=float)
    return _Used(
        age=age,
        life=life,
        per_day=np.where(alive, lately / np.minimum(life, 1), cost / life),
        alive=alive,
        endless=np.array([source == "owned" for source, _ in groups], dtype=bool),
    )


def _last_day(spends: list[SpendItem], now_ns: int) -> float:
    """Return what was used in the last 24 hours, in micro-units."""
    total = 0.0
    for spend in spends:
        inside_ns = min(spend.end_ns, now_ns) - max(spend.start_ns, now_ns - _DAY_NS)
        if inside_ns > 0:
            total += spend.cost.micros * inside_ns / (spend.end_ns - spend.start_ns)
    return total


def _forecast_rest(used: _Used, days: int, days_left: float) -> Estimate | None:
    """Return what the rest of the month costs, from past days; None if nothing is known."""
    if not days and not used.alive.any():
        return None
    generator = np.random.default_rng(_SEED)
    point, draws = _of_running(used, days_left, generator)
    if days:
        expected, drawn = _of_new(used, days, days_left, generator)
        point, draws = point + expected, draws + drawn
    if days < LEAST_DAYS:
        note = f"{counted(days, 'day')} before today: too few to show a spread"
        return Estimate(point=point, low=None, high=None, samples=days, note=note)
    low, high = interval_of(draws)
    return Estimate(point=point, low=min(low, point), high=max(high, point), samples=days)


def _of_running(
    used: _Used, days_left: float, generator: np.random.Generator
) -> tuple[float, Floats]:
    """Return what is running now costs until the end of the month: with median lives, and drawn."""
    point, draws = 0.0, np.zeros(_DRAWS)
    for place in np.flatnonzero(used.alive):
        age, per_day = used.age[place], used.per_day[place]
        survival = 1 - generator.random(_DRAWS)
        left = np.inf if used.endless[place] else age * (1 - survival) / survival
        draws += per_day * np.minimum(left, days_left)
        point += per_day * min(np.inf if used.endless[place] else age, days_left)
    return float(point), draws


def _of_new(
    used: _Used, days: int, days_left: float, generator: np.random.Generator
) -> tuple[float, Floats]:
    """Return what begins until the end of the month costs in it: expected, and drawn."""
    groups, weights = _beginnings(used, days)
    begins = np.arange(0.5, days_left) if days_left > 0.5 else np.array([days_left / 2])
    each = days_left / len(begins)
    costs = _costs_by_age(used, groups, days_left - begins)
    mean, growth = _growth(costs[:days, 0], generator)
    since = begins + np.arange(len(groups))[:, None].clip(max=days) + 0.5
    expected = (costs * _grown(mean * since))[:days].mean(axis=0).sum() * each
    shares = np.cumsum(generator.dirichlet(weights, _DRAWS), axis=1)
    draws = np.zeros(_DRAWS)
    for place in range(len(begins)):
        drawn = generator.random(_DRAWS)
        group = np.minimum((drawn[:, None] > shares).sum(axis=1), len(groups) - 1)
        draws += costs[group, place] * _grown(growth * since[group, place])
    spread = np.sqrt(_LEVEL_PRIOR**2 + _FEW_PRIOR * _concentration(used, used.age < days))
    level = np.exp(spread * generator.standard_normal(_DRAWS))
    return float(expected), draws * level * each


def _grown(logarithm: Floats) -> Floats:
    grown: Floats = np.exp(np.clip(logarithm, -_MOST_GROWTH, _MOST_GROWTH))
    return grown


def _beginnings(used: _Used, days: int) -> tuple[list[Chosen], Floats]:
    """Return what began on each past day, the last one first, and the weight of each day.

    What began before these days may begin again: together it has the weight of one day.
    """
    began = np.floor(used.age).astype(int)
    order = np.argsort(used.age, kind="stable")
    earlier = order[began[order] >= days][:_EARLIER]
    groups: list[Chosen] = [began == day for day in range(days)]
    groups += [earlier[place : place + 1] for place in range(len(earlier))]
    each = np.full(len(earlier), 1 / max(len(earlier), 1))
    return groups, np.concatenate([np.ones(days), each])


def _concentration(used: _Used, chosen: Chosen) -> float:
    """Return the sum of squared shares of cost: 1 for one that cost all, 1/n for n alike."""
    cost = np.abs(used.per_day * used.life)[chosen]
    return float((cost**2).sum() / cost.sum() ** 2) if cost.any() else 1.0


def _costs_by_age(used: _Used, groups: Sequence[Chosen], ages: Floats) -> Floats:
    """Return what each group had cost at each age in days.

    What is running still is expected to go on as ``_of_running`` draws it.
    """
    costs = np.zeros((len(groups), len(ages)))
    at = ages[:, None]
    for row, mine in enumerate(groups):
        life, per_day, age = used.life[mine], used.per_day[mine], used.age[mine]
        past = per_day * np.minimum(life, at)
        # The mean of min(t, life left) under the survival function of the module's docstring.
        mean_left = age * np.log1p(np.maximum(at - age, 0) / np.maximum(age, 1e-9))
        costs[row] = (past + np.where(used.alive[mine], per_day * mean_left, 0)).sum(axis=1)
    return costs


def _growth(cost_by_day: Floats, generator: np.random.Generator) -> tuple[float, Floats]:
    """Return the growth per day, in logarithms, of what began on past days: its mean, and drawn."""
    days, positive = len(cost_by_day), cost_by_day > 0
    if days < _TREND_DAYS or positive.mean() < _TREND_SHARE:
        return 0.0, np.zeros(_DRAWS)
    logs = np.log(np.where(positive, cost_by_day, cost_by_day[positive].min()))
    at = np.arange(days)[::-1] - (days - 1) / 2
    squares = float((at**2).sum())
    slope = float((at * logs).sum()) / squares
    residuals = logs - logs.mean() - slope * at
    variance = float((residuals**2).sum()) / (days - 2) / squares
    prior = _TREND_PRIOR**2
    mean, spread = slope * prior / (prior + variance), prior * variance / (prior + variance)
    return mean, mean + np.sqrt(spread) * generator.standard_normal(_DRAWS)
