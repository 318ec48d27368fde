"""``budget.json``: the budget's state in the run's directory, whole or not there, never half."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from outlay.budget import snapshots
from outlay.decoding import BadDocument, read_file
from outlay.errors import Finding, InvalidValue
from outlay.files import write_whole

NAME: Final = "budget.json"


def write_document(run_dir: Path, snapshot: Mapping[str, Any]) -> Finding | None:
    """Put the snapshot in place of the last one; a disk that refuses is a finding.

    The new file is synced before it replaces the old one, so that a crash or a full disk at any
    moment leaves one of the two.
    """
    path = run_dir / NAME
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_whole(path, snapshots.as_json(snapshot).encode(), synced=True)
    except OSError as error:
        message = f"could not be written: {error.strerror}"
        return Finding(source=str(path), message=message, severity="warning")
    return None


def read_document(run_dir: Path) -> dict[str, Any] | None:
    """Return the last state that was written, or None where there is none that can be read."""
    try:
        return snapshots.from_json(read_file(run_dir / NAME))
    except (OSError, BadDocument, InvalidValue):
        return None
