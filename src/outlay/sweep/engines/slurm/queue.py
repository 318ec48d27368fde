"""Batches of jobs as submitted, and their status from squeue and sacct."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import BadDocument, read_document
from outlay.files import make_private, write_whole
from outlay.slurm import JobStatus, accounted_jobs, queued_jobs

# Batches: a file and a directory each below the sweep's ``slurm`` directory.
#
# The file is written before sbatch runs, and the job's script is in the same directory. A later
# process therefore finds every job by its script, even if the submitter died before it got a
# job number.

DIRECTORY: Final = "slurm"
_FILE: Final = "batch.json"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]")
_LONGEST_NAME: Final = 80


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts submitted together; a ticket's index is its array index.

    Attributes:
        name: The name of its directory, unique.
        job: Slurm's job number of the whole; "" while unknown.
        title: The job name in the queue.
    """

    name: str
    tickets: tuple[str, ...]
    job: str = ""
    title: str = ""

    def job_of(self, ticket: str) -> str:
        """Return the job number of one attempt; "" while unknown."""
        if not self.job or len(self.tickets) == 1:
            return self.job
        return f"{self.job}_{self.tickets.index(ticket)}"

    def has_script(self, path: str) -> bool:
        """Say whether a job script belongs to this batch."""
        return f"/{self.name}/" in path


def new_batch(tickets: Sequence[str], *, sweep: str) -> Batch:
    """Return a batch named after its sweep and its run, or the number of its runs."""
    runs = [run_of(ticket) for ticket in tickets]
    title = job_title(sweep, runs[0] if len(runs) == 1 else f"{len(runs)}-runs")
    return Batch(name=f"{title}-{secrets.token_hex(6)}", tickets=tuple(tickets), title=title)


def job_title(sweep: str, run: str) -> str:
    """Return the job name of a run in the queue."""
    return _NOT_IN_NAMES.sub("", f"{sweep}-{run}")[:_LONGEST_NAME]


def run_of(ticket: str) -> str:
    """Return the run id in a ticket of this engine: ``slurm/<run>/<number>``."""
    return ticket.split("/")[1]


def batch_directory(root: Path, batch: Batch) -> Path:
    """Return the directory of a batch's files."""
    return root / DIRECTORY / batch.name


def write_batch(root: Path, batch: Batch) -> None:
    """Write a batch's file atomically."""
    directory = batch_directory(root, batch)
    make_private(directory)
    write_whole(directory / _FILE, msgspec.json.encode(batch) + b"\n")


def delete_batch(root: Path, batch: Batch) -> None:
    """Delete the file of a batch that Slurm rejected, so that its attempts may join another."""
    (batch_directory(root, batch) / _FILE).unlink(missing_ok=True)


def jobs_in(root: Path) -> dict[str, str]:
    """Return the known job numbers of a sweep's attempts, by ticket."""
    return {
        ticket: batch.job_of(ticket)
        for batch in read_batches(root)
        if batch.job
        for ticket in batch.tickets
    }


def read_batches(root: Path) -> list[Batch]:
    """Return every batch of a sweep; unreadable files are skipped."""
    batches = []
    for path in sorted((root / DIRECTORY).glob(f"*/{_FILE}")):
        with contextlib.suppress(OSError, BadDocument):
            batches.append(read_document(path, Batch))
    return batches


# The status of batches.

UNKNOWN: Final = "UNKNOWN"
"""The state of a job while Slurm does not answer."""
JobStatuses = dict[tuple[str, int], JobStatus]
"""By batch name and array index."""


def match_batches(found: Iterable[JobStatus], batches: Collection[Batch]) -> JobStatuses:
    """Return the status of the jobs of batches; of a requeued job that sacct lists, the last one.

    Jobs are matched by number, or by script where the number is unknown. The script that squeue
    lists must match too: another cluster, or this one after a reinstall, may have given the number
    to another job.
    """
    numbered = {batch.job: batch for batch in batches if batch.job}
    unnumbered = [batch for batch in batches if not batch.job]
    statuses: JobStatuses = {}
    for status in found:
        number, _, index = status.job.partition("_")
        script, batch = status.script, numbered.get(number)
        if batch is None and script is not None:
            batch = next((other for other in unnumbered if other.has_script(script)), None)
        if batch is None or (script is not None and not batch.has_script(script)):
            continue
        if not index or index.isdecimal():  # Else the pending rest of an array: ``4_[3-9]``.
            statuses[batch.name, int(index or 0)] = status
    return statuses


def query_queue(batches: Collection[Batch]) -> JobStatuses | None:
    """Return the status of the jobs that squeue remembers; None if Slurm does not answer."""
    numbers = _job_numbers(batches)
    selections = [numbers] if numbers else []
    if not all(batch.job for batch in batches):
        selections.append("")  # Found by script, whatever their number.
    statuses: JobStatuses = {}
    for selection in selections:
        queue = queued_jobs(selection)
        if queue is None:
            return None
        statuses |= match_batches(queue, batches)
    return statuses


def query_accounting(batches: Collection[Batch]) -> JobStatuses | None:
    """Return the status of jobs from sacct; None on a cluster without accounting."""
    numbers = _job_numbers(batches)
    accounts = accounted_jobs(numbers) if numbers else []
    return None if accounts is None else match_batches(accounts, batches)


def _job_numbers(batches: Collection[Batch]) -> str:
    return ",".join(sorted({batch.job for batch in batches if batch.job}))
