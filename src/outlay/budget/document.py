"""``budget.json``: the budget's state in the run's directory, whole or not there, never half."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from outlay.budget import snapshots
from outlay.errors import Finding, InvalidValue

NAME: Final = "budget.json"

_drafts = itertools.count()


def write_document(run_dir: Path, snapshot: Mapping[str, Any]) -> Finding | None:
    """Put the snapshot in place of the last one; a disk that refuses is a finding.

    The new file is synced before it replaces the old one, so that a crash or a full disk at any
    moment leaves one of the two.
    """
    path = run_dir / NAME
    # A signal handler may write while a refresh does: each has a draft of its own.
    draft = run_dir / f".{NAME}.{os.getpid()}.{next(_drafts)}"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with draft.open("w") as stream:
            stream.write(snapshots.as_json(snapshot))
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        message = f"could not be written: {error.strerror}"
        return Finding(source=str(path), message=message, severity="warning")
    return None


def read_document(run_dir: Path) -> dict[str, Any] | None:
    """Return the last state that was written, or None where there is none that can be read."""
    try:
        return snapshots.from_json((run_dir / NAME).read_bytes())
    except (OSError, InvalidValue):
        return None
