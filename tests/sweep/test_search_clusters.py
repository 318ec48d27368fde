"""A halving on real clusters, whose harness is killed on the way: the decisions of any other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from command_line import outlay
from outlay.clock import SYSTEM
from outlay.ledger import derive_attempts, read_lives
from outlay.runs.reading import read_figures
from outlay.sweep.run.sweep_guard import guard_of
from outlay.sweep.state.manifest import read_manifest
from ray_cluster import RayCluster
from slurm_cluster import Cluster
from sweep_process import killed_sweep
from waiting import until

PROGRAM = Path(__file__).parents[1] / "programs" / "searched_run.py"
OUTCOME = {0.3: ("pruned", 20), 0.1: ("completed", 60), 0.2: ("pruned", 20)}
"""The status and tokens of each run, by its final loss."""


def killed_and_resumed(
    directory: Path,
    block: Mapping[str, Any],
    environ: Mapping[str, str],
    explain: Callable[[], str],
) -> dict[float, tuple[str, int | None]]:
    """Run three configurations, kill the harness after the first report, and resume."""
    root = directory / "sweep"
    grid = {
        **block, "arguments": "none", "output_dir": str(root), "timeout": "5m",
        "entrypoint": [sys.executable, str(PROGRAM), "{final}", "plain"],
        "price": "36 USD/h", "ceiling": "20 USD", "budget": {"target_metric": "loss"},
        "search": {"halving": {"first": "20tok", "last": "60tok", "factor": 3}},
        "grid": [{"name": "g", "params": {"final": list(OUTCOME)}}],
    }  # fmt: skip
    path = directory / "grid.json"
    path.write_text(json.dumps(grid))
    journal = root / "sweep_journal.jsonl"
    with killed_sweep("run", "--yes", path, environ=environ):
        until(lambda: journal.exists() and '"paused"' in journal.read_text(), explain)
    resumed = outlay("sweep", "resume", root, "--yes")
    assert resumed.code == 0, resumed.out + resumed.err + explain()
    manifest, now_ns = read_manifest(root), SYSTEM.wall_ns()
    guard = guard_of(manifest)
    assert guard is not None
    assert guard.holds() == ()
    # Each rung is trained once; a start that no job followed has no log.
    attempts = [len(derive_attempts(read_lives(root / run))) for run in manifest.runs]
    assert attempts == [1, 2, 1]
    return {
        run.params["final"]: (
            manifest.state(name).status, read_figures(root / name, now_ns).tokens,
        )
        for name, run in manifest.runs.items()
    }  # fmt: skip


@pytest.mark.cluster
def test_a_halving_on_slurm(slurm: Cluster, tmp_path: Path) -> None:
    block = {"engine": "slurm", "slurm": {"partition": "main", "time": "10m"}}
    assert killed_and_resumed(tmp_path, block, slurm.environ, slurm.explain) == OUTCOME


@pytest.mark.slow
def test_a_halving_on_ray(ray: RayCluster, tmp_path: Path) -> None:
    block = {"engine": "ray", "ray": {"address": ray.url}}
    assert killed_and_resumed(tmp_path, block, {}, ray.explain) == OUTCOME
