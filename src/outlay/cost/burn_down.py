"""How a limit is being used up: spent by day, and a forecast of when nothing is left. Pure.

Days to come are drawn from past ones with random weights (Rubin's Bayesian bootstrap), so that few
days give a wide interval. Today is not among the past days, as it is not over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from outlay.clock import utc_datetime
from outlay.cost.daily_cost import DAY_NS
from outlay.units import Money
from outlay.units.shown import counted

PAST_DAYS: Final = 28
LEAST_DAYS: Final = 4
"""With fewer days than this there is no interval."""
AHEAD_DAYS: Final = 60
_DRAWS: Final = 400
_SEED: Final = 20261124
_QUANTILES: Final = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentAt:
    """What is spent in all at an instant; with ``low`` and ``high`` a forecast."""

    t_ns: int
    micros: int
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnDown:
    """The use of a limit by day.

    Attributes:
        past: At the end of each past day, and now.
        ahead: At the end of each day to come, with an interval of 80 %.
        days: From how many past days; below ``LEAST_DAYS`` there is no interval.
        used_up: The days on which nothing is left: the middle of the draws, and the interval's
            ends; None where that is after the last day ahead.
        over_since: The day on which it was exceeded, if it is.
        end_ns: When the limit's period ends, and it begins anew; None for never.
    """

    limit: Money
    spent: Money
    held: Money
    past: tuple[SpentAt, ...]
    ahead: tuple[SpentAt, ...]
    days: int
    used_up: tuple[int | None, int | None, int | None] = (None, None, None)
    over_since: int | None = None
    end_ns: int | None = None

    @property
    def short(self) -> str:
        """When nothing is left, for a narrow column."""
        middle = self.used_up[1]
        if self.over_since is not None:
            return f"over since {day_name(self.over_since)}"
        if self.limit.micros - self.spent.micros - self.held.micros <= 0:
            return "used up"
        if not self.days:
            return "not known"
        return _last(self.ahead) if middle is None else day_name(middle)

    @property
    def text(self) -> str:
        """When nothing is left, in words."""
        low, middle, high = self.used_up
        if self.over_since is not None:
            return f"over since {day_name(self.over_since)}"
        if self.limit.micros - self.spent.micros - self.held.micros <= 0:
            return "used up"
        if not self.days:
            return "no past day to forecast from"
        if middle is None:
            until = self.ahead[-1].t_ns if self.ahead else None
            ends = f"until {day_name(until - 1)}" if until else "for now"
            first = f", at the earliest used up on {day_name(low)}" if low is not None else ""
            return f"lasts {ends}{first}"
        said = f"used up on {day_name(middle)}"
        if self.days < LEAST_DAYS:
            return f"{said} (from {counted(self.days, 'day')})"
        if low == high:
            return said
        latest = "later" if high is None else day_name(high)
        return f"{said} ({day_name(low or middle)} to {latest}, 80%)"


def _last(ahead: tuple[SpentAt, ...]) -> str:
    return f"after {day_name(ahead[-1].t_ns - 1)}" if ahead else "not known"


def day_name(t_ns: int) -> str:
    """Return a day for people: ``24 November``."""
    return utc_datetime(t_ns).strftime("%d %B").lstrip("0")


def burn_down(
    by_day: Mapping[int, int],
    *,
    limit: Money,
    spent: Money,
    held: Money,
    now_ns: int,
    end_ns: int | None = None,
) -> BurnDown:
    """Return how a limit is being used up.

    Args:
        by_day: What was spent on each UTC day, by its begin, in micro-units.
        limit: What may be spent.
        spent: In all; what ``by_day`` does not have was spent earlier.
        held: For later: it counts as used.
        now_ns: The present.
        end_ns: When the period of the limit ends; None if it has none.
    """
    today_ns = now_ns // DAY_NS * DAY_NS
    first_ns = max(min(by_day, default=today_ns), today_ns - PAST_DAYS * DAY_NS)
    days = range(first_ns, today_ns, DAY_NS)
    daily = [by_day.get(day_ns, 0) for day_ns in days]
    total = spent.micros - sum(daily) - by_day.get(today_ns, 0)
    past = [SpentAt(t_ns=first_ns, micros=total)]
    for day_ns, micros in zip(days, daily, strict=True):
        total += micros
        past.append(SpentAt(t_ns=day_ns + DAY_NS, micros=total))
    past.append(SpentAt(t_ns=now_ns, micros=spent.micros))
    left = limit.micros - spent.micros - held.micros
    last_ns = min(today_ns + (AHEAD_DAYS + 1) * DAY_NS, end_ns or today_ns * 2)
    ends = list(range(today_ns + DAY_NS, last_ns + 1, DAY_NS))
    ahead, used_up = _forecast(daily, spent.micros, left, now_ns, ends)
    return BurnDown(
        limit=limit, spent=spent, held=held, past=tuple(past), ahead=ahead, days=len(daily),
        used_up=used_up, end_ns=end_ns,
        over_since=_exceeded(past, limit.micros - held.micros) if left < 0 else None,
    )  # fmt: skip


def _exceeded(past: list[SpentAt], most: int) -> int:
    """Return the day on which more was spent than ``most``, the last one if none of them."""
    return next((each.t_ns - 1 for each in past if each.micros > most), past[-1].t_ns)


def _forecast(
    daily: list[int], spent: int, left: int, now_ns: int, ends: list[int]
) -> tuple[tuple[SpentAt, ...], tuple[int | None, int | None, int | None]]:
    nothing = (None, None, None)
    if not daily or not ends:
        return (), nothing
    generator = np.random.default_rng(_SEED)
    amounts = np.array(daily, dtype=float)
    weights = np.cumsum(generator.dirichlet(np.ones(len(daily)), _DRAWS), axis=1)
    drawn = generator.random((_DRAWS, len(ends)))
    chosen = (drawn[:, :, None] > weights[:, None, :]).sum(axis=2).clip(max=len(daily) - 1)
    per_day = amounts[chosen]
    per_day[:, 0] *= (ends[0] - now_ns) / DAY_NS  # The rest of today.
    sums = np.cumsum(per_day, axis=1)
    low, middle, high = np.quantile(sums, _QUANTILES, axis=0)
    ahead = tuple(
        SpentAt(t_ns=t, micros=spent + round(m), low=spent + round(a), high=spent + round(b))
        for t, a, m, b in zip(ends, low, middle, high, strict=True)
    )
    if left <= 0:
        return ahead, nothing
    crossed = sums >= left
    day = np.where(crossed.any(axis=1), crossed.argmax(axis=1), len(ends))
    places = np.quantile(day, _QUANTILES, method="inverted_cdf")
    early, usual, late = (ends[int(p)] - 1 if p < len(ends) else None for p in places)
    return ahead, (early, usual, late)
