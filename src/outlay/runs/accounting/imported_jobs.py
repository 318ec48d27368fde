"""Jobs imported from sacct, withdrawn when a run recorded itself.

What a job recorded itself counts, and its import is removed, whichever came first. Only logs below
the outlay home are changed, and segments that an import added to a run; the caller updates the
store.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from outlay.decoding import MEBIBYTE, BadDocument, open_regular
from outlay.ledger import ACCOUNTS, AttemptStarted, read_identity, segment_paths
from outlay.ledger.reader import header_of
from outlay.ledger.segments import id_from_name
from outlay.store import outlay_home

SACCT: Final = "sacct"
"""Directory of imported jobs in the outlay home."""
SETTLED: Final = ".settled"
"""Suffix of the file that names the run whose log has a job's accounts."""


def withdraw_imported(directories: Iterable[Path]) -> tuple[list[str], list[Path]]:
    """Remove imported jobs that these runs recorded themselves, or shared with a settled run.

    Returns:
        The ids of the removed runs, and the directories of runs whose log has changed.
    """
    home = outlay_home() / SACCT
    withdrawn: list[str] = []
    changed: list[Path] = []
    for directory in directories:
        if home in directory.parents:
            continue
        for job in jobs_of(directory):
            for imported in home.glob(f"*-{job}-*"):
                if imported.name.split("-")[-2] == job:
                    withdrawn += withdraw(imported)
                    changed += _unsettle(imported, job, directory)
    return withdrawn, changed


def _unsettle(mark: Path, job: str, directory: Path) -> list[Path]:
    """Remove a job's accounts from the log of another run in the same job; return its directory."""
    if not mark.name.endswith(SETTLED):
        return []
    try:
        with os.fdopen(open_regular(mark), "rb") as stream:
            other = Path(os.fsdecode(stream.read(MEBIBYTE)))
    except (OSError, BadDocument):
        return []
    if other == directory:
        return []
    mark.unlink(missing_ok=True)
    for path in segment_paths(other):
        header = header_of(path)
        if header is not None and _is_account(header) and header.slurm_job == job:
            path.unlink(missing_ok=True)
    return [other]


def withdraw(directory: Path) -> list[str]:
    """Remove the log of an imported job, if there is one; return its run id."""
    identity = read_identity(directory)
    if identity is None:
        return []
    shutil.rmtree(directory, ignore_errors=True)
    return [identity.run_id]


def jobs_of(directory: Path) -> set[str]:
    """Return the Slurm jobs in which a run recorded itself."""
    return {header.slurm_job for header in own_headers(directory)} - {""}


def own_headers(directory: Path) -> Iterator[AttemptStarted]:
    """Yield the headers of segments that a run wrote itself; of its ranks, rank 0 only."""
    for path in segment_paths(directory):
        segment = id_from_name(path)
        if segment is not None and segment.rank > 0:
            continue
        header = header_of(path)
        if header is not None and not _is_account(header):
            yield header


def _is_account(header: AttemptStarted) -> bool:
    return header.launch.startswith(f"{ACCOUNTS}-")
