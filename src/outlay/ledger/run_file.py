"""The run's identity, written once: ``ledger/run.json``.

All ranks and all attempts of a run share it; whoever comes first decides.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from outlay.decoding import MEBIBYTE, BadDocument, Int64, read_document
from outlay.ledger.segments import ledger_dir


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
