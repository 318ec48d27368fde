"""The files of a run log: one segment per process, and the run's identity."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from outlay.decoding import MEBIBYTE, BadDocument, Int64, read_document
from outlay.files import make_private, open_own
from outlay.ledger.records import AttemptStarted

#   <run dir>/ledger/run.json                                  the identity, written once
#   <run dir>/ledger/<start ns>-<host>-<pid>-r<rank>.jsonl     one segment per process
#
# Attempts are not numbered on disk: readers derive them.

LEDGER = "ledger"
_NAME = re.compile(r"([0-9]{1,20})-(.*)-([0-9]{1,10})-r(-?[0-9]{1,9})\.jsonl")
_LATEST_NS = 2**62 - 1

SUPERVISOR = -1
"""The rank of a process that watches the training from outside, such as ``outlay exec``."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """The process that wrote a segment: when it started, its rank, host and pid."""

    start_ns: int
    rank: int = 0
    host: str = ""
    pid: int = 0

    @classmethod
    def of(cls, header: AttemptStarted) -> SegmentId:
        """Return the id of the segment that begins with this record."""
        return cls(header.t_ns, header.rank, header.host, header.pid)

    @property
    def file_name(self) -> str:
        """The segment's file name; sorts by start."""
        host = re.sub(r"[^A-Za-z0-9._]", "_", self.host)
        return f"{self.start_ns:020d}-{host}-{self.pid}-r{self.rank}.jsonl"


def order_of_starts(begins: Sequence[tuple[int, AttemptStarted | None]]) -> list[int]:
    """Return the places of starts, oldest first, given the begin and the header of each.

    Starts of one boot are in the order of the time since it, if they recorded that: the wall clock
    may have been set between them. One that began after a clock was set back takes those before it
    with it.
    """
    keys = [
        (begun_ns, 0 if header is None else header.since_boot_ns) for begun_ns, header in begins
    ]
    by_boot: dict[str, list[int]] = {}
    for place, (_, header) in enumerate(begins):
        if header is not None and header.boot_id and header.since_boot_ns:
            by_boot.setdefault(header.boot_id, []).append(place)
    for places in by_boot.values():
        places.sort(key=lambda place: keys[place][1])
        for earlier, later in reversed(list(pairwise(places))):
            keys[earlier] = (min(keys[earlier][0], keys[later][0]), keys[earlier][1])
    return sorted(range(len(keys)), key=keys.__getitem__)


def ledger_dir(run_dir: Path) -> Path:
    """Return the directory of a run's segments."""
    return run_dir / LEDGER


def segment_paths(run_dir: Path) -> list[Path]:
    """Return the run's segment files, oldest first; empty if there is no readable directory."""
    directory = ledger_dir(run_dir)
    try:
        with os.scandir(directory) as entries:  # A glob takes several times as long.
            names = sorted(entry.name for entry in entries if entry.name.endswith(".jsonl"))
    except (OSError, ValueError):  # ValueError: a path that no file can have.
        return []
    return [directory / name for name in names]


def id_from_name(path: Path) -> SegmentId | None:
    """Parse a segment's file name, for when its first record is damaged."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[1]) > _LATEST_NS:
        return None
    return SegmentId(start_ns=int(match[1]), host=match[2], pid=int(match[3]), rank=int(match[4]))


def own_segments(run_dir: Path) -> list[SegmentId]:
    """Return the segments of the training itself, by their file names: not those of supervisors.

    A name that cannot be parsed counts as the training's, begun at 0.
    """
    found = (id_from_name(path) or SegmentId(0) for path in segment_paths(run_dir))
    return [segment for segment in found if segment.rank != SUPERVISOR]


# The run's identity: written by its first process, shared by all ranks and attempts


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The run that a directory holds."""

    run_id: str
    model: str
    name: str
    created_ns: Int64


def run_file(run_dir: Path) -> Path:
    """Return the file that holds a run's identity."""
    return ledger_dir(run_dir) / "run.json"


def read_identity(run_dir: Path) -> RunIdentity | None:
    """Return the identity of the run in ``run_dir``; None if it is missing or unreadable."""
    try:
        return read_document(run_file(run_dir), RunIdentity, largest=MEBIBYTE)
    except (OSError, BadDocument):
        return None


def claim_identity(run_dir: Path, proposal: RunIdentity) -> RunIdentity:
    """Write the proposal unless the directory has an identity; return the identity in effect.

    Raises:
        OSError: The directory cannot be written.
    """
    path = run_file(run_dir)
    make_private(path.parent)
    draft = path.with_name(f".run-{os.getpid()}-{proposal.run_id}.json")  # Nobody else's.
    try:
        with os.fdopen(open_own(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as stream:
            stream.write(msgspec.json.encode(proposal) + b"\n")
        if _publish(draft, path):
            return proposal
    finally:
        draft.unlink(missing_ok=True)
    return read_identity(run_dir) or proposal


def _publish(draft: Path, path: Path) -> bool:
    """Create the file atomically unless it exists: no reader sees half an identity.

    Returns whether it is certain that this draft is the identity.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # No hard links on this file system: of two simultaneous starts, one wins.
        if not path.exists():
            draft.replace(path)
    else:
        return True
    return False
