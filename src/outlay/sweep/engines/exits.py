"""How an attempt ended, kept in the run's directory by whoever saw it end.

The harness may be dead by then; the next one reads it here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

NAME: Final = "sweep_exit.json"


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one attempt; ``asked`` when it was told to end before it did."""

    ticket: str
    returncode: int
    asked: bool = False
    elapsed_ns: int = 0


def write_exit(directory: Path, record: ExitRecord) -> bool:
    """Put the record in place whole; False when the disk refuses."""
    path = directory / NAME
    draft = directory / f".{NAME}.draft"
    try:
        draft.write_bytes(msgspec.json.encode(record) + b"\n")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        return False
    return True


def read_exit(directory: Path, ticket: str) -> ExitRecord | None:
    """Return how this very attempt ended, or None where that was not written."""
    try:
        record = msgspec.json.decode((directory / NAME).read_bytes(), type=ExitRecord)
    except (OSError, msgspec.MsgspecError):
        return None
    return record if record.ticket == ticket else None
