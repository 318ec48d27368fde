"""Where a run's log lives: one segment file per process, named after who wrote it.

    <run dir>/ledger/run.json                                   the run's identity, written once
    <run dir>/ledger/<start ns>-<host>-<pid>-r<rank>.jsonl      one segment per process

Attempts are not numbered on disk: they are derived when reading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LEDGER = "ledger"
_NAME = re.compile(r"([0-9]{1,20})-(.*)-([0-9]{1,10})-r(-?[0-9]{1,9})\.jsonl")
_LATEST_NS = 2**62 - 1

SUPERVISOR = -1
"""The rank of a process that watches the training from outside, such as ``outlay exec``."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """Who wrote a segment: which process, when it started, and its rank."""

    start_ns: int
    rank: int = 0
    host: str = ""
    pid: int = 0

    @property
    def file_name(self) -> str:
        """The segment's file name; sorts by start."""
        host = re.sub(r"[^A-Za-z0-9._]", "_", self.host)
        return f"{self.start_ns:020d}-{host}-{self.pid}-r{self.rank}.jsonl"


def ledger_dir(run_dir: Path) -> Path:
    """Return where the segments of a run are."""
    return run_dir / LEDGER


def segment_paths(run_dir: Path) -> list[Path]:
    """Return the run's segment files, oldest first; empty when no run log can be seen."""
    try:
        return sorted(ledger_dir(run_dir).glob("*.jsonl"))
    except OSError:  # A parent that nobody may look into, or a name that no file can have.
        return []


def id_from_name(path: Path) -> SegmentId | None:
    """Return who wrote a file by its name alone, for when its first record is damaged."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[1]) > _LATEST_NS:
        return None
    return SegmentId(start_ns=int(match[1]), host=match[2], pid=int(match[3]), rank=int(match[4]))
