"""What the attempts of registered runs show of reclaims and failures, read from their logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outlay.advise.spot import SpotHistory
from outlay.goodput.failure_rate import FailureCount
from outlay.ledger import Attempt, derive_attempts, read_lives
from outlay.runs.collect import refresh_registered
from outlay.store.runs import RunFilter, list_runs
from outlay.units.quantity import NS_PER_HOUR

if TYPE_CHECKING:
    from sqlalchemy import Engine

_PART_OF_NAME: Final = "spot"
_NEWEST: Final = 500


def spot_history(engine: Engine, now_ns: int) -> SpotHistory:
    """Return what runs recorded on spot offers; only the logs of such runs are read."""
    history = SpotHistory()
    for attempts in _attempts(engine, now_ns, RunFilter(offer=_PART_OF_NAME)):
        history.add(attempts)
    return history


def failure_counts(engine: Engine, now_ns: int) -> list[FailureCount]:
    """Return the failures of each of the newest registered runs."""
    return [failures_of(attempts) for attempts in _attempts(engine, now_ns, RunFilter())]


def failures_of(attempts: list[Attempt]) -> FailureCount:
    """Return the failures of a run: starts after an attempt that was not to end."""
    return FailureCount(
        failures=sum(not (each.completed or each.paused) for each in attempts[:-1]),
        hours=sum(each.last_sign_ns - each.start_ns for each in attempts) / NS_PER_HOUR,
        nodes=max((len(each.nodes) for each in attempts), default=0) or 1,
    )


def _attempts(engine: Engine, now_ns: int, wanted: RunFilter) -> Iterator[list[Attempt]]:
    refresh_registered(engine, now_ns)
    for row in list_runs(engine, wanted, limit=_NEWEST):
        if row.dir and not row.log_host:
            found = derive_attempts(read_lives(Path(row.dir), times_only=True))
            if found:
                yield found
