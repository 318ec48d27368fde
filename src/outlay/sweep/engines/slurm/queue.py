"""Slurm's queue: batches of jobs as submitted, and their status from squeue and sacct."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import BadDocument, read_document
from outlay.files import make_private, write_whole
from outlay.sweep.engines.slurm.job_spec import NO_SUCH_JOB

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


# Job status: parsing the output of ``squeue``, and of ``sacct`` for jobs it has forgotten. Pure.

FORMAT: Final = "%F|%K|%T|%r|%N|%o"
"""Array job number, array index, state, reason, nodes, script."""
_SACCT_FORMAT: Final = "JobID,State"
_TIMEOUT_S: Final = 60
_DEFAULT_ARRAY_SIZE: Final = 1001

ENDED: Final = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL",
     "DEADLINE", "OUT_OF_MEMORY", "REVOKED"]
)  # fmt: skip
"""The final states of https://slurm.schedmd.com/job_state_codes.html."""

WAITING: Final = frozenset(["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"])
"""The states of a job that waits to be started, for the first time or again."""
UNKNOWN: Final = "UNKNOWN"
"""The state of a job while Slurm does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job's status.

    Attributes:
        job: Its job number, with the array index if it has one.
        state: Slurm's state, without suffixes.
        reason: Why it waits.
    """

    job: str
    state: str
    reason: str = ""
    nodes: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it will not run again."""
        return self.state in ENDED


JobStatuses = dict[tuple[str, int], JobStatus]
"""By batch name and array index."""


def parse_squeue(text: str, batches: Sequence[Batch]) -> JobStatuses:
    """Return the status of the jobs of batches in ``squeue --array --format FORMAT``.

    Jobs are matched by number, or by script where the number is unknown. The script must match
    too: another cluster, or this one after a reinstall, may have given the number to another job.
    """
    numbered = {batch.job: batch for batch in batches if batch.job}
    unnumbered = [batch for batch in batches if not batch.job]
    statuses: JobStatuses = {}
    for line in text.splitlines():
        fields = line.split("|", FORMAT.count("|"))
        if len(fields) != FORMAT.count("|") + 1:
            continue
        number, index, state, reason, nodes, script = fields
        batch = numbered.get(number)
        if batch is None:
            batch = next((other for other in unnumbered if other.has_script(script)), None)
        if batch is None or not batch.has_script(script):
            continue
        in_array = index.isdecimal()
        statuses[batch.name, int(index) if in_array else 0] = JobStatus(
            job=f"{number}_{index}" if in_array else number, state=state, reason=reason, nodes=nodes
        )
    return statuses


def parse_sacct(text: str, batches: Sequence[Batch]) -> JobStatuses:
    """Return the status of jobs in ``sacct --parsable2``; of a requeued job, the last one."""
    numbered = {batch.job: batch for batch in batches if batch.job}
    statuses: JobStatuses = {}
    for line in text.splitlines():
        number, state = [*line.split("|"), ""][:2]
        base, _, index = number.partition("_")
        batch = numbered.get(base)
        if batch is None or (index and not index.isdecimal()):
            continue  # A job step, or the pending rest of an array: ``4_[3-9]``.
        word = (state.split() or [""])[0]  # CANCELLED by 1000
        statuses[batch.name, int(index or 0)] = JobStatus(job=number, state=word)
    return statuses


def parse_array_size(text: str) -> int:
    """Return the cluster's MaxArraySize from ``scontrol show config``."""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdecimal():
            return int(value)
    return _DEFAULT_ARRAY_SIZE


# Slurm's commands.


@dataclass(slots=True)
class Slurm:
    """Runs the cluster's commands."""

    _has_accounting: bool = True

    def query_queue(self, batches: Collection[Batch]) -> JobStatuses | None:
        """Return the status of the jobs that squeue remembers; None if Slurm does not answer."""
        numbers = _job_numbers(batches)
        selections = [f"--jobs={numbers}"] if numbers else []
        if not all(batch.job for batch in batches):
            selections.append(f"--user={os.getuid()}")  # Found by script, whatever their number.
        statuses: JobStatuses = {}
        for selection in selections:
            output = self._squeue(selection)
            if output is None:
                return None
            statuses |= parse_squeue(output, list(batches))
        return statuses

    def _squeue(self, selection: str) -> str | None:
        command = ["squeue", "--noheader", "--array", "--states=all", f"--format={FORMAT}"]
        done = self._run(*command, selection)
        if done is None or (done.returncode and NO_SUCH_JOB not in done.stderr):
            return None
        return done.stdout

    def query_accounting(self, batches: Collection[Batch]) -> JobStatuses:
        """Return the status of jobs from sacct; empty on a cluster without accounting."""
        numbers = _job_numbers(batches)
        if not numbers or not self._has_accounting:
            return {}
        command = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=2000-01-01"]
        output = self._output_of(*command, f"--format={_SACCT_FORMAT}", f"--jobs={numbers}")
        if output is None:
            self._has_accounting = False
            return {}
        return parse_sacct(output, list(batches))

    def max_array_size(self) -> int:
        """Return how many jobs an array may have."""
        return parse_array_size(self._output_of("scontrol", "show", "config") or "")

    def cancel(self, job: str, *, force: bool = False) -> bool:
        """Cancel a job: SIGTERM, and SIGKILL after the cluster's KillWait; or SIGKILL at once.

        Returns False if Slurm did not accept that.
        """
        if force:
            self._output_of("scancel", "--signal=KILL", job)
        return self._output_of("scancel", job) is not None

    def _output_of(self, *command: str) -> str | None:
        done = self._run(*command)
        return done.stdout if done is not None and done.returncode == 0 else None

    def _run(self, *command: str) -> subprocess.CompletedProcess[str] | None:
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return None


def _job_numbers(batches: Collection[Batch]) -> str:
    return ",".join(sorted({batch.job for batch in batches if batch.job}))
