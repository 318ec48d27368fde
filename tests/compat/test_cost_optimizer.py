"""CostOptimizer: right where rules of thumb are wrong, cautious where little was measured."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import outlay
from ledgers import HOUR, START_NS, Segment, dollars
from offer_builder import offer
from outlay.advise.batch_size import GB, measured_memory
from outlay.advise.overhead import Checkpointing, recommend_badput
from outlay.advise.recommendation import (
    OptimizationRecommendation,
    confidence_of,
    merged,
    of_kind,
    total_savings,
)
from outlay.advise.run_advice import Circumstances
from outlay.advise.tiers import ComputeJob, JobEstimate, Option, estimate_job, options_of, ranked
from outlay.clock import ManualClock, utc_datetime
from outlay.compat.cost_module.optimizer import CostOptimizer
from outlay.errors import InvalidValue
from outlay.ledger import Metric, Price
from outlay.prices.offer import Tier
from outlay.units import Money

CLOCK = ManualClock(START_NS + 1000 * HOUR)
NOW = utc_datetime(CLOCK.wall_ns())
IMPROVING = [0.5 + 0.4 * (1 - 0.5**epoch) for epoch in range(1, 21)]


def optimizer(data_dir: Path | None = None) -> CostOptimizer:
    return CostOptimizer(data_dir, clock=CLOCK)


def about(**changes: Any) -> dict[str, Any]:
    """The documented example of a batch size."""
    return {
        "current_batch_size": 32,
        "gpu_vram_gb": 40,
        "model_param_count": 110_000_000,
        "current_throughput": 100,
        "gpu_price_per_hour": 1.50,
        "epoch_hours": 24.5 / 3,
    } | changes


def test_the_documented_names_are_importable_from_outlay() -> None:
    for name in ("CostOptimizer", "OptimizationRecommendation"):
        assert getattr(outlay, name).__name__ == name


def test_a_recommendation_is_built_from_its_documented_fields_in_order() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = OptimizationRecommendation("epochs", "t", "d", 5.0, 2.0, 0.7, "act", ["risk"], now)
    assert (found.estimated_savings, found.estimated_time_saved, found.confidence) == (
        5.0,
        2.0,
        0.7,
    )
    assert (found.action, found.risks, found.timestamp) == ("act", ["risk"], now)
    assert OptimizationRecommendation.from_dict(found.to_dict()) == found


class TestBatchSize:
    def recommend(self, **changes: Any) -> OptimizationRecommendation | None:
        return optimizer().recommend_batch_size(**about(**changes))

    def test_with_the_documented_arguments_is_cautious_and_says_what_is_missing(self) -> None:
        found = self.recommend()
        assert found is not None
        assert found.title == "Try batch size 64 instead of 32"
        assert found.savings_low == 0.0
        assert found.confidence <= 0.5
        assert any("throughputs=" in each for each in found.needed)

    def test_a_70b_model_on_8_gb_gets_no_advice(self) -> None:
        assert self.recommend(model_param_count=70_000_000_000, gpu_vram_gb=8) is None

    @pytest.mark.parametrize(
        ("gb", "batch", "advised"),
        [(8, 8, None), (10, 8, 16), (10, 16, None), (24, 32, 64), (24, 64, None), (80, 500, None)],
    )
    def test_never_advises_what_cannot_fit(self, gb: int, batch: int, advised: int | None) -> None:
        memory = measured_memory((8, 6.0 * GB), (16, 8.0 * GB))  # 4 GB, and a quarter a sample.
        found = self.recommend(gpu_vram_gb=gb, current_batch_size=batch, memory=memory)
        title = None if advised is None else f"Try batch size {advised} instead of {batch}"
        assert (None if found is None else found.title) == title

    def test_measured_throughput_decides(self) -> None:
        speeds = {b: 400 * b / (b + 64) for b in (16, 32, 64, 128)}
        found = self.recommend(throughputs=speeds, noise_scale=5000.0)
        assert found is not None
        assert found.savings_low is not None
        assert 0 < found.savings_low <= found.estimated_savings
        assert "gradient noise scale 5000" in found.evidence

    def test_no_larger_batch_if_throughput_does_not_grow(self) -> None:
        assert self.recommend(throughputs={16: 100.0, 32: 100.0, 64: 100.0}) is None

    def test_a_batch_beyond_the_noise_scale_wastes_samples(self) -> None:
        speeds = {b: 400 * b / (b + 64) for b in (16, 32, 64, 128)}
        assert self.recommend(throughputs=speeds, noise_scale=10.0) is None

    def test_a_gradient_without_noise_needs_no_larger_batch(self) -> None:
        assert self.recommend(throughputs={32: 100.0, 64: 190.0}, noise_scale=0.0) is None

    def test_the_current_throughput_is_a_measurement_too(self) -> None:
        found = self.recommend(throughputs={64: 190.0})
        assert found is not None
        assert found.evidence[0] == "throughput at 2 batch sizes up to 64"

    def test_a_free_gpu_saves_nothing(self) -> None:
        assert self.recommend(gpu_price_per_hour=0.0) is None

    @pytest.mark.parametrize("wrong", [{"current_batch_size": 0}, {"epoch_hours": -1.0}])
    def test_figures_that_cannot_be_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidValue):
            self.recommend(**wrong)


class TestEarlyStopping:
    noise = (0, 3, -4, 2, -1, 4, -3, 1, 0, 2, -2, 3)
    plateau = tuple(0.4 + 0.9 * 0.4**t + 1e-4 * n for t, n in enumerate(noise, 1))

    def test_a_plateau_should_stop(self) -> None:
        found = optimizer().recommend_early_stopping(self.plateau, 2.0, 0.5)
        assert found is not None
        assert found.estimated_savings == pytest.approx(3.0)
        assert any("total_epochs=" in each for each in found.needed)

    def test_only_epochs_still_ahead_are_saved(self) -> None:
        found = optimizer().recommend_early_stopping(self.plateau, 2.0, 0.5, total_epochs=16)
        assert found is not None
        assert (found.estimated_savings, found.estimated_time_saved) == (4.0, 2.0)

    def test_a_run_that_is_over_has_nothing_to_save(self) -> None:
        advise = optimizer().recommend_early_stopping
        assert advise(self.plateau, 2.0, 0.5, total_epochs=len(self.plateau)) is None

    def test_a_falling_loss_is_not_stopped(self) -> None:
        falling = [2.0 * 0.9**epoch for epoch in range(12)]
        assert optimizer().recommend_early_stopping(falling, 2.0, 0.5, total_epochs=40) is None

    def test_a_rising_loss_should_stop(self) -> None:
        rising = [0.5, 0.4, 0.42, 0.45, 0.47, 0.5, 0.53, 0.55, 0.58]
        assert optimizer().recommend_early_stopping(rising, 2.0, 0.5, total_epochs=30) is not None

    @pytest.mark.parametrize(
        "losses",
        [[0.5, 0.3, 0.2] + [0.2] * 20, [0.5, 0.35, 0.25, 0.2, 0.18, 0.1801, 0.1799, 0.1798]],
    )
    def test_a_patience_that_is_stated_is_a_rule_also_after_a_steep_fall(
        self, losses: list[float]
    ) -> None:
        found = optimizer().recommend_early_stopping(
            losses, 2.0, 0.5, improvement_threshold=0.001, patience=3
        )
        assert found is not None
        assert found.estimated_savings == pytest.approx(3.0)
        assert "did not beat the best" in found.description

    def test_a_rule_that_was_not_stated_is_not_applied(self) -> None:
        noisy = [0.9, 0.7, 0.6, 0.52, 0.45, 0.46, 0.455, 0.452]  # Three worse ones are luck.
        stop = optimizer().recommend_early_stopping
        assert stop(noisy, 2.0, 0.5, total_epochs=60) is None
        assert stop(noisy, 2.0, 0.5, 0.001, 3, total_epochs=60) is not None

    def test_half_of_the_time_without_any_change_is_a_plateau(self) -> None:
        level = [0.5, 0.3, 0.2] + [0.2] * 20
        assert optimizer().recommend_early_stopping(level, 2.0, 0.5) is not None
        assert optimizer().recommend_early_stopping(level[:10], 2.0, 0.5) is None

    def test_a_short_history_gives_no_recommendation(self) -> None:
        assert optimizer().recommend_early_stopping([1.0, 0.9, 0.9, 0.9], 2.0, 0.5) is None


class TestEpochCount:
    def test_a_saturated_training_can_be_shorter(self) -> None:
        found = optimizer().recommend_epoch_count(IMPROVING, 2.0, 0.5)
        assert found is not None
        epochs = int(found.title.split()[2])
        assert 5 <= epochs <= 12
        assert found.estimated_savings == pytest.approx((20 - epochs) * 1.0)
        assert "spent" in found.description

    def test_a_training_that_gets_worse_is_not_optimised(self) -> None:
        assert optimizer().recommend_epoch_count(IMPROVING[::-1], 2.0, 0.5) is None
        losses = [0.5 + 0.1 * epoch for epoch in range(10)]
        assert optimizer().recommend_epoch_count(losses, 2.0, 0.5, score_type="loss") is None

    def test_a_training_that_still_learns_keeps_its_epochs(self) -> None:
        linear = [0.1 + 0.02 * epoch for epoch in range(20)]
        assert optimizer().recommend_epoch_count(linear, 2.0, 0.5) is None

    def test_a_loss_is_better_when_lower(self) -> None:
        losses = [1 - value for value in IMPROVING]
        found = optimizer().recommend_epoch_count(losses, 2.0, 0.5, score_type="loss")
        assert found is not None

    def test_an_unknown_score_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match="accuracy or loss"):
            optimizer().recommend_epoch_count(IMPROVING, 2.0, 0.5, score_type="bleu")


SIZES = (1000, 2000, 5000, 10_000, 50_000, 100_000)


class TestDatasetSize:
    def recommend(self, curve: dict[int, float]) -> OptimizationRecommendation | None:
        return optimizer().recommend_dataset_size(100_000, curve, 2.0, 5.0, 10)

    def test_a_part_that_is_enough_is_found(self) -> None:
        found = self.recommend({n: 0.95 - 2.0 * n**-0.5 for n in SIZES})
        assert found is not None
        assert found.title == "Train on 2,000 of 100,000 samples"
        assert found.estimated_savings == pytest.approx(98.0)
        assert found.savings_low is not None
        assert found.savings_low < found.estimated_savings

    def test_two_points_are_weak_evidence(self) -> None:
        found = self.recommend({10_000: 0.93, 100_000: 0.94})
        assert found is not None
        assert found.confidence < 0.5
        assert found.needed

    def test_accuracy_that_falls_with_more_data_gives_no_recommendation(self) -> None:
        assert self.recommend({10_000: 0.94, 50_000: 0.92, 100_000: 0.9}) is None

    def test_a_dataset_that_is_needed_is_kept(self) -> None:
        assert self.recommend({n: 0.2 * (n / 1000) ** 0.3 for n in SIZES}) is None


class TestComputeTier:
    def recommend(self, **alternatives: tuple[float, float]) -> OptimizationRecommendation | None:
        return optimizer().recommend_compute_tier("A100", 2.0, 100.0, alternatives)

    def test_three_times_the_speed_at_half_as_much_again_is_cheaper(self) -> None:
        found = self.recommend(H100=(3.0, 300.0))
        assert found is not None
        assert found.estimated_savings == pytest.approx(240.0)  # Of 480 a month.
        assert found.estimated_time_saved == pytest.approx(160.0)

    def test_half_the_speed_at_half_the_price_saves_nothing(self) -> None:
        assert self.recommend(T4=(1.0, 50.0)) is None

    def test_half_the_speed_at_a_quarter_of_the_price_saves_half_and_takes_longer(self) -> None:
        found = self.recommend(L4=(0.5, 50.0))
        assert found is not None
        assert found.estimated_savings == pytest.approx(240.0)
        assert found.estimated_time_saved == pytest.approx(-240.0)
        assert "longer" in found.risks[0]

    def test_a_gpu_too_slow_to_do_a_month_in_a_month_is_refused(self) -> None:
        assert self.recommend(slow=(0.01, 20.0)) is None

    def test_prices_of_zero_are_valid(self) -> None:
        free = optimizer().recommend_compute_tier("own", 0.0, 100.0, {"H100": (3.0, 300.0)})
        assert free is None
        assert self.recommend(own=(0.0, 100.0)) is not None

    def test_a_throughput_of_zero_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match="throughput"):
            self.recommend(broken=(1.0, 0.0))

    def test_offers_are_ranked_as_brute_force_would(self) -> None:
        job = ComputeJob(work=100.0, memory_gb=40, deadline_hours=60)
        options = [
            Option(name="small", price_per_hour=0.1, speed=9, memory_gb=24),
            Option(name="slow", price_per_hour=0.1, speed=1, memory_gb=80),
            Option(name="good", price_per_hour=2.0, speed=4, memory_gb=80),
            Option(name="dear", price_per_hour=9.0, speed=8, memory_gb=80),
        ]
        found = ranked(options, job)
        assert [f.option.name for f in found if not f.refused] == ["good", "dear"]
        assert {f.option.name: f.refused != "" for f in found}["small"]
        assert "deadline" in next(f.refused for f in found if f.option.name == "slow")

    def test_spot_pays_for_what_it_loses(self) -> None:
        job = ComputeJob(work=100.0, save_hours=0.1, restart_hours=0.1)
        steady = Option(name="steady", price_per_hour=2, speed=1)
        spot = Option(name="spot", price_per_hour=1, speed=1, mttf_hours=2)
        found: JobEstimate = estimate_job(spot, job)
        assert found.overhead > 1.3
        assert found.cost < estimate_job(steady, job).cost
        assert (
            estimate_job(Option(name="s", price_per_hour=1, speed=1, mttf_hours=0.05), job).cost
            > 200
        )

    def test_options_are_offers_of_as_many_gpus_whose_speed_is_known(self) -> None:
        offers = [
            offer("16", gpu="H100", gpu_count=8),
            offer("8", gpu="H100", gpu_count=8, tier=Tier.SPOT),
            offer("2", gpu="H100", gpu_count=1),
            offer("9", gpu="B200", gpu_count=8),
            offer("4", gpu="H100", gpu_count=8, tier=Tier.RESERVED),
        ]
        found = options_of(offers, {"H100": 1.0}, gpus=8, spot_mttf_hours=6)
        assert [(o.price_per_hour, o.mttf_hours) for o in found] == [(16.0, None), (8.0, 6)]


class TestCheckpointInterval:
    def recommend(self, **changes: Any) -> OptimizationRecommendation | None:
        fields: dict[str, Any] = {
            "interval": 60.0, "save": 30.0, "restart": 300.0, "mttf": 86_400.0,
            "mttf_low": 40_000.0, "mttf_high": 200_000.0, "cost": 1000.0,
        }  # fmt: skip
        return optimizer().recommend_checkpoint_interval(Checkpointing(**(fields | changes)))

    def test_saving_too_often_is_wasteful(self) -> None:
        found = self.recommend()
        assert found is not None
        assert "every 37m" in found.title
        assert found.savings_low is not None
        assert found.savings_high is not None
        assert found.savings_low <= found.estimated_savings <= found.savings_high
        assert found.confidence >= 0.8

    def test_the_optimal_interval_is_not_changed(self) -> None:
        assert self.recommend(interval=2200.0) is None

    def test_a_run_that_never_failed_may_save_too_often_but_never_too_seldom(self) -> None:
        never = {"mttf": None, "mttf_high": None}
        often, seldom = self.recommend(**never), self.recommend(interval=50_000.0, **never)
        assert often is not None
        assert often.grade == "estimated"
        assert seldom is None

    def test_a_save_that_takes_no_time_needs_no_advice(self) -> None:
        assert self.recommend(save=0.0) is None


def test_the_phase_with_the_most_recoverable_money_is_named() -> None:
    costs = {"step": 100.0, "data_loading": 20.0, "other": 60.0}
    found = recommend_badput(costs, {"data_loading": 2.0})
    assert found is not None
    assert found.title == "Win back data_loading: 11.1% of the cost"
    assert found.estimated_savings == pytest.approx(19.0)
    assert found.estimated_time_saved == pytest.approx(1.9)


def test_a_run_without_badput_needs_no_remedy() -> None:
    assert recommend_badput({"step": 10.0}, {}) is None


class TestKeeping:
    def test_advice_survives_a_restart(self, tmp_path: Path) -> None:
        before = optimizer(tmp_path).recommend_batch_size(**about())
        assert optimizer(tmp_path).get_all_recommendations() == [before]

    def test_the_same_advice_is_kept_once(self) -> None:
        for _ in range(3):
            optimizer().recommend_batch_size(**about())
        assert len(optimizer().get_all_recommendations()) == 1

    def test_newer_advice_about_the_same_thing_replaces_the_older(self) -> None:
        optimizer().recommend_batch_size(**about(), subject="run-1")
        optimizer().recommend_batch_size(**about(current_batch_size=16), subject="run-1")
        (found,) = optimizer().get_all_recommendations()
        assert "instead of 16" in found.title

    def test_old_advice_is_not_recent(self) -> None:
        clock = ManualClock(CLOCK.wall_ns())
        old = CostOptimizer(clock=clock)
        old.recommend_batch_size(**about())
        clock.advance(25 * HOUR)
        assert old.get_all_recommendations() == []
        assert len(old.get_all_recommendations(hours=26)) == 1

    def test_the_confident_are_filtered_inclusively(self) -> None:
        found = optimizer().recommend_early_stopping(
            TestEarlyStopping.plateau, 2.0, 0.5, total_epochs=16
        )
        assert found is not None
        assert optimizer().get_high_confidence_recommendations(found.confidence) == [found]
        assert optimizer().get_high_confidence_recommendations(1.01) == []

    def test_savings_of_the_same_money_are_not_added_up(self) -> None:
        optimizer().recommend_compute_tier("A100", 2.0, 100.0, {"H100": (3.0, 300.0)}, subject="r")
        optimizer().recommend_epoch_count(IMPROVING, 2.0, 0.5, subject="r")
        largest = max(each.estimated_savings for each in optimizer().get_all_recommendations())
        assert optimizer().get_total_potential_savings() == largest

    def test_savings_in_two_currencies_are_not_added_up(self) -> None:
        dollars = OptimizationRecommendation("epochs", "t", "d", 3.0, timestamp=NOW, subject="a")
        euros = replace(dollars, subject="b", estimated_savings=5.0, currency="EUR")
        optimizer().keep([dollars, euros])
        assert optimizer().get_total_potential_savings() == 3.0
        assert optimizer().get_total_potential_savings(currency="EUR") == 5.0

    def test_savings_of_different_runs_are(self) -> None:
        def advice(category: str, saved: float, subject: str) -> OptimizationRecommendation:
            return OptimizationRecommendation(category, "t", "d", saved, subject=subject)

        found = [advice("badput", 3, "a"), advice("epochs", 5, "a"), advice("epochs", 7, "b")]
        assert total_savings(found) == {"USD": 12}


def test_merging_keeps_the_latest_of_each() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    old = OptimizationRecommendation("epochs", "t", "d", 9.0, timestamp=now, subject="r")
    new = OptimizationRecommendation(
        "epochs", "u", "d", 5.0, timestamp=now + timedelta(hours=1), subject="r"
    )
    assert merged([new, old]) == [new]


def test_confidence_follows_from_the_evidence() -> None:
    assert confidence_of(0.9, "measured") > confidence_of(0.9, "estimated")
    assert confidence_of(0.9, "estimated") > confidence_of(0.9, "assumed")


class TestAdviceOnARun:
    def run(self, run_dir: Path) -> Path:
        """Twenty hours on an H100 at 3 dollars, saving every few minutes, waiting for its data."""
        first = self.training(Segment(about=self.header()), epochs=10)
        second = Segment(start=first.now_ns / 1e9 - START_NS / 1e9 + 600, about=self.header())
        first.write(run_dir)
        self.training(second, epochs=10, first_step=600).end().write(run_dir)
        return run_dir

    price = dollars(3)

    def header(self) -> dict[str, Any]:
        return {"price": self.price, "gpu": "H100", "run_id": "r1", "model": "m"}

    def training(self, run: Segment, *, epochs: int, first_step: int = 0) -> Segment:
        for epoch in range(epochs):
            for number in range(60):
                run.step(40, wait=10, number=first_step + epoch * 60 + number)
                if number % 6 == 5:
                    run.span("checkpoint_save", 60).checkpoint()
            done = first_step // 60 + epoch + 1
            value = 0.5 + 0.4 * (1 - 0.5**done)
            run.add(Metric(t_ns=run.now_ns, name="accuracy", value=value))
        return run

    def test_names_everything_that_its_log_shows(self, tmp_path: Path) -> None:
        offers = [offer("1.50", gpu="H100"), offer("0.40", gpu="T4")]
        around = Circumstances(offers=offers, speeds={"T4": 0.05})
        found = optimizer().advise_run(self.run(tmp_path), around)
        by_category = {each.category: each for each in found}
        assert set(by_category) == {"badput", "checkpoint", "compute", "epochs"}
        assert "acme 1x H100 on-demand" in by_category["compute"].title
        assert {each.subject for each in found} == {"r1"}
        assert all(each.evidence for each in found)
        savings = [each.estimated_savings for each in of_kind(found, "saving")]
        assert savings == sorted(savings, reverse=True)

    def test_savings_are_in_the_currency_of_the_run(self, tmp_path: Path) -> None:
        self.price = Price(micros_per_hour=3_000_000, currency="EUR")
        rentable = offer(Money.parse("1.50 EUR"), gpu="H100")
        found = optimizer().advise_run(self.run(tmp_path), Circumstances(offers=[rentable]))
        assert {each.category for each in found} == {"badput", "checkpoint", "compute", "epochs"}
        for each in found:
            said = " ".join([each.title, each.description, *each.evidence])
            assert each.currency == "EUR"
            assert "EUR" in said
            assert "$" not in said

    def test_repeated_advice_is_stored_once(self, tmp_path: Path) -> None:
        first, second = (optimizer().advise_run(self.run(tmp_path)) for _ in range(2))
        assert first == second == optimizer().get_all_recommendations()

    def test_is_silent_about_a_run_without_a_price(self, tmp_path: Path) -> None:
        Segment().step(10).end().write(tmp_path)
        assert optimizer().advise_run(tmp_path) == []
