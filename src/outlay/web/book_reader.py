"""The data of the pages: registered runs and sweeps, cached for all open pages.

A run's log is followed: a second reading parses only what was appended. However many pages are
open, a run is read at most every ``PERIOD_NS``; idle readers are dropped. All of it happens in one
thread: a RunView refers to an account that the next reading extends in place.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, OutlayError
from outlay.files import FileStamp, stamp_of
from outlay.goodput.follower import GoodputFollower
from outlay.goodput.timeline import Window
from outlay.report.files import SweepAccount, read_sweep
from outlay.runs.collect import Burn, log_stamp, refresh_registered, sum_burns
from outlay.runs.reading import RunReading
from outlay.store import open_store, outlay_home
from outlay.store.run_row import RunRow
from outlay.store.runs import RunFilter, get, list_runs, run_dirs, values_of
from outlay.sweep.state.manifest import JOURNAL, is_sweep
from outlay.units import Money
from outlay.web.page import People

if TYPE_CHECKING:
    from sqlalchemy import Engine

PERIOD_NS: Final = 1_500_000_000
"""How long a reading is cached, so that a step is on the page within two seconds."""
_REGISTER_NS: Final = 10_000_000_000
_IDLE_NS: Final = 60_000_000_000
_MOST_ANSWERS: Final = 16
_MOST_PEOPLE: Final = 10_000
_MOST_OPEN: Final = 64
_MOST_BYTES: Final = 600_000_000
"""The most log bytes of kept readers, not counting the newest one."""


Answer = TypeVar("Answer")


class UnknownRun(OutlayError):
    """The run or sweep of a page is not registered."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"no {kind} {name[:80]!r} is registered here; outlay import runs DIR does that"
        )


@dataclass(slots=True)
class _RunLook:
    """A run's follower and its last reading."""

    follower: GoodputFollower
    reading: RunReading
    stamp: FileStamp | None
    looked_ns: int
    asked_ns: int


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


