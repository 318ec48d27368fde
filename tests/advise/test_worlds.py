"""Advice in simulated trainings: laws, and what was once advised wrongly. In memory, no files."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import advice_worlds as aw
from ledgers import START_NS, Segment, dollars, numbered
from outlay import iso_tokens
from outlay.account.run import RunAccount
from outlay.advise.advice_followed import advice_followed, followed_text
from outlay.advise.batch_size import unmeasured
from outlay.advise.curves import outlook
from outlay.advise.recommendation import (
    HELD,
    WIDTH,
    OptimizationRecommendation,
    bounded,
    calibrated,
    of_kind,
)
from outlay.advise.run_advice import Circumstances, advise_run, evaluations_of
from outlay.advise.stopping import EpochPrice, recommend_early_stopping, undecided
from outlay.advise.tiers import ComputeJob, Option, recommend_compute_tier
from outlay.cost.run_cost import cost_of
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView, view_of
from outlay.goodput.timeline import TimelineBuilder
from outlay.ledger import BudgetEvent, Metric

WORLDS = aw.worlds()
SOME = [each for each in WORLDS if each.is_tuned_on][::4]


def drawn(name: str, seed: int = 0) -> aw.Case:
    """Return a case of the world of a name."""
    (world,) = (each for each in WORLDS if each.name == name)
    return world.case(seed)


def savings(case: aw.Case) -> list[OptimizationRecommendation]:
    return of_kind(advise_run(aw.view(case.training), case.around), "saving")


def amount(view: RunView, *phases: str) -> float:
    """Return the cost of some phases, or of all."""
    cost = cost_of(view)
    assert cost.cost is not None
    if not phases:
        return float(cost.cost.amount)
    return sum(float(cost.by_phase[name].amount) for name in phases if name in cost.by_phase)


def test_both_halves_have_enough_worlds() -> None:
    for is_tuned_on in (True, False):
        half = [each for each in WORLDS if each.is_tuned_on == is_tuned_on]
        assert sum(not each.is_healthy for each in half) >= 25
        assert sum(each.is_healthy for each in half) >= 10
    assert sum(not each.is_healthy for each in WORLDS) >= 50
    assert sum(each.is_healthy for each in WORLDS) >= 20
    assert len({each.name for each in WORLDS}) == len(WORLDS)


def test_each_kind_of_world_is_in_both_halves() -> None:
    reported, tuned_on = (
        {each.kind for each in WORLDS if each.is_tuned_on == is_tuned_on}
        for is_tuned_on in (False, True)
    )
    assert {"stalls", "evaluates", "converges", "compiles in a span"} < reported
    drawn_kinds = {each.kind for each in WORLDS if each.name.endswith(", i")}
    assert len(drawn_kinds) >= 35
    assert reported == drawn_kinds
    assert reported <= tuned_on


def test_worlds_that_were_reported_before_are_the_same() -> None:
    """Their figures are drawn in an order that no later kind of world may change."""
    assert drawn("gets better in a jump, 2", 1).training.cost == pytest.approx(90.1225375)
    assert drawn("compiles in a span, d", 1).training.cost == pytest.approx(143.882576)


@pytest.mark.parametrize("world", SOME, ids=lambda world: world.name)
def test_a_saving_is_at_most_the_waste_that_it_addresses(world: aw.AdviceWorld) -> None:
    case = world.case(1)
    view = aw.view(case.training)
    for each in of_kind(advise_run(view, case.around), "saving"):
        whole = case.training.cost if each.category == "early_stopping" else amount(view)
        most = addressed(each, case, view)
        assert each.savings_low is not None
        assert each.savings_high is not None
        assert 0 < each.estimated_savings <= most * (1 + 1e-9)
        assert 0 <= each.savings_low < each.savings_high <= whole * (1 + 1e-6)
        assert each.savings_low <= each.estimated_savings <= each.savings_high


def addressed(found: OptimizationRecommendation, case: aw.Case, view: RunView) -> float:
    """Return the cost of what a saving is about: phases, evaluations not run, a dearer machine."""
    if found.category == "checkpoint":
        return amount(view, ph.CHECKPOINT_SAVE, ph.WASTED_PROGRESS)
    if found.category == "badput":
        return amount(view, found.cause)
    if found.category == "early_stopping":
        return case.training.cost - amount(view)
    if found.category == "epochs":
        fewer, count = map(int, re.findall(r"\d+", found.title))
        return (1 - fewer / count) * amount(view)
    assert found.category == "compute"
    cheapest = min(float(each.price.amount) for each in case.around.offers)
    # A cost is recorded in whole micro-units.
    return (1 - cheapest / case.training.price) * amount(view) + 1e-6


def test_a_burst_of_failures_after_a_long_clean_time_promises_no_more_than_it_cost() -> None:
    """65 hours without a failure, then five in 3.5 hours."""
    hour = 3600.0
    training = aw.Training(
        step_s=np.full(690, 360.0), save_every=60, save_s=120.0, eval_every=10_000, price=6.0,
        uptimes=(65 * hour, 0.5 * hour, 0.6 * hour, 0.7 * hour, 0.8 * hour, 0.9 * hour),
    )  # fmt: skip
    view = aw.view(training)
    (found,) = of_kind(advise_run(view), "saving")
    waste = amount(view, ph.CHECKPOINT_SAVE, ph.WASTED_PROGRESS)
    tried = [replace(training, save_every=every).cost for every in (1, 2, 3, 5, 8, 12, 20, 30)]
    true_saving = training.cost - min(tried)
    assert found.estimated_savings <= waste
    assert true_saving / 1.3 <= found.estimated_savings <= 1.3 * true_saving
    assert found.cause == "bursts"
    assert "failures came in a burst" in found.assumptions[0]


def test_loading_that_takes_three_times_a_step_can_be_won_back() -> None:
    training = aw.Training(step_s=np.full(100, 10.0), load_s=30.0, start_s=0.0)
    (found,) = of_kind(advise_run(aw.view(training)), "saving")
    assert found.estimated_savings == pytest.approx(0.95 * 0.75 * training.cost, rel=0.02)


RARE_SAVES = [each for each in WORLDS if each.is_tuned_on and "too seldom" in each.name]


def test_what_more_frequent_saves_would_have_brought_a_run_is_within_a_factor_of_the_truth() -> (
    None
):
    """The truth is the same training, with the same failures, and the best interval."""
    cases = [each.case(seed) for each in RARE_SAVES for seed in range(6)]
    close = []
    for case in cases:
        first, *_ = savings(case)
        assert first.category == "checkpoint"
        truth = replace(case, failures=()).true_saving()
        close.append(truth / 1.3 <= first.estimated_savings <= truth * 1.3)
    assert len(close) >= 9
    assert sum(close) >= 0.9 * len(close)


def test_what_they_bring_on_average_over_other_failures_is_said_within_a_factor() -> None:
    """The truth is the mean over this run's failures and those of other runs like it."""
    found = [aw.judge(each, seed, advise_run) for each in RARE_SAVES for seed in range(8)]
    assert len(found) >= 50
    assert sum(each.is_close for each in found) >= 0.75 * len(found)
    assert sum(each.held for each in found) >= 0.75 * len(found)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "name",
    [
        "0.05 of steps take 8 times as long",
        "compiles at each of 3 restarts, 0.2",
        "overfits from 0.4, 1.5 times t to the 1",
        "converges, rate 0.5, noise 0.04",
        "converges, rate 0.8, noise 0.03",
        "2 stages of the learning rate, 0.6",
    ],
)
def test_what_was_missed_is_advised_within_a_factor_of_the_truth(name: str, seed: int) -> None:
    case = drawn(name, seed)
    first = savings(case)[0]
    assert first.category == case.category
    assert case.title in first.title
    truth = case.true_saving()
    assert truth / 1.3 <= first.estimated_savings <= truth * 1.3


