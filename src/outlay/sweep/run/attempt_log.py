"""A sweep's part in the logs of its runs: the supervisor's segment, and what a log then says.

The harness supervises the processes of this machine; a cluster's job supervises itself, and loads
no more than this. What attempts cost is the subject of ``money``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outlay.clock import Clock
from outlay.ledger import SUPERVISOR, EndStatus, GpuCount, Price
from outlay.record.supervision import SupervisedRun, Supervision
from outlay.runs.directories import leave_notice

if TYPE_CHECKING:
    from outlay.sweep.engines.base import Ended
    from outlay.sweep.state.outcomes import RunVerdict

ENDS: Final[Mapping[str, EndStatus]] = {
    "completed": "completed", "preempted": "preempted", "cancelled": "terminated",
}  # fmt: skip


def supervised(
    name: str, directory: Path, price: Price | None, gpus: GpuCount, command: Sequence[str] = ()
) -> SupervisedRun:
    """Return a run as its supervisor states it.

    Between attempts its GPUs are free for other runs of the sweep, so that it costs nothing then.
    """
    free = None if price is None else Price(0, price.currency, source="sweep", kind=price.kind)
    return SupervisedRun(
        run_dir=directory, name=name, price=price, gpus=gpus, stopped_price=free,
        command=command,
    )  # fmt: skip


def begin(
    what: SupervisedRun, environ: Mapping[str, str], clock: Clock, start_ns: int | None = None
) -> Supervision:
    """Write down that an attempt begins, before it is started."""
    log = Supervision(what, environ, clock=clock, start_ns=start_ns)
    leave_notice(log.run_id, what.run_dir)
    return log


def end(log: Supervision, verdict: RunVerdict, ended: Ended, *, paid: bool) -> None:
    """Write down how an attempt ended, after it was reaped.

    Where no money is held for it a power failure may take it, as it may take the journal's lines.
    """
    log.end(
        ENDS.get(verdict.status, "failed"), verdict.reason, exit_code=ended.exit_code,
        t_ns=end_instant_ns(log.start_ns, ended, log.now_ns()), synced=paid,
    )  # fmt: skip


def logged_end(directory: Path, since_ns: int = 0) -> str | None:
    """Return how the training recorded that its last attempt ended; None where it did not.

    What began before ``since_ns`` is another attempt's.
    """
    from outlay.ledger import derive_attempts, read_lives

    lives = [
        life
        for life in read_lives(directory)
        if life.segment.rank != SUPERVISOR and life.segment.start_ns >= since_ns
    ]
    attempts = derive_attempts(lives)
    last = attempts[-1].end if attempts else None
    return None if last is None else last.status


def starts_without_progress(directory: Path, starts_ns: Sequence[int]) -> int:
    """Return how many of a job's starts in a row, up to the last, made no progress.

    A start made progress if it committed a checkpoint further on than any before it, or reached a
    step that none before it had. One that records nothing shows none.
    """
    from outlay.account.run import RunAccount
    from outlay.account.step_blocks import decode_steps
    from outlay.ledger import LedgerReader

    reached = [(-1, -1) for _ in range(len(starts_ns) + 1)]
    with suppress(OSError):
        reader = LedgerReader(directory, decode=decode_steps)
        for segment in RunAccount().add(reader.poll()).shown():
            start = bisect_right(starts_ns, segment.life.segment.start_ns)
            steps = int(segment.steps.number.max()) if segment.step_count else -1
            committed = max((checkpoint.step for checkpoint in segment.checkpoints), default=-1)
            reached[start] = max(reached[start][0], steps), max(reached[start][1], committed)
    (step, safe), without = reached[0], 0
    for steps, committed in reached[1:]:
        without = 0 if steps > step or committed > safe else without + 1
        step, safe = max(step, steps), max(safe, committed)
    return without


def end_instant_ns(start_ns: int, ended: Ended, now_ns: int) -> int:
    """Return when an attempt ended: as its reaper noted it, else so long after its begin."""
    if ended.how == "not_started" or ended.never_ran:
        return start_ns
    if start_ns <= ended.ended_ns <= now_ns:
        return ended.ended_ns
    return start_ns + ended.elapsed_ns if ended.elapsed_ns else now_ns
