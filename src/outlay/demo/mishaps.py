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
from outlay.ledger import segment_paths
from outlay.ledger.segments import id_from_name
from outlay.runs.figures import read_figures
from outlay.units import Money


@dataclass(slots=True)
class Mishap:
    """A signal that a run is sent once it has spent so much."""

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
        enough = figures.cost is not None and figures.cost >= mishap.spent
        return enough and figures.status == "running"


def _send(run_dir: Path, number: signal.Signals) -> bool:
    """Send a signal to the process that records the run; say whether there was one."""
    writer = id_from_name(segment_paths(run_dir)[-1])
    if writer is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(writer.pid, number)
        return True
    return False