@pytest.mark.parametrize("seed", range(3))
def test_the_bump_of_a_double_descent_is_no_reason_to_stop(seed: int) -> None:
    case = drawn("descends twice, 0.5 seen", seed)
    found = advise_run(aw.view(case.training), case.around)
    assert of_kind(found, "saving") == []
    (said,) = (each for each in found if each.category == "early_stopping")
    assert said.title == "Undecided whether to stop this training"
    assert said.kind == "observation"


def test_a_healthy_power_law_is_not_cut_short() -> None:
    t = np.arange(1.0, 3001)
    training = aw.Training(
        step_s=np.full(3000, 10.0), eval_every=1, losses=1.5 + 4.0 * np.power(t, -0.5), start_s=0.0
    )
    assert savings(aw.Case(training=training)) == []


def test_a_learning_rate_that_may_fall_is_no_plateau() -> None:
    case = drawn("its learning rate is about to fall")
    found = advise_run(aw.view(case.training), case.around)
    assert of_kind(found, "saving") == []
    assert any("the learning rate may still fall" in each.description for each in found)


EVALUATION = EpochPrice(hours=1.0, price_per_hour=1.0, unit="evaluation")


def test_a_stop_states_how_often_it_is_wrong_and_what_is_lost_then() -> None:
    t = np.arange(1.0, 12)
    values = list(-(1 + 0.4 * t**-3) + 0.001 * np.random.default_rng(5).standard_normal(11))
    ahead = outlook(values, 20, margin=0.001)
    assert 0 < ahead.probability < 0.05
    assert ahead.gain > 0.001
    found = recommend_early_stopping(values, EVALUATION, total_epochs=31)
    assert found is not None
    assert found.description.endswith(
        f"That is wrong in {ahead.probability:.1%} of cases; "
        f"then {ahead.gain:.2g} of the metric is given up."
    )


