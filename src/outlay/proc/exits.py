"""How a command ended, written down by whoever saw it end, before anybody is told.

Whoever started it may be dead by then; the next one reads it here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from outlay.files import write_whole

NAME: Final = "sweep_exit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """The end of one attempt.

    Attributes:
        asked: Whether it was told to end before it did.
        ended_ns: When the last of it was reaped, UTC nanoseconds; 0 where nobody noted it.
        reason: Why, where the exit code does not say.
        restart: How often a cluster had started the attempt before.
    """

    ticket: str
    returncode: int
    asked: bool = False
    elapsed_ns: int = 0
    ended_ns: int = 0
    reason: str = ""
    restart: int = 0


def exit_path(directory: Path, node: int = 0) -> Path:
    """Return where the end is written, as seen from one node of several."""
    return directory / (NAME if node == 0 else f"sweep_exit.node{node}.json")


def write_exit(path: Path, record: ExitRecord) -> bool:
    """Put the record in place whole; False when the disk refuses."""
    try:
        write_whole(path, json.dumps(asdict(record), separators=(",", ":")).encode() + b"\n")
    except OSError:
        return False
    return True


def read_exit(directory: Path, ticket: str, *, node: int = 0) -> ExitRecord | None:
    """Return how this very attempt ended, or None where that was not written."""
    # Here: the keeper, which only writes, runs without packages.
    from outlay.decoding import MEBIBYTE, BadDocument, read_document

    try:
        record = read_document(exit_path(directory, node), ExitRecord, largest=MEBIBYTE)
    except (OSError, BadDocument):
        return None
    return record if record.ticket == ticket else None
