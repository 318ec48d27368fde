"""Prices at which a training starts and pauses, and the worst that thresholds can cost. Pure.

Double threshold (DTPR-min): Lechowicz et al., "The Online Pause and Resume Problem", SIGMETRICS
2024, arXiv:2303.17551. Work is bought in units, one price each; with ``i - 1`` units bought a
paused training starts at a price of at most ``start[i]``, and a running one goes on up to
``stop[i]``, which is higher by what a pause costs. Prices are micro-units per hour, as floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceModel:
    """What thresholds depend on.

    Attributes:
        low: The lowest price; ``high`` the highest.
        units: Units of work, rounded up.
        work: Units of work, exactly.
        pause: The most that a pause and the next start cost, as a price of one unit.
        first_start: The least that a start costs, likewise.
        shifted: Starts take time, so that units of work do not begin when prices change.
    """

    low: float
    high: float
    units: int
    work: float
    pause: float
    first_start: float
    shifted: bool


@dataclass(frozen=True, slots=True)
class PriceThresholds:
    """The highest prices at which each unit is started, or gone on with; both per unit."""

    start: tuple[float, ...]
    stop: tuple[float, ...]


@lru_cache(maxsize=256)
def double_thresholds(model: PriceModel) -> PriceThresholds:
    """Return the thresholds of the smallest published ratio; all ``high`` if no pause can pay."""
    if model.pause >= model.high - model.low:
        return fixed_thresholds(model, model.high)
    alpha = published_ratio(model)
    stop = [_stop_above(model, alpha, unit) for unit in range(1, model.units + 1)]
    return PriceThresholds(tuple(above - model.pause for above in stop), tuple(stop))


def fixed_thresholds(model: PriceModel, price: float) -> PriceThresholds:
    """Return one price for all units, for starting and for going on."""
    return PriceThresholds((price,) * model.units, (price,) * model.units)


def published_ratio(model: PriceModel) -> float:
    """Return alpha of DTPR-min: after the last unit only the lowest price is accepted."""
    low, high = 1.0, model.high / model.low
    for _ in range(200):
        alpha = (low + high) / 2
        above = _stop_above(model, alpha, model.units + 1) > model.low + model.pause
        low, high = (alpha, high) if above else (low, alpha)
    return high


def _stop_above(model: PriceModel, alpha: float, unit: int) -> float:
    """Return u_i of DTPR-min; ``pause`` is 2 beta."""
    k, growth = model.units, (1 + 1 / (model.units * alpha)) ** (unit - 1)
    falls = model.high * (1 - 1 / alpha)
    switches = model.pause * (1 / (k * alpha) - 1 / k + 1)
    return model.high - (falls - switches) * growth


@lru_cache(maxsize=256)
def worst_ratio(model: PriceModel, of: PriceThresholds) -> float:
    """Return a bound on cost over the least cost in hindsight, for all prices within the bounds.

    The published ratio holds where each accepted price is available for the whole work. If a low
    price is there for a moment only, both buy little of it, and the rest weighs more. The bound is
    therefore the maximum over: the units that the thresholds accepted before the deadline forced
    the rest at ``high``; how many of them were at the lowest price and also bought in hindsight;
    whether each of those was a start of its own; and whether the forced rest was cheap for both.
    Everything else that hindsight buys was refused, so that it costs more than the next threshold.
    """
    k, work = model.units, model.work
    refused = [min(max(price, model.low), model.high) for price in of.start] + [model.low] * 2
    paid = [
        min(max(start + model.pause, stop), model.high + model.pause)
        for start, stop in zip(of.start, of.stop, strict=True)
    ]
    sums = np.concatenate([[0.0], np.cumsum(paid)])
    gap = min(model.first_start, *(b - a for a, b in zip(of.start, of.stop, strict=True)))
    worst = 1.0
    for bought in range(k + 1):
        common = np.arange(bought + 1, dtype=float)
        left = max(0.0, work - bought)
        at = refused[bought + 1 if model.shifted and bought < k else bought]
        for cheap in {0.0, left}:
            for starts in (False, True):
                ours = sums[bought - common.astype(int)] + common * (
                    model.low + (model.pause if starts else 0.0)
                )
                ours += cheap * model.low + (left - cheap) * model.high
                ours += model.pause if left else 0.0
                best = (common + cheap) * model.low + (common * gap if starts else 0.0)
                best = best + np.maximum(0.0, work - common - cheap) * at + model.first_start
                worst = max(worst, float(np.max(ours / best)))
    return worst
