"""What Slurm says about jobs, and which of them were submitted together."""

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
from outlay.files import write_whole

# Which attempts were submitted together: a file per batch below the sweep's ``slurm`` directory.
#
# It is written before Slurm is asked, into a directory of its own, in which the job's script
# lies. So whoever comes later finds every job by its script, even when the one who submitted died
# before it got a number.

DIRECTORY: Final = "slurm"
_FILE: Final = "batch.json"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]")
_LONGEST_NAME: Final = 80


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts that were submitted together; each one's place is its place in the array.

    Attributes:
        name: Of its directory, which no other batch has.
        job: Slurm's number of the whole; "" while it is not known.
        title: The jobs' name in the queue.
    """

    name: str
    tickets: tuple[str, ...]
    job: str = ""
    title: str = ""

    def job_of(self, ticket: str) -> str:
        """Return Slurm's number of one attempt, where it is known."""
        if not self.job or len(self.tickets) == 1:
            return self.job
        return f"{self.job}_{self.tickets.index(ticket)}"

    def has_script(self, path: str) -> bool:
        """Say whether a job's script is this batch's."""
        return f"/{self.name}/" in path


def new_batch(tickets: Sequence[str], *, sweep: str) -> Batch:
    """Return a batch that is called after its sweep and its run, or how many runs it has."""
    runs = [run_of(ticket) for ticket in tickets]
    title = job_title(sweep, runs[0] if len(runs) == 1 else f"{len(runs)}-runs")
    return Batch(name=f"{title}-{secrets.token_hex(6)}", tickets=tuple(tickets), title=title)


def job_title(sweep: str, run: str) -> str:
    """Return what a run's job is called in the queue."""
    return _NO_NAME.sub("", f"{sweep}-{run}")[:_LONGEST_NAME]


def run_of(ticket: str) -> str:
    """Return the run of a ticket of this engine: ``slurm/<run>/<number>``."""
    return ticket.split("/")[1]


def folder_of(root: Path, batch: Batch) -> Path:
    """Return where a batch's files lie."""
    return root / DIRECTORY / batch.name


def write_batch(root: Path, batch: Batch) -> None:
    """Put a batch's file in place, whole."""
    folder = folder_of(root, batch)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _FILE, msgspec.json.encode(batch) + b"\n")


def forget_batch(root: Path, batch: Batch) -> None:
    """Remove the file of a batch that Slurm did not take, whose attempts may go into another."""
    (folder_of(root, batch) / _FILE).unlink(missing_ok=True)


def jobs_in(root: Path) -> dict[str, str]:
    """Return Slurm's number of every attempt of a sweep that has one, by ticket."""
    return {
        ticket: batch.job_of(ticket)
        for batch in read_batches(root)
        if batch.job
        for ticket in batch.tickets
    }


def read_batches(root: Path) -> list[Batch]:
    """Return every batch of a sweep; one that cannot be read is passed over."""
    batches = []
    for path in sorted((root / DIRECTORY).glob(f"*/{_FILE}")):
        with contextlib.suppress(OSError, BadDocument):
            batches.append(read_document(path, Batch))
    return batches


# What Slurm says about jobs: ``squeue`` for those it remembers, ``sacct`` for those it does not.
#
# Reading their answers is pure; asking is at the end.

FORMAT: Final = "%F|%K|%T|%r|%N|%o"
"""Number (of the whole array), place in the array, state, why it waits, nodes, script."""
_ACCOUNTED: Final = "JobID,State"
_NO_SUCH_JOB: Final = "Invalid job id"
"""What ``squeue`` says of the only job it is asked for, if it has forgotten it."""
_TIMEOUT_S: Final = 60
_DEFAULT_ARRAY_SIZE: Final = 1001

ENDED: Final = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL",
     "DEADLINE", "OUT_OF_MEMORY", "REVOKED"]
)  # fmt: skip
"""Of https://slurm.schedmd.com/job_state_codes.html, those from which a job does not come back."""

WAITING: Final = frozenset(["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"])
UNKNOWN: Final = "UNKNOWN"
"""The state of a job while Slurm does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLook:
    """How a job stands.

    Attributes:
        job: Slurm's number of it: that of its array, and its place there.
        state: Slurm's state, without anything after it.
    """

    job: str
    state: str
    reason: str = ""
    nodes: str = ""

    @property
    def waits(self) -> bool:
        """Whether it waits to be started, for the first time or again."""
        return self.state in WAITING

    @property
    def is_known(self) -> bool:
        """Whether this is Slurm's state."""
        return self.state != UNKNOWN

    @property
    def over(self) -> bool:
        """Whether it will not run again."""
        return self.state in ENDED


