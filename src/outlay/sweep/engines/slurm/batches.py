"""Which attempts were submitted together: a file per batch below the sweep's ``slurm`` directory.

It is written before Slurm is asked, into a directory of its own, in which the job's script lies. So
whoever comes later finds every job by its script, even when the one who submitted died before it
heard a number.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import BadDocument, read_document
from outlay.files import write_whole

DIRECTORY: Final = "slurm"
_FILE: Final = "batch.json"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]")
_LONGEST_NAME: Final = 80


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts that were submitted together; each one's place is its place in the array.

    Attributes:
        name: Of its directory, which no other batch has.
        tickets: The attempts.
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
