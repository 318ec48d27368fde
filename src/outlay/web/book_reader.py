"""The data of the pages: registered runs and sweeps, cached for all open pages.

However many pages are open, a run is read at most every ``PERIOD_NS``. All of it happens in one
thread, as ``RunPoller`` needs.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from outlay.clock import SYSTEM, Clock
from outlay.cost.charges import part_within
from outlay.errors import Finding, OutlayError
from outlay.goodput.timeline import Window
from outlay.guard.away.polled_log import PolledLog
from outlay.report.files import SweepAccount, read_sweep
from outlay.runs.collect import log_stamp
from outlay.runs.run_poller import REFRESH_NS, RunPoller, inbox_stamp
from outlay.store import open_store
from outlay.store.run_row import RunRow
from outlay.store.runs import RunFilter, get, list_runs, run_dirs, runs_in, values_of
from outlay.sweep.state.manifest import JOURNAL, is_sweep
from outlay.units import Money
from outlay.units.money import sum_by_unit
from outlay.web.page import People, run_href

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from outlay.report.document import Document
    from outlay.report.drawing.run_charts import MetricView
    from outlay.runs.reading import RunReading

_MOST_ANSWERS: Final = 16
_MOST_PEOPLE: Final = 10_000
_PLACES: Final = {
    "runs": "/runs", "hosts": "/runs", "trainings": "/runs", "commitments": "/money",
    "machines": "/money", "spend logs": "/guard",
}  # fmt: skip
"""Where findings lead that are of no run and no spend log; others to the machines."""


Answer = TypeVar("Answer")


class UnknownRun(OutlayError):
    """The run or sweep of a page is not registered."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"no {kind} {name[:80]!r} is registered here; outlay import runs DIR does that"
        )


