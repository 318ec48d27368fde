"""How a run's own log says that it ended."""

from __future__ import annotations

from pathlib import Path

from outlay.errors import NotARun
from outlay.ledger import ledger_dir
from outlay.runs.figures import read_figures


def logged_end(directory: Path, now_ns: int) -> str | None:
    """Return how the last attempt in a run's log ended; None without a log."""
    if not ledger_dir(directory).is_dir():
        return None
    try:
        return read_figures(directory, now_ns).status
    except NotARun:
        return None
