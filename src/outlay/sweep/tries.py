"""How often runs were started, and whether one that failed is started once more."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

from outlay.sweep.engines.ports import was_taken
from outlay.sweep.plan import PlannedRun

MOST_PORTS: Final = 4
"""Ports that a run is tried on before it counts as failed, if others keep taking them."""
_LAST_WORDS_BYTES: Final = 1 << 18
"""How much of what a failed run printed is searched for the reason."""


class Tries:
    """The starts of every run that count as its own."""

    def __init__(self) -> None:
        self._started: Counter[str] = Counter()
        self._ports_lost: Counter[str] = Counter()

    def count(self, run: PlannedRun) -> None:
        """Take down a start."""
        self._started[run.id] += 1

    def may_try_again(self, run: PlannedRun, *, port_lost: bool) -> bool:
        """Say whether a failed run is started once more; a lost port is not its own failure."""
        if port_lost and self._ports_lost[run.id] + 1 < MOST_PORTS:
            self._ports_lost[run.id] += 1
            self._started[run.id] -= 1
            return True
        return self._started[run.id] <= run.settings.retries


def lost_its_port(log: Path, since: int, port: int) -> bool:
    """Say whether an attempt failed because another program took its port first.

    Args:
        log: What the run printed.
        since: After how many bytes of it this attempt began.
        port: The one that it was given.
    """
    with suppress(OSError), log.open("rb") as stream:
        stream.seek(max(since, log.stat().st_size - _LAST_WORDS_BYTES))
        return was_taken(stream.read().decode(errors="replace"), port)
    return False