def test_a_stop_of_a_live_run_states_what_is_lost_if_it_is_wrong() -> None:
    (stop,) = savings(drawn("runs on a plateau, rate 0.8, 0.7 seen"))
    stated = re.search(
        r"That is wrong in ([\d.]+)% of cases; then (more than )?([\d.]+) of the metric",
        stop.description,
    )
    assert stated is not None
    assert 0 < float(stated[1]) < 5
    assert 0 < float(stated[3]) < 0.01


def test_a_stop_at_a_level_states_what_is_lost_if_it_is_wrong() -> None:
    level = [0.5 + 1e-5 * (-1) ** n for n in range(20)]
    found = recommend_early_stopping(level, EVALUATION, total_epochs=40)
    assert found is not None
    assert found.description.endswith(
        "That is wrong in less than 5% of cases; then more than 0.001 of the metric is given up."
    )


def test_a_stop_counts_steps_and_not_the_values_that_are_means_of_them() -> None:
    level = [0.5 + 1e-5 * (-1) ** n for n in range(20)]
    found = recommend_early_stopping(
        level, replace(EVALUATION, unit="step", each=10), total_epochs=40
    )
    assert found is not None
    assert "Not running the 200 steps ahead saves 20.00 USD" in found.description
    assert found.evidence[0].startswith("200 steps")


def test_a_stop_next_to_the_bound_of_a_metric_loses_nothing() -> None:
    level = [-0.0005 - 1e-5 * (-1) ** n for n in range(20)]
    found = recommend_early_stopping(level, EVALUATION, total_epochs=40, bound=0.0)
    assert found is not None
    assert found.description.endswith("the metric cannot get better by 0.001.")


def test_an_undecided_run_that_just_got_worse_states_what_is_lost() -> None:
    t = np.arange(20.0)
    values = list(-(0.5 + np.exp(-0.5 * t) + 0.02 * np.maximum(0, t - 12)))
    found = undecided(values, EVALUATION, 40)
    assert found is not None
    assert found.description.endswith(
        "it is wrong in 20% of cases, and gives up more than 0.001 then."
    )


