"""The supervisor's segment in a run's log, and the end and progress that a log records.

The harness supervises the processes of this machine. A Slurm job supervises itself and loads this
module, so that it imports little. Costs are the subject of ``settlement``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from outlay.clock import Clock
from outlay.ledger import SUPERVISOR, GpuCount, Price
from outlay.record.supervision import SupervisedRun, Supervision
from outlay.runs.directories import leave_notice


def supervised(
    name: str, directory: Path, price: Price | None, gpus: GpuCount, command: Sequence[str] = ()
) -> SupervisedRun:
    """Return a run as its supervisor records it.

    Between attempts it costs nothing, as its GPUs are free for other runs of the sweep.
    """
    free = None if price is None else Price(0, price.currency, source="sweep", kind=price.kind)
    return SupervisedRun(
        run_dir=directory, name=name, price=price, gpus=gpus, stopped_price=free,
        command=command,
    )  # fmt: skip


def begin_log(
    run: SupervisedRun, environ: Mapping[str, str], clock: Clock, start_ns: int | None = None
) -> Supervision:
    """Record the begin of an attempt, before it is started."""
    log = Supervision(run, environ, clock=clock, start_ns=start_ns)
    leave_notice(log.run_id, run.run_dir)
    return log


def logged_end(directory: Path, since_ns: int = 0) -> str | None:
    """Return the end status that the training recorded last; None where it recorded none.

    Segments that began before ``since_ns`` are ignored: they are another attempt's.
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
    """Return how many of a job's last starts in a row made no progress.

    A start made progress if it committed a later checkpoint, or reached a later step, than all
    starts before it. A start without records made none.
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
