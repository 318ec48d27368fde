"""How a command ended: written before it is reported, for the next supervisor if this one dies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outlay.files import write_whole

NAME: Final = "sweep_exit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """The end of one attempt.

    Attributes:
        asked: Whether it was signalled to end.
        ended_ns: When its last process was reaped, UTC nanoseconds; 0 if unknown.
        reason: Why it ended, if the exit code does not tell.
        restart: How often a cluster had restarted the attempt.
    """

    ticket: str
    returncode: int
    asked: bool = False
    elapsed_ns: int = 0
    ended_ns: int = 0
    reason: str = ""
    restart: int = 0


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a slotted dataclass by name; asdict() copies each of them."""
    return {name: getattr(value, name) for name in value.__slots__}


def shell_code(returncode: int) -> int:
    """Return a shell's exit code: 128 plus the signal's number for a killed process."""
    return returncode if returncode >= 0 else 128 - returncode


def exit_path(directory: Path, node: int = 0) -> Path:
    """Return the path of the exit record of one node."""
    return directory / (NAME if node == 0 else f"sweep_exit.node{node}.json")


def write_exit(path: Path, record: ExitRecord) -> bool:
    """Write an exit record atomically; False if that fails."""
    try:
        text = json.dumps(fields_of(record), separators=(",", ":"))
        write_whole(path, text.encode() + b"\n", private=True)
    except OSError:
        return False
    return True


def read_exit(directory: Path, ticket: str, *, node: int = 0) -> ExitRecord | None:
    """Return the exit record of an attempt, or None if there is none."""
    # Here: the keeper, which only writes, runs without third-party packages.
    from outlay.decoding import MEBIBYTE, BadDocument, read_document

    try:
        record = read_document(exit_path(directory, node), ExitRecord, largest=MEBIBYTE)
    except (OSError, BadDocument):
        return None
    return record if record.ticket == ticket else None
