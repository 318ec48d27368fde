"""The demo: a real training, really killed, really resumed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from outlay.goodput.follower import GoodputFollower
from outlay.goodput.reliability import disruptions
from outlay.ledger import Metric, read_run

EXAMPLES = Path(__file__).parent.parent / "examples"


def _spirals(directory: Path, *more: str) -> int:
    command = [sys.executable, str(EXAMPLES / "mlp.py"), "--dir", str(directory), "--steps", "300"]
    return subprocess.run([*command, "--price", "2.50 USD/h", *more], check=False).returncode


def test_the_training_is_killed_resumed_and_accounted_for(tmp_path: Path) -> None:
    assert _spirals(tmp_path, "--kill-at", "150") == -9
    assert _spirals(tmp_path) == 0
    view = GoodputFollower(tmp_path).view(now_ns=2**62)
    whole = view.break_down()
    assert len(disruptions(view.timeline)) == 1
    assert whole.phases["wasted_progress"] > 0
    assert sum(whole.phases.values()) == whole.wall_ns
    assert whole.cost is not None
    assert sum(cost.micros for cost in whole.cost_by_phase.values()) == whole.cost.micros


def test_the_training_really_learns(tmp_path: Path) -> None:
    assert _spirals(tmp_path) == 0
    log = read_run(tmp_path)
    accuracy = [r.number for r in log.records if isinstance(r, Metric) and r.name == "accuracy"]
    assert accuracy[-1] > accuracy[0] > 0.5


def test_resuming_continues_the_same_weights(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("mlp", EXAMPLES / "mlp.py")
    assert spec is not None
    assert spec.loader is not None
    mlp = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mlp)
    model, other = mlp.Mlp(seed=1), mlp.Mlp(seed=2)
    model.save(tmp_path / "checkpoint.npz")
    other.load(tmp_path / "checkpoint.npz")
    assert all((a == b).all() for a, b in zip(model.parameters(), other.parameters(), strict=True))
