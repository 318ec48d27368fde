"""Batch size and dataset advice from a run's log, and the figures that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import outlay
from command_line import outlay as command
from ledgers import SECOND, START_NS, Segment, dollars
from outlay.advise.batch_size import unmeasured
from outlay.advise.dataset import passes_worth, recommend_fewer_passes
from outlay.advise.recommendation import OptimizationRecommendation, total_savings
from outlay.clock import ManualClock
from outlay.compat.cost_module.optimizer import CostOptimizer
from outlay.errors import InvalidValue
from outlay.goodput.follower import read_view
from outlay.goodput.reliability import checkpoint_spacing
from outlay.ledger import Heartbeat, Metric


def logged(run_dir: Path, batches: dict[int, float], **metrics: float) -> Path:
    """Write a finished run on an A100: ten steps of so many seconds for each batch size."""
    about = {"price": dollars(36), "gpu": "A100 40GB", "run_id": "r", "model": "m"}
    run = Segment(about=about)
    for samples, seconds in batches.items():
        run.step(50 * seconds, samples=samples)  # The first one compiles.
        for _ in range(9):
            run.step(seconds, samples=samples)
    for name, value in metrics.items():
        run.add(Metric(t_ns=run.now_ns, name=name, value=value))
    run.end().write(run_dir)
    return run_dir


def advice(run_dir: Path, category: str) -> OptimizationRecommendation | None:
    found = CostOptimizer(clock=ManualClock()).advise_run(run_dir)
    return next((each for each in found if each.category == category), None)


PARAMETERS = 110_000_000
TWO_SIZES = {16: 20.0, 32: 24.0}


def test_a_run_that_tried_two_batch_sizes_gets_measured_throughput(tmp_path: Path) -> None:
    found = advice(
        logged(tmp_path, TWO_SIZES, parameters=PARAMETERS, gradient_noise_scale=4000.0),
        "batch_size",
    )
    assert found is not None
    assert found.title.startswith("Try batch size 64 instead of")
    assert "gradient noise scale 4000" in found.evidence
    assert any(each.startswith("throughput at 2 batch sizes") for each in found.evidence)


def test_the_typical_step_counts_and_not_the_one_that_compiled(tmp_path: Path) -> None:
    slow_start = logged(tmp_path, {16: 20.0, 32: 40.0}, parameters=PARAMETERS)
    assert advice(slow_start, "batch_size") is None  # Twice the samples in twice the time.


def test_a_batch_beyond_the_noise_scale_is_not_made_larger(tmp_path: Path) -> None:
    run = logged(tmp_path, {32: 24.0}, parameters=PARAMETERS, gradient_noise_scale=8.0)
    assert advice(run, "batch_size") is None


def test_one_batch_size_gives_an_assumed_recommendation(tmp_path: Path) -> None:
    found = advice(logged(tmp_path, {32: 24.0}, parameters=PARAMETERS), "batch_size")
    assert found is not None
    assert found.grade == "assumed"
    assert any("noise scale" in each for each in found.needed)


def test_a_model_that_does_not_fit_gets_no_larger_batch(tmp_path: Path) -> None:
    assert advice(logged(tmp_path, TWO_SIZES, parameters=70e9), "batch_size") is None


def test_a_metric_below_one_is_not_the_number_of_parameters(tmp_path: Path) -> None:
    run_dir = logged(tmp_path, TWO_SIZES, parameters=0.11)
    assert advice(run_dir, "batch_size") is None
    lacks = unmeasured(read_view(run_dir, START_NS))
    assert any("the model's size is not known" in each for each in lacks)


def test_forty_passes_over_the_same_data_are_too_many(tmp_path: Path) -> None:
    run_dir = logged(tmp_path, {32: 24.0}, epochs=40)
    found = advice(run_dir, "dataset")
    assert found is not None
    assert "more than 11 passes" in found.title
    cost = outlay.TrainingMetrics.from_run(run_dir)
    spent = cost.total_duration_hours * cost.gpu_price_per_hour
    assert found.estimated_savings == pytest.approx((1 - 11 / 40) * spent, rel=1e-3)
    assert found.savings_low is not None
    assert found.savings_high is not None
    assert found.savings_low < found.estimated_savings < found.savings_high


def test_four_passes_are_nearly_as_good_as_fresh_data(tmp_path: Path) -> None:
    assert advice(logged(tmp_path, {32: 24.0}, epochs=4), "dataset") is None


def test_fewer_passes_are_a_trade_and_no_saving() -> None:
    found = recommend_fewer_passes(40, 200.0, 1.0)
    assert found is not None
    assert found.kind == "trade"
    assert "of what the passes taught" in found.quality_loss
    assert found.quality_loss in found.description
    assert total_savings([found]) == {}


def test_passes_without_cost_get_no_recommendation() -> None:
    assert recommend_fewer_passes(40, 0.0, 1.0) is None


@pytest.mark.parametrize(("least", "passes"), [(1.0, 1), (0.75, 5), (0.5, 11), (0.25, 22)])
def test_a_pass_is_worth_less_than_the_one_before(least: float, passes: int) -> None:
    assert passes_worth(least) == passes


def test_a_worth_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidValue, match="fresh data"):
        passes_worth(0.0)


def observed(run_dir: Path, category: str) -> OptimizationRecommendation:
    found = advice(run_dir, category)
    assert found is not None
    assert (found.kind, found.estimated_savings) == ("observation", 0.0)
    assert total_savings([found]) == {}
    return found


def test_idle_gpus_are_an_observation_with_their_cost(tmp_path: Path) -> None:
    run = Segment(about={"price": dollars(36), "run_id": "r"})
    for _ in range(10):
        run.after(360).add(Heartbeat(t_ns=run.now_ns, gpu_busy_ns=18 * SECOND))
    run.end().write(tmp_path)
    found = observed(tmp_path, "idle_gpu")
    assert found.title == "GPUs were idle 95% of the time"
    assert found.at_stake == pytest.approx(34.2)
    assert found.grade == "measured"


def test_a_low_mfu_is_an_observation(tmp_path: Path) -> None:
    run = Segment(about={"price": dollars(36), "gpu": "H100", "run_id": "r"})
    for _ in range(10):
        run.step(360, tokens=3_600_000)
    run.add(Metric(t_ns=run.now_ns, name="parameters", value=1e9)).end().write(tmp_path)
    assert observed(tmp_path, "mfu").title == "Steps use 6.1% of what the GPUs can do"


def test_a_reported_mfu_is_used(tmp_path: Path) -> None:
    run = Segment(about={"price": dollars(36), "run_id": "r"})
    for _ in range(10):
        run.step(360)
    run.add(Metric(t_ns=run.now_ns, name="mfu", value=0.45)).end().write(tmp_path)
    assert advice(tmp_path, "mfu") is None


def test_time_outside_spans_is_an_observation(tmp_path: Path) -> None:
    run = Segment(about={"price": dollars(36), "run_id": "r"})
    for _ in range(10):
        run.step(270).after(90)
    run.end().write(tmp_path)
    assert observed(tmp_path, "other").at_stake == pytest.approx(9.0)


def test_the_checkpoint_interval_is_that_of_the_report(tmp_path: Path) -> None:
    """Work that was lost and repeated does not make the interval longer."""
    run = Segment(about={"price": dollars(36), "run_id": "r"})
    for number in range(40):
        run.step(60, number=number)
        if number % 4 == 3:
            run.span("checkpoint_save", 30).checkpoint()
    for _ in range(30):
        run.step(60)
    again = Segment(start=run.now_ns / 1e9 - START_NS / 1e9 + 60, about=run.about)
    run.write(tmp_path)
    again.step(60, number=40).end().write(tmp_path)
    found = advice(tmp_path, "checkpoint")
    assert found is not None
    assert found.title.endswith("instead of every 4m00s")
    assert checkpoint_spacing(read_view(tmp_path, again.now_ns).timeline) == 240 * SECOND


def test_a_checkpoint_before_the_first_step_has_no_interval(tmp_path: Path) -> None:
    run = Segment(about={"price": dollars(36), "run_id": "r"})
    run.span("checkpoint_save", 30).checkpoint(step=0)
    for _ in range(20):
        run.step(60)
    run.end().write(tmp_path)
    assert checkpoint_spacing(read_view(tmp_path, run.now_ns).timeline) is None
    assert advice(tmp_path, "checkpoint") is None


def test_no_advice_states_the_smallest_saving_that_is_reported(tmp_path: Path) -> None:
    run = Segment(about={"price": dollars(36), "run_id": "r"})
    for _ in range(10):
        run.step(360)
    run.end().write(tmp_path)
    shown = command("advise", tmp_path)
    assert "Nothing worth changing above 0.36 USD (1% of its cost) was found." in shown.out
    assert command("advise", tmp_path, "--json").json["nothing_below"]["micros"] == 360_000


def test_missing_figures_are_listed_with_the_call_that_logs_them(tmp_path: Path) -> None:
    Segment(about={"price": dollars(36)}).step(10).end().write(tmp_path)
    said = CostOptimizer(clock=ManualClock()).what_to_measure(tmp_path)
    assert [line.split(":")[0] for line in said] == ["batch size"] * 4 + ["dataset"]
    assert 'say it with run.metric("gradient_noise_scale", value)' in said[3]


def test_a_run_that_logged_everything_lacks_no_figure(tmp_path: Path) -> None:
    metrics: dict[str, Any] = {"parameters": 1e8, "gradient_noise_scale": 900.0, "epochs": 2}
    run = logged(tmp_path, {32: 24.0}, **metrics)
    assert CostOptimizer(clock=ManualClock()).what_to_measure(run) == []


def test_the_calls_that_are_named_log_what_is_missing(tmp_path: Path) -> None:
    """A run through the public interface."""
    with outlay.run("m", dir=tmp_path, price="36 USD/h", gpu="A100 40GB") as run:
        for _ in run.steps([[1, 2], [3, 4]], samples=len):
            pass
        run.metric("parameters", 1e8)
        run.metric("gradient_noise_scale", 900.0)
        run.metric("epochs", 1)
    assert CostOptimizer().what_to_measure(tmp_path) == []


def test_the_command_lists_figures_that_were_not_measured(tmp_path: Path) -> None:
    Segment(about={"price": dollars(36)}).step(10).end().write(tmp_path)
    assert (
        "dataset: the number of passes over the data is not known"
        in command("advise", tmp_path, "--why").out
    )
    assert len(command("advise", tmp_path, "--json").json["not_measured"]) == 5
