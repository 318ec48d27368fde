"""A search by halving on disk: its runs, rungs and reports, written without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ledgers import START_NS, Segment, dollars
from outlay.ledger import Metric
from sweep_on_disk import Sweep

SECOND = 10**9


class HalvedSweep(Sweep):
    """A sweep of runs that cost 1 USD a second, with rungs of 50 and 150 tokens."""

    def run(
        self, number: int, *stages: Sequence[Any], values: Sequence[float] = (), **more: Any
    ) -> Path:
        """Add a run and its stages, each of them an attempt or a decision.

        A stage is ``(rung, status, seconds, metric)``; without seconds, only the status changes.
        """
        rungs = [
            {"limits": {"max_tokens": 50}, "predicted_cost": "2.00 USD"},
            {"limits": {"max_tokens": 150}, "predicted_cost": "4.00 USD"},
        ]
        name = f"{number:03d}_a"
        about: dict[str, Any] = {
            "configuration": f"c{number}", "params": {"lr": number}, "price": "3600 USD/h",
            "budget": {"mode": "iso_tokens", "limits": {"max_tokens": 150}}, "group": "a",
            "rungs": rungs, "predicted_cost": "2.00 USD", "predicted_whole": "5.00 USD",
        }  # fmt: skip
        run_dir = self.add(name, **(about | more))
        self.events.pop()
        story = Segment(about={"price": dollars(3600), "run_id": name, "name": name})
        for step, value in enumerate(values):
            story.step(1, tokens=10)
            story.add(Metric(t_ns=story.now_ns, name="acc", value=value, step=step))
        if stages:
            story.end("completed" if stages[-1][1] == "completed" else "paused").write(run_dir)
        t_ns, total = START_NS, 0
        for rung, status, *attempt in stages:
            self.events += self._events(name, rung, status, t_ns, *attempt)
            if "cost_micros" in self.events[-1]:
                total += self.events[-1]["cost_micros"]
                self.events[-1]["logged_micros"] = total
            t_ns = self.events[-1]["t_ns"] + SECOND
        self.write_journal()
        return run_dir

    def _events(
        self, run: str, rung: int, status: str, t_ns: int, seconds: int = 0, metric: Any = None
    ) -> list[dict[str, Any]]:
        if not seconds:
            return [{"t_ns": t_ns, "run": run, "status": status, "reason": f"{status} by a test"}]
        begun = {"t_ns": t_ns, "run": run, "status": "running", "rung": rung, "ticket": "t"}
        ended = {
            "t_ns": t_ns + seconds * SECOND, "run": run, "status": status, "rung": rung,
            "reports": metric is not None, "metric": metric, "elapsed_ns": seconds * SECOND,
            "cost_micros": seconds * 10**6, "currency": "USD",
        }  # fmt: skip
        return [begun] if status == "running" else [begun, ended]


def decided_search(root: Path) -> HalvedSweep:
    """Return a search of three runs that is over: the second is the best."""
    sweep = HalvedSweep(root)
    sweep.run(1, (0, "paused", 1, 0.5), (0, "pruned"), values=(0.4, 0.5))
    sweep.run(2, (0, "paused", 1, 0.7), (1, "completed", 3, 0.9), values=(0.7, 0.9))
    sweep.run(3, (0, "paused", 2, 0.6), (0, "pruned"), values=(0.5, 0.6))
    return sweep
