"""cost_history.json and budgets.json: read, written, and never destroyed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlay.cost.analyzer import CostAnalyzer
from outlay.cost.exchange import CorruptCosts, export_costs, import_costs
from test_cost_analyzer import costing


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


def test_what_stands_in_a_file_is_kept(filled: CostAnalyzer, tmp_path: Path) -> None:
    (tmp_path / "budgets.json").write_text('{"gpt": 5.0}')
    export_costs(filled, tmp_path)
    budgets = json.loads((tmp_path / "budgets.json").read_text())
    assert budgets == {"gpt": 5.0, "bert-base": 100.0}


def test_a_torn_file_is_left_as_it_is(filled: CostAnalyzer, tmp_path: Path) -> None:
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


def test_a_directory_without_files_imports_nothing(tmp_path: Path) -> None:
    done = import_costs(CostAnalyzer(tmp_path), tmp_path)
    assert (done.reports, done.budgets) == (0, 0)
