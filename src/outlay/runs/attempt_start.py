"""Starting an attempt: budget and guard are checked, the rank locked, the first record written.

If any of that fails, no hold and no lock is left behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace as replace_fields

from outlay.budget.terms import DISABLED, Budget
from outlay.budget.tracker import BudgetTracker
from outlay.clock import Clock, since_boot_ns
from outlay.errors import InvalidValue, RunInUse
from outlay.ledger import (
    AttemptStarted,
    RunIdentity,
    SegmentId,
    SegmentWriter,
    gpu_count_of,
    last_committed_step,
    ledger_dir,
)
from outlay.ledger.segments import segment_paths
from outlay.machine import ProcessStart, process_start
from outlay.rates import GUESSED
from outlay.record import Recorder, facts
from outlay.record.lock import RankLock, claim_rank
from outlay.record.recorder import NullWriter
from outlay.runs.inbox import leave_notice
from outlay.runs.options import RunOptions
from outlay.runs.preemption import JointStop
from outlay.units.money import GPU_TIME

if TYPE_CHECKING:
    from outlay.budget.gate import BudgetGate
    from outlay.guard.gate import GuardGate
    from outlay.shipping.shipper import ShippingProcess

_log = logging.getLogger("outlay")
Begun = TypeVar("Begun")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """An attempt that has begun.

    Attributes:
        resume_step: The step after the last committed checkpoint.
        lock: Held while the rank records; None if the directory cannot be written.
        tracker: Counts usage; without limits if the budget is disabled.
    """

    options: RunOptions
    run_id: str
    recorder: Recorder
    resume_step: int = 0
    lock: RankLock | None = None
    budget: BudgetGate | None = None
    tracker: BudgetTracker | None = None
    guard: GuardGate | None = None


def open_attempt(options: RunOptions, clock: Clock) -> Opening:
    """Begin an attempt.

    Raises:
        RunInUse: A live process records this rank already.
        Refused: Something that the budget limits cannot be measured here, or the guard refuses.
        BudgetChanged: The run was started with other limits.
    """
    if facts.is_disabled(os.environ):
        offset_ns = clock.wall_ns() - clock.monotonic_ns()
        recorder = Recorder(NullWriter(), clock, wall_offset_ns=offset_ns)
        tracker = None if options.budget is None else BudgetTracker.of(DISABLED, clock=clock)
        return Opening(
            options=options, run_id=uuid.uuid4().hex, recorder=recorder, tracker=tracker
        )  # fmt: skip
    about = facts.gather(os.environ)
    about = replace_fields(about, rank=options.place.rank, world_size=options.place.world_size)
    return in_free_directory(options, lambda chosen: _open(chosen, about, clock))


def in_free_directory(options: RunOptions, begin: Callable[[RunOptions], Begun]) -> Begun:
    """Call ``begin`` with ``options.dir``, or with the first free default directory."""
    default = options.default_dir
    if default is None or facts.is_disabled(os.environ):
        return begin(options)
    for directory in default.claim(options.model, uuid.uuid4().hex):
        with ExitStack() as undone_on_error:
            undone_on_error.callback(default.withdraw, directory)
            with contextlib.suppress(RunInUse):
                begun = begin(replace(options, dir=directory))
                undone_on_error.pop_all()
                return begun
    raise AssertionError("the last of the default directories is unique to this run")


def start_shipping(options: RunOptions) -> ShippingProcess | None:
    """Start the process that ships the run, once per node; None without a destination."""
    if options.shipping is None or facts.is_disabled(os.environ):
        return None
    if not facts.is_first_of_node(os.environ):
        return None
    from outlay.shipping.shipper import ShippingProcess

    return ShippingProcess(options.shipping, options.dir)


def _open(options: RunOptions, about: AttemptStarted, clock: Clock) -> Opening:
    start_ns = clock.wall_ns()
    wall_offset_ns, boot_ns = start_ns - clock.monotonic_ns(), since_boot_ns(clock)
    started = _process_start(start_ns, boot_ns)
    with ExitStack() as undone_on_error:
        budget = _budget_gate(options, clock)
        guard, joint = _guard_gates(options, clock)
        if guard is not None:
            undone_on_error.callback(guard.abandon, "the run did not start")
        proposal = RunIdentity(
            run_id=uuid.uuid4().hex, model=options.model, name=options.name, created_ns=start_ns
        )
        run_id, lock = claim_rank(options.dir, proposal, about)
        if about.rank == 0:
            leave_notice(run_id, options.dir, start_ns)
        if lock is not None:
            undone_on_error.callback(lock.release)
        committed = last_committed_step(options.dir)
        resume_step = 0 if committed is None else committed + 1
        about = replace_fields(about, t_ns=start_ns, since_boot_ns=boot_ns or 0)
        header = _header_of(options, about, run_id, started)
        segment = SegmentId.of(header)
        writer = SegmentWriter(ledger_dir(options.dir) / segment.file_name, header, clock)
        writer.sync()
        recorder = Recorder(writer, clock, wall_offset_ns=wall_offset_ns, first_step=resume_step)
        tracker = None if budget is None else budget.tracker
        if budget is not None:
            budget.begin(recorder, header, segment)
        elif options.budget is DISABLED:
            tracker = _unlimited_tracker(options, recorder, clock)
        if guard is not None:
            from outlay.guard.captures import cost_of_attempt, run_part

            guard.begin(
                recorder.note,
                lambda: cost_of_attempt(options.dir, segment, recorder.now_ns(), guard.unit),
                run_part(run_id, segment),
            )
        if joint is not None:
            recorder.attach(gate=joint)
        undone_on_error.pop_all()
    _recorded_in.add(about.pid)
    return Opening(
        options=options, run_id=run_id, recorder=recorder, resume_step=resume_step, lock=lock,
        budget=budget, tracker=tracker, guard=guard,
    )  # fmt: skip


_recorded_in: set[int] = set()
"""This process, once it has begun a run: time before ``outlay.run()`` belongs to its first run."""


def _process_start(now_ns: int, boot_ns: int | None) -> ProcessStart:
    if boot_ns is None or os.getpid() in _recorded_in:
        return ProcessStart()
    return process_start(os.environ, now_ns, boot_ns)


def _header_of(
    options: RunOptions, about: AttemptStarted, run_id: str, started: ProcessStart
) -> AttemptStarted:
    return replace_fields(
        about,
        run_id=run_id,
        model=options.model,
        name=options.name,
        tags=options.tags,
        gpu=options.gpu,
        gpus=gpu_count_of(options.gpus),
        gpus_source=options.gpus_source,
        price=options.price,
        stopped_machine_price=options.stopped_price,
        config=options.config,
        process_start_ns=started.own_ns,
        agent_start_ns=started.agent_ns,
    )


def _budget_gate(options: RunOptions, clock: Clock) -> BudgetGate | None:
    if options.budget is DISABLED:
        return None
    rank = options.place.rank
    budget = options.budget or _kept_budget(options, rank)
    if budget is None:
        return None
    from outlay.budget.gate import BudgetGate

    return BudgetGate(
        budget, options.dir, rank=rank, price=options.price, stopped_price=options.stopped_price,
        clock=clock,
    )  # fmt: skip


def _kept_budget(options: RunOptions, rank: int) -> Budget | None:
    """Return the budget that the run was first started with."""
    if not segment_paths(options.dir):
        return None
    from outlay.budget.history import read_kept_budget

    budget = read_kept_budget(options.dir)
    if budget is not None and rank == 0:
        limits = ", ".join(f"{key} {limit:,}" for key, limit in budget.limits.items())
        _log.warning(
            "no budget was stated: the run keeps the one it was started with: %s (%s). "
            'To drop it: budget={"enabled": False}, or OUTLAY_BUDGET=enabled=false',
            budget.mode, limits,
        )  # fmt: skip
    return budget


def _unlimited_tracker(options: RunOptions, recorder: Recorder, clock: Clock) -> BudgetTracker:
    """Return a tracker for a disabled budget; an earlier budget of the run is dropped."""
    from outlay.budget.gate import count_without_limits, drop_budget

    tracker = BudgetTracker.of(DISABLED, clock=clock)
    count_without_limits(tracker, recorder)
    if options.place.rank == 0:
        drop_budget(options.dir, recorder)
    return tracker


def _guard_gates(options: RunOptions, clock: Clock) -> tuple[GuardGate | None, JointStop | None]:
    """Return the guard's gate (rank 0 only) and the gate that stops all ranks together."""
    price, asked = options.price, options.guard
    guarded = asked is not None or (price is not None and os.environ.get("OUTLAY_HOLD"))
    if not guarded:
        return None, None
    from outlay.guard.gate import GuardGate, rate_on, read_guarding

    if options.place.rank != 0:
        return None, JointStop(None, clock=clock)
    guarding = read_guarding(asked, os.environ, price=price, clock=clock)
    assert guarding is not None
    if guarding.guard.unit == GPU_TIME and options.gpus_source == GUESSED:
        expected = (
            "how many GPUs the whole run has, since the guard counts GPU-hours and none were "
            "found: gpus=8, Guarding(gpus=8) or OUTLAY_GPUS=8"
        )
        raise InvalidValue("gpus", None, expected)
    rate = rate_on(guarding.guard, price, options.gpus)
    gate = GuardGate(guarding, rate, options.name, os.environ, clock=clock)
    return gate, JointStop(gate.stop_reason, gate.settle, clock=clock)
