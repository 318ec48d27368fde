"""The two documented snippets of cost analysis; only imports and placeholders are changed."""

from __future__ import annotations

import pytest

from cost_snippets import INTEGRATION, QUICK_START, run
from fake_vendor import as_json, serving
from vendor_shapes import vast_answer


def test_the_quick_start_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(as_json(vast_answer())) as vendor:
        monkeypatch.setenv("OUTLAY_VAST_URL", vendor.url)
        names = run(QUICK_START)
    assert capsys.readouterr().out == "Cost: $36.75\n"
    assert names["prices"]
    assert names["alert"] is None


def test_the_integration_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(INTEGRATION, train_dataset=range(100), accuracy=0.9)
    assert capsys.readouterr().out == "Training cost: $0.00\n"
    assert names["alert"] is None


def test_the_integration_prints_a_budget_alert(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(
        INTEGRATION.replace("total_duration_hours=duration", "total_duration_hours=600.0"),
        train_dataset=range(100),
        accuracy=0.9,
    )
    said = "Budget alert: The budget of my_model is being used up: $900.00 of $1000.00 (90.0 %)\n"
    assert capsys.readouterr().out == "Training cost: $900.00\n" + said