class AnswerCache:
    """Caches a few slow answers; the oldest is dropped."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Answer]) -> Answer:
        """Return the cached answer, else make it."""
        if key not in self._answers:
            self._answers[key] = make()
            if len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        found: Answer = self._answers[key]
        return found

    def drop(self, key: Hashable) -> None:
        """Forget an answer."""
        self._answers.pop(key, None)


class BookReader:
    """Reads what pages show on demand, and caches it briefly.

    Attributes:
        documents: What pages show of a reading, by how its metrics are drawn, while it is kept.
    """

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM,
        people: People | None = None,
        logs: Sequence[str | Path] = (),
    ) -> None:
        self.clock = clock
        self.logs = tuple(logs)
        self._polled: dict[str | Path, PolledLog] = {}
        self.people = people or People(hidden=False)
        self.store: Engine = open_store()
        self.cache = AnswerCache()
        self.runs = RunPoller(self.store, clock=clock, cached=True)
        self.documents: WeakKeyDictionary[RunReading, dict[MetricView, Document]] = (
            WeakKeyDictionary()
        )
        self._roots: tuple[int, dict[str, Path]] = (-REFRESH_NS, {})
        self._since: dict[tuple[str, int | None, int], tuple[Money, ...]] = {}

    @property
    def now_ns(self) -> int:
        """The present, UTC."""
        return self.clock.wall_ns()

    def polled(self, name: str | Path) -> PolledLog:
        """Return a spend log; a book has one connection, whatever shows it."""
        if name not in self._polled:
            self._polled[name] = PolledLog(name, clock=self.clock)
        return self._polled[name]

    def close(self) -> None:
        """Close the connections to books."""
        for log in self._polled.values():
            log.close()

    # Runs

    def refresh(self) -> None:
        """Register new runs; at most every ten seconds, unless one has just started."""
        if self.runs.refresh() and self.people.hidden:
            for user in values_of(self.store, "user", limit=_MOST_PEOPLE):
                self.people.name(user)  # Hidden in every text from here on.

    def spent_since(self, since_ns: int) -> list[Money]:
        """Return what runs have cost since an instant, by unit."""
        self.refresh()
        rows = list_runs(self.store, RunFilter(since_ns=since_ns, is_priced=True))
        return sum_by_unit(cost for row in rows for cost in self._cost_since(row, since_ns))

    def _cost_since(self, row: RunRow, since_ns: int) -> tuple[Money, ...]:
        """Return a run's cost since an instant, by currency; cached for a run that has ended."""
        whole = () if row.cost is None else (row.cost, *row.cost_beside)
        if row.status != "running" and row.started_ns >= since_ns:
            return whole
        key = (row.run_id, row.log_bytes, since_ns)
        if row.status != "running" and key in self._since:
            return self._since[key]
        if row.log_host:
            return self._charged_since(row.run_id, since_ns)
        try:
            view = self.runs.reading(row.dir).view
        except (OutlayError, OSError):
            return whole
        found = view.break_down(Window(max(since_ns, view.whole.start_ns), view.whole.end_ns))
        beside = (each.cost for each in found.cost_beside)
        self._since[key] = () if found.cost is None else (found.cost, *beside)
        return self._since[key]

    def _charged_since(self, run_id: str, since_ns: int) -> tuple[Money, ...]:
        """Return what a run of another host has cost since an instant: its charges, by time."""
        row = self.row(run_id)
        found = (
            row.unit_of(charge).money(part_within(charge, since_ns, charge.end_ns + 1))
            for charge in row.charges or ()
        )
        return tuple(sum_by_unit(found))

    def row(self, run_id: str) -> RunRow:
        """Return a registered run; no other lookup turns a request into a directory.

        Raises:
            UnknownRun: It is not registered.
        """
        found = get(self.store, run_id)
        if found is None:
            self.refresh()
            found = get(self.store, run_id)
        if found is None:
            raise UnknownRun("run", run_id)
        return found

    def rows(
        self, wanted: RunFilter, *, sort: str, limit: int, offset: int, group: str = ""
    ) -> list[RunRow]:
        """Return a page of registered runs."""
        self.refresh()
        return list_runs(self.store, wanted, limit=limit, offset=offset, sort=sort, group=group)

    def places_of(self, findings: Iterable[Finding]) -> dict[str, str]:
        """Return where the source of each finding leads: a run, a spend log, a model, or a list."""
        sources = dict.fromkeys(each.source for each in findings)
        dirs = {source: source.partition(": ")[0] for source in sources}
        found = runs_in(self.store, list(dict.fromkeys(dirs.values())))
        logs = {str(log.name) for log in self._polled.values()}
        logs |= {log.shown for log in self._polled.values()}
        places = {}
        for source, path in dirs.items():
            if path in found:
                places[source] = run_href(found[path])
            elif path in logs or path.endswith(".jsonl"):
                places[source] = f"/guard?{urlencode({'log': self.people.text(path)})}"
            elif path.startswith("model "):
                model = path.removeprefix("model ")
                places[source] = f"/runs?{urlencode({'model': model, 'sort': '-cost_micros'})}"
            else:
                places[source] = _PLACES.get(path, "/#machines")
        return places

    def stamp(self, run_dirs: list[str]) -> object:
        """Return a value that changes with one of these runs or the list of runs."""
        return (inbox_stamp(), self.runs.refreshed_ns, *(log_stamp(each) for each in run_dirs))

    # Sweeps

    def sweeps(self) -> dict[str, Path]:
        """Return the sweeps of registered runs, by id."""
        at_ns, found = self._roots
        if self.clock.monotonic_ns() - at_ns > REFRESH_NS:
            self.refresh()
            parents = dict.fromkeys(map(os.path.dirname, run_dirs(self.store)))
            found = {sweep_id(root): root for root in map(Path, parents) if is_sweep(root)}
            self._roots = (self.clock.monotonic_ns(), found)
        return found

    def sweep_root(self, name: str) -> Path:
        """Return the directory of a sweep.

        Raises:
            UnknownRun: No registered run belongs to it.
        """
        root = self.sweeps().get(name)
        if root is None:
            raise UnknownRun("sweep", name)
        return root

    def sweep(self, root: Path) -> SweepAccount:
        """Return a sweep; read again when its journal or a run log grew."""
        key = (str(root), self.sweep_stamp(root))
        return self.cache.get(key, lambda: read_sweep(root, self.now_ns, allow_missing=True))

    def ids_in(self, root: Path) -> dict[str, str]:
        """Return the ids of registered runs in a sweep, by directory."""
        rows = list_runs(self.store, RunFilter(below=str(root)))
        return {row.dir: row.run_id for row in rows}

    def sweep_stamp(self, root: Path) -> object:
        """Return a value that changes with the sweep."""
        logs = [log_stamp(path) for path in sorted(root.iterdir()) if path.is_dir()]
        try:
            size = (root / JOURNAL).stat().st_size
        except OSError:
            size = 0
        return (size, *logs)


def sweep_id(root: Path) -> str:
    """Return the id of a sweep in addresses."""
    return hashlib.sha256(str(root).encode(errors="surrogateescape")).hexdigest()[:12]
