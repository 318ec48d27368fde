"""Queue time: how long a run's jobs waited for their nodes, beside how long they had them. Pure.

Waiting is never billed: nothing here is part of a run's cost, and only waits between two attempts
are part of its wall time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from outlay.ledger.attempts import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Time in a cluster's queue, and time with the nodes, over all starts of a run's jobs."""

    queue_ns: int
    allocated_ns: int

    @property
    def goodput(self) -> float | None:
        """The allocated share of the time since the jobs were queued; None if that is none."""
        whole_ns = self.queue_ns + self.allocated_ns
        return self.allocated_ns / whole_ns if whole_ns > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStart:
    """One start of a job, ``[start_ns, end_ns)``: its attempts, and the time between them.

    Attributes:
        job: Slurm's; "" of another cluster.
        restart: As Slurm counts it.
        queued_ns: Since when it waited; None if unknown.
    """

    job: str
    restart: str
    queued_ns: int | None
    start_ns: int
    end_ns: int


def scheduling_of(attempts: Sequence[Attempt]) -> Scheduling | None:
    """Return the queue time of a run; None if no attempt was queued, or one's wait is unknown."""
    starts = placed_starts(attempts)
    queue_ns = 0
    for start in starts:
        if start.queued_ns is None or start.queued_ns > start.start_ns:
            return None
        queue_ns += start.start_ns - start.queued_ns
    allocated_ns = sum(start.end_ns - start.start_ns for start in starts)
    return Scheduling(queue_ns=queue_ns, allocated_ns=allocated_ns) if starts else None


def placed_starts(attempts: Iterable[Attempt]) -> list[PlacedStart]:
    """Return the starts of a run's jobs, in order; attempts that were not queued are left out.

    A start of which nothing says when it was queued followed the end of the start before, if that
    is of the same job and Slurm counts none between them.
    """
    found: dict[tuple[str, str, int], PlacedStart] = {}
    last: dict[str, PlacedStart] = {}
    for attempt in attempts:
        job, restart = attempt.header.slurm_job, attempt.header.slurm_restart
        key = (job, restart, attempt.queued_ns)
        if not job and not attempt.queued_ns:
            continue
        start = found.get(key) or PlacedStart(
            job=job, restart=restart, start_ns=attempt.start_ns, end_ns=attempt.last_sign_ns,
            queued_ns=attempt.queued_ns or _requeued_ns(last.get(job), restart),
        )  # fmt: skip
        end_ns = max(start.end_ns, attempt.last_sign_ns)
        found[key] = last[job] = replace(start, end_ns=end_ns)
    return list(found.values())


def _requeued_ns(before: PlacedStart | None, restart: str) -> int | None:
    """Return the end of the start before; None unless it is the one before this restart."""
    if before is None or not (restart.isdecimal() and before.restart.isdecimal()):
        return None
    return before.end_ns if int(restart) == int(before.restart) + 1 else None
