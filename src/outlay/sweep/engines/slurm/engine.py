"""The Slurm engine: submits attempts in arrays, polls, cancels and reattaches to them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from outlay.clock import SYSTEM, Clock
from outlay.slurm import cancel_job
from outlay.sweep.engines.base import Ended, Task
from outlay.sweep.engines.remote.job_spec import read_times, run_of
from outlay.sweep.engines.remote.poller import Poller, RemoteStatuses, Submitted
from outlay.sweep.engines.remote.remote_engine import RemoteEngine
from outlay.sweep.engines.slurm.queue import Batch, BatchQueue, read_batches
from outlay.sweep.engines.slurm.submission import SubmissionQueue, check_available

UNLIMITED: Final = 10**9


@dataclass(slots=True)
class EarlierBatches:
    """Batches of earlier processes, by ticket, and the status of their jobs."""

    batches: dict[str, Batch]
    statuses: RemoteStatuses | None
    queried_ns: int


class SlurmEngine(RemoteEngine):
    """Submits runs as jobs, which outlive this process.

    The sweep's directory must be on a file system that the nodes share.
    """

    name: ClassVar[str] = "slurm"

    def __init__(self, root: Path, clock: Clock = SYSTEM) -> None:
        check_available()
        self._queue = BatchQueue()
        self._batches: dict[str, Batch] = {}
        poller = Poller(clock, self._query)
        self._submissions = SubmissionQueue(root, poller, clock, self._batches)
        super().__init__(root, clock, poller, self._submissions.pending)
        self._earlier: EarlierBatches | None = None

    # -- starting ---------------------------------------------------------------------------

    def allow(self, jobs: int | None) -> int:
        """Limit how many jobs run at once; any number may be submitted."""
        self._submissions.jobs = jobs
        return UNLIMITED

    def submit(self, task: Task) -> None:
        """Queue a task; the next ``wait`` submits it in an array with others like it."""
        self._submissions.add(task)

    # -- polling ----------------------------------------------------------------------------

    def submit_pending(self) -> None:
        """Submit what is pending, and cancel what was withdrawn too late."""
        for ticket in self._submissions.flush():
            self.cancel(ticket)

    def _query(self, tickets: Collection[str]) -> RemoteStatuses | None:
        return self._queue.query({ticket: self._batches[ticket] for ticket in tickets})

    # -- ending -----------------------------------------------------------------------------

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """Cancel or kill a job; does nothing once Slurm has accepted that."""
        self._submissions.withdraw(ticket)
        known = self._poller.submitted.get(ticket)
        level = 2 if force else 1
        if known is None or known.cancels >= level:
            return
        if known.number and cancel_job(known.number, force=force):
            known.cancels = level
        self._poller.poll_soon()

    def reattach(self, task: Task) -> Ended | None:
        """Reattach to a job that another process submitted; None while it runs."""
        earlier = self._find_earlier()
        batch = earlier.batches.get(task.ticket)
        if batch is None:
            return Ended(how="lost", never_ran=True, reason="it never reached Slurm")
        known = Submitted(task.directory, task.nodes, batch.job_of(task.ticket))
        self._batches[task.ticket] = batch
        self._poller.adopt(task.ticket, known, earlier.statuses, earlier.queried_ns)
        return self.poll(task.ticket)

    def _find_earlier(self) -> EarlierBatches:
        """Return earlier batches; the first call queries the status of all of them at once."""
        if self._earlier is None:
            found = [self._with_job_number(batch) for batch in read_batches(self._root)]
            batches = {ticket: batch for batch in found for ticket in batch.tickets}
            statuses = self._queue.query(batches)
            self._earlier = EarlierBatches(batches, statuses, self._clock.monotonic_ns())
        return self._earlier

    def _with_job_number(self, batch: Batch) -> Batch:
        """Return a batch with the number that its jobs recorded, if its submitter got none."""
        if batch.job:
            return batch
        for ticket in batch.tickets:
            for event in read_times(self._root / run_of(ticket), ticket).events:
                return msgspec.structs.replace(batch, job=event.job.partition("_")[0])
        return batch
