"""What the pages read: registered runs, sweeps and spend logs, each looked at once for all pages.

A run that is looked at again costs what its log grew by. However many pages are open, a run is
looked at no more often than every ``PERIOD_NS``; readers that nobody asked for are dropped. All of
it happens in one thread: a view is of a fold that the next look lets grow.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, OutlayError
from outlay.files import FileStamp, stamp_of
from outlay.goodput.follower import GoodputFollower
from outlay.report.files import SweepAccount, read_sweep
from outlay.runs.collect import Burn, log_stamp, refresh_registered, sum_burns
from outlay.runs.figures import RunFigures
from outlay.runs.reading import RunReading
from outlay.store import open_store, outlay_home
from outlay.store.runs import RunFilter, RunRow, count_runs, get, list_runs, run_dirs, values_of
from outlay.sweep.state.manifest import JOURNAL, is_sweep
from outlay.units import Money
from outlay.web.page import People

if TYPE_CHECKING:
    from sqlalchemy import Engine

PERIOD_NS: Final = 1_500_000_000
"""How long a look is good for, so that a step is on the page within two seconds."""
_REGISTER_NS: Final = 10_000_000_000
_IDLE_NS: Final = 60_000_000_000
_MOST_ANSWERS: Final = 16
_MOST_PEOPLE: Final = 10_000
_MOST_OPEN: Final = 64
_MOST_BYTES: Final = 600_000_000
"""Of logs whose readers are kept, but for the one that is asked for."""


Answer = TypeVar("Answer")


class UnknownRun(OutlayError):
    """A page was asked for about something that is not registered."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"no {kind} {name[:80]!r} is registered here; outlay import runs DIR does that"
        )


@dataclass(slots=True)
class _RunLook:
    """A run's reader, and what its last look gave."""

    follower: GoodputFollower
    reading: RunReading
    stamp: FileStamp | None
    looked_ns: int
    asked_ns: int