def _with_tokens(terms: dict[str, Any] | None, *, is_evaluated: bool) -> RunView:
    """A live run whose noisy loss is logged at each step, or in every tenth one; 10 s a step."""
    run = Segment(about={"price": dollars(36), "run_id": "r"})
    if terms is not None:
        run.add(BudgetEvent(t_ns=run.now_ns, event="set", data=terms))
    g = np.random.default_rng(1)
    for number in range(200):
        run.step(10, tokens=100)
        loss = 0.02 + np.exp(-0.02 * number) + 0.02 * g.standard_normal()
        if not is_evaluated or number % 10 == 9:
            name = "val_loss" if is_evaluated else "loss"
            run.add(Metric(t_ns=run.now_ns, name=name, value=float(abs(loss))))
    return _view_of(run, alive=True)


@pytest.mark.parametrize("is_evaluated", [True, False])
def test_a_live_run_with_a_budget_is_undecided_up_to_its_end(*, is_evaluated: bool) -> None:
    """A budget of 400 steps, of which 200 are done; each costs 0.10 USD."""
    view = _with_tokens(iso_tokens(40_000).document(), is_evaluated=is_evaluated)
    (said,) = advise_run(view)
    assert said.title == "Undecided whether to stop this training"
    assert said.at_stake == pytest.approx(20.0, rel=0.03)
    assert "200 steps" in said.evidence[0] or "20 evaluations" in said.evidence[0]


@pytest.mark.parametrize("terms", [None, {"mode": "of a later version", "limits": {}}])
def test_without_a_budget_it_is_not_known_what_is_ahead(terms: dict[str, Any] | None) -> None:
    assert advise_run(_with_tokens(terms, is_evaluated=False)) == []


def test_confidence_is_what_simulations_observed() -> None:
    (found,) = savings(drawn("evaluates for 0.15 of training"))
    assert (found.cause, found.confidence) == ("evaluation", HELD["evaluation"])


def test_the_confidence_of_each_simulated_saving_is_from_the_same_table() -> None:
    """A case of each world that may be tuned on, and one that curves alone find converged."""
    cases = [each.case(0) for each in WORLDS if each.is_tuned_on and not each.is_healthy]
    firsts = [found[0] for case in cases if (found := savings(case))]
    firsts += savings(drawn("converges, rate 0.3", 1))[:1]
    assert {each.cause for each in firsts} == set(HELD)
    assert all(each.confidence == HELD[each.cause] for each in firsts)


def _saving(low: float, high: float) -> OptimizationRecommendation:
    return OptimizationRecommendation("badput", "", "", 100.0, savings_low=low, savings_high=high)


def test_the_width_of_an_interval_is_calibrated_by_its_cause() -> None:
    found, width = calibrated(_saving(60.0, 120.0), "recovery"), WIDTH["recovery"]
    shown = (found.savings_low, found.savings_high)
    assert shown == pytest.approx((100 - 40 * width, 100 + 20 * width))
    assert set(WIDTH) < set(HELD)


@pytest.mark.parametrize(
    ("stated", "shown"), [((100, 100), (97, 103)), ((99, 110), (97, 110)), ((80, 104), (80, 104))]
)
def test_an_interval_is_widened_only_as_far_as_two_runs_differ(
    stated: tuple[float, float], shown: tuple[float, float]
) -> None:
    found = bounded(_saving(*stated), 1000.0)
    assert (found.savings_low, found.savings_high) == pytest.approx(shown)


def test_a_move_to_what_was_not_simulated_has_no_confidence_of_simulations() -> None:
    now = Option(name="now", price_per_hour=3, speed=1)
    others = {
        "the same": Option(name="b", price_per_hour=1, speed=1),
        "faster": Option(name="b", price_per_hour=1, speed=2),
        "spot": Option(name="b", price_per_hour=1, speed=1, mttf_hours=12),
    }
    causes = {
        name: found.cause
        for name, other in others.items()
        if (found := recommend_compute_tier(now, [other], ComputeJob(work=10), least_saving=1))
    }
    assert causes == {"the same": "compute", "faster": "", "spot": ""}


