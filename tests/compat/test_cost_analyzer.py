"""CostAnalyzer and its documented values: formulas, budgets, comparison, ROI, persistence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import outlay
from outlay.clock import ManualClock
from outlay.compat.cost_module.analyzer import CostAnalyzer
from outlay.compat.cost_module.training import TrainingCostReport, TrainingMetrics
from outlay.cost.cost_book import CostBook
from outlay.cost.thresholds import BudgetAlert
from outlay.errors import InvalidValue
from outlay.store import RunRow, open_store
from outlay.store.runs import register
from outlay.units import Money
from training_metrics import NOW, costing, metrics


def analyzer(data_dir: Path | None = None) -> CostAnalyzer:
    """A new one, as after a restart."""
    return CostAnalyzer(data_dir, clock=ManualClock())


def analyze(*runs: TrainingMetrics) -> CostAnalyzer:
    for run in runs:
        analyzer().analyze_training_run(run)
    return analyzer()


def test_the_documented_names_are_importable_from_outlay() -> None:
    for name in ("CostAnalyzer", "TrainingMetrics", "TrainingCostReport", "BudgetAlert"):
        assert getattr(outlay, name).__name__ == name


def test_the_documented_example_costs_what_it_says() -> None:
    report = analyzer().analyze_training_run(metrics())
    assert report.total_cost == 36.75
    assert report.gpu_hours == 24.5
    assert report.cost_per_sample == 0.0003675
    assert report.cost_per_epoch == 12.25
    assert report.cost_per_token == 0.735
    assert report.efficiency_score == pytest.approx(0.94 / 36.75 / 10)
    assert report.cost_per_accuracy_point == pytest.approx(39.0957, abs=1e-4)
    assert f"${report.total_cost:.2f}" == "$36.75"


def test_values_are_built_from_their_documented_fields_in_order() -> None:
    run = TrainingMetrics("r", "m", 10, 2, 4, 0.1, 1.0, "A100", 2.0, 0.5, 0.9, 77, NOW)
    assert (run.validation_loss, run.test_accuracy, run.tokens_processed) == (0.5, 0.9, 77)
    report = TrainingCostReport("r", "m", 1.0, 2.0, 3.0, 4.0, 5.0, 0.6, 7.0, run, NOW)
    assert (report.cost_per_token, report.efficiency_score) == (5.0, 0.6)
    assert (report.cost_per_accuracy_point, report.metrics, report.timestamp) == (7.0, run, NOW)


def test_hours_that_were_used_are_the_duration_of_a_run_without_one() -> None:
    run = metrics(total_duration_hours=0.0, hours_used=2.0)
    report = analyzer().analyze_training_run(run)
    assert (report.gpu_hours, report.total_cost) == (2.0, 3.0)


def test_values_become_plain_and_back() -> None:
    run = metrics(gpu_count=8, provider="vast", energy_wh=3.5)
    assert TrainingMetrics.from_dict(run.to_dict()) == run
    report = TrainingCostReport.of(run).to_dict()
    assert report["metrics"]["timestamp"] == NOW.isoformat()


def test_gpus_multiply_the_cost() -> None:
    report = analyzer().analyze_training_run(metrics(gpu_count=8))
    assert (report.total_cost, report.gpu_hours) == (294.0, 196.0)


def test_a_stated_total_wins_over_price_times_hours() -> None:
    assert TrainingCostReport.of(metrics(total_cost=12.34)).total_cost == 12.34


def test_accuracy_and_hours_have_second_names() -> None:
    assert metrics(test_accuracy=None, accuracy=0.5).test_accuracy == 0.5
    assert metrics().hours_used == 24.5
    assert metrics(provider="vast.ai", throughput=5.0).to_dict().items() >= {
        "provider": "vast.ai", "throughput": 5.0, "accuracy": 0.94, "hours_used": 24.5,
    }.items()  # fmt: skip


def test_money_is_rounded_once_from_an_exact_amount() -> None:
    report = TrainingCostReport.of(metrics(total_duration_hours=0.1, gpu_price_per_hour=0.3))
    assert report.total_cost == 0.03


def test_a_run_without_cost_has_unit_costs_of_zero() -> None:
    report = analyzer().analyze_training_run(metrics(gpu_price_per_hour=0.0))
    assert (report.total_cost, report.cost_per_token, report.efficiency_score) == (0.0, 0.0, 1.0)
    assert analyzer().calculate_cost_efficiency(metrics(gpu_price_per_hour=0.0)) == 0.0


def test_unit_costs_without_accuracy_tokens_or_samples_are_none_or_zero() -> None:
    run = metrics(test_accuracy=None, tokens_processed=None, num_samples=0, num_epochs=0)
    report = analyzer().analyze_training_run(run)
    assert (report.cost_per_accuracy_point, report.cost_per_token) == (None, None)
    assert (report.cost_per_sample, report.cost_per_epoch, report.efficiency_score) == (0, 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpu_price_per_hour": -1.0},
        {"gpu_price_per_hour": math.nan},
        {"total_duration_hours": -1.0},
        {"total_duration_hours": math.inf},
        {"gpu_count": 0},
        {"num_samples": -1},
        {"num_epochs": -1},
        {"test_accuracy": math.nan},
        {"total_cost": -5.0},
        {"run_id": ""},
    ],
    ids=str,
)
def test_an_invalid_figure_is_refused_and_not_stored(wrong: Any) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        analyzer().analyze_training_run(metrics(**wrong))
    assert analyzer().get_cost_comparison() == {}


def test_efficiency_is_accuracy_else_throughput_per_dollar() -> None:
    calculate = analyzer().calculate_cost_efficiency
    assert calculate(costing(2.0, test_accuracy=0.5)) == 0.25
    assert calculate(costing(2.0, test_accuracy=None, throughput=100.0)) == 50.0
    assert calculate(costing(2.0, test_accuracy=None)) == 0.0


class TestBudgets:
    def test_can_be_set_before_any_run_and_outlive_the_process(self, tmp_path: Path) -> None:
        analyzer(tmp_path).set_budget("new", 1000.0)
        assert analyzer(tmp_path).budgets == {"new": 1000.0}
        assert analyzer(tmp_path).check_budget("new", 0.0) is None

    @pytest.mark.parametrize(
        ("spent", "expected"),
        [
            (49.99, None),
            (50, "warning_50"),
            (75, "warning_75"),
            (90, "warning_90"),
            (100, "exceeded"),
            (101, "exceeded"),
        ],
    )
    def test_alert_at_each_threshold_inclusive(self, spent: float, expected: str | None) -> None:
        analyzer().set_budget("m", 100)
        alert = analyzer().check_budget("m", spent)
        assert (alert.alert_type if alert else None) == expected

    def test_alert_each_time_at_the_highest_threshold(self) -> None:
        analyzer().set_budget("m", budget_limit=100)
        asked = analyzer()
        told = [asked.check_budget("m", cost) for cost in (10, 60, 65, 95, 92, 120)]
        kinds = [alert.alert_type if alert else None for alert in told]
        warnings = ["warning_50", "warning_50", "warning_90", "warning_90"]
        assert kinds == [None, *warnings, "exceeded"]
        assert asked.alerts == told[1:]

    def test_alert_natively_once_per_threshold_until_a_new_limit(self) -> None:
        book = CostBook(open_store())

        def told(limit: int, *costs: int) -> list[str | None]:
            book.set_budget("m", limit, 0)
            alerts = (book.check_budget("m", 0, cost) for cost in costs)
            return [alert.alert_type if alert else None for alert in alerts]

        expected = ["warning_50", None, "warning_90", None, "exceeded", None]
        assert told(100, 60, 65, 95, 92, 120, 500) == expected
        assert told(100, 60) == [None]
        assert told(110, 60) == ["warning_50"]

    def test_reports_and_metrics_are_listed_by_run(self, tmp_path: Path) -> None:
        asked = analyzer(tmp_path)
        report = asked.analyze_training_run(metrics := costing(30, "a"))
        assert (asked.reports, asked.metrics) == ({"a": report}, {"a": metrics})
        assert asked.data_dir == tmp_path

    def test_use_the_total_of_all_reports(self) -> None:
        analyzer().set_budget("bert-base", 100)
        analyze(costing(30, "a"), costing(30, "b"))
        alert = analyzer().check_budget("bert-base")
        assert alert is not None
        assert (alert.current_cost, alert.percent_used) == (60.0, 60.0)

    def test_are_used_up_by_all_runs_even_if_one_run_s_cost_is_passed(self) -> None:
        analyzer().set_budget("bert-base", 100)
        for run_id in ("a", "b", "c"):
            alert = analyze(costing(40, run_id)).check_budget("bert-base", 40)
        assert alert is not None
        assert (alert.alert_type, alert.current_cost) == ("exceeded", 120.0)

    def test_of_zero_are_exceeded_by_any_cost(self) -> None:
        analyzer().set_budget("m", 0)
        assert analyzer().check_budget("m", 0) is None
        alert = analyzer().check_budget("m", 0.01)
        assert alert is not None
        assert (alert.alert_type, alert.percent_used) == ("exceeded", math.inf)

    @pytest.mark.parametrize("limit", [-1, math.nan, math.inf, "much", True])
    def test_that_are_invalid_are_refused(self, limit: Any) -> None:
        with pytest.raises(InvalidValue):
            analyzer().set_budget("m", limit)

    def test_unknown_models_have_none(self) -> None:
        assert analyzer().check_budget("nobody", 1e9) is None

    def test_alerts_say_what_happened(self) -> None:
        alert = BudgetAlert("m", "warning_75", 80.0, 100.0, 80.0)
        assert alert.message == "The budget of m is being used up: $80.00 of $100.00 (80.0 %)"

    def test_alerts_name_the_currency_of_the_budget(self) -> None:
        analyzer().set_budget("m", "100 EUR")
        alert = analyzer().check_budget("m", 100)
        assert alert is not None
        assert alert.message == "The budget of m is used up: 100.00 EUR of 100.00 EUR (100.0 %)"

    def test_an_alert_of_no_known_type_is_refused(self) -> None:
        with pytest.raises(ValueError, match="warning_50"):
            BudgetAlert("m", "panic", 1.0, 1.0, 1.0)  # type: ignore[arg-type]


class TestComparison:
    def test_has_the_documented_figures_of_each_model(self) -> None:
        for index, (model, cost) in enumerate([("a", 10), ("a", 20), ("b", 5), ("b", 15)]):
            analyze(costing(cost, f"r{index}", model=model, num_samples=10, num_epochs=5))
        found = analyzer().get_cost_comparison()
        assert list(found) == ["a", "b"]
        a = found["a"]
        assert (a["runs"], a["total_cost"], a["avg_cost_per_run"]) == (2, 30.0, 15.0)
        assert (a["avg_cost_per_sample"], a["avg_cost_per_epoch"]) == (1.5, 3.0)
        assert a["avg_accuracy"] == 0.94
        assert a["best_efficiency_score"] == pytest.approx(0.94 / 10 / 10)

    def test_averages_accuracy_over_the_runs_that_have_one(self) -> None:
        analyze(costing(1, "a", test_accuracy=None), costing(1, "b", test_accuracy=0.9))
        assert analyzer().get_cost_comparison()["bert-base"]["avg_accuracy"] == 0.9

    def test_average_accuracy_is_none_if_no_run_has_one(self) -> None:
        analyze(costing(1, test_accuracy=None))
        assert analyzer().get_cost_comparison()["bert-base"]["avg_accuracy"] is None

    def test_counts_the_same_run_once(self) -> None:
        analyze(costing(10), costing(10), costing(11))
        found = analyzer().get_cost_comparison()["bert-base"]
        assert (found["runs"], found["total_cost"]) == (1, 11.0)

    def test_never_adds_two_currencies(self) -> None:
        analyze(costing(10, "a"), costing(20, "b", currency="EUR"))
        found = analyzer().get_cost_comparison()
        assert {name: f["total_cost"] for name, f in found.items()} == {
            "bert-base (EUR)": 20.0,
            "bert-base (USD)": 10.0,
        }


class TestRoi:
    def runs(self, *accuracies: float | None) -> dict[str, Any]:
        for index, accuracy in enumerate(accuracies):
            stamp = NOW.replace(hour=index)
            analyze(costing(10, f"r{index}", test_accuracy=accuracy, timestamp=stamp))
        return analyzer().get_roi_analysis("bert-base")

    def test_is_the_documented_difference_of_last_and_first(self) -> None:
        found = self.runs(0.80, 0.92)
        assert found["accuracy_improvement"] == pytest.approx(0.12)
        assert found["improvement_per_dollar"] == pytest.approx(0.12 / 20)
        assert (found["model_name"], found["runs"]) == ("bert-base", 2)
        assert found["total_investment"] == 20.0
        assert (found["first_accuracy"], found["current_accuracy"]) == (0.80, 0.92)

    def test_the_best_accuracy_need_not_be_the_last(self) -> None:
        found = self.runs(0.80, 0.95, 0.70)
        assert found["accuracy_improvement"] == pytest.approx(-0.10)
        assert (found["best_accuracy"], found["best_improvement"]) == (0.95, pytest.approx(0.15))

    def test_prices_each_new_best_by_everything_spent_since_the_last(self) -> None:
        found = self.runs(0.80, 0.70, 0.90, None, 0.91)
        gains = [(gain["run_id"], gain["spent"]) for gain in found["gains"]]
        assert gains == [("r2", 20.0), ("r4", 20.0)]
        assert found["gains"][0]["per_dollar"] == pytest.approx(0.1 / 20)

    def test_of_runs_without_accuracy_is_unknown(self) -> None:
        found = self.runs(None, None)
        assert (found["first_accuracy"], found["accuracy_improvement"]) == (None, None)
        assert found["improvement_per_dollar"] == 0.0

    def test_of_an_unknown_model_is_zero(self) -> None:
        found = analyzer().get_roi_analysis("nobody")
        assert (found["total_investment"], found["improvement_per_dollar"]) == (0, 0)


def test_the_pareto_front_leaves_out_what_another_run_beats() -> None:
    analyze(
        costing(10, "cheap", test_accuracy=0.8),
        costing(20, "good", test_accuracy=0.9),
        costing(25, "beaten", test_accuracy=0.85),
        costing(20, "equal", test_accuracy=0.9),
        costing(1, "unknown", test_accuracy=None),
    )
    front = [point["name"] for point in analyzer().get_pareto_front("bert-base")]
    assert front == ["cheap", "equal", "good"]


def test_a_run_beats_none_that_was_paid_in_another_currency() -> None:
    analyze(costing(10, "dollars"), costing(20, "euros", currency="EUR"))
    front = [(point["name"], point["currency"]) for point in analyzer().get_pareto_front()]
    assert front == [("dollars", "USD"), ("euros", "EUR")]


def test_reports_survive_a_restart() -> None:
    before = analyzer().analyze_training_run(metrics())
    assert analyzer().cost_history == {"r1": before}


def test_ten_thousand_runs_sum_exactly(tmp_path: Path) -> None:
    """How long it takes is measured in benchmarks/cost_summary.py."""
    rows = [
        RunRow(
            run_id=f"r{i}", model=f"m{i % 7}", name="r", dir="/r", status="completed", attempts=1,
            steps=1, tokens=1, started_ns=0, last_seen_ns=i, cost=Money(i), updated_ns=i,
        )
        for i in range(10_000)
    ]  # fmt: skip
    register(open_store(tmp_path), rows)
    comparison = analyzer(tmp_path).get_cost_comparison()
    total = sum(round(model["total_cost"] * 1e6) for model in comparison.values())
    assert total == sum(range(10_000))
