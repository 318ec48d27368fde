"""One poller for all jobs of a sweep: polls them together, with back-off; decides how they ended.

Calls no Slurm command and opens no file itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from outlay.clock import Clock
from outlay.proc.exit_record import ExitRecord, read_exit
from outlay.slurm import JobStatus
from outlay.sweep.engines.base import Ended, How
from outlay.sweep.engines.slurm.job_spec import JobTimes, read_times
from outlay.sweep.engines.slurm.queue import (
    UNKNOWN,
    Batch,
    JobStatuses,
    query_accounting,
    query_queue,
)

if TYPE_CHECKING:
    from pathlib import Path

SHORTEST_NS: Final = 250_000_000
LONGEST_NS: Final = 30 * 10**9
"""The poll interval: shortest after a change, then half as long again each time."""
QUIET_NS: Final = 4 * 10**9
"""From this interval on, a poll also reads the files of running jobs."""
LATE_RECORD_NS: Final = 15 * 10**9
"""How late a job's exit record may appear after Slurm reports the job over."""
_NO_ANSWER: Final = JobStatus(job="", state=UNKNOWN, reason="Slurm does not answer")

JobKey = tuple[str, int]


@dataclass(slots=True)
class Submitted:
    """An attempt that Slurm has accepted.

    Attributes:
        index: Its array index in ``batch``.
        over_ns: When it first seemed over, on the monotonic clock.
        cancels: 1 once Slurm accepted a cancel, 2 once a kill.
    """

    directory: Path
    nodes: int
    batch: Batch
    index: int
    status: JobStatus | None = None
    over_ns: int | None = None
    cancels: int = 0

    @property
    def key(self) -> JobKey:
        """Its key in ``JobStatuses``."""
        return self.batch.name, self.index

    @property
    def array_job(self) -> str:
        """Slurm's job number of the whole batch; "" while unknown."""
        return self.batch.job or ("" if self.status is None else self.status.job.partition("_")[0])