class AnswerCache:
    """The last few answers that took long, by what they are about."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Answer]) -> Answer:
        """Return an answer, made now unless it is known; the oldest one goes."""
        if key not in self._answers:
            self._answers[key] = make()
            if len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        found: Answer = self._answers[key]
        return found


class BookReader:
    """Everything that pages show, read when it is asked for and kept for a moment."""

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
        self._since: dict[tuple[str, int | None, int], Money | None] = {}

    @property
    def now_ns(self) -> int:
        """The present, UTC."""
        return self.clock.wall_ns()

    # Runs

    def refresh(self) -> None:
        """Register what is new; at once for a run that left a notice, else now and then."""
        now_ns, inbox = self.clock.monotonic_ns(), inbox_stamp()
        if now_ns - self._registered_ns < _REGISTER_NS and inbox == self._inbox:
            return
        self._registered_ns, self._inbox = now_ns, inbox
        collected = refresh_registered(self.store, self.now_ns, read=self._figures)
        self.findings = collected.findings
        if self.people.hidden:
            for user in values_of(self.store, "user", limit=_MOST_PEOPLE):
                self.people.name(user)  # From here on it is no name in any text.
        self._drop_idle()

    def _figures(self, run_dir: Path, now_ns: int) -> RunFigures:
        del now_ns  # Every look has its own present.
        return self.reading(run_dir).figures

    def reading(self, run_dir: Path | str) -> RunReading:
        """Return a run as it stands, or stood a moment ago.

        Raises:
            NotARun: There is no run log.
        """
        name, now_ns = str(run_dir), self.clock.monotonic_ns()
        look = self._looks.get(name)
        if look is None or self._is_stale(look, name, now_ns):
            look = self._look(name, look, now_ns)
        look.asked_ns = now_ns
        self._looks.move_to_end(name)
        return look.reading

    def shown_figures(self, reading: RunReading) -> RunFigures:
        """Return a run at a glance, without the names of people where they are hidden."""
        figures = reading.figures
        user, run_dir = self.people.name(figures.user), self.people.text(figures.dir)
        return replace(figures, user=user, dir=run_dir)

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
        """Drop the readers that were asked for longest ago, when there are too many."""
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
        """How many runs have a reader in memory."""
        return len(self._looks)

    def running(self) -> list[RunReading]:
        """Return the runs that go on, the latest started first; one that cannot be read is told."""
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
        """Return what runs have cost since an instant, each currency and kind by itself."""
        self.refresh()
        rows = list_runs(self.store, RunFilter(since_ns=since_ns, is_priced=True))
        costs = ((row.kind, self._cost_since(row, since_ns)) for row in rows)
        known = ((kind, money) for kind, money in costs if money is not None)
        return sum_burns(Burn(kind, money) for kind, money in known)  # type: ignore[arg-type]

    def _cost_since(self, row: RunRow, since_ns: int) -> Money | None:
        """Return a run's cost since an instant; of one that began before and ended, read once."""
        if row.status != "running" and row.started_ns >= since_ns:
            return row.cost
        key = (row.run_id, row.log_bytes, since_ns)
        if row.status != "running" and key in self._since:
            return self._since[key]
        try:
            view = self.reading(row.dir).view
        except (OutlayError, OSError):
            return row.cost
        begin_ns, end_ns = max(since_ns, view.timeline.start_ns), view.timeline.end_ns
        cost = None if view.rates is None else view.rates.cost_between(begin_ns, end_ns)
        self._since[key] = cost
        return cost

    def row(self, run_id: str) -> RunRow:
        """Return a registered run; the only way from an address to a directory.

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
        """Return a page of registered runs; those that run, as they stand."""
        self.refresh()
        return list_runs(self.store, wanted, limit=limit, offset=offset, sort=sort)

    def count(self, wanted: RunFilter) -> int:
        """Return how many runs a filter leaves."""
        return count_runs(self.store, wanted)

    def stamp(self, run_dirs: list[str]) -> object:
        """Return what changes when one of these runs, or the list of runs, does."""
        return (inbox_stamp(), self._registered_ns, *(log_stamp(each) for each in run_dirs))

    # Sweeps

    def sweeps(self) -> dict[str, Path]:
        """Return the sweeps that registered runs belong to, by their ids."""
        at_ns, found = self._roots
        if self.clock.monotonic_ns() - at_ns > _REGISTER_NS:
            self.refresh()
            parents = dict.fromkeys(Path(each).parent for each in run_dirs(self.store))
            found = {sweep_id(root): root for root in parents if is_sweep(root)}
            self._roots = (self.clock.monotonic_ns(), found)
        return found

    def sweep_root(self, name: str) -> Path:
        """Return where a sweep is.

        Raises:
            UnknownRun: No registered run belongs to it.
        """
        root = self.sweeps().get(name)
        if root is None:
            raise UnknownRun("sweep", name)
        return root

    def sweep(self, root: Path) -> SweepAccount:
        """Return a sweep as it stands; read again when its journal or a log of its runs grew."""
        key = (str(root), self.sweep_stamp(root))
        return self.cache.get(key, lambda: read_sweep(root, self.now_ns, allow_missing=True))

    def ids_in(self, root: Path) -> dict[str, str]:
        """Return the ids of registered runs in a sweep, by their directories."""
        rows = list_runs(self.store, RunFilter(below=str(root)))
        return {row.dir: row.run_id for row in rows}

    def sweep_stamp(self, root: Path) -> object:
        """Return what changes when a sweep does."""
        logs = [log_stamp(path) for path in sorted(root.iterdir()) if path.is_dir()]
        try:
            size = (root / JOURNAL).stat().st_size
        except OSError:
            size = 0
        return (size, *logs)


def inbox_stamp() -> FileStamp | None:
    """Return what changes when a run asks to be registered."""
    return stamp_of(f"{outlay_home()}/inbox", suffix=".json")


def _bytes_of(look: _RunLook) -> int:
    return 0 if look.stamp is None else look.stamp[0]


def sweep_id(root: Path) -> str:
    """Return what a sweep is called in an address."""
    return hashlib.sha256(str(root).encode(errors="surrogateescape")).hexdigest()[:12]
