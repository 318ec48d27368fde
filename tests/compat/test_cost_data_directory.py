"""``~/.context/training`` and directories like it: imported and kept up to date."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from command_line import outlay
from outlay import (
    CostAnalyzer,
    CostOptimizer,
    GPUPrice,
    GPUPriceTracker,
    OptimizationRecommendation,
    PriceHistory,
    TrainingCostReport,
    TrainingMetrics,
)
from outlay.clock import utc_now
from training_metrics import costing

NAIVE = datetime(2026, 1, 2, 3, 4)  # noqa: DTZ001 - as scripts of the cost module have it
AWARE = NAIVE.replace(tzinfo=UTC)
METRICS = {
    "run_id": "old", "model_name": "bert-base", "num_samples": 1000, "num_epochs": 2,
    "batch_size": 8, "learning_rate": 0.1, "total_duration_hours": 10.0, "gpu_name": "A100",
    "gpu_price_per_hour": 1.5, "validation_loss": None, "test_accuracy": 0.9,
    "tokens_processed": None, "timestamp": "2026-01-02T03:04:00+00:00",
}  # fmt: skip
FILES: dict[str, Any] = {
    "cost_history.json": {
        "old": {
            "run_id": "old", "model_name": "bert-base", "total_cost": 15.0, "gpu_hours": 10.0,
            "cost_per_sample": 0.015, "cost_per_epoch": 7.5, "metrics": METRICS,
            "timestamp": METRICS["timestamp"],
        }
    },
    "budgets.json": {"bert-base": 1000.0},
    "recommendations.json": [
        {
            "category": "compute", "title": "Another GPU", "description": "d",
            "estimated_savings": 5.0, "estimated_time_saved": None, "confidence": 0.7,
            "action": "a", "risks": ["r"], "timestamp": "2026-01-02T03:04:00+00:00",
        }
    ],
    "prices/price_history.json": {"A100|vast.ai": [[1.25, "2026-01-02T03:04:00+00:00"]]},
}  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``~/.context/training`` of a user who has used the cost module."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return filled(tmp_path / ".context" / "training")


def filled(directory: Path) -> Path:
    for name, content in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return directory


def held(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.usefixtures("directory")
def test_files_in_the_home_directory_are_imported() -> None:
    analyzer = CostAnalyzer()
    assert analyzer.budgets == {"bert-base": 1000.0}
    assert analyzer.cost_history["old"].total_cost == 15.0
    assert [each.title for each in CostOptimizer().recommendations] == ["Another GPU"]
    assert GPUPriceTracker().histories["A100", "vast.ai"].prices == [(AWARE, 1.25)]


def test_files_in_a_named_data_dir_are_imported(tmp_path: Path) -> None:
    named = filled(tmp_path / "named")
    assert CostAnalyzer(named).budgets == {"bert-base": 1000.0}
    assert [each.title for each in CostOptimizer(data_dir=named).recommendations] == ["Another GPU"]
    for data_dir in (named, named / "prices"):
        assert ("A100", "vast.ai") in GPUPriceTracker(data_dir).histories


def test_the_command_shows_and_logs_an_import_once(directory: Path) -> None:
    first = outlay("cost-report", "--json")
    assert f"imported 1 cost report from {directory}" in first.err
    assert first.json["models"]["bert-base"]["total_cost"] == 15.0
    assert outlay("cost-report", "--json").err == ""


def test_cost_history_is_kept_up_to_date(directory: Path) -> None:
    report = CostAnalyzer().analyze_training_run(costing(20, "new"))
    history = held(directory / "cost_history.json")
    assert set(history) == {"old", "new"}
    assert history["new"]["metrics"]["run_id"] == "new"
    assert history["new"]["total_cost"] == report.total_cost


# The fields of the cost module's dataclasses: its loaders pass every key of a row to them.
METRICS_FIELDS = {*METRICS, "provider", "hours_used", "total_cost", "throughput", "accuracy"}
REPORT_FIELDS = {
    "run_id", "model_name", "total_cost", "gpu_hours", "cost_per_sample", "cost_per_epoch",
    "cost_per_token", "efficiency_score", "cost_per_accuracy_point", "metrics", "timestamp",
}  # fmt: skip
ADVICE_FIELDS = set(FILES["recommendations.json"][0])


def test_rows_have_the_documented_keys_alone(directory: Path) -> None:
    CostAnalyzer().analyze_training_run(costing(20, "new", gpu_count=2, energy_wh=5.0))
    CostOptimizer().recommend_compute_tier("A100", 2.0, 100.0, {"H100": (3.0, 300.0)}, subject="r")
    for row in held(directory / "cost_history.json").values():
        assert (set(row) <= REPORT_FIELDS, set(row["metrics"]) <= METRICS_FIELDS) == (True, True)
    for row in held(directory / "recommendations.json"):
        assert set(row) <= ADVICE_FIELDS


def test_what_the_files_cannot_express_is_beside_them(directory: Path, tmp_path: Path) -> None:
    made = costing(20, "new", gpu_count=2, energy_wh=5.0)
    CostAnalyzer().analyze_training_run(made)
    CostOptimizer().recommend_compute_tier("A100", 2.0, 100.0, {"H100": (3.0, 300.0)}, subject="r")
    shutil.copytree(directory, tmp_path / "copy")
    assert CostAnalyzer(tmp_path / "copy").metrics["new"] == made
    copied = CostOptimizer(tmp_path / "copy").recommendations
    assert {each.subject for each in copied} == {"", "r"}


def test_budgets_are_kept_up_to_date_and_the_store_wins(directory: Path) -> None:
    CostAnalyzer().set_budget("bert-base", 2000)
    assert held(directory / "budgets.json") == {"bert-base": 2000.0}
    (directory / "budgets.json").write_text('{"bert-base": 1, "gpt": 5}')
    assert CostAnalyzer().budgets == {"bert-base": 2000.0, "gpt": 5.0}
    assert held(directory / "budgets.json") == {"bert-base": 2000.0, "gpt": 5.0}


def test_a_budget_that_is_no_longer_in_dollars_leaves_the_file(directory: Path) -> None:
    CostAnalyzer().set_budget("bert-base", "2000 EUR")
    assert held(directory / "budgets.json") == {}


def test_the_command_keeps_budgets_up_to_date(directory: Path) -> None:
    assert outlay("cost-report", "--set-budget", "bert-base", "1500.0").code == 0
    assert held(directory / "budgets.json") == {"bert-base": 1500.0}


def test_a_ceiling_is_written_beside_the_budgets_of_the_file(directory: Path) -> None:
    assert outlay("cost", "ceiling", "set", "gpt", "20 USD").code == 0
    assert held(directory / "budgets.json") == {"bert-base": 1000.0, "gpt": 20.0}


def test_advice_of_the_command_is_written_and_nothing_else(directory: Path) -> None:
    before = {name: (directory / name).read_text() for name in FILES}
    advised = outlay("advise", str(Path(__file__).parents[1] / "data" / "ledger-v1"), "--json").json
    titles = {each["title"] for each in advised["recommendations"]}
    changed = {name for name in FILES if (directory / name).read_text() != before[name]}
    assert changed == {"recommendations.json"}
    assert {row["title"] for row in held(directory / "recommendations.json")} >= {
        "Another GPU", *titles
    }  # fmt: skip
    assert titles


@pytest.mark.usefixtures("directory")
def test_statistics_of_prices_include_those_of_the_file() -> None:
    assert outlay("prices", "stats", "--json").json["current_prices"] == {"vast.ai:A100": 1.25}


def test_recommendations_are_kept_up_to_date(directory: Path) -> None:
    optimizer = CostOptimizer()
    given = optimizer.recommend_compute_tier("A100", 2.0, 100.0, {"H100": (3.0, 300.0)})
    assert given is not None
    written = held(directory / "recommendations.json")
    assert {row["title"] for row in written} == {"Another GPU", given.title}
    assert {each.title for each in optimizer.recommendations} == {"Another GPU", given.title}


def test_price_history_is_kept_up_to_date(directory: Path) -> None:
    GPUPriceTracker().track_price(GPUPrice("A100", "vast.ai", 1.5, timestamp=NAIVE))
    written = held(directory / "prices" / "price_history.json")
    assert sorted(price for price, _ in written["A100|vast.ai"]) == [1.25, 1.5]
    again = GPUPriceTracker()  # What was written is not taken for new prices.
    assert len(again.histories["A100", "vast.ai"].prices) == 1  # The cheapest at one instant.
    assert held(directory / "prices" / "price_history.json") == written


def test_an_empty_home_directory_gets_all_four_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = tmp_path / ".context" / "training"
    directory.mkdir(parents=True)
    CostAnalyzer().set_budget("m", 1)
    CostOptimizer()
    GPUPriceTracker().track_price(GPUPrice("A100", "vast.ai", 1.5))
    files = {str(path.relative_to(directory)) for path in directory.rglob("*.json")}
    assert files == set(FILES)


def test_without_such_a_directory_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    CostAnalyzer().set_budget("m", 1)
    assert not (tmp_path / ".context").exists()


@pytest.mark.parametrize(
    ("name", "torn"),
    [
        ("cost_history.json", '{"a": {'),
        ("budgets.json", "[]"),
        ("recommendations.json", "[{"),
        ("recommendations.json", '[{"category": 1}]'),
        ("prices/price_history.json", '{"no bar": []}'),
    ],
)
def test_a_torn_file_is_unchanged_and_raises_nothing(
    directory: Path, name: str, torn: str, caplog: pytest.LogCaptureFixture
) -> None:
    (directory / name).write_text(torn)
    CostAnalyzer().set_budget("m", 5)
    CostOptimizer().recommend_compute_tier("A100", 2.0, 100.0, {"H100": (3.0, 300.0)})
    GPUPriceTracker().track_price(GPUPrice("A100", "vast.ai", 1.5))
    assert (directory / name).read_text() == torn
    assert Path(name).name in caplog.text
    assert CostAnalyzer().budgets["m"] == 5.0


def test_advice_that_is_appended_to_the_list_is_kept(tmp_path: Path) -> None:
    optimizer = CostOptimizer(tmp_path)
    for title, confidence in (("Test 1", 0.9), ("Test 2", 0.5)):
        given = OptimizationRecommendation("test", title, "d", 10.0, confidence=confidence)
        optimizer.recommendations.append(given)
    (sure,) = optimizer.get_high_confidence_recommendations(confidence_threshold=0.8)
    assert sure.confidence == 0.9
    assert len(CostOptimizer(tmp_path).recommendations) == 2


def test_a_current_price_is_a_number_with_the_fields_of_its_offer(tmp_path: Path) -> None:
    tracker = GPUPriceTracker(tmp_path)
    tracker.track_price(GPUPrice("A100", "vast.ai", 1.5, region="eu"))
    current = tracker.current_prices["A100", "vast.ai"]
    assert current == 1.5
    assert current < 2
    assert f"{current} {current:.2f}" == "1.5 1.50"
    assert (current.region, current.price_per_hour) == ("eu", 1.5)


@pytest.mark.parametrize(
    "made",
    [
        GPUPrice("A100", "vast.ai", 1.5, timestamp=NAIVE),
        TrainingMetrics("r", "m", 1, 1, 1, 0.1, 1.0, "A100", 1.5, timestamp=NAIVE),
        TrainingCostReport("r", "m", 1.0, 1.0, 1.0, 1.0, timestamp=NAIVE),
        OptimizationRecommendation("c", "t", "d", 1.0, timestamp=NAIVE),
    ],
    ids=lambda made: type(made).__name__,
)
def test_a_time_without_a_zone_comes_out_comparable(made: Any) -> None:
    assert made.timestamp == AWARE
    assert made.timestamp < utc_now()


def test_the_times_of_a_history_compare_whichever_way_they_came_in() -> None:
    history = PriceHistory("A100", "vast.ai", [(NAIVE, 1.0)])
    history.add_price(2.0, AWARE)
    history.add_price(3.0, NAIVE)
    assert [at for at, _ in history.prices] == [AWARE] * 3
    assert sorted(history.prices)[0] == (AWARE, 1.0)
