"""Polls the registered runs that are alive, and the ceilings of spend logs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Engine

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding
from outlay.guard.away.polled_log import PATIENCE_S, PolledLog
from outlay.guard.balance import Books
from outlay.guard.ceilings import ScopeStanding
from outlay.guard.rental.watch import RentedHold
from outlay.runs.inventory.machines_now import MachinesNow, read_machines_now
from outlay.runs.reading import RunReading
from outlay.runs.run_poller import RunPoller
from outlay.store.run_row import RunRow


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReading:
    """The balances of the scopes of one spend log, and the hash of its last line.

    Attributes:
        log_path: Its path, or what may be shown of a book's URL.
    """

    log_path: str
    head: str
    standings: tuple[ScopeStanding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReading:
    """Live runs and ceilings at one instant (UTC nanoseconds); findings name unreadable logs.

    Attributes:
        elsewhere: Live runs whose log is on another host.
        now: What costs money, in runs or not; None if that was not asked for.
    """

    t_ns: int
    runs: tuple[RunReading, ...]
    guards: tuple[GuardReading, ...]
    findings: tuple[Finding, ...]
    elsewhere: tuple[RunRow, ...] = ()
    now: MachinesNow | None = None


class LiveRuns:
    """Polls live runs, and the ceilings of some spend logs."""

    def __init__(
        self, store: Engine, logs: Sequence[str | Path] = (), *, clock: Clock = SYSTEM
    ) -> None:
        self._logs = polled_logs(logs, clock=clock)
        self._store = store
        self._clock = clock
        self._poller = RunPoller(store, clock=clock, cached=False)
        self._lock = threading.Lock()  # A server polls from several threads.

    def read(self) -> LiveReading:
        """Return live runs and ceilings; a log that cannot be read is a finding."""
        now_ns = self._clock.wall_ns()
        with self._lock:
            runs = self._poller.running()
            findings = [*self._poller.findings, *self._poller.unread]
            elsewhere = tuple(self._poller.elsewhere)
        guards = read_guards(self._logs, findings)
        running = (*(run.figures for run in runs), *elsewhere)
        now = read_machines_now(self._store, self._rented(), running, now_ns)
        return LiveReading(
            t_ns=now_ns, runs=tuple(runs), guards=guards, findings=tuple(findings),
            elsewhere=elsewhere, now=now,
        )  # fmt: skip

    def _rented(self) -> list[RentedHold]:
        """Return the open rentals of the logs; those of a log that is away, as last seen."""
        asked = (log.ask("rentals", partial(_read_rentals, log)).value for log in self._logs)
        return [rental for found in asked for rental in found or ()]

    def close(self) -> None:
        """Close the connections to books."""
        for log in self._logs:
            log.close()


def polled_logs(
    names: Sequence[str | Path], *, clock: Clock = SYSTEM, patience_s: float = PATIENCE_S
) -> tuple[PolledLog, ...]:
    """Return spend logs by path or URL, each once."""
    full = dict.fromkeys(each.absolute() if isinstance(each, Path) else each for each in names)
    return tuple(PolledLog(name, clock=clock, patience_s=patience_s) for name in full)


def read_guards(logs: Sequence[PolledLog], findings: list[Finding]) -> tuple[GuardReading, ...]:
    """Return the balances of some spend logs as of now; others are added to findings."""
    found = []
    for log in logs:
        polled = log.ask("balances", partial(_read_guard, log))
        if polled.value is not None and not polled.problem:
            found.append(polled.value)
        findings += polled.findings(log.shown)
    return tuple(found)


def read_guards_once(
    names: Sequence[str | Path], findings: list[Finding], *, patience_s: float = PATIENCE_S
) -> tuple[GuardReading, ...]:
    """Return the balances of spend logs by path or URL, and keep no connection."""
    logs = polled_logs(names, patience_s=patience_s)
    try:
        return read_guards(logs, findings)
    finally:
        for log in logs:
            log.close()


def _read_rentals(log: PolledLog) -> list[RentedHold]:
    holds = log.open_without_ceiling().log.look(Books.open_rentals)
    return [RentedHold(log.shown, hold) for hold in holds]


def _read_guard(log: PolledLog) -> GuardReading:
    guard = log.open()
    return GuardReading(log_path=log.shown, head=guard.head, standings=guard.standings())
