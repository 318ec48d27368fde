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
from outlay.cost.cost_book import CostBook, CostRow
from outlay.store import open_store

RUNS, MODELS, REPEATS = 10_000, 20, 5


def rows() -> list[CostRow]:
    return [
        CostRow(
            run_id=f"run-{i:05d}", model=f"model-{i % MODELS}", source="stated",
            cost_micros=1_000_000 + i, currency="USD", gpu_us=i * 1000, wall_us=i * 1000,
            samples=1000 + i, epochs=3.0, tokens=10**6, accuracy=0.5 + i / RUNS / 2, at_ns=i,
            metrics={"run_id": f"run-{i:05d}", "gpu_name": "A100", "learning_rate": 2e-5},
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
        CostBook(open_store(directory)).record(reports)
        history = directory / "cost_history.json"
        plain = {r.run_id: {n: getattr(r, n) for n in CostRow.__struct_fields__} for r in reports}
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
