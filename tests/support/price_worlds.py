"""Worlds for policies: hourly prices, spot availability and failures, drawn or read, and trials.

The quantiles of ``outlay.policy.price_history`` were chosen on drawn prices of other seeds than the
benchmark's, after a look at results on these; nothing else was. A benchmark reports on them at full
size.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from outlay.advise.overhead import Reliability, optimal_interval
from outlay.goodput.failure_rate import FailureCount, mttf_hours
from outlay.policy.hindsight import least_cost
from outlay.policy.policies import AlwaysOn, GreedySpot, Policy, UniformProgress
from outlay.policy.price_history import HISTORY_DAYS, double_threshold_for
from outlay.policy.simulation import PriceChange, simulate
from outlay.policy.situation import JobTerms, PauseCost
from outlay.units import Rate

HOUR = 3600 * 10**9
DAY = 24 * HOUR
LONGEST_GAP_NS = 4 * DAY
PAUSE = PauseCost(start_ns=HOUR // 10)
CELL = HOUR // 10


def dollars_per_hour(amount: float) -> Rate:
    """Return a rate of US dollars."""
    return Rate(round(amount * 1_000_000))


def marketplace(seed: int, hours: int) -> list[PriceChange]:
    """Return hourly prices of a marketplace: mean reversion, a daily rhythm, and rare jumps."""
    rng, level, jump, prices = random.Random(seed), 0.0, 0.0, []
    for hour in range(hours):
        level += -0.03 * level + rng.gauss(0, 0.04)
        jump = 0.9 * jump + (rng.uniform(0.2, 0.7) if rng.random() < 0.01 else 0.0)
        daily = 0.06 * math.sin(2 * math.pi * hour / 24)
        price = 2 * math.exp(level + daily + jump)
        prices.append(PriceChange(hour * HOUR, dollars_per_hour(price)))
    return prices


def histories(path: Path) -> dict[str, list[PriceChange]]:
    """Return the cheapest price over time, by cloud and GPU, from a CSV with these columns."""
    found: dict[str, list[PriceChange]] = {}
    with path.open(newline="") as lines:
        for line in csv.DictReader(lines):
            if line["min_price_per_gpu"]:
                at_ns = int(datetime.fromisoformat(line["ts"]).timestamp()) * 10**9
                price = dollars_per_hour(float(line["min_price_per_gpu"]))
                name = f"{line['cloud']} {line['gpu']}"
                found.setdefault(name, []).append(PriceChange(at_ns, price))
    return {name: sorted(each, key=lambda c: c.at_ns) for name, each in found.items()}


def starts_of(series: Sequence[PriceChange], time_ns: int, count: int, seed: str) -> Iterator[int]:
    """Yield instants with a month of prices before, and prices without a long gap after."""
    times = [change.at_ns for change in series]
    rng = random.Random(seed)
    possible = [
        at_ns
        for at_ns in times
        if times[0] + HISTORY_DAYS * DAY <= at_ns <= times[-1] - time_ns
        and _is_dense([t for t in times if at_ns - DAY <= t <= at_ns + time_ns])
    ]
    yield from rng.sample(possible, min(count, len(possible)))


def _is_dense(times: Sequence[int]) -> bool:
    return all(later - t <= LONGEST_GAP_NS for t, later in pairwise(times))


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTrial:
    """One job on one series: costs over the least in hindsight."""

    series: str
    always_on: float
    policy: float
    stated: float
    is_within_bounds: bool
    has_policy: bool


def price_trial(
    name: str, series: Sequence[PriceChange], start_ns: int, *, work_h: int, slack: int
) -> PriceTrial:
    """Run a job of ``work_h`` hours as ``outlay guard run`` does, with ``slack`` times its work.

    Where no price moved before, the command asks for bounds, and here it is always on.
    """
    job = JobTerms(work_ns=work_h * HOUR, time_ns=slack * work_h * HOUR, pause=PAUSE)
    policy = double_threshold_for(series, start_ns) or AlwaysOn()
    best = least_cost(series, job, start_ns=start_ns, cell_ns=CELL)
    assert best is not None
    found = simulate(policy, series, job, start_ns=start_ns)
    always = simulate(AlwaysOn(), series, job, start_ns=start_ns)
    assert (found.late_ns, always.late_ns) == (0, 0)
    during = [c.price for c in series if start_ns <= c.at_ns < start_ns + job.time_ns]
    return PriceTrial(
        series=name,
        always_on=always.cost.micros / best.micros,
        policy=found.cost.micros / best.micros,
        stated=policy.worst_case_ratio(job) or math.inf,
        is_within_bounds=policy.bounds is not None
        and all(price is None or price in policy.bounds for price in during),
        has_policy=policy.bounds is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceResult:
    """What trials show together.

    Attributes:
        removed: The share of always-on's mean excess over hindsight that the policy removes.
        dearer: The share of trials that cost more than 1.10 times always-on.
        broken: Trials within the bounds whose cost is above the stated ratio.
        without: Trials that were always on since no price had moved before.
    """

    trials: int
    series: int
    always_on: float
    policy: float
    removed: float
    dearer: float
    broken: int
    within: int
    without: int


def pooled(trials: Iterable[PriceTrial], least_excess: float = 0.05) -> PriceResult:
    """Return the result over series on which always-on's mean excess is at least that."""
    by_series: dict[str, list[PriceTrial]] = {}
    for trial in trials:
        by_series.setdefault(trial.series, []).append(trial)
    kept = {
        name: found
        for name, found in by_series.items()
        if fmean(each.always_on for each in found) >= 1 + least_excess
    }
    of = [trial for found in kept.values() for trial in found]
    always, policy = fmean(t.always_on for t in of) - 1, fmean(t.policy for t in of) - 1
    within = [t for t in of if t.is_within_bounds]
    return PriceResult(
        trials=len(of),
        series=len(kept),
        always_on=always,
        policy=policy,
        removed=1 - policy / always,
        dearer=fmean(t.policy > 1.10 * t.always_on for t in of),
        broken=sum(t.policy > t.stated + 1e-6 for t in within),
        within=len(within),
        without=sum(not t.has_policy for t in of),
    )


