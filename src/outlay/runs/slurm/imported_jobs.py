"""Jobs that were imported from a cluster's accounts, and runs that turn out to be of them.

What a job recorded itself counts, and what was imported of it is withdrawn, whichever came first.
It changes logs below the outlay home alone, and what accounts added to a run; the store is for the
caller to bring up to date.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from outlay.decoding import MEBIBYTE, BadDocument, decode, open_regular
from outlay.ledger import ACCOUNTS, read_identity, segment_paths
from outlay.ledger.segments import id_from_name
from outlay.store import outlay_home

SACCT: Final = "sacct"
"""Where imported jobs lie in the outlay home."""
SETTLED: Final = ".settled"
"""How the file ends that says in which run's log a job's accounts stand."""


def withdraw_imported(directories: Iterable[Path]) -> tuple[list[str], list[Path]]:
    """Withdraw imported jobs that these runs recorded themselves, or shared with a settled run.

    Returns:
        The ids of the runs that are gone, and the directories of those whose log has changed.
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
                    changed += _unsettled(imported, job, directory)
    return withdrawn, changed


def _unsettled(mark: Path, job: str, directory: Path) -> list[Path]:
    """Take a job's accounts out of the log of another run that shared it; return its directory."""
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
        is_account = str(header.get("launch", "")).startswith(f"{ACCOUNTS}-")
        if is_account and header.get("slurm_job") == job:
            path.unlink(missing_ok=True)
    return [other]


def withdraw(directory: Path) -> list[str]:
    """Remove the log of an imported job, if there is one; return the run that it was."""
    identity = read_identity(directory)
    if identity is None:
        return []
    shutil.rmtree(directory, ignore_errors=True)
    return [identity.run_id]


def jobs_of(directory: Path) -> set[str]:
    """Return the jobs in which a run recorded itself."""
    return {str(header.get("slurm_job", "")) for header in own_headers(directory)} - {""}


def own_headers(directory: Path) -> Iterator[dict[str, object]]:
    """Yield the first records of what a run recorded itself, of one process for all its ranks."""
    for path in segment_paths(directory):
        segment = id_from_name(path)
        if segment is not None and segment.rank > 0:
            continue
        header = header_of(path)
        if not str(header.get("launch", "")).startswith(f"{ACCOUNTS}-"):
            yield header


def header_of(path: Path) -> dict[str, object]:
    """Return the first record of a segment, without a look at the rest."""
    with contextlib.suppress(OSError, BadDocument), os.fdopen(open_regular(path), "rb") as stream:
        return decode(stream.readline(MEBIBYTE), dict[str, object])
    return {}
