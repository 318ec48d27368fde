"""How long 10,000 runs take to summarise: outlay's store, and one JSON file read as a whole.

The alternative is what a cost script keeps: every report in one JSON file, read and added up with
floats at each call. Run: python benchmarks/cost_summary.py
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from timing import Figure, compare, machine, row, verdict

from outlay.compat.cost_module.analyzer import CostAnalyzer
from outlay.cost.cost_book import report_cells
from outlay.store import RunRow, open_store
from outlay.store.runs import register
from outlay.units import Money

RUNS, MODELS, REPEATS = 10_000, 20, 5


def rows() -> list[RunRow]:
    return [
        RunRow(
            run_id=f"run-{i:05d}", model=f"model-{i % MODELS}", name=f"run-{i:05d}",
            dir=f"/runs/{i:05d}", status="completed", attempts=1, steps=1000, gpu="A100",
            cost=Money(1_000_000 + i), gpu_ns=i * 10**6, wall_ns=i * 10**6, samples=1000 + i,
            epochs=3.0, tokens=10**6, accuracy=0.5 + i / RUNS / 2, started_ns=0, last_seen_ns=i,
            updated_ns=i,
        )
        for i in range(RUNS)
    ]  # fmt: skip


def summarise_json(path: Path) -> dict[str, float]:
    by_model = defaultdict(list)
    for report in json.loads(path.read_text()).values():
        by_model[report["model"]].append(report["cost_micros"] / 1e6)
    return {model: fmean(costs) for model, costs in by_model.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory, reports = Path(name), rows()
        register(open_store(directory), reports)
        history = directory / "plain.json"  # Any other name than that of the cost module.
        plain = {row.run_id: report_cells(row) for row in reports}
        history.write_text(json.dumps(plain, indent=2))
        analyzer = CostAnalyzer(directory)
        works: dict[str, Callable[[], object]] = {
            "outlay": analyzer.get_cost_comparison,
            "JSON": lambda: summarise_json(history),
        }
        ours, theirs = (timing.seconds for timing in compare(works, calls=1, rounds=REPEATS))
    print(f"{machine()}\n{RUNS:,} runs of {MODELS} models, best of {REPEATS}")
    print(f"outlay, all figures exact  {ours * 1e3:8.1f} ms")
    print(f"one JSON file, mean only   {theirs * 1e3:8.1f} ms")
    print(f"outlay / JSON              {ours / theirs:8.2f} x")
    row("summary of 10,000 runs", ours * 1e3, Figure("one JSON file", theirs * 1e3), unit="ms")
    verdict("10,000 runs summarised, in seconds", ours, 1.0)


if __name__ == "__main__":
    main()
