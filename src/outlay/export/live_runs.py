"""Polls the registered runs that are alive, and the ceilings of spend logs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, OutlayError
from outlay.guard.balance import ScopeStanding
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.rental.watch import opening_name, shown_name
from outlay.guard.spend_log import LogName
from outlay.runs.reading import RunReading
from outlay.runs.run_poller import RunPoller


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReading:
    """The balances of the scopes of one spend log, and the hash of its last line."""

    log_path: Path | str
    head: str
    standings: tuple[ScopeStanding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReading:
    """Live runs and ceilings at one instant (UTC nanoseconds); findings name unreadable logs."""

    t_ns: int
    runs: tuple[RunReading, ...]
    guards: tuple[GuardReading, ...]
    findings: tuple[Finding, ...]


class LiveRuns:
    """Polls live runs, and the ceilings of some spend logs."""

    def __init__(
        self, store: Engine, log_paths: Sequence[LogName] = (), *, clock: Clock = SYSTEM
    ) -> None:
        self._log_paths = tuple(dict.fromkeys(map(_absolute, log_paths)))
        self._clock = clock
        self._poller = RunPoller(store, clock=clock, cached=False)
        self._lock = threading.Lock()  # A server polls from several threads.

    def read(self) -> LiveReading:
        """Return live runs and ceilings; a log that cannot be read is a finding."""
        now_ns = self._clock.wall_ns()
        with self._lock:
            runs = self._poller.running()
            findings = [*self._poller.findings, *self._poller.unread]
        guards = read_guards(self._log_paths, findings, clock=self._clock)
        return LiveReading(t_ns=now_ns, runs=tuple(runs), guards=guards, findings=tuple(findings))


def _absolute(name: LogName) -> LogName:
    return name.absolute() if isinstance(name, Path) else name


def read_guards(
    log_paths: Sequence[LogName], findings: list[Finding], *, clock: Clock = SYSTEM
) -> tuple[GuardReading, ...]:
    """Return the balances of some spend logs; one that cannot be read is added to findings."""
    found = []
    for path in log_paths:
        try:
            guard = BudgetGuard.of_log(opening_name(path), clock=clock)
            log = shown_name(path)
            found.append(GuardReading(log_path=log, head=guard.head, standings=guard.standings()))
        except (OutlayError, OSError) as error:
            findings.append(Finding(source=str(path), message=str(error)))
    return tuple(found)