class BookReader:
    """Reads what pages show on demand, and caches it briefly."""

    def __init__(self, *, clock: Clock = SYSTEM, people: People | None = None) -> None:
        self.clock = clock
        self.people = people or People(hidden=False)
        self.store: Engine = open_store()
        self.findings: list[Finding] = []
        self.cache = AnswerCache()
        self._looks: OrderedDict[str, _RunLook] = OrderedDict()
        self._registered_ns = -_REGISTER_NS
        self._inbox: FileStamp | None = None
        self._roots: tuple[int, dict[str, Path]] = (-_REGISTER_NS, {})
        self._since: dict[tuple[str, int | None, int], tuple[Money, ...]] = {}

    @property
    def now_ns(self) -> int:
        """The present, UTC."""
        return self.clock.wall_ns()

    # Runs

    def refresh(self) -> None:
        """Register new runs: at once if the inbox changed, else every ten seconds."""
        now_ns, inbox = self.clock.monotonic_ns(), inbox_stamp()
        if now_ns - self._registered_ns < _REGISTER_NS and inbox == self._inbox:
            return
        self._registered_ns, self._inbox = now_ns, inbox
        collected = refresh_registered(self.store, self.now_ns, read=self._read)
        self.findings = collected.findings
        if self.people.hidden:
            for user in values_of(self.store, "user", limit=_MOST_PEOPLE):
                self.people.name(user)  # Hidden in every text from here on.
        self._drop_idle()

    def _read(self, run_dir: Path, now_ns: int) -> RunReading:
        del now_ns  # Each reading has its own present.
        return self.reading(run_dir)

    def reading(self, run_dir: Path | str) -> RunReading:
        """Return a run's reading, at most ``PERIOD_NS`` old.

        Raises:
            NotARun: The directory has no run log.
        """
        name, now_ns = str(run_dir), self.clock.monotonic_ns()
        look = self._looks.get(name)
        if look is None or self._is_stale(look, name, now_ns):
            look = self._look(name, look, now_ns)
        look.asked_ns = now_ns
        self._looks.move_to_end(name)
        return look.reading

    def _is_stale(self, look: _RunLook, run_dir: str, now_ns: int) -> bool:
        if now_ns - look.looked_ns < PERIOD_NS:
            return False
        return look.reading.status == "running" or log_stamp(run_dir) != look.stamp

    def _look(self, run_dir: str, look: _RunLook | None, now_ns: int) -> _RunLook:
        stamp = log_stamp(run_dir)
        follower = look.follower if look else GoodputFollower(Path(run_dir))
        try:
            reading = RunReading(follower.view(self.now_ns))
        except OutlayError:
            self._looks.pop(run_dir, None)
            raise
        found = _RunLook(follower, reading, stamp, now_ns, now_ns)
        self._looks[run_dir] = found
        self._drop_excess()
        return found

    def _drop_excess(self) -> None:
        """Drop the least recently used readers beyond the limits."""
        while len(self._looks) > 1 and (
            len(self._looks) > _MOST_OPEN or sum(map(_bytes_of, self._looks.values())) > _MOST_BYTES
        ):
            self._looks.popitem(last=False)

    def _drop_idle(self) -> None:
        oldest_ns = self.clock.monotonic_ns() - _IDLE_NS
        for name in [name for name, look in self._looks.items() if look.asked_ns < oldest_ns]:
            del self._looks[name]

    @property
    def open_readers(self) -> int:
        """How many run readers are in memory."""
        return len(self._looks)

    def running(self) -> list[RunReading]:
        """Return the running runs, latest start first; unreadable ones are left out."""
        self.refresh()
        found = []
        for row in list_runs(self.store, RunFilter(status="running")):
            try:
                reading = self.reading(row.dir)
            except (OutlayError, OSError):  # It is in ``findings`` after the next refresh.
                continue
            if reading.status == "running":
                found.append(reading)
        return found

    def spent_since(self, since_ns: int) -> list[Burn]:
        """Return what runs have cost since an instant, by currency and kind."""
        self.refresh()
        rows = list_runs(self.store, RunFilter(since_ns=since_ns, is_priced=True))
        costs = ((row.kind, self._cost_since(row, since_ns)) for row in rows)
        return sum_burns(Burn(kind, money) for kind, found in costs for money in found)

    def _cost_since(self, row: RunRow, since_ns: int) -> tuple[Money, ...]:
        """Return a run's cost since an instant, by currency; cached for a run that has ended."""
        whole = () if row.cost is None else (row.cost, *row.cost_beside)
        if row.status != "running" and row.started_ns >= since_ns:
            return whole
        key = (row.run_id, row.log_bytes, since_ns)
        if row.status != "running" and key in self._since:
            return self._since[key]
        try:
            view = self.reading(row.dir).view
        except (OutlayError, OSError):
            return whole
        found = view.break_down(Window(max(since_ns, view.whole.start_ns), view.whole.end_ns))
        beside = (each.cost for each in found.cost_beside)
        self._since[key] = () if found.cost is None else (found.cost, *beside)
        return self._since[key]

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

    def rows(self, wanted: RunFilter, *, sort: str, limit: int, offset: int) -> list[RunRow]:
        """Return a page of registered runs."""
        self.refresh()
        return list_runs(self.store, wanted, limit=limit, offset=offset, sort=sort)

    def stamp(self, run_dirs: list[str]) -> object:
        """Return a value that changes with one of these runs or the list of runs."""
        return (inbox_stamp(), self._registered_ns, *(log_stamp(each) for each in run_dirs))

    # Sweeps

    def sweeps(self) -> dict[str, Path]:
        """Return the sweeps of registered runs, by id."""
        at_ns, found = self._roots
        if self.clock.monotonic_ns() - at_ns > _REGISTER_NS:
            self.refresh()
            parents = dict.fromkeys(Path(each).parent for each in run_dirs(self.store))
            found = {sweep_id(root): root for root in parents if is_sweep(root)}
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


def inbox_stamp() -> FileStamp | None:
    """Return a value that changes when a run asks to be registered."""
    return stamp_of(f"{outlay_home()}/inbox", suffix=".json")


def _bytes_of(look: _RunLook) -> int:
    return 0 if look.stamp is None else look.stamp[0]


def sweep_id(root: Path) -> str:
    """Return the id of a sweep in addresses."""
    return hashlib.sha256(str(root).encode(errors="surrogateescape")).hexdigest()[:12]
