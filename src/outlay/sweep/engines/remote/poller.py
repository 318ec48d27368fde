"""One poller for all jobs of a sweep: polls them together, with back-off; decides how they ended.

What a scheduler says never overrides what a job recorded of its own end. Calls no scheduler itself:
an engine passes the function that does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from outlay.clock import Clock
from outlay.proc.exit_record import ExitRecord, read_exit
from outlay.sweep.engines.base import Ended, How, TaskStanding
from outlay.sweep.engines.remote.job_spec import JobTimes, read_times

if TYPE_CHECKING:
    from pathlib import Path

SHORTEST_NS: Final = 250_000_000
LONGEST_NS: Final = 30 * 10**9
"""The poll interval: shortest after a change, then half as long again each time."""
QUIET_NS: Final = 4 * 10**9
"""From this interval on, a poll also reads the files of running jobs."""
LATE_RECORD_NS: Final = 15 * 10**9
"""How late a job's exit record may appear after the scheduler reports the job over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStatus:
    """A scheduler's status of a job, in terms that all schedulers share.

    Attributes:
        job: Its number or name; "" while unknown.
        text: Its state, node and reason, for people.
        queued: Whether it waits to be started, for the first time or again.
        is_over: Whether it will not run again.
        is_known: Whether the scheduler answered.
        how: How it ended, if it is over and recorded no end itself; with the reason.
        explains: Whether that also holds for a job whose program was told to end.
        cancelled: Whether it ended because somebody cancelled it.
    """

    job: str = ""
    text: str = ""
    queued: bool = False
    is_over: bool = False
    is_known: bool = True
    how: How = "lost"
    reason: str = ""
    explains: bool = False
    cancelled: bool = False


RemoteStatuses = Mapping[str, RemoteStatus]
"""By ticket."""
_NO_ANSWER: Final = RemoteStatus(text="unknown (its scheduler does not answer)", is_known=False)
_FORGOTTEN: Final = RemoteStatus(reason="it recorded no end, and its scheduler has forgotten it")


@dataclass(slots=True)
class Submitted:
    """An attempt that a scheduler has accepted.

    Attributes:
        job: Its number or name; "" while only its status has it.
        over_ns: When it first seemed over, on the monotonic clock.
        sign_ns: Its last sign of life when it seemed over, and when that was first seen.
        cancels: 1 once the scheduler accepted a cancel, 2 once a kill.
    """

    directory: Path
    nodes: int = 1
    job: str = ""
    status: RemoteStatus | None = None
    over_ns: int | None = None
    sign_ns: tuple[int, int] = (-1, 0)
    cancels: int = 0

    @property
    def number(self) -> str:
        """Its number or name for the scheduler; "" while unknown."""
        return self.job or ("" if self.status is None else self.status.job)


