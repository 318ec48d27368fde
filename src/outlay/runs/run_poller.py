"""The poller of runs: follows their logs, so that a further reading parses only what was appended.

For one thread at a time: a RunView refers to an account that the next reading extends in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, OutlayError
from outlay.files import FileStamp, stamp_of
from outlay.runs.collect import log_stamp, refresh_registered
from outlay.runs.reading import RunReader, RunReading
from outlay.store import outlay_home
from outlay.store.run_row import RunRow
from outlay.store.runs import RunFilter, list_runs

if TYPE_CHECKING:
    from sqlalchemy import Engine

PERIOD_NS: Final = 1_500_000_000
"""How long a reading is cached, so that a step is on the page within two seconds."""
REFRESH_NS: Final = 10_000_000_000
_IDLE_NS: Final = 60_000_000_000
_MOST_OPEN: Final = 64
_MOST_BYTES: Final = 600_000_000
"""The most log bytes of kept readers, not counting the newest one."""


@dataclass(slots=True)
class _KeptReader:
    """A run's reader, its last reading, and the stamp of its log before that."""

    reader: RunReader
    asked_ns: int
    reading: RunReading | None = None
    read_ns: int = 0
    stamp: FileStamp | None = None


class RunPoller:
    """Reads registered runs repeatedly, and keeps the readers of those that are asked for.

    Args:
        store: Where runs are registered.
        clock: The clock to use.
        cached: For pages: a reading is of the present and up to ``PERIOD_NS`` old, the list of runs
            up to ``REFRESH_NS``, and few readers are kept. Otherwise all are read each time, up to
            their last record: their figures only grow.

    Attributes:
        findings: Runs that could not be read at the last refresh; ``unread`` in ``running``.
        elsewhere: Running runs whose log is on another host, as that last reported them.
    """

    def __init__(self, store: Engine, *, clock: Clock = SYSTEM, cached: bool) -> None:
        self.findings: list[Finding] = []
        self.unread: list[Finding] = []
        self.elsewhere: list[RunRow] = []
        self.refreshed_ns = -REFRESH_NS
        self._store = store
        self._clock = clock
        self._cached = cached
        self._inbox: FileStamp | None = None
        self._kept: dict[str, _KeptReader] = {}  # The least recently used first.

    def refresh(self) -> bool:
        """Register new runs, and drop idle readers; return whether that was due.

        A cached list is due at once if the inbox changed, else every ten seconds.
        """
        now_ns, inbox = self._clock.monotonic_ns(), inbox_stamp()
        if self._cached and now_ns - self.refreshed_ns < REFRESH_NS and inbox == self._inbox:
            return False
        self.refreshed_ns, self._inbox = now_ns, inbox
        found = refresh_registered(self._store, self._clock.wall_ns(), read=self._present)
        self.findings = found.findings
        for name in [n for n, kept in self._kept.items() if kept.asked_ns < now_ns - _IDLE_NS]:
            del self._kept[name]
        return True

    def _present(self, run_dir: Path, now_ns: int) -> RunReading:
        if self._cached:
            return self.reading(run_dir)
        return self._keep(str(run_dir)).reader.read_present(now_ns)

    def running(self) -> list[RunReading]:
        """Refresh, and return the running runs, latest start first."""
        self.refresh()
        self.unread, self.elsewhere, found = [], [], []
        for row in list_runs(self._store, RunFilter(status="running")):
            if row.log_host:
                self.elsewhere.append(row)
                continue
            try:
                reading = self.reading(row.dir)
            except (OutlayError, OSError) as error:
                self.unread.append(Finding(source=row.dir, message=str(error)))
            else:
                found += [reading] if reading.status == "running" else []
        return found

    def reading(self, run_dir: Path | str) -> RunReading:
        """Return a run's reading.

        Raises:
            NotARun: The directory has no run log.
        """
        kept, now_ns = self._keep(str(run_dir)), self._clock.wall_ns()
        try:
            if not self._cached:
                return kept.reader.read(now_ns)
            if kept.reading is None or self._is_stale(kept, kept.reading):
                kept.read_ns, kept.stamp = kept.asked_ns, log_stamp(run_dir)
                kept.reading = kept.reader.read_present(now_ns)
                self._drop_excess()
        except OutlayError:
            del self._kept[str(run_dir)]
            raise
        return kept.reading

    def _keep(self, name: str) -> _KeptReader:
        now_ns = self._clock.monotonic_ns()
        kept = self._kept.pop(name, None) or _KeptReader(RunReader(Path(name)), now_ns)
        kept.asked_ns = now_ns
        self._kept[name] = kept
        return kept

    def _is_stale(self, kept: _KeptReader, reading: RunReading) -> bool:
        if kept.asked_ns - kept.read_ns < PERIOD_NS:
            return False
        return reading.status == "running" or log_stamp(reading.view.dir or "") != kept.stamp

    def _drop_excess(self) -> None:
        """Drop the least recently used readers beyond the limits."""
        while len(self._kept) > 1 and (
            len(self._kept) > _MOST_OPEN or sum(map(_bytes_of, self._kept.values())) > _MOST_BYTES
        ):
            del self._kept[next(iter(self._kept))]

    @property
    def open_readers(self) -> int:
        """How many run readers are in memory."""
        return len(self._kept)


def _bytes_of(kept: _KeptReader) -> int:
    return 0 if kept.stamp is None else kept.stamp.size_bytes


def inbox_stamp() -> FileStamp | None:
    """Return a value that changes when a run asks to be registered."""
    return stamp_of(f"{outlay_home()}/inbox", suffix=".json")
