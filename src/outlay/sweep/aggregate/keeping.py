"""Keeping the figures of runs as they end, so that the first summary need not read their logs.

What is kept is a cache beside the log, checked against it by every reader. A harness that dies
before it was written has lost nothing but the time that a summary then takes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from outlay.clock import Clock
from outlay.ledger import SUPERVISOR, segment_paths
from outlay.ledger.segments import id_from_name


class FiguresKeeper:
    """Reads logs in a thread of its own: the harness has money to watch meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread: ThreadPoolExecutor | None = None

    def keep(self, run_dir: Path) -> None:
        """Have the figures of a run that has ended written beside its log, if it recorded one.

        What its supervisor recorded is two lines, and read as fast as what would be kept of it.
        """
        written = map(id_from_name, segment_paths(run_dir))
        if all(segment is None or segment.rank == SUPERVISOR for segment in written):
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="outlay-figures")
        # Whatever goes wrong there is told by the summary, which then reads the log itself.
        self._thread.submit(_keep, run_dir, self._clock.wall_ns())

    def close(self) -> None:
        """Wait until everything is written."""
        if self._thread is not None:
            self._thread.shutdown()


def _keep(run_dir: Path, now_ns: int) -> None:
    # Here, since it loads NumPy, which sweeps of programs without a log never need.
    from outlay.sweep.aggregate.reading import read_ledger

    read_ledger(run_dir, now_ns)