def test_imports_get_no_advice_on_compilation() -> None:
    """Two seconds before the first record of a run without slow first steps."""
    about = {"price": dollars(36), "run_id": "r", "process_start_ns": START_NS, "nodes": 1}
    run = Segment(start=1.6, about=about)
    for _ in range(20):
        run.step(0.5)
    found = advise_run(_view_of(run.end()))
    assert [each.category for each in found] == ["imports"]
    assert found[0].at_stake == pytest.approx(0.016)


def _squared_error_near_zero() -> aw.Training:
    """A live training, half of whose evaluations are done, with noise as large as its best loss."""
    t = np.arange(20.0)
    noise = 0.02 * np.random.default_rng(1).standard_normal(20)
    return aw.Training(
        step_s=np.full(400, 10.0), losses=np.abs(0.02 + np.exp(-0.4 * t) + noise), stop_after=200,
        start_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("in_span", [False, True])
def test_a_cache_is_advised_for_what_was_seen_to_compile(*, in_span: bool) -> None:
    training = replace(
        drawn("compiles at each of 3 restarts, 0.2").training, compiles_in_span=in_span
    )
    found, *_ = of_kind(advise_run(aw.view(training)), "saving")
    phase, what = ("custom:compile", "what is compiled") if in_span else (
        "program_startup", "what the first step compiles"
    )  # fmt: skip
    assert found.title.startswith(f"Win back {phase}")
    assert found.action.startswith(f"Keep {what} in a cache")
    solved = replace(training, compile_s=0.2 * training.compile_s)
    assert found.estimated_savings == pytest.approx(training.cost - solved.cost, rel=0.1)


def test_start_up_is_split_into_imports_and_the_slow_first_step() -> None:
    """600 s before the first record, and a first step that takes 400 s longer than others."""
    about = {"price": dollars(36), "run_id": "r", "process_start_ns": START_NS, "nodes": 1}
    run = Segment(start=600, about=about).step(410)
    for _ in range(100):
        run.step(10)
    view = _view_of(run.end())
    saving, imports = advise_run(view)
    assert amount(view, ph.PROGRAM_STARTUP) == pytest.approx(10.0)
    assert saving.title.startswith("Win back program_startup")
    assert saving.estimated_savings == pytest.approx(0.8 * 4.0, rel=0.01)
    assert saving.savings_high is not None
    assert saving.savings_high <= 4.0
    assert imports.category == "imports"
    assert imports.at_stake == pytest.approx(6.0)


@pytest.mark.parametrize("phase", sorted({*ph.SPAN_PHASES, "custom:packing"}))
def test_no_other_span_gets_advice_on_compilation(phase: str) -> None:
    run = Segment(about={"price": dollars(36), "run_id": "r"}).span(phase, 500)
    for _ in range(50):
        run.step(10)
    for each in advise_run(_view_of(run.end())):
        assert "compil" not in each.action + each.description


def test_a_squared_error_is_not_extrapolated_below_zero() -> None:
    training = _squared_error_near_zero()
    best = float(training.losses.min())
    found = evaluations_of(aw.view(training))
    assert found is not None
    assert found.bound == 0
    assert 0 < outlook(found.values, 20, bound=found.bound).gain <= best
    assert outlook(found.values, 20).gain > best


def test_no_more_is_said_to_be_given_up_than_lies_above_zero() -> None:
    training = _squared_error_near_zero()
    (said,) = advise_run(aw.view(training), Circumstances(total_evaluations=40))
    assert said.title == "Undecided whether to stop this training"
    stated = re.search(r"gives up ([\d.]+) then", said.description)
    assert stated is not None
    assert 0 < float(stated[1]) <= training.losses.min()


def test_a_run_without_steps_spent_nothing_between_steps() -> None:
    run = Segment(about={"price": dollars(36), "run_id": "r"})
    run.heartbeat(after=600)
    (found,) = (each for each in advise_run(_view_of(run.end())) if each.category == "other")
    assert "without a recorded step" in found.description
    assert "between steps" not in found.action


def test_losses_of_steps_are_not_counted_as_evaluations() -> None:
    training = aw.Training(
        step_s=np.full(126, 10.0), eval_every=10, losses=0.5 + np.power(0.4, np.arange(1.0, 13)),
        metric="accuracy", is_logged_each_step=True,
    )  # fmt: skip
    found = evaluations_of(aw.view(training))
    assert found is not None
    assert (len(found.values), found.unit, found.negated) == (12, "evaluation", False)


def test_a_loss_logged_in_evaluation_spans_is_an_evaluation() -> None:
    run = Segment(about={"price": dollars(36), "run_id": "r"})
    for number in range(8):
        run.step(1).span("evaluation", 1)
        run.add(Metric(t_ns=run.now_ns, name="loss", value=1 / (number + 1)))
    found = evaluations_of(_view_of(run.end()))
    assert found is not None
    assert (found.unit, len(found.values)) == ("evaluation", 8)


def test_losses_of_steps_are_averaged_if_there_is_nothing_else() -> None:
    run = Segment(about={"price": dollars(36), "run_id": "r"})
    for number in range(500):
        run.step(1).add(Metric(t_ns=run.now_ns, name="loss", value=float(number % 2)))
    found = evaluations_of(_view_of(run.end()))
    assert found is not None
    assert (found.unit, found.each, set(found.values)) == ("step", 10, {-0.5})


def test_an_ambiguous_gpu_is_named_with_its_sizes() -> None:
    run = Segment(about={"price": dollars(36), "run_id": "r", "gpu": "A100"}).step(10)
    said = [line for line in unmeasured(_view_of(run.end())) if "A100" in line]
    assert len(said) == 1
    assert "the memory of the A100 (A100-40GB or A100-80GB) is not known" in said[0]


def test_advice_that_was_followed_shows_in_the_next_run() -> None:
    slow = aw.Training(step_s=np.full(100, 10.0), load_s=10.0, start_s=0.0)
    better = replace(slow, load_s=0.5)
    (row,) = advice_followed([aw.view(slow), aw.view(better)])
    assert row.is_followed
    assert row.brought == pytest.approx(0.475, abs=0.01)
    assert "within" in row.text
    (unchanged,) = advice_followed([aw.view(slow), aw.view(slow)])
    assert not unchanged.is_followed
    assert "no such change" in unchanged.text
    assert followed_text([row, unchanged]) == (
        "1 of 2 pieces of advice followed; 1 of 1 brought what their intervals say, the median "
        "error is 0.0% of the cost"
    )


def test_a_training_that_was_made_shorter_shows_in_the_next_run() -> None:
    training = drawn("converges, rate 0.7").training
    (row,) = advice_followed([aw.view(training), aw.view(training.shorter(20))])
    assert row.title.startswith("End after ")
    assert row.is_followed
    assert row.brought == pytest.approx(0.5)
    (unchanged,) = advice_followed([aw.view(training), aw.view(training)])
    assert not unchanged.is_followed


def test_nothing_is_said_of_a_live_run_that_still_learns() -> None:
    """Stopping it would be wrong in more than 95 % of cases."""
    t = np.arange(1.0, 21)
    training = aw.Training(
        step_s=np.full(400, 10.0), losses=1.0 + 4.0 * np.power(t, -0.5), stop_after=200, start_s=0.0
    )
    found = advise_run(aw.view(training), Circumstances(total_evaluations=40))
    assert [each for each in found if each.category == "early_stopping"] == []


def test_one_stretch_of_bad_luck_is_no_reason_for_another_interval() -> None:
    """Fails often, and saves about as often as is best; saves are a part of that."""
    for name in ("fails 12 times and saves well", "fails 8 times in a trace and saves well"):
        assert [savings(drawn(name, seed)) for seed in range(6)] == [[]] * 6


def _view_of(segment: Segment, *, alive: bool = False) -> RunView:
    account = RunAccount()
    account.fold(segment.id, numbered(segment.records))
    timeline = TimelineBuilder(account).build(segment.now_ns, alive=alive)
    assert timeline is not None
    return view_of(timeline, account)
