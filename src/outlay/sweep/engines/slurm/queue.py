"""Batches of jobs as submitted, and their status from squeue and sacct."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import read_documents
from outlay.files import make_private, write_whole
from outlay.slurm import WAITING, JobStatus, accounted_jobs, queued_jobs
from outlay.sweep.engines.base import How
from outlay.sweep.engines.remote.job_spec import run_of
from outlay.sweep.engines.remote.poller import RemoteStatus

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
    return read_documents(sorted((root / DIRECTORY).glob(f"*/{_FILE}")), Batch)


# The status of batches.

JobStatuses = dict[str, JobStatus]
"""By ticket."""
_BY_STATE: Final[dict[str, tuple[How, str]]] = {
    "CANCELLED": ("exited", "cancelled in Slurm"),
    "PREEMPTED": ("preempted", "preempted, and this cluster does not requeue it"),
    "NODE_FAIL": ("preempted", "a node failed, and this cluster does not requeue it"),
    "BOOT_FAIL": ("preempted", "a node did not boot"),
    "TIMEOUT": ("exited", "Slurm's time limit was reached"),
    "DEADLINE": ("exited", "Slurm's deadline was reached"),
    "OUT_OF_MEMORY": ("exited", "out of memory (Slurm)"),
    "FAILED": ("exited", "Slurm could not run it; see the sweep's slurm directory"),
}


def remote_status(status: JobStatus) -> RemoteStatus:
    """Return Slurm's status of a job in terms that all schedulers share."""
    state, found = status.state, _BY_STATE.get(status.state)
    nodes = f" on {status.nodes}" if status.nodes else ""
    reason = f" ({status.reason})" if status.reason not in ("", "None") else ""
    how, why = found or ("lost", "it recorded no end")
    return RemoteStatus(
        job=status.job, text=f"{state.lower()}{nodes}{reason}", queued=state in WAITING,
        is_over=status.is_over, how=how, reason=why, cancelled=state == "CANCELLED",
        explains=found is not None and state != "FAILED",
    )  # fmt: skip


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
        place = int(index or 0) if not index or index.isdecimal() else len(batch.tickets)
        if place < len(batch.tickets):  # Else the pending rest of an array: ``4_[3-9]``.
            statuses[batch.tickets[place]] = status
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


@dataclass(slots=True)
class BatchQueue:
    """Queries the status of batches, from accounting where squeue has forgotten them."""

    _has_accounting: bool = True

    def query(self, wanted: Mapping[str, Batch]) -> dict[str, RemoteStatus] | None:
        """Return the status of attempts, whose batches are by ticket; None without an answer."""
        statuses = query_queue(_unique(wanted.values()))
        if statuses is None:
            return None
        forgotten = _unique(batch for ticket, batch in wanted.items() if ticket not in statuses)
        accounts = query_accounting(forgotten) if self._has_accounting else None
        self._has_accounting = accounts is not None
        found = (accounts or {}) | statuses
        return {ticket: remote_status(status) for ticket, status in found.items()}


def _unique(batches: Iterable[Batch]) -> list[Batch]:
    return list({batch.name: batch for batch in batches}.values())


def _job_numbers(batches: Collection[Batch]) -> str:
    return ",".join(sorted({batch.job for batch in batches if batch.job}))
