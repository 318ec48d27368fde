"""The shipped grids run, from the command to the summary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from papers import ROOT
from scripts import seconds_of_one_step


def sweep(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outlay", "sweep", *map(str, arguments)]
    environ = {name: value for name, value in os.environ.items() if name != "OUTLAY_RUN_DIR"}
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )


def shortened(name: str, tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = (ROOT / "configs" / "sweeps" / name).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / name
    path.write_text(text)
    return path


def run_and_summarise(grid: Path, root: Path) -> list[dict[str, object]]:
    done = sweep("run", grid, "--enable-sweeps", "--jobs", "2", "--output-dir", root)
    logs = "\n".join(path.read_text() for path in root.glob("*/sweep.log"))
    assert done.returncode == 0, done.stderr + logs
    summary = sweep("aggregate", root, "--json")
    assert summary.returncode == 0, summary.stderr
    rows: list[dict[str, object]] = json.loads(summary.stdout)["runs"]
    return rows


@pytest.mark.parametrize("currency", ["USD", "EUR"])
def test_the_iso_cost_example_spends_the_same_on_every_run(tmp_path: Path, currency: str) -> None:
    limit = max(0.004, round(seconds_of_one_step(tmp_path / "one") * 0.006, 3))
    grid = shortened(
        "example_iso_cost.yaml", tmp_path, ("0.01 USD", f"{limit} USD"), (" USD", f" {currency}"),
        ("[0.01, 0.03, 0.1, 0.3]", "[0.3]"),
    )  # fmt: skip
    rows = run_and_summarise(grid, tmp_path / "sweep")
    assert len(rows) == 2
    for row in rows:
        assert row["status"] == "completed"
        assert str(row["stop_reason"]).startswith("cost: ")
        assert row["cost"] == pytest.approx(limit, rel=0.5)
        assert row["charged_cost"] == pytest.approx(limit, rel=0.5)
        assert row["currency"] == currency
        assert row["errors"] in ("", "metric 'accuracy' was not recorded")


LARGE_BATCH = """\
  - name: large-batch
    params: {batch_size: 256, lr: 0.2, world_size: 2}
"""


def test_the_iso_time_example_runs_under_torchrun(tmp_path: Path) -> None:
    grid = shortened(
        "example_iso_time.yaml", tmp_path, ("limit: 0.1", "limit: 0.05"),
        ("evaluate_every=20", "evaluate_every=1"), (LARGE_BATCH, ""),
    )  # fmt: skip
    (row,) = run_and_summarise(grid, tmp_path / "sweep")
    assert row["run_id"] == "001_small-batch"
    assert str(row["stop_reason"]).startswith("time: ")
    assert row["accuracy_value"] is not None
    assert row["budget_mode"] == "iso_time"
