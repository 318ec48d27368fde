"""How well the cost of a run is predicted by its configuration, beside other ways.

Histories with a known scaling are in tests/support/run_histories.py, split by a hash of the seed.
The alternatives: the median cost of the model's runs, which people use; and least squares on the
same columns, without prior knowledge and pooling.

Run: python benchmarks/prediction_quality.py [--seeds 40] [--tuning]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from timing import machine

from outlay.clock import SYSTEM, utc_text
from outlay.cost.prediction import PastRun, predict_cost

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from run_histories import PRICES, SIZES, is_tuned_on, run_history

SEEDS, COUNTS = 40, (5, 8, 15, 40)


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--tuning", action="store_true")
    asked = parser.parse_args()
    half = "tuned on" if asked.tuning else "never tuned on"
    print(f"{utc_text(SYSTEM.wall_ns())}, {machine()}; {asked.seeds} seeds, {half}\n")
    print("Median error of the cost, |log(predicted / true)|; ours must be half of the median's.\n")
    print("| runs known | way | median error | in the 80 % interval | |\n|---:|---|---:|---:|---|")
    for count in COUNTS:
        errors: dict[str, list[float]] = {}
        held = []
        for seed in range(asked.seeds):
            if is_tuned_on(seed) != asked.tuning:
                continue
            *past, new = run_history(seed, count + 1)
            found = predict_cost(new.of, past)
            assert found is not None
            errors.setdefault("outlay", []).append(abs(math.log(found.cost / new.cost)))
            held.append(found.low <= new.cost <= found.high)
            alike = [run.cost for run in past if run.of.model == new.of.model]
            usual = median(alike or [run.cost for run in past])
            errors.setdefault("median of the model", []).append(abs(math.log(usual / new.cost)))
            off = abs(least_squares(past, new) - math.log(new.cost))
            errors.setdefault("least squares, no pooling", []).append(off)
        for name, each in errors.items():
            ours = name == "outlay"
            is_half = median(errors["outlay"]) <= median(errors["median of the model"]) / 2
            word = ("holds" if is_half else "NOT REACHED") if ours else ""
            share = f"{sum(held) / len(held):.0%} of {len(held)}" if ours else ""
            print(f"| {count} | {name} | {median(each):.3f} | {share} | {word} |")


if __name__ == "__main__":
    main()