# Spot availability, every six minutes

SPOT, ON_DEMAND = dollars_per_hour(1), dollars_per_hour(3)
SPOT_PAUSE = PauseCost(start_ns=HOUR // 5)
_STEP = HOUR // 10


def _changes(there: Iterable[bool]) -> list[PriceChange]:
    """Return a price for each change of availability."""
    found: list[PriceChange] = []
    for index, is_there in enumerate(there):
        price = SPOT if is_there else None
        if not found or found[-1].price != price:
            found.append(PriceChange(index * _STEP, price))
    return found


def bursty(rng: random.Random, hours: int) -> list[PriceChange]:
    """Return spells of both kinds with heavy tails: minutes often, a day at times."""
    there: list[bool] = []
    is_there = rng.random() < 0.5
    while len(there) < 10 * hours:
        there += [is_there] * min(500, 1 + int(5 * rng.paretovariate(0.9)))
        is_there = not is_there
    return _changes(there)


def diurnal(rng: random.Random, hours: int) -> list[PriceChange]:
    """Return availability that is likely at night and seldom by day, changing every hour or so."""
    phase, is_there, there = rng.uniform(0, 24), False, []
    for tenth in range(10 * hours):
        likely = 0.5 + 0.42 * math.sin(2 * math.pi * (tenth / 10 + phase) / 24)
        if rng.random() < 0.08:
            is_there = rng.random() < likely
        there.append(is_there)
    return _changes(there)


def rare(rng: random.Random, hours: int) -> list[PriceChange]:
    """Return an hour or two of spot, many hours apart."""
    is_there, there = False, []
    for _ in range(10 * hours):
        if rng.random() < (1 / 15 if is_there else 1 / 90):
            is_there = not is_there
        there.append(is_there)
    return _changes(there)


FAMILIES: dict[str, Callable[[random.Random, int], list[PriceChange]]] = {
    "bursty": bursty,
    "diurnal": diurnal,
    "rare": rare,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotResult:
    """Mean savings against on-demand all the time, and the trials that were late."""

    greedy: float
    uniform: float
    late: int


def spot_result(family: str, seeds: Iterable[int], *, work_h: int, share: float) -> SpotResult:
    """Run jobs whose work is ``share`` of the time to the deadline, on a trace for each seed."""
    job = JobTerms(
        work_ns=work_h * HOUR,
        time_ns=round(work_h * HOUR / share),
        pause=SPOT_PAUSE,
        on_demand=ON_DEMAND,
    )
    policies: list[Policy] = [AlwaysOn(), GreedySpot(), UniformProgress()]
    costs: list[list[int]] = [[] for _ in policies]
    late = 0
    for seed in seeds:
        series = FAMILIES[family](random.Random(f"{family} {seed}"), math.ceil(work_h / share) + 1)
        for policy, into in zip(policies, costs, strict=True):
            found = simulate(policy, series, job)
            late += found.late_ns != 0
            into.append(found.cost.micros)
    always, greedy, uniform = (fmean(each) for each in costs)
    return SpotResult(greedy=1 - greedy / always, uniform=1 - uniform / always, late=late)


# Failures of a job on some nodes of a cluster, in hours


def faults_by_node(path: Path) -> dict[int, list[float]]:
    """Return the hours of each node's failures, from a CSV with the columns node, start_h."""
    found: dict[int, list[float]] = {}
    with path.open(newline="") as lines:
        for line in csv.DictReader(lines):
            found.setdefault(int(line["node"]), []).append(float(line["start_h"]))
    return found


def goodput_of(
    failures_h: Sequence[float], end_h: float, intervals_h: NDArray[np.float64], *,
    save_h: float, restart_h: float,
) -> NDArray[np.float64]:  # fmt: skip
    """Return the share of ``[0, end_h)`` that survived as work, for each checkpoint interval."""
    edges = np.array([0.0, *failures_h, end_h])
    up = np.diff(edges)[:, None] - np.array([0.0] + [restart_h] * len(failures_h))[:, None]
    up = np.maximum(up, 0.0)
    cycle = intervals_h + save_h
    saved = np.floor(up / cycle) * intervals_h
    # What was done since the last save counts only where no failure followed.
    saved[-1] += np.minimum(up[-1] % cycle, intervals_h)
    return np.asarray(saved.sum(axis=0) / end_h)


def advised_interval_h(
    job: FailureCount, among: Sequence[FailureCount] = (), *, save_h: float, restart_h: float
) -> float:
    """Return the interval that is advised after a job's failures, and those of others like it."""
    mttf = mttf_hours(job, among) or job.hours / math.log(20)
    return optimal_interval(Reliability(save=save_h, mttf=mttf, restart=restart_h))


@dataclass(frozen=True, slots=True)
class GoodputLoss:
    """Goodput lost on the second half against the best interval for it in hindsight.

    Attributes:
        advised: With the interval advised from the first half.
        informed: With the interval advised from the second half itself.
        alone: With the interval advised from the job's own first half, without the cluster's.
    """

    advised: float
    informed: float
    alone: float


def goodput_loss(
    nodes: Sequence[Sequence[float]],
    cluster: Sequence[Sequence[float]],
    end_h: float,
    *,
    save_h: float,
    restart_h: float,
) -> GoodputLoss:
    """Return what the interval advised from the first half loses on the second.

    ``nodes`` has the failures of each of the job's nodes, ``cluster`` of all nodes; of both the
    advice sees the first half.
    """
    half = end_h / 2
    second = sorted(t - half for node in nodes for t in node if t >= half)
    first = FailureCount(
        failures=sum(t < half for node in nodes for t in node), hours=half, nodes=len(nodes)
    )
    every_node = [
        FailureCount(failures=sum(t < half for t in node), hours=half) for node in cluster
    ]
    hindsight = FailureCount(failures=len(second), hours=half)
    jobs: list[tuple[FailureCount, list[FailureCount]]]
    jobs = [(first, every_node), (hindsight, []), (first, [])]
    advised = [
        advised_interval_h(job, among, save_h=save_h, restart_h=restart_h) for job, among in jobs
    ]
    every = np.append(np.geomspace(save_h, half, 400), advised)
    found = goodput_of(second, half, every, save_h=save_h, restart_h=restart_h)
    return GoodputLoss(*(float(found.max() - goodput) for goodput in found[-3:]))
