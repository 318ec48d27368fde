"""The engine: runs that ask the same go to Slurm together, and are found again by anybody."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from outlay.clock import SYSTEM, Clock
from outlay.sweep.engines.base import Ended, Task, TaskStanding
from outlay.sweep.engines.slurm.allocation import read_times
from outlay.sweep.engines.slurm.poller import Poller, Submitted
from outlay.sweep.engines.slurm.queue import Batch, Looks, Slurm, read_batches, run_of
from outlay.sweep.engines.slurm.submission import SubmissionQueue, check_available

UNLIMITED: Final = 10**9
NOT_QUEUED: Final = TaskStanding(text="not in the queue yet", queued=True)


@dataclass(slots=True)
class Earlier:
    """What was submitted before: every attempt's batch, and how Slurm said that they stand."""

    batches: dict[str, Batch]
    looks: Looks | None
    asked_ns: int


class SlurmEngine:
    """Submits runs as jobs; they outlive this process and are found again by any other.

    The sweep's directory must be on a file system that the nodes share.
    """

    remote: ClassVar[bool] = True

    def __init__(self, root: Path, clock: Clock = SYSTEM) -> None:
        check_available()
        self._root = root
        self._clock = clock
        self._slurm = Slurm()
        self._poller = Poller(self._slurm, clock)
        self._submissions = SubmissionQueue(root, self._slurm, self._poller, clock)
        self._earlier: Earlier | None = None

    # -- starting ---------------------------------------------------------------------------

    def allow(self, jobs: int | None) -> int:
        """Let so many jobs run at the same time; any number may be submitted."""
        self._submissions.jobs = jobs
        return UNLIMITED

    def new_ticket(self, name: str) -> str:
        """Return a ticket that nobody has used."""
        return f"slurm/{name}/{secrets.token_hex(6)}"

    def submit(self, task: Task) -> None:
        """Write a task down; it goes to Slurm with others like it at the next look."""
        self._submissions.add(task)

    def all_submitted(self) -> bool:
        """Say whether Slurm has everything."""
        return self._submissions.is_done

    # -- looking ----------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> None:
        """Return when a job may have ended, or after the time."""
        for ticket in self._submissions.flush():
            self.cancel(ticket)
        self._poller.look()
        if not self._poller.ended:
            self._clock.sleep(min(timeout_s, self._poller.due_in_s()))

    def poll(self, ticket: str) -> Ended | None:
        """Return how a job ended, once; None while it runs."""
        return self._poller.ended.pop(ticket, None)

    def standing(self, ticket: str) -> TaskStanding:
        """Return how a job stands in Slurm's words; where it does not say, in the job's own."""
        if ticket in self._submissions:
            return NOT_QUEUED
        known = self._poller.submitted.get(ticket)
        if known is None:
            return TaskStanding()
        job, look = known.batch.job_of(ticket), known.look
        if look is None or not look.is_known:
            waits = read_times(known.directory, ticket).running_since_ns is None
            text = "" if look is None else f"job {job} {look.state.lower()} ({look.reason})"
            return TaskStanding(text=text, job=job, queued=waits)
        where = f" on {look.nodes}" if look.nodes else ""
        why = f" ({look.reason})" if look.reason not in ("", "None") else ""
        job = look.job or job
        text = f"job {job} {look.state.lower()}{where}{why}"
        return TaskStanding(text=text, job=job, queued=look.waits)

    # -- ending -----------------------------------------------------------------------------

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """Cancel a job, or end it; once Slurm has taken that, a second call does nothing."""
        self._submissions.withdraw(ticket)
        known = self._poller.submitted.get(ticket)
        level = 2 if force else 1
        if known is None or known.cancels >= level:
            return
        job = known.batch.job_of(ticket) or (known.look.job if known.look is not None else "")
        if job and self._slurm.cancel(job, force=force):
            known.cancels = level
        self._poller.look_soon()

    def reattach(self, task: Task) -> Ended | None:
        """Reattach to a job that another process submitted; None while it runs."""
        earlier = self._find_earlier()
        batch = earlier.batches.get(task.ticket)
        if batch is None:
            return Ended(how="lost", never_ran=True, reason="it never reached Slurm")
        known = Submitted(task.directory, task.nodes, batch, batch.tickets.index(task.ticket))
        self._poller.adopt(task.ticket, known, earlier.looks, earlier.asked_ns)
        return self.poll(task.ticket)

    def _find_earlier(self) -> Earlier:
        """Return what was submitted before; the first time, ask about all of it at once."""
        if self._earlier is None:
            found = [self._numbered(batch) for batch in read_batches(self._root)]
            batches = {ticket: batch for batch in found for ticket in batch.tickets}
            keys = {(batch.name, i): batch for batch in found for i in range(len(batch.tickets))}
            self._earlier = Earlier(batches, self._poller.ask(keys), self._clock.monotonic_ns())
        return self._earlier

    def _numbered(self, batch: Batch) -> Batch:
        """Return a batch with the number that its jobs recorded, if its submitter got none."""
        if batch.job:
            return batch
        for ticket in batch.tickets:
            for moment in read_times(self._root / run_of(ticket), ticket).moments:
                return msgspec.structs.replace(batch, job=moment.job.partition("_")[0])
        return batch

    def close(self) -> None:
        """Close; jobs go on."""
