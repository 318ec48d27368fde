"""An attempt in its run's log: the supervisor's segment, the recorded end, and the progress.

The harness supervises the processes of this machine. A Slurm job supervises itself and loads this
module, so that it imports little. Costs are the subject of ``sweep_guard``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outlay.clock import Clock
from outlay.ledger import (
    SUPERVISOR,
    AttemptEnded,
    EndStatus,
    GpuCount,
    Price,
    end_segment,
    exact_gpus,
)
from outlay.ledger.price import typed_price
from outlay.ledger.segments import own_segments
from outlay.record.supervision import SupervisedRun, Supervision, latest_supervision
from outlay.runs.inbox import leave_notice
from outlay.units import Money
from outlay.units.money import GPU_TIME

if TYPE_CHECKING:
    from outlay.sweep.engines.base import Ended
    from outlay.sweep.state.manifest import SweepManifest
    from outlay.sweep.state.outcomes import RunVerdict

_END_STATUSES: Final[Mapping[str, EndStatus]] = {
    "completed": "completed", "preempted": "preempted", "cancelled": "terminated",
    "pruned": "terminated", "paused": "paused",
}  # fmt: skip
_ASSUMED: Final = "its end was not observed; assumed to have run as long as its money lasted"


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


def end_log(log: Supervision, verdict: RunVerdict, ended: Ended, *, paid: bool) -> None:
    """Record the end of an attempt; with fsync only where money is held for it."""
    log.end(
        _END_STATUSES.get(verdict.status, "failed"), verdict.reason, exit_code=ended.exit_code,
        t_ns=_end_instant_ns(log.start_ns, ended, log.now_ns()), synced=paid,
    )  # fmt: skip


def _end_instant_ns(start_ns: int, ended: Ended, now_ns: int) -> int:
    """Return when an attempt ended: when it was reaped, else its start plus its run time."""
    if ended.how == "not_started" or ended.never_ran:
        return start_ns
    if start_ns <= ended.ended_ns <= now_ns:
        return ended.ended_ns
    return start_ns + ended.elapsed_ns if ended.elapsed_ns else now_ns


def end_earlier_log(
    manifest: SweepManifest, run: str, ended: Ended, verdict: RunVerdict, held: Money | None
) -> None:
    """Record the end of a local attempt whose harness died before it could.

    If nothing observed its end, it is assumed to have run until the money ``held`` for it was used
    up, or until now if that is earlier.
    """
    from outlay.rates import gpu_rate, paid_time

    static, directory, clock = manifest.runs[run], manifest.root / run, manifest.clock
    now_ns = clock.wall_ns()
    begun_ns = manifest.state(run).started_ns or now_ns
    latest = latest_supervision(directory)
    if latest is not None and latest[1].start_ns < begun_ns:
        latest = None  # An earlier attempt's.
    start_ns = begun_ns if latest is None else latest[1].start_ns
    rate, reason = static.rate, verdict.reason
    if held is not None and held.unit == GPU_TIME:
        rate = gpu_rate(exact_gpus(static.gpus_charged))
    end_ns: int | None = _end_instant_ns(start_ns, ended, now_ns)
    if not ended.is_measured:
        paid_ns = None if rate is None or held is None else paid_time(held, rate)
        end_ns = None if paid_ns is None else min(now_ns, start_ns + paid_ns)
        reason = f"{reason}; {_ASSUMED}"
    if end_ns is None:
        return  # The last record of its log is its end.
    status, code = _END_STATUSES.get(verdict.status, "failed"), ended.exit_code
    if latest is not None:
        with suppress(OSError):
            last = AttemptEnded(t_ns=end_ns, status=status, reason=reason, exit_code=code)
            end_segment(latest[0], last)
        return
    price = None
    if static.price:
        kind = static.price_kind or "cash"
        price = typed_price(static.price, name="price", source="sweep", kind=kind)
    what = supervised(run, directory, price, static.gpus_charged)
    log = Supervision(what, {}, clock=clock, start_ns=start_ns)
    log.end(status, reason, exit_code=code, t_ns=end_ns)


def logged_end(directory: Path, since_ns: int = 0) -> str | None:
    """Return the end status that the training recorded last; None where it recorded none.

    Segments that began before ``since_ns`` are ignored: they are another attempt's.
    """
    from outlay.ledger import derive_attempts, read_lives

    if not own_segments(directory):
        return None  # The usual case of a program that does not record.
    lives = [
        life
        for life in read_lives(directory)
        if life.segment.rank != SUPERVISOR and life.segment.start_ns >= since_ns
    ]
    attempts = derive_attempts(lives)
    last = attempts[-1].end if attempts else None
    return None if last is None else last.status


def reached_budget(directory: Path, since_ns: int = 0) -> bool:
    """Say whether the training recorded that its own budget stopped it; arguments as above.

    Of several attempts the last one that recorded anything decides.
    """
    from outlay.ledger import BudgetEvent, LedgerReader

    stopped: dict[int, bool] = {}
    for chunk in LedgerReader(directory).poll():
        segment = chunk.segment
        if segment.rank != SUPERVISOR and segment.start_ns >= since_ns:
            events = (one.event for one in chunk.records if isinstance(one, BudgetEvent))
            began = segment.start_ns if segment.rank == 0 else -1
            stopped[began] = stopped.get(began, False) or "stopped" in events
    return stopped[max(stopped)] if stopped else False


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
