"""Documented keys of grids, columns of summaries, and options of the aggregator."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from command_line import run_module
from ledgers import Segment
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.plan.launch import Place, command_of, environment_of
from outlay.sweep.plan.planning import make_plan
from sweep_on_disk import Sweep

EVERY_KEY = """
name: study
entrypoint: train.py
output_dir: out
work_dir: .
overrides: [train.epochs=2]
env: {OMP_NUM_THREADS: "1"}
nnodes: 1
node_rank: 0
rendezvous: {}
grid:
  - name: small
    params: {lr: 0.1}
    overrides: [data.size=10]
    env: {EXTRA: "yes"}
    budget: {mode: iso_time, limit: 1, max_comm_bytes: 9, max_energy_Wh: 2, steps_per_epoch: 3}
    metadata: {note: first}
    nnodes: 1
    node_rank: 0
    rendezvous: {}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def test_a_grid_takes_every_documented_key_of_its_root_and_its_entries() -> None:
    plan = make_plan(read_grid(EVERY_KEY, source="grid.yaml", default_name="grid"))
    (run,) = plan.runs
    place = Place(directory=f"/s/{run.id}", port=4242)
    command, environment = command_of(plan, run, place), environment_of(run, place)
    assert run.id == "001_small"
    assert {"train.epochs=2", "lr=0.1", "data.size=10"} <= set(command)
    limits = ("max_minutes=1", "max_comm_bytes=9", "max_energy_Wh=2", "steps_per_epoch=3")
    assert {f"runtime.budget.{limit}" for limit in limits} <= set(command)
    assert (environment["OMP_NUM_THREADS"], environment["EXTRA"]) == ("1", "yes")
    assert run.metadata["note"] == "first"


def test_the_summary_has_every_documented_column(sweep: Sweep) -> None:
    story = Segment().step(60, samples=4, tokens=20, comm_bytes=10).end()
    story.write(
        sweep.add(
            "001_a", params={"lr": 0.1},
            metadata={"budget_mode": "iso_time", "target_metric": "acc", "target_value": 0.8},
            budget={"limits": {"max_minutes": 2}},
        )
    )  # fmt: skip
    words = ("--enable-aggregator", "--root", sweep.root, "--allow-missing")
    done = run_module("outlay.sweep.aggregate", *words)
    assert done.code == 0, done.err
    (table,) = (sweep.root / "reports").glob("summary_*.csv")
    with table.open() as stream:
        (row,) = csv.DictReader(stream)
    documented = {
        "run_id", "status", "world_size", "ips_mean", "step_time_ms", "bytes_per_step",
        "accuracy_metric", "accuracy_value", "target_value", "time_to_target_min", "energy_Wh",
        "fidelity_mean", "errors", "budget_mode", "limit_max_minutes", "steps", "time_minutes",
        "tokens", "comm_bytes", "param_lr",
    }  # fmt: skip
    assert documented <= set(row)
    assert [row[name] for name in ("steps", "time_minutes", "tokens", "comm_bytes")] == [
        "1", "1.0", "20", "10",
    ]  # fmt: skip
    assert (row["budget_mode"], row["limit_max_minutes"], row["param_lr"]) == (
        "iso_time",
        "2",
        "0.1",
    )


def test_the_aggregator_takes_a_manifest_an_output_and_a_variable(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.add("001_a", status="error")
    monkeypatch.setenv("MFCL_SWEEP_AGGREGATOR", "1")
    manifest, output = sweep.root / "sweep_manifest.json", tmp_path / "elsewhere"
    words = ("--manifest", manifest, "--output", output)
    done = run_module("outlay.sweep.aggregate", *words)
    assert done.code == 0, done.err
    assert (output / "summary.md").exists()
    assert not (sweep.root / "reports").exists()