@dataclass(slots=True)
class Poller:
    """Polls the status of every submitted attempt."""

    _clock: Clock
    submitted: dict[str, Submitted] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    _next_ns: int = 0
    _interval_ns: int = SHORTEST_NS
    _has_accounting: bool = True

    def poll_soon(self) -> None:
        """Reset the back-off: a change is expected."""
        self._interval_ns = SHORTEST_NS
        self._next_ns = min(self._next_ns, self._clock.monotonic_ns() + SHORTEST_NS)

    def due_in_s(self) -> float:
        """Return the time until the next poll; infinite while nothing is submitted."""
        if not self.submitted:
            return math.inf
        return max(0, self._next_ns - self._clock.monotonic_ns()) / 1e9

    def poll_if_due(self) -> None:
        """Query all jobs at once, and back off while nothing changes."""
        if not self.submitted or self._clock.monotonic_ns() < self._next_ns:
            return
        statuses = self.query({job.key: job.batch for job in self.submitted.values()})
        changed = self._update(statuses)
        longer = min(self._interval_ns * 3 // 2, LONGEST_NS)
        self._interval_ns = SHORTEST_NS if changed else longer
        self._next_ns = self._clock.monotonic_ns() + self._interval_ns

    def query(self, wanted: Mapping[JobKey, Batch]) -> JobStatuses | None:
        """Return the status of jobs, from accounting where squeue has forgotten them."""
        statuses = query_queue(_unique(wanted.values()))
        if statuses is None:
            return None
        forgotten = _unique(batch for key, batch in wanted.items() if key not in statuses)
        accounts = query_accounting(forgotten) if self._has_accounting else None
        self._has_accounting = accounts is not None
        return (accounts or {}) | statuses

    def _update(self, statuses: JobStatuses | None) -> bool:
        """Update every job; return whether anything changed.

        While Slurm does not answer, jobs keep their status; those with an exit record have ended.
        """
        changed = False
        read_all = statuses is None or self._interval_ns >= QUIET_NS
        for ticket, job in list(self.submitted.items()):
            status = job.status or _NO_ANSWER if statuses is None else statuses.get(job.key)
            changed |= status != job.status
            job.status = status
            if status is not None and not (status.is_over or read_all):
                continue  # Running: a file read per job and poll would load the file system.
            ended = self._check_end(ticket, job)
            if ended is not None:
                changed = True
                del self.submitted[ticket]
                self.ended[ticket] = ended
        return changed

    def _check_end(self, ticket: str, job: Submitted) -> Ended | None:
        """Return how an attempt ended; None while it runs, or its exit record may be late."""
        found = [read_exit(job.directory, ticket, node=node) for node in range(job.nodes)]
        exits = [record for record in found if record is not None]
        ended = conclude(job.status, exits, read_times(job.directory, ticket), nodes=job.nodes)
        if ended is None:
            job.over_ns = None
            return None
        if job.cancels and ended.how == "lost":
            return Ended(how="exited", asked=True, elapsed_ns=ended.elapsed_ns)
        now_ns = self._clock.monotonic_ns()
        job.over_ns = job.over_ns or now_ns
        if may_be_late(job.status, exits, ended) and now_ns - job.over_ns < LATE_RECORD_NS:
            self.poll_soon()
            return None
        return replace(ended, asked=ended.asked or job.cancels > 0)

    def adopt(
        self, ticket: str, job: Submitted, statuses: JobStatuses | None, since_ns: int
    ) -> None:
        """Follow an attempt of another process, given the status queried at ``since_ns``.

        One that is over is settled now, as the caller may not wait for a second poll.
        """
        job.status = _NO_ANSWER if statuses is None else statuses.get(job.key)
        ended = self._check_end(ticket, job)
        while ended is None and job.over_ns is not None:
            job.over_ns = since_ns
            self._clock.sleep(1)
            ended = self._check_end(ticket, job)
        if ended is None:
            self.submitted[ticket] = job
        else:
            self.ended[ticket] = ended


def _unique(batches: Iterable[Batch]) -> list[Batch]:
    return list({batch.name: batch for batch in batches}.values())


# How an attempt ended: Slurm's state and the job's exit records combined.

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


def conclude(
    status: JobStatus | None, exits: Sequence[ExitRecord], times: JobTimes, *, nodes: int = 1
) -> Ended | None:
    """Return how an attempt ended; None while it runs, or while an exit record may yet appear.

    Args:
        status: Slurm's status; None where Slurm has forgotten the job.
        exits: The exit records of its nodes, the first node's first.
        times: When it ran.
        nodes: How many exit records there will be.
    """
    record = _decisive(exits, times)
    if record is not None and not record.asked and (record.returncode or len(exits) == nodes):
        return _by_record(record, "", times)  # It exited on its own, whatever Slurm knows.
    if status is not None and not status.is_over:
        return None
    if record is None:
        return _by_state(status, times)
    return _by_record(record, "" if status is None else status.state, times)


def may_be_late(status: JobStatus | None, exits: Sequence[ExitRecord], ended: Ended) -> bool:
    """Say whether another exit record may still appear.

    A shared file system may delay it, and a preempted job may yet be requeued.
    """
    if ended.how == "preempted":
        return True
    return not exits and (status is None or status.state != "CANCELLED")


def _decisive(exits: Sequence[ExitRecord], times: JobTimes) -> ExitRecord | None:
    """Return the record that counts: of a node that failed on its own, else the first."""
    last = max((event.restart for event in times.events), default=0)
    current = [record for record in exits if record.restart == last]
    failed = [record for record in current if record.returncode and not record.asked]
    return next(iter(failed or current), None)


def _by_record(record: ExitRecord, state: str, times: JobTimes) -> Ended:
    how: How = "exited"
    reason, asked = record.reason, record.asked
    if asked and state in _BY_STATE and state != "FAILED":
        how, reason = _BY_STATE[state]
        asked = state == "CANCELLED"
    if record.reason.startswith("could not be started: "):
        how, reason = "not_started", record.reason.partition(": ")[2]
    returncode = record.returncode if how == "exited" else None
    return Ended(
        how=how, returncode=returncode, asked=asked, elapsed_ns=times.ran_ns(), reason=reason
    )


def _by_state(status: JobStatus | None, times: JobTimes) -> Ended:
    state = "" if status is None else status.state
    unknown: tuple[How, str] = ("lost", "it recorded no end, and Slurm has forgotten it")
    how, reason = _BY_STATE.get(state, unknown)
    return Ended(how=how, asked=state == "CANCELLED", elapsed_ns=times.ran_ns(), reason=reason)
