"""What a run tells of its budget while it trains: events in the log, ``budget.json``, a bar.

Rank 0 tells it for all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from outlay.budget.bar import Display, NoDisplay, display_for
from outlay.budget.document import write_document
from outlay.budget.limits import StopReason
from outlay.budget.thresholds import Threshold
from outlay.budget.tracker import BudgetTracker
from outlay.clock import Clock
from outlay.ledger import EndStatus
from outlay.record import Recorder, facts

REFRESH_NS: Final = 10_000_000_000
"""How often ``budget.json`` is refreshed while the run goes on."""


class Telling:
    """One rank's word on the budget; only rank 0 has one.

    Args:
        rank: Of this process.
        tracker: Whose state is told.
        recorder: Where events are recorded.
        run_dir: Where ``budget.json`` is kept.
        document: Returns what that holds.
        clock: Paces refreshes and the bar.
    """

    def __init__(
        self,
        rank: int,
        tracker: BudgetTracker,
        recorder: Recorder,
        *,
        run_dir: Path,
        document: Callable[[], dict[str, Any]],
        clock: Clock,
    ) -> None:
        self._speaks = rank == 0
        self._tracker = tracker
        self._recorder = recorder
        self._run_dir = run_dir
        self._document = document
        self._monotonic_ns = clock.monotonic_ns
        self._next_refresh_ns = 0
        self._stop_told = False
        self._display: Display = NoDisplay()
        if self._speaks and facts.is_on(os.environ, "OUTLAY_PROGRESS", default=True):
            self._display = display_for(sys.stderr, clock)
        tracker.on_threshold(self._threshold)

    def terms(self, before: Mapping[str, Any] | None) -> None:
        """Record the limits, and what they were ``before`` where that differs."""
        budget = self._tracker.budget
        changes = {} if before is None else budget.changed_from(before["mode"], before["limits"])
        terms: dict[str, Any] = {"mode": budget.mode, "limits": dict(budget.limits)}
        terms |= {"charge": budget.charge, "charge_cost": budget.charge_cost}
        terms["steps_per_epoch"] = budget.steps_per_epoch
        if changes:
            terms["was"] = {key: then for key, (then, _now) in changes.items()}
        self._event("changed" if changes else "set", terms)

    def epoch(self, steps_per_epoch: int) -> None:
        """Record how long the loader says that an epoch is."""
        self._event("epoch", {"steps_per_epoch": steps_per_epoch})

    def stopped(self, reason: StopReason) -> None:
        """Record why no further step may run, once."""
        if not self._stop_told:
            self._stop_told = True
            self._event("stopped", {"limit_key": reason.key, "text": str(reason)})

    def step(self) -> None:
        """A step is over: refresh what is due."""
        if self._monotonic_ns() >= self._next_refresh_ns:
            self.refresh()
        self._display.update(self._tracker)

    def refresh(self) -> None:
        """Write ``budget.json`` as things stand; also from a signal handler, and amid a refresh."""
        self._next_refresh_ns = self._monotonic_ns() + REFRESH_NS
        if self._speaks:
            finding = write_document(self._run_dir, self._document())
            if finding is not None and finding not in self._tracker.findings:
                self._tracker.findings.append(finding)

    def ended(self, status: EndStatus) -> None:
        """Record how the budget stands at the attempt's end; show it for the last time."""
        document = self._document()
        state = {key: document[key] for key in ("totals", "clocks_ms", "stop_reason")}
        self._event("ended", {"status": status, **state})
        self.refresh()
        self._display.close(self._tracker)

    def _threshold(self, threshold: Threshold) -> None:
        data = {"limit_key": threshold.bound.dimension.key, "percent": threshold.percent}
        self._event("threshold", data | {"text": str(threshold)})

    def _event(self, event: str, data: dict[str, Any]) -> None:
        if self._speaks:
            self._recorder.budget_event(event, data)
