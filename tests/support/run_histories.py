"""Histories of runs with a known scaling of cost, for prediction by configuration.

Split by a hash of the seed: anything may be tuned on one half, the other one is only reported.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from outlay.cost.prediction import Configuration, PastRun

SIZES = {"small": 1.2e8, "medium": 3.5e8, "large": 1.3e9}
PRICES = {"A100": 1.6, "H100": 2.9, "L40S": 1.1}
SPEEDS = {"A100": 1.0, "H100": 2.3, "L40S": 0.55}


def is_tuned_on(seed: int) -> bool:
    """Whether anything may be tuned on a history; else it is only reported."""
    return hashlib.sha256(f"runs {seed}".encode()).digest()[0] % 2 == 0


def run_history(seed: int, count: int) -> list[PastRun]:
    """Return runs whose cost is a power of their figures, with noise; the powers are drawn."""
    g = np.random.default_rng([7, seed])
    by_tokens, by_size, by_gpus = g.uniform(0.9, 1.05), g.uniform(0.7, 1.0), g.uniform(0.0, 0.25)
    noise = g.uniform(0.03, 0.2)
    own = {name: g.normal(0, 0.2) for name in SIZES}
    runs = []
    for index in range(count):
        model, gpu = str(g.choice(list(SIZES))), str(g.choice(list(PRICES)))
        tokens, gpus = 10 ** g.uniform(8, 10), 2.0 ** g.integers(0, 6)
        log = (
            math.log(PRICES[gpu] / SPEEDS[gpu])
            + by_tokens * math.log(tokens / 1e9)
            + by_size * math.log(SIZES[model] / 1e8)
            + by_gpus * math.log(gpus)
            + own[model]
            + noise * g.standard_normal()
        )
        known = Configuration(
            model=model, gpu=gpu, tokens=tokens, parameters=SIZES[model], gpus=gpus
        )
        runs.append(PastRun(run_id=f"r{index}", of=known, cost=20 * math.exp(log)))
    return runs