@dataclass(slots=True)
class Poller:
    """Polls the status of every submitted attempt.

    Attributes:
        query: Returns the status of attempts, by ticket; None if the scheduler does not answer.
        silent_ns: How long a job without an exit record must have given no sign of life, for a
            scheduler that may report jobs over that still run.
        fetch: Brings a job's files here, if its node ships them; returns how long the rest may take
            (0 if all are here), and None if that cannot be known.
    """

    _clock: Clock
    query: Callable[[Collection[str]], RemoteStatuses | None]
    silent_ns: int = 0
    fetch: Callable[[str], int | None] = lambda _: 0
    submitted: dict[str, Submitted] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    _next_ns: int = 0
    _interval_ns: int = SHORTEST_NS

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
        changed = self._update(self.query(self.submitted.keys()))
        longer = min(self._interval_ns * 3 // 2, LONGEST_NS)
        self._interval_ns = SHORTEST_NS if changed else longer
        self._next_ns = self._clock.monotonic_ns() + self._interval_ns

    def standing(self, ticket: str) -> TaskStanding:
        """Return the scheduler's status of a job; while it does not answer, the job's own."""
        known = self.submitted.get(ticket)
        if known is None:
            return TaskStanding()
        status, job = known.status, known.number
        text = "" if status is None else f"job {job} {status.text}"
        if status is None or not status.is_known:
            queued = read_times(known.directory, ticket).running_since_ns is None
            return TaskStanding(text=text, job=job, queued=queued)
        return TaskStanding(text=text, job=status.job or job, queued=status.queued)

    def _update(self, statuses: RemoteStatuses | None) -> bool:
        """Update every job; return whether anything changed.

        While there is no answer, jobs keep their status; those with an exit record have ended.
        """
        changed = False
        read_all = statuses is None or self._interval_ns >= QUIET_NS
        for ticket, job in list(self.submitted.items()):
            status = job.status or _NO_ANSWER if statuses is None else statuses.get(ticket)
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
        if (late_ns := self.fetch(ticket)) is None:
            return None
        found = [read_exit(job.directory, ticket, node=node) for node in range(job.nodes)]
        exits = [record for record in found if record is not None]
        times = read_times(job.directory, ticket)
        ended = conclude(job.status, exits, times, nodes=job.nodes)
        if ended is None:
            job.over_ns = None
            return None
        now_ns = self._clock.monotonic_ns()
        job.over_ns = job.over_ns or now_ns
        if times.sign_ns != job.sign_ns[0]:
            job.sign_ns = times.sign_ns, now_ns
        silent_ns = now_ns - job.sign_ns[1]
        if not exits and times.running_since_ns is not None and silent_ns < self.silent_ns:
            return None
        if silent_ns < late_ns and (exits or times.events or ended.how in ("lost", "preempted")):
            job.over_ns = None  # Nobody waits that long for a status.
            return None
        if job.cancels and ended.how == "lost":
            return Ended(how="exited", asked=True, elapsed_ns=ended.elapsed_ns)
        if may_be_late(job.status, exits, ended) and now_ns - job.over_ns < LATE_RECORD_NS:
            self.poll_soon()
            return None
        return replace(ended, asked=ended.asked or job.cancels > 0)

    def adopt(
        self, ticket: str, job: Submitted, statuses: RemoteStatuses | None, since_ns: int
    ) -> None:
        """Follow an attempt of another process, given the status queried at ``since_ns``.

        One that is over is settled now, as the caller may not wait for a second poll.
        """
        job.status = _NO_ANSWER if statuses is None else statuses.get(ticket)
        ended = self._check_end(ticket, job)
        while ended is None and job.over_ns is not None:
            job.over_ns = since_ns
            self._clock.sleep(1)
            ended = self._check_end(ticket, job)
        if ended is None:
            self.submitted[ticket] = job
        else:
            self.ended[ticket] = ended


# How an attempt ended: the scheduler's status and the job's exit records combined.


def conclude(
    status: RemoteStatus | None, exits: Sequence[ExitRecord], times: JobTimes, *, nodes: int = 1
) -> Ended | None:
    """Return how an attempt ended; None while it runs, or while an exit record may yet appear.

    Args:
        status: The scheduler's status; None where it has forgotten the job.
        exits: The exit records of its nodes, the first node's first.
        times: When it ran.
        nodes: How many exit records there will be.
    """
    record = _decisive(exits, times)
    if record is not None and not record.asked and (record.returncode or len(exits) == nodes):
        return _by_record(record, None, times)  # It exited on its own, whatever others know.
    if status is not None and not status.is_over:
        return None
    if record is not None:
        return _by_record(record, status, times)
    status = status or _FORGOTTEN
    return Ended(
        how=status.how, asked=status.cancelled, elapsed_ns=times.ran_ns(), reason=status.reason
    )


def may_be_late(status: RemoteStatus | None, exits: Sequence[ExitRecord], ended: Ended) -> bool:
    """Say whether another exit record may still appear.

    A shared file system may delay it, and a preempted job may yet be requeued.
    """
    if ended.how in ("preempted", "not_started"):
        return ended.how == "preempted"
    return not exits and (status is None or not status.cancelled)


def _decisive(exits: Sequence[ExitRecord], times: JobTimes) -> ExitRecord | None:
    """Return the record that counts: of a node that failed on its own, else the first."""
    last = max((event.restart for event in times.events), default=0)
    current = [record for record in exits if record.restart == last]
    failed = [record for record in current if record.returncode and not record.asked]
    return next(iter(failed or current), None)


def _by_record(record: ExitRecord, status: RemoteStatus | None, times: JobTimes) -> Ended:
    how: How = "exited"
    reason, asked = record.reason, record.asked
    if asked and status is not None and status.explains:
        how, reason, asked = status.how, status.reason, status.cancelled
    if record.reason.startswith("could not be started: "):
        how, reason = "not_started", record.reason.partition(": ")[2]
    returncode = record.returncode if how == "exited" else None
    return Ended(
        how=how, returncode=returncode, asked=asked, elapsed_ns=times.ran_ns(), reason=reason
    )
