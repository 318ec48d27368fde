"""What a search finds for its dollars: halving, and what people use instead, in the same dollars.

The worlds are those of the tests: learning curves of 27 configurations with noise, of which the
best is known; each attempt pays for its start-up. Random and TPE train each of their
configurations in full. Optuna's halving stops runs and never resumes them; it gets the same
configurations in a random order. A world is drawn anew for each seed.

Run: python benchmarks/search.py [SEEDS]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import optuna
from timing import Figure, machine, row

from outlay.clock import SYSTEM, utc_text
from outlay.sweep.search.samplers import Trial, tpe_point
from outlay.sweep.search.search_options import Search

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from search_worlds import (
    AXES,
    CONFIGURATIONS,
    FACTOR,
    PRICE_PER_HOUR,
    RUNGS,
    START_UP,
    WORLDS,
    Key,
    SearchWorld,
    WorldSweep,
    attempt_micros,
    grid_dollars,
)

SEEDS = 50
FIRST_SEED = 500
LAST = len(RUNGS) - 1
SPACE = {name: tuple(range(size)) for name, size in AXES.items()}


@dataclass(frozen=True)
class Tried:
    """What one search chose in one world: how much worse than the best, and for how much."""

    regret: float
    dollars: float
    note: str = ""


def trained(
    world: SearchWorld, seed: int, keys: Iterable[Key], dollars: float, tell: dict[Key, float]
) -> Tried:
    """Train configurations in full while there is money for the next one."""
    spent = 0
    for key in keys:
        cost = attempt_micros(key, LAST)
        if spent + cost > dollars * 1e6:
            break
        spent += cost
        tell[key] = world.measured(seed, key, LAST)
    return Tried(world.regret(seed, world.best_of(tell)), spent / 1e6)


def halving(world: SearchWorld, seed: int) -> Tried:
    found = WorldSweep(world=world, seed=seed).run()
    return Tried(found.regret, found.dollars, str(found.change))


def full_grid(world: SearchWorld, seed: int, dollars: float) -> Tried:
    del dollars
    return trained(world, seed, CONFIGURATIONS, grid_dollars(), {})


def at_random(world: SearchWorld, seed: int, dollars: float) -> Tried:
    order = random.Random(seed).sample(CONFIGURATIONS, len(CONFIGURATIONS))
    return trained(world, seed, order, dollars, {})


def tpe(world: SearchWorld, seed: int, dollars: float) -> Tried:
    """Return what outlay's own finds, one configuration after the other."""
    told: dict[Key, float] = {}

    def suggested() -> Iterator[Key]:
        search = Search(method="tpe", trials=len(CONFIGURATIONS), seed=seed)
        while True:
            trials = [
                Trial(point=dict(zip(AXES, key, strict=True)), values=(value,), ended=True)
                for key, value in told.items()
            ]
            point = tpe_point(SPACE, search, trials, more_is_better=world.more_is_better)
            yield tuple(int(point[name]) for name in AXES)

    return trained(world, seed, suggested(), dollars, told)


def optuna_halving(world: SearchWorld, seed: int, dollars: float) -> Tried:
    """Optuna's SuccessiveHalvingPruner: a run reports at each rung and is stopped, or goes on."""
    study = optuna.create_study(
        direction="maximize" if world.more_is_better else "minimize",
        sampler=optuna.samplers.RandomSampler(seed=seed),
        pruner=optuna.pruners.SuccessiveHalvingPruner(
            min_resource=1, reduction_factor=FACTOR, min_early_stopping_rate=0
        ),
    )
    for key in random.Random(seed).sample(CONFIGURATIONS, len(CONFIGURATIONS)):
        study.enqueue_trial(dict(zip(AXES, key, strict=True)))
    spent, whole = 0, dict[Key, float]()
    for _ in CONFIGURATIONS:
        trial = study.ask()
        key = tuple(trial.suggest_categorical(name, SPACE[name]) for name in AXES)
        paid, value = 0, 0.0
        for rung in range(len(RUNGS)):
            cost = attempt_micros(key, rung)
            fits = spent - paid + cost <= dollars * 1e6
            if fits:
                spent, paid = spent - paid + cost, cost
                value = world.measured(seed, key, rung)
                trial.report(value, FACTOR**rung)
            if not fits or (rung < LAST and trial.should_prune()):
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            whole[key] = value
            study.tell(trial, value)
    return Tried(world.regret(seed, world.best_of(whole)), spent / 1e6)


OTHERS: dict[str, Callable[[SearchWorld, int, float], Tried]] = {
    "full grid": full_grid,
    "random, in full": at_random,
    "TPE, in full": tpe,
    "Optuna's SuccessiveHalvingPruner": optuna_halving,
}


def compare(world: SearchWorld, seeds: range) -> dict[str, list[Tried]]:
    """Return what each search chose, with halving's dollars where it can be given them."""
    found: dict[str, list[Tried]] = {"outlay's halving": [halving(world, seed) for seed in seeds]}
    for name, search in OTHERS.items():
        found[name] = [
            search(world, seed, ours.dollars)
            for seed, ours in zip(seeds, found["outlay's halving"], strict=True)
        ]
    return found


def show(world: SearchWorld, found: dict[str, list[Tried]], seeds: range) -> None:
    early = fmean(world.rank_correlation(seed) for seed in seeds)
    ours = found["outlay's halving"]
    doubts = sum(one.note.endswith("may have been pruned") for one in ours)
    print(f"\n### World: {world}\n")
    print(f"Noise {world.noise:g}; rank correlation of the first rung with the end {early:.2f}.\n")
    print("| search | mean dollars | mean regret | worst regret | within 1 % of the best |")
    print("|---|---:|---:|---:|---:|")
    for name, tried in found.items():
        regrets = [one.regret for one in tried]
        near = sum(regret <= 0.01 for regret in regrets)
        print(
            f"| {name} | {fmean(one.dollars for one in tried):.2f} | {fmean(regrets):.2%} "
            f"| {max(regrets):.2%} | {near} of {len(tried)} |"
        )
    print(f"\nHalving states its doubt in {doubts} of {len(ours)}: {ours[0].note}.")
    if early < 0:  # It is cheaper, and wrong.
        return
    grid = Figure("the full grid", fmean(one.dollars for one in found["full grid"]))
    what = f"search of 27 configurations, world {world}: dollars"
    row(what, fmean(one.dollars for one in ours), grid, unit="USD", least=3)


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    rungs = ", ".join(f"{amount:.2f}" for amount in RUNGS)
    print(f"\n{utc_text(SYSTEM.wall_ns())}, {machine()}, Optuna {optuna.__version__}.\n")
    print(
        f"{len(CONFIGURATIONS)} configurations, rungs {rungs} USD, factor {FACTOR}, start-up "
        f"{START_UP:.2f} USD an attempt at {PRICE_PER_HOUR:.2f} USD/h; {count} seeds."
    )
    for world in WORLDS:
        show(world, compare(world, seeds), seeds)


if __name__ == "__main__":
    main()
