"""Forecasts against simulated futures: points against naive ones, intervals by coverage."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_histories import COST_WORLDS, KNOWN, PLANNED
from ledgers import START_NS, Segment, dollars
from outlay.clock import ManualClock
from outlay.compat.cost_module.analyzer import CostAnalyzer
from outlay.cost.forecast import (
    THIN,
    Pace,
    backtest,
    forecast_rest,
    forecast_runs,
    rest_of,
    run_paces,
)
from outlay.errors import InvalidValue
from outlay.goodput.follower import read_view
from training_metrics import costing

TRIALS = 150
Draw = Callable[[np.random.Generator, int], Any]

WORLDS: dict[str, Draw] = {
    "skewed": lambda g, n: g.lognormal(3, 0.6, n),
    "steady": lambda g, n: g.normal(50, 4, n),
    "two kinds of runs": lambda g, n: np.where(g.random(n) < 0.3, 90, 30) * g.lognormal(0, 0.1, n),
    "three kinds of runs": lambda g, n: g.choice([10, 40, 160], n) * g.lognormal(0, 0.15, n),
    "two amounts": lambda g, n: np.where(g.random(n) < 0.5, 90.0, 30.0),
    "growing": lambda g, n: 10 * 1.03 ** np.arange(n) * g.lognormal(0, 0.05, n),
    "growing, noisily": lambda g, n: 10 * 1.03 ** np.arange(n) * g.lognormal(0, 0.2, n),
    "shrinking": lambda g, n: 100 * 0.95 ** np.arange(n) * g.lognormal(0, 0.1, n),
    "often crashing": lambda g, n: np.where(
        g.random(n) < 0.3, g.uniform(0, 0.02, n), g.lognormal(3, 0.3, n)
    ),
    "seldom crashing": lambda g, n: np.where(g.random(n) < 0.1, 0.0, g.lognormal(3, 0.4, n)),
}
TRENDS = ["growing", "growing, noisily", "shrinking"]


def trials(draw: Draw, *, known: int, planned: int, count: int = TRIALS) -> list[tuple[Any, Any]]:
    """Return histories and what the next runs then cost."""
    generator = np.random.default_rng(7)
    every = (draw(generator, known + planned) for _ in range(count))
    return [(costs[:known], costs[known:].sum()) for costs in every]


# What a forecast says of its own interval where it cannot promise what the interval is called.
CANNOT = (
    "may not hold",
    "too few to be sure",
    "shows from 4 on",
    "is not visible yet",
    "cannot be met exactly",
    "so their spread is unknown",
)
NOTED = [
    "skewed", "two amounts", "growing", "growing, noisily", "often crashing", "seldom crashing",
]  # fmt: skip


@pytest.mark.parametrize(
    ("known", "planned"),
    [*itertools.product([4, 6, 8, 15, 40, 60], [5]), *itertools.product([4, 15, 60], [1])],
)
@pytest.mark.parametrize("world", NOTED)
def test_intervals_have_their_coverage_or_a_note(world: str, known: int, planned: int) -> None:
    """In every world, with every number of runs: of the intervals that are given without doubt."""
    held, given, doubted = 0, 0, 0
    for history, future in trials(WORLDS[world], known=known, planned=planned):
        found = forecast_runs(list(history), planned)
        assert found is not None
        is_doubted = any(text in found.note for text in CANNOT)
        assert is_doubted or found.low is not None
        doubted += is_doubted
        if found.low is not None and found.high is not None and not is_doubted:
            assert 0 <= found.low < found.high
            given += 1
            held += found.low <= future <= found.high
    if given >= 0.5 * TRIALS:
        assert 0.70 <= held / given <= 0.90
    else:
        assert doubted >= 0.5 * TRIALS
    assert known < THIN or planned > known // 2 or world == "two amounts" or doubted < 0.1 * TRIALS


@pytest.mark.parametrize(
    ("world", "known", "planned"),
    [
        *itertools.product(["skewed", "steady"], [4, 7], [10]),
        *itertools.product(["two kinds of runs", "three kinds of runs"], [5, 40], [3, 10]),
        *itertools.product(["shrinking"], [12, 60], [5]),
        *itertools.product(["skewed", "steady"], [4], [1]),
        ("often crashing", 6, 5),
    ],
)
def test_intervals_of_thin_histories_have_their_coverage_in_most_worlds(
    world: str, known: int, planned: int
) -> None:
    held, given = 0, 0
    for history, future in trials(WORLDS[world], known=known, planned=planned):
        found = forecast_runs(list(history), planned)
        assert found is not None
        if found.low is not None and found.high is not None:
            given += 1
            held += found.low <= future <= found.high
    assert given >= 0.7 * TRIALS
    assert 0.70 <= held / given <= 0.90


@functools.cache
def outcomes(kind: str, known: int) -> list[bool | None]:
    """Return for each tuned history whether its interval holds; None if there is none."""
    found = list[bool | None]()
    for world in COST_WORLDS:
        seeds = [each for each in range(24) if world.kind == kind and world.is_tuned_on(each)]
        for seed, planned in itertools.product(seeds, PLANNED):
            history, truth = world.costs(seed, known, planned)
            each = forecast_runs(history, planned)
            assert each is not None
            if each.low is None or each.high is None:
                found.append(None)
            else:
                found.append(each.low <= truth <= each.high)
    return found


def coverage(found: Sequence[bool | None]) -> float:
    """Return the share of intervals that hold."""
    held = [each for each in found if each is not None]
    return sum(held) / len(held)


KINDS = ["independent", "trending", "changed", "seasonal", "correlated", "crashing"]


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_each_kind_of_history_have_their_coverage(kind: str) -> None:
    """Also where costs are alike from run to run, repeat, or have changed their level."""
    assert {world.kind for world in COST_WORLDS} == set(KINDS)
    found = [each for known in KNOWN for each in outcomes(kind, known)]
    assert found.count(None) <= (0.1 if kind == "independent" else 0.5) * len(found)
    assert 0.70 <= coverage(found) <= 0.92


@pytest.mark.parametrize(("kind", "known"), list(itertools.product(KINDS, KNOWN)))
def test_intervals_hold_with_each_number_of_runs(kind: str, known: int) -> None:
    """With few runs of two levels, an interval that includes both nearly always holds."""
    may_be_wide = kind == "changed" and known < THIN
    assert 0.65 <= coverage(outcomes(kind, known)) <= (1.0 if may_be_wide else 0.95)


def test_a_trend_is_extrapolated_with_a_note() -> None:
    found = forecast_runs([10 * 1.03**n for n in range(12)], 5)
    assert found is not None
    assert found.point == pytest.approx(sum(10 * 1.03**n for n in range(12, 17)), rel=1e-6)
    assert found.note == "costs grow by 3.0% from run to run, which is extrapolated"


@pytest.mark.parametrize("since", [3, 5, 20])
def test_a_change_of_level_is_found_and_said(since: int) -> None:
    generator = np.random.default_rng(since)
    before, after = (generator.lognormal(3, 0.2, count) for count in (20, since))
    found = forecast_runs([*before, *(3 * after)], 5)
    assert found is not None
    assert "costs changed by a factor of" in found.note
    assert found.samples == since
    assert found.point == pytest.approx(15 * float(after.mean()), rel=0.25)
    assert (found.low is None) == (since < 4)


def test_a_season_is_continued() -> None:
    generator = np.random.default_rng(2)
    history = [10.0 * (1 + 3 * (n % 4 == 0)) * generator.lognormal(0, 0.05) for n in range(24)]
    high, low = forecast_runs(history, 1), forecast_runs([*history, 40.0], 1)
    assert high is not None
    assert low is not None
    assert "costs repeat every 4 runs" in high.note
    assert high.point == pytest.approx(40, rel=0.1)
    assert low.point == pytest.approx(10, rel=0.1)


def test_runs_that_are_alike_in_a_row_widen_the_interval() -> None:
    generator = np.random.default_rng(4)
    logs = [0.0]
    for _ in range(39):
        logs.append(0.85 * logs[-1] + 0.25 * generator.standard_normal())
    costs = 20 * np.exp(logs)
    alike, shuffled = (
        forecast_runs(list(each), 8) for each in (costs, generator.permutation(costs))
    )
    assert alike is not None
    assert shuffled is not None
    assert "runs in a row cost alike" in alike.note
    assert (alike.high or 0) - (alike.low or 0) > 1.3 * ((shuffled.high or 0) - (shuffled.low or 0))


def test_many_planned_runs_get_a_note_about_unseen_trends() -> None:
    found = forecast_runs([9.0, 10.0, 11.0, 10.0, 9.5, 10.5, 9.0, 11.0], 20)
    assert found is not None
    assert "a trend that is not visible yet" in found.note


def test_runs_that_crash_at_once_do_not_widen_the_others() -> None:
    found = forecast_runs([20.0, 0.001, 22.0, 19.0, 21.0, 20.0, 0.0, 23.0, 20.0, 21.0], 1)
    assert found is not None
    assert found.high is not None
    assert found.high < 30
    assert found.note.startswith("2 of 10 runs cost almost nothing")


def test_equal_runs_have_an_interval_without_width_and_a_note() -> None:
    found = forecast_runs([10.0] * 9, 5)
    assert found is not None
    assert (found.low, found.high) == (50.0, 50.0)
    assert "cost the same" in found.note


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.integers(1, 30))
def test_no_forecast_is_below_zero_or_without_width_unless_all_are_equal(
    history: list[float], planned: int
) -> None:
    found = forecast_runs(history, planned)
    assert found is not None
    if found.low is not None and found.high is not None:
        assert 0 <= found.low <= found.high < math.inf
        assert found.low < found.high or min(history) == max(history)


class TestBacktest:
    def test_counts_how_often_the_intervals_held(self) -> None:
        history = list(np.random.default_rng(3).lognormal(3, 0.4, 40))
        found = backtest(history, 3)
        assert (found.forecasts, found.with_interval) == (34, 34)
        assert found.coverage is not None
        assert 0.6 <= found.coverage <= 1
        assert found.error is not None
        assert found.naive_error is not None
        assert found.error < found.naive_error

    def test_of_equal_runs_is_exact(self) -> None:
        found = backtest([5.0] * 10, 2)
        assert (found.error, found.held, found.forecasts) == (0.0, 5, 5)

    def test_of_too_few_runs_has_no_figure(self) -> None:
        found = backtest([5.0, 6.0], 1)
        assert (found.forecasts, found.coverage, found.error) == (0, None, None)

    def test_of_no_runs_ahead_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match="planned_runs"):
            backtest([1.0], 0)


@pytest.mark.parametrize("world", [each for each in WORLDS if each not in TRENDS])
def test_the_point_beats_the_naive_forecasts(world: str) -> None:
    """Naive: as the last run; drift: as the last run plus the mean change so far."""
    errors, last_errors, drift_errors = 0.0, 0.0, 0.0
    for history, future in trials(WORLDS[world], known=12, planned=5):
        found = forecast_runs(list(history), 5)
        assert found is not None
        errors += abs(found.point - future)
        last_errors += abs(5 * history[-1] - future)
        drift = (history[-1] - history[0]) / (len(history) - 1)
        drift_errors += abs(sum(history[-1] + drift * k for k in range(1, 6)) - future)
    assert errors < 0.8 * last_errors
    assert errors < 0.8 * drift_errors


def test_a_thin_history_has_a_note() -> None:
    found = forecast_runs([10.0, 12.0, 11.0, 10.5], 5)
    assert found is not None
    assert found.note.startswith("thin history: 4 runs, too few to show a trend")


@pytest.mark.parametrize("known", [1, 2, 3])
def test_fewer_than_four_runs_give_a_point_and_no_interval(known: int) -> None:
    found = forecast_runs([10.0] * known, 5)
    assert found is not None
    assert (found.point, found.low, found.high) == (50.0, None, None)
    assert "shows from 4 on" in found.note


def test_runs_that_differ_by_orders_of_magnitude_have_a_finite_interval() -> None:
    found = forecast_runs([2.0, 1e6, 1.0, 3.0, 1e9, 5.0, 1e7, 4.0], 10)
    assert found is not None
    assert found.high is not None
    assert math.isfinite(found.high)


def test_without_history_there_is_no_forecast() -> None:
    assert forecast_runs([], 5) is None


def test_no_runs_cost_nothing() -> None:
    found = forecast_runs([10.0, 20.0], 0)
    assert found is not None
    assert (found.point, found.low, found.high) == (0.0, 0.0, 0.0)


def test_free_runs_among_them_are_possible() -> None:
    found = forecast_runs([0.0, 0.0, 5.0, 6.0, 7.0], 2)
    assert found is not None
    assert found.point == pytest.approx(7.2)


def test_many_planned_runs_cost_as_many_times_what_a_few_do() -> None:
    few, many = (
        forecast_runs([9.0, 10.0, 11.0, 10.0], 200),
        forecast_runs([9.0, 10.0, 11.0, 10.0], 1000),
    )
    assert few is not None
    assert many is not None
    assert (few.low, few.high) != (None, None)
    assert (many.point, many.low, many.high) == pytest.approx(
        (5 * few.point, 5 * (few.low or 0.0), 5 * (few.high or 0.0))
    )


def test_a_negative_number_of_runs_is_refused() -> None:
    with pytest.raises(InvalidValue, match="planned_runs"):
        forecast_runs([1.0], -1)


class TestOfAModel:
    def forecast(self, *costs: float, budget: float | str | None = None, **options: Any) -> Any:
        analyzer = CostAnalyzer(clock=ManualClock())
        for index, cost in enumerate(costs):
            analyzer.analyze_training_run(costing(cost, f"r{index}"))
        if budget is not None:
            analyzer.set_budget("bert-base", budget)
        return analyzer.forecast_cost("bert-base", options.pop("planned_runs", 5), **options)

    def test_has_the_documented_keys(self) -> None:
        found = self.forecast(10, 10)
        assert (found["model_name"], found["planned_runs"]) == ("bert-base", 5)
        assert (found["avg_cost_per_run"], found["estimated_total"]) == (10.0, 50.0)
        assert (found["budget_status"], found["overage"]) == ("OK", 0.0)

    def test_counts_what_was_spent_already(self) -> None:
        found = self.forecast(10, 10, budget=60)
        assert (found["budget_status"], found["overage"]) == ("OVER", 10.0)
        assert self.forecast(10, 10, budget=70)["budget_status"] == "WARNING"
        assert self.forecast(10, 10, budget=100)["budget_status"] == "OK"

    def test_takes_a_stated_cost_per_run(self) -> None:
        found = self.forecast(avg_cost_per_run=7.5)
        assert (found["estimated_total"], found["low"]) == (37.5, None)
        assert "stated" in found["note"]

    def test_may_use_a_budget_to_the_last_cent(self) -> None:
        found = self.forecast(0.1, budget=0.3, planned_runs=1, avg_cost_per_run=0.2)
        assert (found["budget_status"], found["overage"]) == ("WARNING", 0.0)

    def test_never_compares_dollars_with_a_budget_in_euros(self) -> None:
        found = self.forecast(10, 10, budget="15 EUR")
        assert (found["budget"], found["budget_status"]) == (None, "UNKNOWN")
        assert "the budget is in EUR, the runs are in USD" in found["note"]

    def test_is_in_the_currency_of_the_budget_before_any_run(self) -> None:
        found = self.forecast(budget="100 EUR", avg_cost_per_run=7.5)
        assert (found["currency"], found["budget_status"]) == ("EUR", "OK")

    def test_is_unknown_without_history(self) -> None:
        found = self.forecast(budget=100)
        assert (found["estimated_total"], found["budget_status"]) == (None, "UNKNOWN")


def stretches(generator: np.random.Generator, count: int) -> list[Pace]:
    seconds = generator.lognormal(4, 0.3, count)
    return [Pace(100.0, float(s), float(s) * 0.01) for s in seconds]


@pytest.mark.parametrize("known", [5, 20])
def test_intervals_of_the_rest_of_a_run_have_their_coverage(known: int) -> None:
    generator, held = np.random.default_rng(3), 0
    for _ in range(TRIALS):
        past, future = stretches(generator, known), stretches(generator, 10)
        rest = forecast_rest(past, 1000)
        assert rest is not None
        assert rest.cost.low is not None
        assert rest.cost.high is not None
        held += rest.cost.low <= sum(pace.cost for pace in future) <= rest.cost.high
    assert 0.70 <= held / TRIALS <= 0.90


def a_run(run_dir: Path, *, steps: int) -> Any:
    about = {"price": dollars(3600), "gpus": 1}
    run = Segment(about=about)
    for number in range(steps):
        run.step(1.0)
        if number % 10 == 9:
            run.span("checkpoint_save", 1.0)
    run.write(run_dir)
    return read_view(run_dir, START_NS + steps * 11 * 10**8)


def test_the_rest_of_a_live_run_costs_what_its_pace_says(tmp_path: Path) -> None:
    rest = rest_of(a_run(tmp_path, steps=200), 400)
    assert rest is not None
    assert rest.steps_left == 200
    assert rest.cost.point == pytest.approx(220, rel=0.01)
    assert rest.seconds.point == pytest.approx(220, rel=0.01)


def test_a_run_at_its_target_needs_nothing_more(tmp_path: Path) -> None:
    rest = rest_of(a_run(tmp_path, steps=50), 50)
    assert rest is not None
    assert rest.cost.point == 0.0


def test_paces_sum_to_the_run(tmp_path: Path) -> None:
    view = a_run(tmp_path, steps=100)
    paces = run_paces(view)
    assert sum(pace.steps for pace in paces) == 100
    assert math.isclose(sum(pace.cost for pace in paces), 110, rel_tol=1e-9)


def test_records_that_stand_for_many_steps_count_as_many(tmp_path: Path) -> None:
    run = Segment(about={"price": dollars(3600)})
    for _ in range(10):
        run.step(10.0, count=10)
    run.write(tmp_path)
    paces = run_paces(read_view(tmp_path, run.now_ns))
    assert sum(pace.steps for pace in paces) == 100


def test_a_run_without_steps_has_no_forecast(tmp_path: Path) -> None:
    Segment(about={"price": dollars(1)}).heartbeat(after=5).write(tmp_path)
    view = read_view(tmp_path, START_NS + 6 * 10**9)
    assert rest_of(view, 10) is None
