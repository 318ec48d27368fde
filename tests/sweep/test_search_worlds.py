"""Halving on worlds of which the best is known: what it finds, for how much, and its doubt.

The worlds and the bound of doubt were chosen on other seeds than these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import fmean

import pytest

from outlay.budget.terms import Budget
from outlay.sweep.plan.plan import rung_totals
from outlay.sweep.search.doubt import RankChange, rank_change
from outlay.sweep.search.halving import Contest
from outlay.sweep.search.search_options import Halving, rungs_between
from outlay.sweep.state.outcomes import RungReport, RunState
from search_worlds import (
    ACCURACY,
    CONFIGURATIONS,
    CROSSING,
    CROSSING_LATE,
    LOSS,
    RUNGS,
    STEP,
    WORLDS,
    Found,
    SearchWorld,
    WorldSweep,
    grid_dollars,
    world_plan,
)

ORDERED = (LOSS, ACCURACY)
FEW = range(500, 505)
ALL = range(500, 550)
SEEDS = [FEW, pytest.param(ALL, marks=pytest.mark.slow)]
CEILING = 31.70


@cache
def halved(world: SearchWorld, seed: int) -> Found:
    return WorldSweep(world=world, seed=seed, ceiling=f"{CEILING:.2f} USD").run()


def share(found: Sequence[bool]) -> float:
    return fmean(map(float, found))


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_first_rung_ranks_two_worlds_as_the_end_does_and_the_third_not(
    seeds: range,
) -> None:
    for world in ORDERED:
        assert min(world.rank_correlation(seed) for seed in seeds) >= 0.8
    assert max(CROSSING.rank_correlation(seed) for seed in seeds) < 0


@pytest.mark.parametrize("world", ORDERED, ids=str)
@pytest.mark.parametrize(
    ("seeds", "least"), [(FEW, 0.8), pytest.param(ALL, 0.9, marks=pytest.mark.slow)]
)
def test_halving_finds_the_best_for_a_third_of_the_dollars(
    world: SearchWorld, seeds: range, least: float
) -> None:
    found = [halved(world, seed) for seed in seeds]
    assert max(one.dollars for one in found) <= grid_dollars() / 3
    assert share([one.regret <= 0.01 for one in found]) >= least


@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize("seeds", SEEDS)
def test_dollars_are_those_of_every_attempt_with_its_start_up(
    world: SearchWorld, seeds: range
) -> None:
    for seed in seeds:
        found = halved(world, seed)
        assert len(found.paid) == 27 + 9 + 3
        assert round(found.dollars * 1e6) == sum(found.paid)
        for state in found.states.values():
            cost = (state.cost_micros or 0) / 1e6
            assert RUNGS[state.rung] <= cost < RUNGS[state.rung] + 3 * STEP


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_the_plan_predicts_what_halving_costs(world: SearchWorld) -> None:
    total = world_plan(world, "40 USD").predicted_cost
    assert [one.runs for one in rung_totals(world_plan(world, "40 USD"))] == [27, 9, 3]
    assert total is not None
    assert total.micros / 1e6 == 27 * 0.5 + 9 * 1.0 + 3 * 3.0
    assert total.micros / 1e6 <= halved(world, FEW[0]).dollars <= total.micros / 1e6 + 39 * 3 * STEP


@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize("ceiling", [31.70, 31.50, 20.00, 13.20, 1.20])
@pytest.mark.parametrize("seeds", [range(500, 502), pytest.param(ALL, marks=pytest.mark.slow)])
def test_no_world_passes_the_ceiling(world: SearchWorld, ceiling: float, seeds: range) -> None:
    for seed in seeds:
        found = WorldSweep(world=world, seed=seed, ceiling=f"{ceiling:.2f} USD").run()
        assert sum(found.paid) <= ceiling * 1e6
        assert len(found.states) == len(CONFIGURATIONS)
        assert not any(state.status == "running" for state in found.states.values())


@pytest.mark.parametrize("seeds", SEEDS)
def test_doubt_is_stated_where_curves_cross(seeds: range) -> None:
    changes = [halved(CROSSING, seed).change for seed in seeds]
    assert share([change.is_doubtful for change in changes]) >= 0.95
    assert str(changes[0]).startswith("the order changed between rungs (rank correlation -0.")
    assert str(changes[0]).endswith(": configurations that start slowly may have been pruned")


@pytest.mark.parametrize("seeds", SEEDS)
def test_doubt_is_stated_where_curves_approach_and_cross_later(seeds: range) -> None:
    changes = [halved(CROSSING_LATE, seed).change for seed in seeds]
    assert fmean(change.correlation or 0.0 for change in changes) > 0
    assert share([change.is_doubtful for change in changes]) >= 0.8


@pytest.mark.parametrize("world", ORDERED, ids=str)
@pytest.mark.parametrize("seeds", SEEDS)
def test_doubt_is_rare_where_the_order_stays(world: SearchWorld, seeds: range) -> None:
    doubtful = [halved(world, seed).change.is_doubtful for seed in seeds]
    assert share(doubtful) <= (0.1 if len(seeds) > 10 else 0.2)


# Doubt, of reports that are stated.


def change_of(*values: Sequence[float | None], more_is_better: bool = False) -> RankChange:
    """Return the change of order of configurations that reported these values at their rungs."""
    first, last = (Budget.of("iso_tokens", {"max_tokens": n}) for n in (1, 4))
    halving = Halving(rungs=rungs_between(first, last, 2), factor=2)
    names = [str(n) for n in range(len(values))]
    contest = Contest(
        halving=halving, size=len(names), runs={name: [name] for name in names},
        more_is_better=more_is_better,
    )  # fmt: skip
    states = {
        name: RunState(reports={at: RungReport(metric=value) for at, value in enumerate(one)})
        for name, one in zip(names, values, strict=True)
    }
    return rank_change(contest, states)


@pytest.mark.parametrize("more_is_better", [False, True])
def test_the_same_order_is_no_doubt(*, more_is_better: bool) -> None:
    change = change_of((1, 1), (2, 2), (3, 3), (4, 4), more_is_better=more_is_better)
    assert change == RankChange(configurations=4, correlation=1.0, gap_left=1.0)
    text = "the order hardly changed between rungs (rank correlation 1.0 over 4 configurations)"
    assert (change.is_doubtful, str(change)) == (False, text)


def test_the_opposite_order_is_doubtful() -> None:
    change = change_of((1, 4), (2, 3), (3, 2), (4, 1))
    assert change == RankChange(configurations=4, correlation=-1.0, gap_left=-1.0)
    assert change.is_doubtful


def test_gaps_that_shrink_in_the_same_order_are_doubtful() -> None:
    change = change_of((1, 1.0), (2, 1.2), (3, 1.4), (4, 1.6))
    assert change.is_doubtful
    assert str(change) == (
        "gaps between configurations shrank to 20% a rung (rank correlation 1.0 over 4 "
        "configurations): configurations that start slowly may have been pruned"
    )


def test_close_ones_that_change_places_are_no_doubt() -> None:
    change = change_of((1.0, 1.2), (1.1, 1.1), (1.2, 1.0), (9, 9), (9.1, 8.9), (9.2, 8.8))
    assert (change.correlation or 0) < 0.3
    assert not change.is_doubtful
    assert str(change).startswith("only configurations that are close changed their order (")


def test_pairs_of_all_rungs_count_and_equal_ones_do_not() -> None:
    change = change_of((1, 2, 5), (2, 1, 4), (3, 3), (4, 3))
    assert change.configurations == 4
    assert change.correlation == pytest.approx(1 - 2 / 6)


@pytest.mark.parametrize(
    "values",
    [(), ((1,), (2,)), ((1, 2), (2, 1)), ((1, 3), (2, 2), (3, 1)), ((1, None),) * 9, ((1, 1),) * 9],
)
def test_too_few_configurations_are_no_ground_for_doubt(
    values: Sequence[Sequence[float | None]],
) -> None:
    change = change_of(*values)
    assert not change.is_doubtful
    assert str(change).startswith("too few configurations went on to tell")


def test_a_seed_that_did_not_go_on_is_left_out_of_both_rungs() -> None:
    first, last = (Budget.of("iso_tokens", {"max_tokens": n}) for n in (1, 2))
    halving = Halving(rungs=rungs_between(first, last, 2), factor=2)
    contest = Contest(halving=halving, size=2, runs={"a": ["a0", "a1"], "b": ["b0"]})

    def state(*metrics: float) -> RunState:
        return RunState(reports={at: RungReport(metric=one) for at, one in enumerate(metrics)})

    states = {"a0": state(1, 1), "a1": state(99), "b0": state(2, 2)}
    assert rank_change(contest, states) == RankChange(
        configurations=2, correlation=1.0, gap_left=1.0
    )
