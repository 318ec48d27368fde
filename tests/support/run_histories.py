"""Histories of runs with a known scaling of cost, for prediction by configuration.

There are several kinds, of which each seed draws another history. Split by a hash of kind and seed:
anything may be tuned on one half, the other one is only reported. The first 40 seeds were reported
once, with intervals that held too seldom; since that was acted upon, all of them are tuned on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from outlay.cost.prediction import Configuration, PastRun

SIZES = {"small": 1.2e8, "medium": 3.5e8, "large": 1.3e9}
PRICES = {"A100": 1.6, "H100": 2.9, "L40S": 1.1}
SPEEDS = {"A100": 1.0, "H100": 2.3, "L40S": 0.55}

KINDS = (
    "three sizes",
    "sizes not recorded",
    "one model",
    "models of their own",
    "a larger run",
    "a new model",
)
_FIRST_UNSEEN = 40
_SALT = "second split"


def is_tuned_on(kind: str, seed: int) -> bool:
    """Whether anything may be tuned on a history; else it is only reported."""
    text = f"{_SALT} {kind} {seed}".encode()
    return seed < _FIRST_UNSEEN or hashlib.sha256(text).digest()[0] % 2 == 0


def seeds_of(kind: str, count: int, *, tuned_on: bool) -> Iterator[int]:
    """Yield the seeds of one half among the first ``count`` that were not reported before."""
    return (
        seed
        for seed in range(_FIRST_UNSEEN, _FIRST_UNSEEN + count)
        if is_tuned_on(kind, seed) == tuned_on
    )


def run_history(kind: str, seed: int, count: int) -> list[PastRun]:
    """Return runs whose cost is a power of their figures, with noise; the powers are drawn.

    The last one is to be predicted from the others.
    """
    g = np.random.default_rng([7, seed, KINDS.index(kind)])
    by_tokens, by_size, by_gpus = g.uniform(0.9, 1.05), g.uniform(0.7, 1.0), g.uniform(0.0, 0.25)
    noise = g.uniform(0.03, 0.2)
    spread = 0.6 if kind == "models of their own" else 0.2
    own = {name: g.normal(0, spread) for name in SIZES}
    only = str(g.choice(list(SIZES)))
    runs = []
    for index in range(count):
        is_last = index == count - 1
        model, gpu = str(g.choice(list(SIZES))), str(g.choice(list(PRICES)))
        tokens, gpus = 10 ** g.uniform(8, 10), 2.0 ** g.integers(0, 6)
        if kind == "one model":
            model = only
        elif kind == "a new model":
            model = only if is_last else next(n for n in (model, *SIZES) if n != only)
        elif kind == "a larger run" and is_last:
            tokens *= 30
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
        if kind == "sizes not recorded":
            known = replace(known, parameters=None)
        runs.append(PastRun(run_id=f"r{index}", of=known, cost=20 * math.exp(log)))
    return runs


# The demo's sweep, with numbers of steps instead of a budget


def demo_runs(figures: Iterable[Mapping[str, Any]]) -> list[PastRun]:
    """Return the runs of the demo's sweep, by their figures."""
    return [
        PastRun(
            run_id=each["run"],
            of=Configuration(
                model="spirals-mlp",
                samples=each["samples"],
                steps=each["steps"],
                parameters=each["parameters"],
                gpus=1,
            ),
            cost=each["cost"],
        )
        for each in figures
    ]


def is_learned_from(run: PastRun) -> bool:
    """Whether a run is in the half from which the other one is predicted."""
    return hashlib.sha256(f"demo {run.run_id}".encode()).digest()[0] % 2 == 0
