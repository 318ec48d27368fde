"""A sweep's manifest and journal, written without running anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ledgers import START_NS
from outlay.sweep.aggregate.aggregator import Aggregate, aggregate
from outlay.sweep.aggregate.rows import SweepRow
from outlay.sweep.state.manifest import JOURNAL

NOW_NS = START_NS + 10**15


class Sweep:
    """A sweep on disk, written without running it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def add(self, name: str, *, status: str = "completed", reason: str = "", **more: Any) -> Path:
        about = {"target_metric": "acc", "target_value": 0.8, "target_direction": "max"}
        static = {"id": name, "run_dir": name, "params": {}, "metadata": about, "world_size": 1}
        self.runs.append(static | more)
        self.events.append({"t_ns": 1, "run": name, "status": status, "reason": reason})
        (self.root / name).mkdir(parents=True)
        document = {"name": "demo", "runs": self.runs}
        (self.root / "sweep_manifest.json").write_text(json.dumps(document))
        self.write_journal()
        return self.root / name

    def write_journal(self) -> None:
        lines = [json.dumps(event) + "\n" for event in self.events]
        (self.root / JOURNAL).write_text("".join(lines))

    def summary(self, **options: Any) -> Aggregate:
        return aggregate(self.root, NOW_NS, **options)

    def row(self, number: int = 0, **options: Any) -> SweepRow:
        return self.summary(**options).rows[number]