Looks = dict[tuple[str, int], JobLook]
"""By the name of the batch and the place in it."""


def read_squeue(text: str, batches: Sequence[Batch]) -> Looks:
    """Return what ``squeue --array --format FORMAT`` says of the jobs of batches.

    They are known by their number, and where that is unknown by their script. A number that another
    cluster, or this one before it was set up anew, gave to another's job is told by its script.
    """
    numbered = {batch.job: batch for batch in batches if batch.job}
    unnumbered = [batch for batch in batches if not batch.job]
    looks: Looks = {}
    for line in text.splitlines():
        fields = line.split("|", FORMAT.count("|"))
        if len(fields) != FORMAT.count("|") + 1:
            continue
        number, place, state, reason, nodes, script = fields
        batch = numbered.get(number)
        if batch is None:
            batch = next((other for other in unnumbered if other.has_script(script)), None)
        if batch is None or not batch.has_script(script):
            continue
        index = int(place) if place.isdecimal() else 0
        job = f"{number}_{place}" if place.isdecimal() else number
        looks[batch.name, index] = JobLook(job=job, state=state, reason=reason, nodes=nodes)
    return looks


def read_sacct(text: str, batches: Sequence[Batch]) -> Looks:
    """Return what ``sacct --parsable2`` says of jobs; of a requeued one, its last state."""
    numbered = {batch.job: batch for batch in batches if batch.job}
    looks: Looks = {}
    for line in text.splitlines():
        number, state = [*line.split("|"), ""][:2]
        base, _, place = number.partition("_")
        batch = numbered.get(base)
        if batch is None or (place and not place.isdecimal()):
            continue  # A step, or the part of an array that has not been told apart yet.
        word = (state.split() or [""])[0]  # CANCELLED by 1000
        looks[batch.name, int(place or 0)] = JobLook(job=number, state=word)
    return looks


def read_array_size(text: str) -> int:
    """Return how many jobs an array may have, from ``scontrol show config``."""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdecimal():
            return int(value)
    return _DEFAULT_ARRAY_SIZE


@dataclass(slots=True)
class Slurm:
    """The cluster's commands; None is what one that could not be reached has to say."""

    _accounts: bool = True

    def look(self, batches: Collection[Batch]) -> Looks | None:
        """Return how the jobs of some batches stand that Slurm remembers."""
        numbers = ",".join(sorted({batch.job for batch in batches if batch.job}))
        asked = [f"--jobs={numbers}"] if numbers else []
        if not all(batch.job for batch in batches):
            asked.append(f"--user={os.getuid()}")  # Whatever number they have, they are ours.
        looks: Looks = {}
        for which in asked:
            answer = self._squeue(which)
            if answer is None:
                return None
            looks |= read_squeue(answer, list(batches))
        return looks

    def _squeue(self, which: str) -> str | None:
        command = ["squeue", "--noheader", "--array", "--states=all", f"--format={FORMAT}", which]
        done = self._ask(*command)
        if done is None or (done.returncode and _NO_SUCH_JOB not in done.stderr):
            return None
        return done.stdout

    def accounted(self, batches: Collection[Batch]) -> Looks:
        """Return what the accounts say about jobs; nothing where no accounts are kept."""
        numbers = ",".join(sorted({batch.job for batch in batches if batch.job}))
        if not numbers or not self._accounts:
            return {}
        command = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=2000-01-01"]
        answer = self._run(*command, f"--format={_ACCOUNTED}", f"--jobs={numbers}")
        if answer is None:
            self._accounts = False
            return {}
        return read_sacct(answer, list(batches))

    def array_size(self) -> int:
        """Return how many jobs an array may have."""
        return read_array_size(self._run("scontrol", "show", "config") or "")

    def cancel(self, job: str, *, force: bool = False) -> bool:
        """Cancel a job: SIGTERM, and SIGKILL after the cluster's notice; or SIGKILL at once.

        False when Slurm did not take that.
        """
        if force:
            self._run("scancel", "--signal=KILL", job)
        return self._run("scancel", job) is not None

    def _run(self, *command: str) -> str | None:
        done = self._ask(*command)
        return done.stdout if done is not None and done.returncode == 0 else None

    def _ask(self, *command: str) -> subprocess.CompletedProcess[str] | None:
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
