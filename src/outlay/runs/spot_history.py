"""The spot machines of all registered runs, read from their logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from outlay.advise.reclaims import SpotHistory
from outlay.ledger import derive_attempts, read_lives
from outlay.runs.collect import refresh_registered
from outlay.store.runs import RunFilter, list_runs

if TYPE_CHECKING:
    from sqlalchemy import Engine

_PART_OF_NAME: Final = "spot"


def spot_history(engine: Engine, now_ns: int) -> SpotHistory:
    """Return what runs recorded on spot offers; only the logs of such runs are read."""
    refresh_registered(engine, now_ns)
    history = SpotHistory()
    for row in list_runs(engine, RunFilter(offer=_PART_OF_NAME)):
        if row.dir and not row.log_host:
            history.add(derive_attempts(read_lives(Path(row.dir), times_only=True)))
    return history
