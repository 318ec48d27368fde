"""Histories of what runs cost, with what the next ones then cost.

They are split by a hash of world and seed: anything may be tuned on one half, the other one is only
reported. Of the first 40 seeds that half was reported before, and acted upon.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_REPORTED = 40


@dataclass(frozen=True, kw_only=True)
class CostWorld:
    """A kind of history.

    Attributes:
        draw: From a generator, the number of known runs and of planned ones to the costs of all.
    """

    name: str
    kind: str
    draw: Callable[[np.random.Generator, int, int], Floats]

    def is_tuned_on(self, seed: int) -> bool:
        """Whether anything may be tuned on a history; else it is only reported."""
        text = f"costs {self.name} {seed}"
        return seed < _REPORTED or hashlib.sha256(text.encode()).digest()[0] % 2 == 0

    def costs(self, seed: int, known: int, planned: int) -> tuple[list[float], float]:
        """Return a history, and what the planned runs then cost."""
        start = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big")
        drawn = self.draw(np.random.default_rng([start, seed, known, planned]), known, planned)
        return [float(each) for each in drawn[:known]], float(drawn[known:].sum())


def _skewed(sigma: float) -> Callable[[np.random.Generator, int, int], Floats]:
    return lambda g, known, planned: g.lognormal(3, sigma, known + planned)


def _kinds(g: np.random.Generator, known: int, planned: int) -> Floats:
    count = known + planned
    found: Floats = g.choice([20.0, 60.0], count, p=[0.6, 0.4]) * g.lognormal(0, 0.15, count)
    return found


def _trending(rate: float) -> Callable[[np.random.Generator, int, int], Floats]:
    def draw(g: np.random.Generator, known: int, planned: int) -> Floats:
        count = known + planned
        found: Floats = 20 * (1 + rate) ** np.arange(count) * g.lognormal(0, 0.15, count)
        return found

    return draw


def _changed(times: float, since: int) -> Callable[[np.random.Generator, int, int], Floats]:
    def draw(g: np.random.Generator, known: int, planned: int) -> Floats:
        count = known + planned
        at = max(1, known - since)
        found: Floats = (
            20 * np.where(np.arange(count) >= at, times, 1.0) * g.lognormal(0, 0.25, count)
        )
        return found

    return draw


def _seasonal(period: int) -> Callable[[np.random.Generator, int, int], Floats]:
    def draw(g: np.random.Generator, known: int, planned: int) -> Floats:
        at = np.arange(known + planned) + g.integers(0, period)
        waves = 0.7 * np.sin(2 * math.pi * at / period)
        found: Floats = 20 * np.exp(waves + 0.15 * g.standard_normal(len(at)))
        return found

    return draw


def _correlated(rho: float) -> Callable[[np.random.Generator, int, int], Floats]:
    def draw(g: np.random.Generator, known: int, planned: int) -> Floats:
        logs, at = np.empty(known + planned), 0.5 * g.standard_normal()
        for index in range(len(logs)):
            at = rho * at + 0.5 * math.sqrt(1 - rho**2) * g.standard_normal()
            logs[index] = at
        found: Floats = 20 * np.exp(logs)
        return found

    return draw


def _crashing(share: float) -> Callable[[np.random.Generator, int, int], Floats]:
    def draw(g: np.random.Generator, known: int, planned: int) -> Floats:
        count = known + planned
        crashed = g.random(count) < share
        found: Floats = np.where(crashed, g.uniform(0, 0.02, count), g.lognormal(3, 0.3, count))
        return found

    return draw


_TRENDS, _ALIKE = (0.03, 0.08, -0.05), (0.5, 0.7, 0.9)
COST_WORLDS = [
    *(CostWorld(name=f"skewed {s}", kind="independent", draw=_skewed(s)) for s in (0.1, 0.3, 0.7)),
    CostWorld(name="two kinds", kind="independent", draw=_kinds),
    *(
        CostWorld(name=f"trend {r}", kind="trending", draw=_trending(r))
        for r in (0.03, 0.08, -0.05)
    ),
    *(
        CostWorld(name=f"{times:g} times for {since}", kind="changed", draw=_changed(times, since))
        for times, since in ((3, 3), (3, 5), (3, 10), (3, 20), (0.4, 6))
    ),
    *(CostWorld(name=f"season {p}", kind="seasonal", draw=_seasonal(p)) for p in (3, 5, 7)),
    *(
        CostWorld(name=f"alike {r}", kind="correlated", draw=_correlated(r))
        for r in (0.5, 0.7, 0.9)
    ),
    *(CostWorld(name=f"crash {s}", kind="crashing", draw=_crashing(s)) for s in (0.1, 0.3)),
]
KNOWN = (4, 6, 8, 12, 20, 40)
PLANNED = (1, 4)
