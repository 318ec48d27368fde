"""Invalid arguments of advice, and cases in which there is nothing to recommend."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgers import START_NS, Segment, dollars
from offer_builder import offer
from outlay.advise.batch_size import BatchSituation, estimated_memory, fit_throughput, noise_scale
from outlay.advise.curves import probability_of_beating
from outlay.advise.dataset import SmallRun, effective_data, fit_scaling_law, recommend_dataset_size
from outlay.advise.overhead import (
    Checkpointing,
    Reliability,
    expected_ratio,
    optimal_interval,
    recommend_badput,
    recommend_checkpoint_interval,
)
from outlay.advise.recommendation import confidence_of
from outlay.advise.run_advice import Circumstances
from outlay.advise.stopping import EpochPrice
from outlay.advise.tiers import ComputeJob, Option, estimate_job, recommend_compute_tier
from outlay.clock import ManualClock
from outlay.compat.cost_module.optimizer import CostOptimizer
from outlay.cost.forecast import Pace, forecast_rest, rest_of
from outlay.errors import InvalidValue
from outlay.goodput.follower import read_view
from outlay.ledger import Metric


@pytest.mark.parametrize(
    "refused",
    [
        lambda: expected_ratio(Reliability(save=1, mttf=1), 0),
        lambda: recommend_dataset_size(0, {}, 1.0, 1.0),
        lambda: recommend_dataset_size(10, {5: -0.2, 10: -0.1}, 1.0, 1.0),
        lambda: recommend_dataset_size(10, {5: math.nan, 10: 0.9}, 1.0, 1.0),
        lambda: BatchSituation(
            batch=8, gpu_gb=8, parameters=8, throughput=8, price_per_hour=8, hours=8, critical=-1
        ),
        lambda: estimated_memory(0),
        lambda: noise_scale((8, 1.0), (8, 1.0)),
        lambda: fit_throughput({8: 100.0}),
        lambda: Checkpointing(
            interval=0, save=1, restart=1, mttf=1, mttf_low=1, mttf_high=1, cost=1
        ),
        lambda: Checkpointing(
            interval=1, save=1, restart=1, mttf=1, mttf_low=1, mttf_high=1, cost=math.nan
        ),
        lambda: CostOptimizer().recommend_dataset_size(
            100, {10: 0.9, 100: 0.91}, math.nan, hours_per_epoch=1, num_epochs=1
        ),
        lambda: confidence_of(0.5, "guessed"),  # type: ignore[arg-type]
        lambda: effective_data(1e9, 0.5),
        lambda: fit_scaling_law([SmallRun(1, 1, 1)] * 5),
        lambda: EpochPrice(hours=-1, price_per_hour=1),
        lambda: Option(name="x", price_per_hour=math.nan, speed=1),
        lambda: CostOptimizer().recommend_compute_tier("a", 1.0, 1.0, {}, daily_training_hours=25),
        lambda: forecast_rest([Pace(1, 1, 1)], -1),
    ],
)
def test_invalid_arguments_are_refused(refused: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue):
        refused()


def test_saves_longer_than_the_mttf_have_an_interval() -> None:
    assert optimal_interval(Reliability(save=1e6, mttf=1)) == 1


def test_without_epochs_ahead_the_probability_is_zero() -> None:
    assert probability_of_beating([0.1, 0.2, 0.3, 0.4], 0) == 0.0


def test_an_invalid_part_of_the_dataset_is_named() -> None:
    with pytest.raises(InvalidValue, match=r"validation_accuracy_curve: got \{0: 0.5\}"):
        recommend_dataset_size(1000, {0: 0.5, 1000: 0.9}, 100.0, 1.0)


def test_one_size_says_nothing_about_others() -> None:
    assert recommend_dataset_size(1000, {1000: 0.9}, 100.0, 1.0) is None


def test_sizes_of_which_none_is_surely_enough_keep_the_dataset() -> None:
    noisy = {1000: 0.3, 2000: 0.7, 4000: 0.2, 8000: 0.8}
    assert recommend_dataset_size(8000, noisy, 100.0, 1.0) is None


def test_an_interval_that_never_ends_could_save_everything() -> None:
    measured = Checkpointing(
        interval=1e6, save=1, restart=1, mttf=10, mttf_low=5, mttf_high=20, cost=100
    )
    found = recommend_checkpoint_interval(measured)
    assert found is not None
    assert found.estimated_savings == 100


def test_a_restart_longer_than_the_mttf_does_not_change_the_interval() -> None:
    """A day in the queue after a minute of training."""
    measured = Checkpointing(
        interval=600, save=1, restart=86_400, mttf=60, mttf_low=30, mttf_high=120, cost=100
    )
    found = recommend_checkpoint_interval(measured)
    assert found is not None
    assert "every 10.3s of training" in found.title


def test_no_interval_is_recommended_if_none_would_complete() -> None:
    measured = Checkpointing(
        interval=50, save=1e5, restart=1, mttf=10, mttf_low=5, mttf_high=20, cost=100
    )
    assert recommend_checkpoint_interval(measured) is None


def test_negligible_badput_gets_no_recommendation() -> None:
    assert recommend_badput({"step": 1.0, "data_loading": 0.01}, {}) is None


def test_a_pause_gets_no_recommendation() -> None:
    assert recommend_badput({"step": 1.0, "paused": 9.0}, {}) is None


def test_a_move_to_spot_lists_its_risks() -> None:
    now = Option(name="now", price_per_hour=3, speed=1)
    spot = Option(name="spot", price_per_hour=1, speed=1, mttf_hours=12)
    found = recommend_compute_tier(now, [spot], ComputeJob(work=10), least_saving=1)
    assert found is not None
    assert found.risks == ["it takes 0.6 h longer", "it may be taken back at any time"]
    assert "every 12 h" in found.assumptions[1]


def test_a_machine_taken_back_too_often_is_refused() -> None:
    now = Option(name="now", price_per_hour=3, speed=1)
    spot = Option(name="spot", price_per_hour=0, speed=1, mttf_hours=1e-4)
    assert "too often" in estimate_job(spot, ComputeJob(work=10)).refused
    assert recommend_compute_tier(now, [spot], ComputeJob(work=10), least_saving=1) is None


def test_one_stretch_has_no_interval() -> None:
    rest = forecast_rest([Pace(10, 5, 1)], 20)
    assert rest is not None
    assert (rest.cost.point, rest.cost.low, rest.cost.note) == (
        2,
        None,
        "too short to show a spread",
    )


class TestALiveRun:
    def plateau(self, run_dir: Path) -> ManualClock:
        about = {"price": dollars(3600), "gpu": "H100", "run_id": "live", "model": "m"}
        run = Segment(about=about)
        noise = (0, 3, -4, 2, -1, 4, -3, 1, 0, 2, -2, 3)
        for epoch, off in enumerate(noise, 1):
            run.step(10)
            loss = 0.4 + 0.9 * 0.4**epoch + 1e-4 * off
            run.add(Metric(t_ns=run.now_ns, name="val_loss", value=loss))
        run.write(run_dir)
        return ManualClock(run.now_ns)

    def test_that_will_not_get_better_should_stop(self, tmp_path: Path) -> None:
        around = Circumstances(total_evaluations=20, offers=[offer("1", gpu="T4")])
        clock = self.plateau(tmp_path)
        found = CostOptimizer(clock=clock).advise_run(tmp_path, around)
        assert [each.category for each in found] == ["early_stopping"]
        assert found[0].estimated_savings == pytest.approx(80.0)

    def test_without_a_price_has_a_time_and_no_cost(self, tmp_path: Path) -> None:
        Segment().step(10).step(10).write(tmp_path)
        view = read_view(tmp_path, START_NS + 20 * 10**9)
        rest = rest_of(view, 4)
        assert rest is not None
        assert (rest.seconds.point, rest.cost.point) == (20.0, 0.0)
