"""Where a run's log lives: one segment file per process, and the run's identity."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from outlay.decoding import MEBIBYTE, BadDocument, Int64, read_document
from outlay.ledger.records import AttemptStarted

#   <run dir>/ledger/run.json                                  the identity, written once
#   <run dir>/ledger/<start ns>-<host>-<pid>-r<rank>.jsonl     one segment per process
#
# Attempts are not numbered on disk: they are derived when reading.

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

    @classmethod
    def of(cls, header: AttemptStarted) -> SegmentId:
        """Return who wrote a segment that begins with this record."""
        return cls(header.t_ns, header.rank, header.host, header.pid)

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
    directory = ledger_dir(run_dir)
    try:
        with os.scandir(directory) as entries:  # A glob takes several times as long.
            names = sorted(entry.name for entry in entries if entry.name.endswith(".jsonl"))
    except (OSError, ValueError):  # Nothing to look into, or a name that no file can have.
        return []
    return [directory / name for name in names]


def id_from_name(path: Path) -> SegmentId | None:
    """Return who wrote a file by its name alone, for when its first record is damaged."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[1]) > _LATEST_NS:
        return None
    return SegmentId(start_ns=int(match[1]), host=match[2], pid=int(match[3]), rank=int(match[4]))


# The run's identity, written once: ``ledger/run.json``.
#
# All ranks and all attempts of a run share it; whoever comes first decides.


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which run a directory holds."""

    run_id: str
    model: str
    name: str
    created_ns: Int64


def run_file(run_dir: Path) -> Path:
    """Return where the identity of a run is kept."""
    return ledger_dir(run_dir) / "run.json"


def read_identity(run_dir: Path) -> RunIdentity | None:
    """Return the identity of the run in ``run_dir``; None when there is none that can be read."""
    try:
        return read_document(run_file(run_dir), RunIdentity, largest=MEBIBYTE)
    except (OSError, BadDocument):
        return None


def claim_identity(run_dir: Path, proposal: RunIdentity) -> RunIdentity:
    """Write the proposal unless the directory has an identity already; return the one that holds.

    Raises:
        OSError: The directory cannot be written.
    """
    path = run_file(run_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".run-{os.getpid()}-{proposal.run_id}.json")
    try:
        draft.write_bytes(msgspec.json.encode(proposal) + b"\n")
        _publish(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return read_identity(run_dir) or proposal


def _publish(draft: Path, path: Path) -> None:
    """Make the whole file appear unless there is one: no reader sees half an identity."""
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # This file system has no hard links; of two that start at once, one wins.
        if not path.exists():
            draft.replace(path)
