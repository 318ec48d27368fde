"""Worlds for searches: learning curves of 27 configurations, of which the best is known.

A curve is the metric over the dollars that a run has trained for. A budget in dollars pays for
start-up, too, and each attempt starts up again. The sweep over a world is simulated; its plan, its
decisions and its guard are those of outlay.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from outlay.budget.limits import StartUp
from outlay.clock import ManualClock
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded
from outlay.guard.spend_log import MemorySpendLog
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.plan.plan import SweepPlan, at_rung
from outlay.sweep.plan.planning import make_plan
from outlay.sweep.search.doubt import RankChange, rank_change
from outlay.sweep.search.study import Study
from outlay.sweep.state.outcomes import RunState
from outlay.units import Money
from simulated_sweep import Ending, SimulatedSweep

AXES = {"lr": 3, "width": 3, "decay": 3}
RUNGS = (0.50, 1.50, 4.50)
FACTOR = 3
PRICE_PER_HOUR = 1.80
START_UP = 0.03
"""Dollars: one minute at that price, before each attempt."""
STEP = 0.004
"""Dollars of a step of the narrowest model; a run ends with the step that reaches its budget."""

Key = tuple[int, ...]
CONFIGURATIONS: tuple[Key, ...] = tuple(itertools.product(*map(range, AXES.values())))


@dataclass(frozen=True)
class Traits:
    """Of a configuration: how far from the best it is, from 0 to 1, and a number of its own."""

    distance: float
    own: float


@dataclass(frozen=True, kw_only=True)
class SearchWorld:
    """Learning curves with noise.

    Attributes:
        curve: The metric by traits and dollars of training, without noise.
        noise: The standard deviation of a measurement.
    """

    name: str
    curve: Callable[[Traits, float], float]
    noise: float
    more_is_better: bool = False

    def __str__(self) -> str:
        return self.name

    def traits(self, seed: int) -> dict[Key, Traits]:
        """Return the traits of all configurations: a bowl with its lowest point anywhere."""
        return _traits(self.name, seed)

    def true(self, seed: int, key: Key, dollars: float, starts: int = 1) -> float:
        """Return the metric without noise of a run that was paid so much."""
        return self.curve(self.traits(seed)[key], dollars - starts * START_UP)

    def measured(self, seed: int, key: Key, rung: int, starts: int = 1) -> float:
        """Return the metric that a run reports at a rung."""
        noise = random.Random(f"{self.name} {seed} {key} {rung}").gauss(0, self.noise)
        return self.true(seed, key, RUNGS[rung], starts) + noise

    def regret(self, seed: int, key: Key) -> float:
        """Return how much worse than the best a configuration ends, as a share."""
        ends = {one: self.true(seed, one, RUNGS[-1]) for one in CONFIGURATIONS}
        best = max(ends.values()) if self.more_is_better else min(ends.values())
        return abs(ends[key] - best) / abs(best)

    def best_of(self, measured: Mapping[Key, float]) -> Key:
        """Return the configuration with the best measurement."""
        sign = -1 if self.more_is_better else 1
        return min(measured, key=lambda key: sign * measured[key])

    def rank_correlation(self, seed: int) -> float:
        """Return Spearman's correlation of what the first rung measures with the true end."""
        first = [self.measured(seed, key, 0) for key in CONFIGURATIONS]
        last = [self.true(seed, key, RUNGS[-1]) for key in CONFIGURATIONS]
        return _spearman(first, last)


@functools.cache
def _traits(name: str, seed: int) -> dict[Key, Traits]:
    chance = random.Random(f"{name} {seed}")
    best = [chance.randrange(size) for size in AXES.values()]
    weights = [chance.uniform(0.05, 0.25) for _ in AXES]
    found = {
        key: sum(w * (k - b) ** 2 for w, k, b in zip(weights, key, best, strict=True))
        for key in CONFIGURATIONS
    }
    found = {key: value + chance.uniform(0, 0.05) for key, value in found.items()}
    low, high = min(found.values()), max(found.values())
    return {
        key: Traits((value - low) / (high - low), chance.random()) for key, value in found.items()
    }


def _spearman(one: Sequence[float], other: Sequence[float]) -> float:
    ranks = [{value: rank for rank, value in enumerate(sorted(values))} for values in (one, other)]
    n = len(one)
    off = sum((ranks[0][a] - ranks[1][b]) ** 2 for a, b in zip(one, other, strict=True))
    return 1 - 6 * off / (n * (n * n - 1))


def _falls(traits: Traits, dollars: float) -> float:
    """A loss: a power law with a floor; its exponent differs a little."""
    scale, power = 0.7 + 0.25 * traits.own, 0.4 + 0.1 * traits.own
    return 2.0 + 0.8 * traits.distance + scale * math.pow(dollars + 0.1, -power)


def _saturates(traits: Traits, dollars: float) -> float:
    """An accuracy: exponential, to a level that is nearly reached."""
    rate = 0.8 + 0.5 * traits.own
    return (0.92 - 0.3 * traits.distance) * (1 - 0.4 * math.exp(-rate * dollars))


def _crosses(traits: Traits, dollars: float, first: float, more: float) -> float:
    """A loss of which the fast starters end worst."""
    slowness = first + more * (1 - traits.distance) + 0.1 * traits.own
    return 1.8 + 0.5 * traits.distance + 2.0 * math.exp(-dollars / slowness)


