"""How an attempt ended, kept in the run's directory by whoever saw it end.

The harness may be dead by then; the next one reads it here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import MEBIBYTE, BadDocument, Int64, read_document
from outlay.files import write_whole

NAME: Final = "sweep_exit.json"


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one attempt.

    Attributes:
        asked: Whether it was told to end before it did.
        reason: Why, where the exit code does not say.
        restart: How often a cluster had started the attempt before.
    """

    ticket: str
    returncode: int
    asked: bool = False
    elapsed_ns: Int64 = 0
    reason: str = ""
    restart: int = 0


def exit_path(directory: Path, node: int = 0) -> Path:
    """Return where the end is written, as seen from one node of several."""
    return directory / (NAME if node == 0 else f"sweep_exit.node{node}.json")


def write_exit(directory: Path, record: ExitRecord, *, node: int = 0) -> bool:
    """Put the record in place whole; False when the disk refuses."""
    try:
        write_whole(exit_path(directory, node), msgspec.json.encode(record) + b"\n")
    except OSError:
        return False
    return True


def read_exit(directory: Path, ticket: str, *, node: int = 0) -> ExitRecord | None:
    """Return how this very attempt ended, or None where that was not written."""
    try:
        record = read_document(exit_path(directory, node), ExitRecord, largest=MEBIBYTE)
    except (OSError, BadDocument):
        return None
    return record if record.ticket == ticket else None
