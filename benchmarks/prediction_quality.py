"""How well the cost of a run is predicted by its configuration, beside other ways.

Histories with a known scaling are in tests/support/run_histories.py, split by a hash of kind and
seed; this prints the half on which nothing was tuned. Then the demo's sweep, with numbers of steps
instead of a budget, which makes all cost the same: its runs are split by a hash, too, and the cost
of one half is predicted from the other. The alternatives: the median cost of the model's runs,
which people use; and least squares on the same columns, without prior knowledge and pooling.

Run: python benchmarks/prediction_quality.py [--seeds 160] [--tuning] [--keep FILE]

``--keep`` writes the figures of the demo's runs, as in tests/data/demo_sweep.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from timing import machine

from outlay.clock import SYSTEM, utc_text
from outlay.cost.prediction import PastRun, predict_cost
from outlay.demo.training import PRICE
from outlay.runs.reading import read_figures

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from run_histories import KINDS, PRICES, SIZES, demo_runs, is_learned_from, run_history, seeds_of

SEEDS, COUNTS = 160, (4, 5, 8, 15, 40)


def columns(runs: Sequence[PastRun]) -> NDArray[np.float64]:
    """Return the columns of a regression: logarithms, and one column per model and GPU."""
    return np.array(
        [
            [math.log(run.of.tokens or 1), math.log(run.of.parameters or 1),
             math.log(run.of.gpus or 1), *(run.of.model == name for name in SIZES),
             *(run.of.gpu == name for name in PRICES)]
            for run in runs
        ],
        dtype=float,
    )  # fmt: skip


def least_squares(past: Sequence[PastRun], new: PastRun) -> float:
    """Return the logarithm of the cost by least squares, without pooling."""
    found, *_ = np.linalg.lstsq(columns(past), np.log([run.cost for run in past]), rcond=None)
    return float(columns([new])[0] @ found)


@dataclass
class Tally:
    """Errors of predictions, of the median and of least squares, and which intervals held."""

    ours: list[float] = field(default_factory=list)
    naive: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)

    def add(self, past: Sequence[PastRun], new: PastRun) -> None:
        """Predict one run."""
        found = predict_cost(new.of, past)
        assert found is not None
        alike = [run.cost for run in past if run.of.model == new.of.model]
        usual = median(alike or [run.cost for run in past])
        self.ours.append(abs(math.log(found.cost / new.cost)))
        self.naive.append(abs(math.log(usual / new.cost)))
        self.squares.append(abs(least_squares(past, new) - math.log(new.cost)))
        self.held.append(found.low <= new.cost <= found.high)

    def show(self, name: str) -> bool:
        """Print a row of the table, and return whether both bars are reached."""
        ours, naive = median(self.ours), median(self.naive)
        share = sum(self.held) / len(self.held)
        reached = ours <= naive / 2, 0.75 <= share <= 0.92
        half, inside = ("holds" if each else "NOT REACHED" for each in reached)
        print(
            f"| {name} | {len(self.ours)} | {ours:.3f} | {naive:.3f} | {median(self.squares):.3f} "
            f"| {half} | {share:.0%} | {inside} |"
        )
        return all(reached)


HEAD = (
    "| | cases | error | of the median | of least squares | at most half | in the 80 % interval | "
    "75 to 92 % |\n|---|---:|---:|---:|---:|---|---:|---|"
)

GRID = f"""\
name: demo_steps
engine: process
arguments: flags
entrypoint: -m outlay.demo.mlp --dir {{run_dir}} --turns 5 --learning-rate 0.1
price: {PRICE}
env: {{OMP_NUM_THREADS: 1, OPENBLAS_NUM_THREADS: 1}}
grid:
  - name: size
    params: {{hidden: [16, 64, 192], steps: [250, 500, 1000, 2000]}}
    seeds: [1, 2]
"""


def demo_sweep(directory: Path) -> list[dict[str, Any]]:
    """Run the demo's sweep, with numbers of steps; return the figures of its runs."""
    grid = directory / "demo_steps.yaml"
    grid.write_text(GRID)
    words = ["sweep", "run", str(grid), "--yes", "--jobs", "1", "--dir", str(directory / "sweep")]
    subprocess.run(
        [sys.executable, "-m", "outlay", *words],
        env=os.environ | {"OUTLAY_HOME": str(directory / "home")}, cwd=directory, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    found = []
    for run in sorted(directory.glob("sweep/*_size_*")):
        row = read_figures(run, SYSTEM.wall_ns())
        assert row.status == "completed", row
        found.append(
            {"run": run.name, "steps": row.steps, "samples": row.samples,
             "parameters": row.parameters, "cost": float(row.paid.amount)}
        )  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    half = "tuned on" if asked.tuning else "never tuned on"
    print(f"{utc_text(SYSTEM.wall_ns())}, {machine()}; {asked.seeds} seeds, {half}\n")
    print("Median error of the cost, |log(predicted / true)|; ours must be half of the median's.\n")
    by_count: dict[int, Tally] = defaultdict(Tally)
    by_kind: dict[str, Tally] = defaultdict(Tally)
    for kind in KINDS:
        for seed in seeds_of(kind, asked.seeds, tuned_on=asked.tuning):
            for count in COUNTS:
                *past, new = run_history(kind, seed, count + 1)
                by_count[count].add(past, new)
                by_kind[kind].add(past, new)
    print(HEAD)
    reached = [tally.show(f"{count} runs known") for count, tally in by_count.items()]
    reached += [tally.show(kind) for kind, tally in by_kind.items()]
    with tempfile.TemporaryDirectory() as directory:
        figures = demo_sweep(Path(directory))
    if asked.keep:
        asked.keep.write_text(json.dumps(figures, indent=1) + "\n")
    runs, demo = demo_runs(figures), Tally()
    for run in runs:
        if not is_learned_from(run):
            demo.add([each for each in runs if is_learned_from(each)], run)
    reached.append(demo.show("the demo's sweep, the other half"))
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
