"""What goes wrong in the demo, for real: a run is killed, another has to give its machine back."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from outlay.clock import SYSTEM, Clock
from outlay.errors import NotARun
from outlay.ledger import SUPERVISOR, segment_paths
from outlay.ledger.segments import id_from_name
from outlay.runs.figures import read_figures
from outlay.units import Money


@dataclass(slots=True)
class Mishap:
    """A signal that a run is sent once its steps have cost so much."""

    run: str
    number: signal.Signals
    spent: Money
    happened: bool = False


@dataclass(slots=True)
class Mishaps:
    """Sends the signals when it is their time."""

    root: Path
    planned: Sequence[Mishap]
    clock: Clock = SYSTEM

    def look(self) -> None:
        """Let happen what is due."""
        for mishap in self.planned:
            if not mishap.happened and self._is_due(mishap):
                mishap.happened = _send(self.root / mishap.run, mishap.number)

    def _is_due(self, mishap: Mishap) -> bool:
        try:
            figures = read_figures(self.root / mishap.run, self.clock.wall_ns())
        except NotARun:
            return False
        if figures.cost is None or figures.status != "running" or not figures.wall_ns:
            return False
        trained_ns = figures.step_ns + figures.wait_ns
        return figures.cost.micros * trained_ns >= mishap.spent.micros * figures.wall_ns


def _send(run_dir: Path, number: signal.Signals) -> bool:
    """Send a signal to the process that trains; say whether there was one."""
    for path in reversed(segment_paths(run_dir)):
        writer = id_from_name(path)
        if writer is not None and writer.rank != SUPERVISOR:
            with suppress(ProcessLookupError):
                os.kill(writer.pid, number)
                return True
    return False
