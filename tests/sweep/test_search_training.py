"""Halving of a real training, beside the full grid: what both find, and for how many tokens."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from command_line import outlay
from outlay.clock import SYSTEM
from outlay.runs.reading import read_figures, read_run
from outlay.sweep.aggregate.aggregator import judged_by
from outlay.sweep.state.manifest import SweepManifest, read_manifest

PROGRAM = Path(__file__).parents[1] / "programs" / "searched_regression.py"
FIRST, LAST = 800, 7200
NINE = {"lr": [0.01, 0.05, 0.25], "decay": [0.0, 0.01, 0.1], "momentum": [0.0]}
ALL = NINE | {"momentum": [0.0, 0.5, 0.9]}
HALVING = {"search": {"halving": {"first": f"{FIRST}tok", "last": f"{LAST}tok", "factor": 3}}}

Params = tuple[float, float, float]


@dataclass(frozen=True)
class Searched:
    """A sweep that has ended."""

    manifest: SweepManifest

    @property
    def tokens(self) -> int:
        """Tokens of all runs."""
        now_ns, root = SYSTEM.wall_ns(), self.manifest.root
        return sum(read_figures(root / run, now_ns).tokens for run in self.manifest.runs)

    @property
    def wasted(self) -> list[str]:
        """Runs that trained some steps twice."""
        now_ns, root = SYSTEM.wall_ns(), self.manifest.root
        phases = {run: read_run(root / run, now_ns).phases for run in self.manifest.runs}
        return [run for run, found in phases.items() if "wasted_progress" in found]

    @property
    def losses(self) -> dict[Params, float]:
        """The loss of each run that was trained in full, by its parameters."""
        found: dict[Params, float] = {}
        for name, run in self.manifest.runs.items():
            judged = judged_by(self.manifest.root / name, run.metadata, SYSTEM.wall_ns(), starts=1)
            if self.manifest.state(name).status == "completed":
                assert judged.value is not None
                lr, decay, momentum = (run.params[key] for key in ("lr", "decay", "momentum"))
                found[lr, decay, momentum] = judged.value
        return found


def trained(directory: Path, params: dict[str, list[float]], **more: Any) -> Searched:
    """Train every configuration of a grid, or halve them."""
    grid = {
        "engine": "process", "arguments": "none", "output_dir": str(directory / "sweep"),
        "entrypoint": [sys.executable, str(PROGRAM), "{run_dir}", "{lr}", "{decay}", "{momentum}"],
        "timeout": "5m", "grid": [{"name": "g", "params": params}], **more,
    }  # fmt: skip
    directory.mkdir()
    path = directory / "grid.json"
    path.write_text(json.dumps(grid))
    done = outlay("sweep", "run", "--yes", "--json", "--jobs", "2", path)
    assert done.code == 0, done.err
    return Searched(read_manifest(directory / "sweep"))


@pytest.mark.parametrize(
    ("params", "sizes"), [(NINE, (9, 3, 1)), pytest.param(ALL, (27, 9, 3), marks=pytest.mark.slow)]
)
def test_halving_finds_what_the_full_grid_finds_for_a_third_of_the_tokens(
    tmp_path: Path, params: dict[str, list[float]], sizes: tuple[int, int, int]
) -> None:
    target = {"target_metric": "val_loss"}
    halved = trained(tmp_path / "halved", params, budget=target, **HALVING)
    limit = {"mode": "iso_tokens", "limit": LAST}
    full = trained(tmp_path / "full", params, budget=target | limit)
    assert full.tokens == sizes[0] * LAST
    assert halved.tokens == sum(
        size * more for size, more in zip(sizes, (FIRST, 2 * FIRST, 6 * FIRST), strict=True)
    )
    assert halved.tokens <= full.tokens / 3
    # A run that was paused twice ends as one that was not.
    assert halved.losses.items() <= full.losses.items()
    assert len(halved.losses) == sizes[-1]
    assert halved.wasted == []
    assert min(halved.losses.values()) <= 1.01 * min(full.losses.values())