LOSS = SearchWorld(name="loss", curve=_falls, noise=0.015)
ACCURACY = SearchWorld(name="accuracy", curve=_saturates, noise=0.004, more_is_better=True)
CROSSING = SearchWorld(
    name="crossing", curve=functools.partial(_crosses, first=0.1, more=0.5), noise=0.015
)
CROSSING_LATE = SearchWorld(
    name="crossing late", curve=functools.partial(_crosses, first=0.25, more=1.5), noise=0.015
)
"""At the second rung, those that went on are still in the order of the first."""
WORLDS = (LOSS, ACCURACY, CROSSING, CROSSING_LATE)


# The sweep over a world.


def world_plan(world: SearchWorld, ceiling: str) -> SweepPlan:
    """Return the plan of a halving of all configurations, in dollars."""
    direction = "max" if world.more_is_better else "min"
    first, last = (f"{amount:.2f} USD" for amount in (RUNGS[0], RUNGS[-1]))
    grid = {
        "engine": "process", "arguments": "none", "entrypoint": ["train"],
        "price": f"{PRICE_PER_HOUR} USD/h", "ceiling": ceiling,
        "budget": {"target_metric": "m", "target_value": 0, "target_direction": direction},
        "search": {"halving": {"first": first, "last": last, "factor": FACTOR}},
        "grid": [{"name": "g", "params": {name: [*range(n)] for name, n in AXES.items()}}],
    }  # fmt: skip
    start_up = StartUp(ns=round(START_UP / PRICE_PER_HOUR * 3.6e12), attempts=1)
    return make_plan(read_grid(json.dumps(grid), source="g", default_name="g"), start_up)


def attempt_micros(key: Key, rung: int, spent: int = 0) -> int:
    """Return the cost of an attempt to a rung: start-up and steps, wider models' dearer."""
    step, start_up = round(STEP * (1 + key[1]) * 1e6), round(START_UP * 1e6)
    trains = round(RUNGS[rung] * 1e6) - start_up - spent
    return start_up + math.ceil(trains / step) * step


def grid_dollars() -> float:
    """Return what all configurations cost, each in one attempt with the whole budget."""
    return sum(attempt_micros(key, len(RUNGS) - 1) for key in CONFIGURATIONS) / 1e6


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found, and what that cost.

    Attributes:
        dollars: What the spend log has captured.
        paid: What each attempt cost, counted by the world.
        change: How far the order changed between rungs.
    """

    key: Key
    regret: float
    dollars: float
    paid: Sequence[int]
    states: Mapping[str, RunState]
    change: RankChange


@dataclass(kw_only=True)
class WorldSweep:
    """A halving over a world, under a ceiling: as a rule its rungs, and some for last steps."""

    world: SearchWorld
    seed: int
    ceiling: str = "31.70 USD"
    paid: list[int] = field(default_factory=list)
    _holds: dict[str, Hold] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = world_plan(self.world, self.ceiling)
        self.study = Study(self.plan)
        self.guard = BudgetGuard(
            self.ceiling, "spend.jsonl", clock=ManualClock(), environ={}, log=MemorySpendLog()
        )

    def run(self) -> Found:
        """Run it to the end."""
        self._sweep = SimulatedSweep(
            runs=list(self.study.runs), decide=self.study.decide, attempt=self._attempt,
            order=random.Random(self.seed), may_hold=self._hold, settled=self._settle,
        )  # fmt: skip
        states = self._sweep.run()
        key = self._best(states)
        (contest,) = self.study.contests()
        return Found(
            key=key, regret=self.world.regret(self.seed, key), dollars=self.guard.total_spent,
            paid=self.paid, states=states, change=rank_change(contest, states),
        )  # fmt: skip

    def _key(self, run: str) -> Key:
        params = self.study.runs[run].params
        return tuple(params[name] for name in AXES)

    def _spent(self, run: str) -> int:
        state = self._sweep.states.get(run)
        return 0 if state is None else state.cost_micros or 0

    def _hold(self, run: str, rung: int) -> bool:
        """Hold what the plan predicts for an attempt; False if the ceiling has no room for it."""
        cost = at_rung(self.study.runs[run], rung, Money(self._spent(run), "USD")).prediction.cost
        try:
            self._holds[run] = self.guard.authorize(run, cost)
        except BudgetGuardExceeded:
            return False
        return True

    def _attempt(self, run: str, rung: int, failed: int) -> Ending:
        """Return how an attempt ends: with the step that reaches the budget, if there is money."""
        del failed
        key, spent = self._key(run), self._spent(run)
        cost = attempt_micros(key, rung, spent)
        hold = self._holds[run]
        if cost > hold.amount.micros:
            try:
                self._holds[run] = self.guard.extend(hold, Money(cost - hold.amount.micros, "USD"))
            except BudgetGuardExceeded:
                return Ending(status="cancelled", cost_micros=hold.amount.micros)
        metric = self.world.measured(self.seed, key, rung, starts=rung + 1)
        status = "completed" if rung == len(RUNGS) - 1 else "paused"
        return Ending(status=status, metric=metric, cost_micros=cost)  # type: ignore[arg-type]

    def _settle(self, run: str, ending: Ending) -> None:
        self.paid.append(ending.cost_micros)
        cost = Money(ending.cost_micros, "USD")
        self.guard.record_actual(run, cost, hold=self._holds.pop(run))

    def _best(self, states: Mapping[str, RunState]) -> Key:
        """Return the best of those that came furthest, as a user would choose it."""
        last = max((max(state.reports, default=-1) for state in states.values()), default=-1)
        metrics = {
            self._key(run): state.reports[last].metric or 0.0
            for run, state in states.items()
            if last in state.reports
        }
        return self.world.best_of(metrics)
