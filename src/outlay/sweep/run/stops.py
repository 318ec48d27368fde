"""Requests to stop single runs of a sweep: a file for each, which the harness looks for.

So a run can be stopped from any machine that shares the directory, and a request survives the
harness: the next one honours it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from outlay.files import make_private
from outlay.sweep.state.outcomes import STOPPED_BY_PERSON, RunState, RunVerdict

STOPPED: Final = RunVerdict("cancelled", STOPPED_BY_PERSON)
_FOLDER: Final = "stops"
_STOPPABLE: Final = ("pending", "paused", "cancelled", "preempted", "skipped")


def request_stops(root: Path, runs: Iterable[str]) -> None:
    """Ask for the end of runs; whether one has ended is not checked."""
    make_private(root / _FOLDER)
    for run in runs:
        (root / _FOLDER / run).touch()


def requested_stops(root: Path) -> list[str]:
    """Return the runs that are to be stopped, in order."""
    try:
        return sorted(path.name for path in (root / _FOLDER).iterdir())
    except FileNotFoundError:
        return []


def forget_stop(root: Path, run: str) -> None:
    """Remove the request for a run."""
    (root / _FOLDER / run).unlink(missing_ok=True)


def is_stoppable(state: RunState) -> bool:
    """Say whether a run that is not running may be started again, and was not stopped yet."""
    return state.status in _STOPPABLE and not state.is_stopped
