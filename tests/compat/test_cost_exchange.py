"""cost_history.json, budgets.json, recommendations.json: import and export without loss."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from command_line import outlay
from outlay.clock import ManualClock
from outlay.compat.cost_module.analyzer import (
    CostAnalyzer,
    export_costs,
    import_costs,
)
from outlay.compat.cost_module.data_directory import CorruptCosts
from outlay.compat.cost_module.optimizer import (
    CostOptimizer,
    export_recommendations,
    import_recommendations,
)
from training_metrics import costing


@pytest.fixture
def filled(tmp_path: Path) -> CostAnalyzer:
    found = CostAnalyzer(tmp_path / "from")
    found.analyze_training_run(costing(10, "a"))
    found.analyze_training_run(costing(20, "b", gpu_count=2))
    found.set_budget("bert-base", 100)
    return found


def test_what_is_exported_comes_back(filled: CostAnalyzer, tmp_path: Path) -> None:
    export_costs(filled, tmp_path / "files")
    other = CostAnalyzer(tmp_path / "to")
    for _ in range(2):
        done = import_costs(other, tmp_path / "files")
        assert (done.reports, done.budgets, done.findings) == (2, 1, ())
    assert other.cost_history == filled.cost_history
    assert other.budgets == {"bert-base": 100.0}


def test_an_export_keeps_the_contents_of_the_file(filled: CostAnalyzer, tmp_path: Path) -> None:
    (tmp_path / "budgets.json").write_text('{"gpt": 5.0}')
    export_costs(filled, tmp_path)
    budgets = json.loads((tmp_path / "budgets.json").read_text())
    assert budgets == {"gpt": 5.0, "bert-base": 100.0}


def test_a_torn_file_is_unchanged(filled: CostAnalyzer, tmp_path: Path) -> None:
    torn = tmp_path / "cost_history.json"
    torn.write_text('{"a": {')
    for exchange in (import_costs, export_costs):
        with pytest.raises(CorruptCosts, match="left as it is"):
            exchange(filled, tmp_path)
    assert torn.read_text() == '{"a": {'
    assert not (tmp_path / "budgets.json").exists()


def test_a_report_without_metrics_is_imported_by_its_total(tmp_path: Path) -> None:
    report = {"model_name": "m", "gpu_hours": 3.0, "total_cost": 4.5, "timestamp": "2026-01-01"}
    bad = report | {"total_cost": -1.0}
    (tmp_path / "cost_history.json").write_text(json.dumps({"a": report, "b": bad, "c": {}}))
    other = CostAnalyzer(tmp_path / "store")
    done = import_costs(other, tmp_path)
    assert (done.reports, [finding.source for finding in done.findings]) == (1, ["b", "c"])
    assert other.get_cost_comparison()["m"]["total_cost"] == 4.5


@pytest.mark.parametrize("row", [5, "x", [], {"metrics": 3}, {"metrics": {"run_id": {}}}])
def test_an_invalid_report_does_not_stop_the_others(tmp_path: Path, row: object) -> None:
    report = {"model_name": "m", "gpu_hours": 3.0, "total_cost": 4.5, "timestamp": "2026-01-01"}
    (tmp_path / "cost_history.json").write_text(json.dumps({"bad": row, "good": report}))
    done = import_costs(CostAnalyzer(tmp_path / "store"), tmp_path)
    assert (done.reports, [finding.source for finding in done.findings]) == (1, ["bad"])


@pytest.mark.parametrize("wrong", [{"run_id": None}, {"model_name": {}}, {"currency": 5}])
def test_a_report_without_a_name_is_a_finding(tmp_path: Path, wrong: dict[str, object]) -> None:
    metrics = costing(10).to_dict() | wrong
    (tmp_path / "cost_history.json").write_text(json.dumps({"bad": {"metrics": metrics}}))
    done = import_costs(CostAnalyzer(tmp_path / "store"), tmp_path)
    assert (done.reports, [finding.source for finding in done.findings]) == (0, ["bad"])


def test_a_budget_in_another_currency_is_not_written_as_dollars(tmp_path: Path) -> None:
    analyzer = CostAnalyzer(tmp_path / "store")
    analyzer.set_budget("here", "1000 EUR")
    analyzer.set_budget("there", 5)
    done = export_costs(analyzer, tmp_path)
    assert json.loads((tmp_path / "budgets.json").read_text()) == {"there": 5.0}
    assert ["1000.00 EUR" in finding.message for finding in done.findings] == [True]


def test_a_directory_without_files_imports_nothing(tmp_path: Path) -> None:
    done = import_costs(CostAnalyzer(tmp_path), tmp_path)
    assert (done.reports, done.budgets) == (0, 0)


class TestRecommendations:
    def advised(self, directory: Path) -> CostOptimizer:
        found = CostOptimizer(directory, clock=ManualClock())
        found.recommend_compute_tier("A100", 2.0, 100.0, {"H100": (3.0, 300.0)}, subject="r")
        return found

    def test_what_is_exported_comes_back(self, tmp_path: Path) -> None:
        given = self.advised(tmp_path / "from")
        assert export_recommendations(given, tmp_path / "files") == 1
        other = CostOptimizer(tmp_path / "to", clock=ManualClock())
        for _ in range(2):
            assert import_recommendations(other, tmp_path / "files") == (1, ())
        assert other.get_all_recommendations() == given.get_all_recommendations()

    def test_the_file_is_a_list_of_documented_fields(self, tmp_path: Path) -> None:
        export_recommendations(self.advised(tmp_path / "from"), tmp_path)
        (row,) = json.loads((tmp_path / "recommendations.json").read_text())
        assert set(row) == {
            "category", "title", "description", "estimated_savings", "estimated_time_saved",
            "confidence", "action", "risks", "timestamp",
        }  # fmt: skip

    def test_a_file_of_the_documented_fields_alone_is_read(self, tmp_path: Path) -> None:
        row = {
            "category": "compute", "title": "t", "description": "d", "estimated_savings": 5.0,
            "confidence": 0.7, "timestamp": "2026-01-01T00:00:00",
        }  # fmt: skip
        bad = row | {"estimated_savings": "much"}
        (tmp_path / "recommendations.json").write_text(json.dumps([row, bad, 3]))
        optimizer = CostOptimizer(tmp_path, clock=ManualClock())
        taken, findings = import_recommendations(optimizer, tmp_path)
        assert (taken, len(findings)) == (1, 2)
        (found,) = optimizer.get_all_recommendations(hours=1e6)
        assert (found.title, found.timestamp) == ("t", datetime(2026, 1, 1, tzinfo=UTC))

    @pytest.mark.parametrize("torn", ["[{", "{}", '[{"category": 1}]'])
    def test_a_file_that_cannot_be_read_is_never_written_over(
        self, tmp_path: Path, torn: str
    ) -> None:
        (tmp_path / "recommendations.json").write_text(torn)
        with pytest.raises(CorruptCosts, match="left as it is"):
            export_recommendations(self.advised(tmp_path / "from"), tmp_path)
        assert (tmp_path / "recommendations.json").read_text() == torn

    def test_the_command_writes_and_reads_all_three_files(self, tmp_path: Path) -> None:
        CostOptimizer().recommend_compute_tier("A100", 2.0, 100.0, {"H100": (3.0, 300.0)})
        assert outlay("cost", "export", tmp_path, "--json").json["recommendations"] == 1
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {
            "cost_history.json", "budgets.json", "recommendations.json",
            "recommendations.outlay.json",
        }  # fmt: skip
        assert "1 recommendations read from" in outlay("cost", "import", tmp_path).out
