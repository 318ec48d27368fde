"""``outlay.run()``: one call that records a training, prices it, and stops it where it must.

The Run is what a training script holds. It owns the attempt's begin and end; what happens in
between is the Recorder's.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

import outlay
from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, NotARun
from outlay.ledger import (
    SUPERVISOR,
    AttemptStarted,
    EndStatus,
    Price,
    RunIdentity,
    SegmentId,
    SegmentWriter,
    claim_identity,
    last_committed_step,
    ledger_dir,
)
from outlay.record import Recorder, Span, StepTimer, facts
from outlay.record.lock import RankLock
from outlay.record.meters.steps import StepMeters
from outlay.record.recorder import Count, NullWriter, Writer
from outlay.runs.figures import RunFollower
from outlay.runs.heartbeat import Heartbeat
from outlay.runs.inbox import leave_notice
from outlay.runs.options import Arguments, Options, gpu_count, parse_price, resolve
from outlay.runs.signals import TerminationWatch
from outlay.units import Rate

if TYPE_CHECKING:
    from outlay.budget.gate import BudgetGate
    from outlay.budget.tracker import BudgetTracker
    from outlay.guard.gate import GuardGate
    from outlay.runs.guarding import JointGuard
    from outlay.runs.preemption import PreemptionGate

Batch = TypeVar("Batch")


def run(
    model: str,
    *,
    dir: Path | str | None = None,
    name: str | None = None,
    gpu: str | None = None,
    gpus: int | None = None,
    price: object = None,
    stopped_price: object = None,
    tags: Mapping[str, str] | None = None,
    heartbeat: object = None,
    budget: object = None,
    guard: object = None,
    clock: Clock = SYSTEM,
) -> Run:
    """Start (or go on with) a run, to be used in a ``with`` statement.

    What is left out comes from the environment: ``OUTLAY_RUN_DIR``, ``OUTLAY_PRICE``,
    ``OUTLAY_GPUS``, ``OUTLAY_BUDGET``, ``OUTLAY_HOLD``. ``OUTLAY_DISABLED=1`` makes all of it a
    no-op.

    Args:
        model: What is trained.
        dir: Where the run log goes; reopening one is a new attempt of the same run.
        name: What to call the run; default: the model.
        gpu: The GPU model; default: what the driver says.
        gpus: How many GPUs the whole run uses; default: the world size.
        price: Per GPU-hour, such as ``"1.50 USD/h"``; without one, money reads "no price".
        stopped_price: Per GPU-hour while the machine is stopped between attempts.
        tags: Whatever costs are to be allocated by, such as ``{"team": "nlp"}``.
        heartbeat: Records a sign of life this often in the background, such as ``"30s"``.
        budget: Where the run stops, such as ``outlay.iso_cost("5 USD")`` or ``"iso_time=2h"``.
        guard: Whose ceiling it may not pass: a ``BudgetGuard``, or the path of a spend log.
        clock: The clocks to use.

    Raises:
        InvalidValue: An argument or a setting cannot be used.
        Refused: The budget limits what nothing here can measure, or the guard has no room.
        RunInUse: A live process records this rank of this run already.
    """
    if model is None:
        raise InvalidValue("model", model, "a non-empty name")
    arguments = Arguments(
        model=model,
        dir=dir,
        name=name,
        gpu=gpu,
        gpus=gpus,
        price=price,
        stopped_price=stopped_price,
        tags=tags,
        heartbeat=heartbeat,
        budget=budget,
        guard=guard,
    )
    return Run(resolve(arguments, os.environ, clock.wall_ns()), clock)


class Run:
    """One attempt of one run, seen from inside the training process."""

    def __init__(self, options: Options, clock: Clock = SYSTEM, *, rank: int | None = None) -> None:
        self.options = options
        self.dir = options.dir
        self._disabled = os.environ.get("OUTLAY_DISABLED", "") not in ("", "0")
        self._lock: RankLock | None = None
        self._ended: str | None = None
        self._signalled = False
        self._pid = os.getpid()
        self._preempted = ""
        self._price, self._gpus = options.price, options.gpus
        about = facts.gather(os.environ, outlay_version=outlay.__version__)
        if rank is not None:
            about = replace(about, rank=rank)
        start_wall_ns, start_monotonic_ns = clock.wall_ns(), clock.monotonic_ns()
        self._start_ns = start_wall_ns
        self.run_id = uuid.uuid4().hex
        self.resume_step = 0
        writer: Writer = NullWriter()
        self._budget_gate = self._new_budget_gate(about, clock)
        self._guard_gate, joint = self._new_guard_gate(about, clock)
        header = self._header(about)
        segment = SegmentId(self._start_ns, about.rank, about.host, about.pid)
        if not self._disabled:
            try:
                self._claim(about)
            except BaseException:
                if self._guard_gate is not None:
                    self._guard_gate.abandon("the run did not start")
                raise
            header = msgspec.structs.replace(header, run_id=self.run_id)
            writer = SegmentWriter(ledger_dir(self.dir) / segment.file_name, header, clock)
            writer.sync()
        self._recorder = Recorder(
            writer,
            clock,
            wall_offset_ns=start_wall_ns - start_monotonic_ns,
            first_step=self.resume_step,
        )
        if self._budget_gate is not None:
            self._budget_gate.begin(self._recorder, header, segment)
        if self._guard_gate is not None:
            self._guard_gate.begin(self._recorder.note)
        if joint is not None:
            self._recorder.gates.append(joint)
        self._heartbeat = None
        if options.heartbeat is not None and not self._disabled:
            self._heartbeat = Heartbeat(self._recorder, options.heartbeat)
        self._follower = RunFollower(self.dir)
        self._watch = TerminationWatch(self._on_sigterm)
        self._preemption: PreemptionGate | None = None
        self._rank = about.rank
        if self.options.notice is not None and self._rank != SUPERVISOR:
            self._preemption_gate().listen([self.options.notice])
        atexit.register(self._close_at_exit)

    # What a training loop calls

    def steps(
        self,
        loader: Iterable[Batch],
        *,
        tokens: Count = None,
        samples: Count = None,
        start: int | None = None,
    ) -> Iterator[Batch]:
        """Yield the loader's batches, each a step, until the loader or the budget is exhausted.

        Args:
            loader: Any iterable of batches.
            tokens: The tokens of a batch: a number, or a function of the batch. A budget of tokens
                counts the samples of all views by the batch's shape where this is left out.
            samples: The samples of a batch, likewise.
            start: The number of the first step; default: the last committed checkpoint + 1.
        """
        if self._budget_gate is not None:
            tokens = self._budget_gate.before_loop(loader, tokens)
        return self._recorder.steps(loader, tokens=tokens, samples=samples, start=start)

    def may_step(self, *, tokens: int = 0, samples: int = 0) -> bool:
        """Return whether the budget lets a step of this size run: ``while run.may_step(): ...``.

        For loops of another shape than ``run.steps``; on several ranks all must ask together.
        """
        return self._recorder.may_step(tokens=tokens, samples=samples)

    def step(self, *, tokens: int = 0, samples: int = 0) -> StepTimer:
        """Return a timer for one step of a loop of another shape."""
        return StepTimer(self._recorder, tokens, samples)

    def span(self, name: str, *, overlapped: bool = False) -> Span:
        """Return a span, for ``with`` or as a decorator; ``overlapped`` if training goes on."""
        return self._recorder.span(name, overlapped=overlapped)

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record a number about the training, such as ``run.metric("accuracy", 0.91)``."""
        self._recorder.metric(name, value, step)

    def checkpoint_committed(self, step: int | None = None) -> None:
        """Record that everything up to ``step`` (default: the last one) is safe on storage."""
        self._recorder.checkpoint_committed(step)

    def set_price(self, price: object, *, gpus: int | None = None) -> None:
        """Record that from now on each GPU costs ``price`` (and how many there are)."""
        new_price = parse_price(price, name="price", source="set_price")
        if gpus is not None:
            self._gpus = gpu_count(gpus, name="gpus")
        if new_price is not None:
            self._price = new_price
            self._recorder.price_changed(new_price, self._gpus)
            if self._guard_gate is not None:
                self._guard_gate.change_rate(self._rate(new_price))

    def set_slices(self, active: int, total: int, available: int | None = None) -> None:
        """Record how many of an elastic run's ``total`` slices train from now on.

        Args:
            active: How many train.
            total: How many the run was given.
            available: How many could train; default: those that do.

        Raises:
            InvalidValue: More train than are available, or more are available than there are.
        """
        available = active if available is None else available
        if not 0 <= active <= available <= total or total < 1:
            counts = (active, total, available)
            raise InvalidValue("slices", counts, "0 <= active <= available <= total, total >= 1")
        self._recorder.slices_changed(active=active, total=total, available=available)

    def heartbeat(self) -> None:
        """Record a sign of life."""
        self._recorder.heartbeat()

    def note(self, text: str, **data: object) -> None:
        """Record anything worth keeping."""
        self._recorder.note(text, **data)

    def preempted(self, reason: str = "preempted") -> None:
        """State that the machine is being taken back: time until the next start is not billed."""
        self._preempted = reason
        self._show_budget()

    def on_preemption(self, save: Callable[[], object]) -> None:
        """Call ``save`` when the machine is about to be taken back, and then end the loop.

        From now on SIGTERM and SIGUSR2 mean that notice. ``save`` is called between two steps, on
        every rank after the same one; the attempt then ends ``preempted``.
        """
        gate = self._preemption_gate()
        gate.hooks.append(save)
        gate.listen([signal.SIGUSR2, signal.SIGTERM])

    # What a training loop asks

    @property
    def recorder(self) -> Recorder:
        """The recorder underneath, for integrations."""
        return self._recorder

    @property
    def step_number(self) -> int:
        """The number of the step that runs, or that ran last."""
        return self._recorder.step_number

    @property
    def stop_reason(self) -> str | None:
        """Why no further step may run, or None."""
        return self._recorder.stop_reason

    @property
    def budget(self) -> BudgetTracker:
        """The run's budget: what is used, what is left, ``snapshot`` for checkpoints, ``load``.

        Raises:
            InvalidValue: The run has none.
        """
        if self._budget_gate is None:
            raise InvalidValue("budget", None, "a run with one: outlay.run(..., budget=...)")
        return self._budget_gate.tracker

    @property
    def meters(self) -> StepMeters:
        """The meters of a run with a budget; ``run.meters.flops`` is there to be set."""
        return self._budget_gate.meters if self._budget_gate is not None else StepMeters()

    def allows(self, work: str = "evaluation") -> bool:
        """Return whether the budget leaves room for work such as an evaluation.

        Judged by the dearest such span so far. On several ranks all must ask together, and get the
        same answer. Without a budget everything is allowed.
        """
        return self._budget_gate is None or self._budget_gate.allows(work)

    def summary(self) -> dict[str, str | int | float | None]:
        """Return the run's figures, all attempts, as a flat dict for any experiment tracker."""
        state: dict[str, str | int | float | None] = {
            "outlay/lost_records": self._recorder.writer.lost,
            "outlay/stop_reason": self.stop_reason,
        }
        try:
            return self._follower.refresh(self._recorder.now_ns()).flat() | state
        except NotARun:  # Recording is switched off, or nothing could be written yet.
            return state

    # Its begin and its end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        status, reason = _outcome(error)
        self.close(status, reason)

    def close(
        self, status: EndStatus = "completed", reason: str = "", *, exit_code: int | None = None
    ) -> None:
        """Record the end of the attempt; further calls do nothing."""
        if self._ended is not None or os.getpid() != self._pid:
            return  # Ended already, or a forked child that inherited its parent's run.
        if status != "completed":
            self._recorder.drop_left_step()
        if self._preempted:
            status, reason = "preempted", self._preempted
        elif self._signalled:
            status, reason = "terminated", "SIGTERM"
        self._ended = status
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._preemption is not None:
            self._preemption.remove()
        self._recorder.close(status, reason or self._recorder.stop_reason or "", exit_code)
        self._watch.remove()
        atexit.unregister(self._close_at_exit)
        if self._lock is not None:
            self._lock.release()

    def _claim(self, about: facts.Facts) -> None:
        """Take the directory for this rank, and learn where the run left off."""
        proposal = RunIdentity(
            run_id=self.run_id,
            model=self.options.model,
            name=self.options.name,
            created_ns=self._start_ns,
        )
        holder = f"pid {about.pid}" + (f" on {about.host}" if about.host else "")
        try:
            self.run_id = claim_identity(self.dir, proposal).run_id
            self._lock = RankLock(ledger_dir(self.dir), about.rank, holder=holder)
        except OSError:
            pass  # The segment writer meets the same trouble, says so, and keeps trying.
        committed = last_committed_step(self.dir)
        self.resume_step = 0 if committed is None else committed + 1
        if about.rank <= 0:
            leave_notice(self.run_id, self.dir)

    def _new_budget_gate(self, about: facts.Facts, clock: Clock) -> BudgetGate | None:
        """Return what enforces the budget; a supervisor leaves that to what it supervises."""
        if self.options.budget is None or self._disabled or about.rank == SUPERVISOR:
            return None
        from outlay.budget.gate import BudgetGate

        return BudgetGate(
            self.options.budget, self.dir, rank=about.rank, price=self.options.price, clock=clock
        )

    def _preemption_gate(self) -> PreemptionGate:
        """Return what ends the loop after a scheduler's notice, attached when first wanted."""
        if self._preemption is None:
            from outlay.runs.preemption import PreemptionGate

            self._preemption = PreemptionGate(self._rank, self.preempted)
            self._recorder.gates.append(self._preemption)
        return self._preemption

    def _new_guard_gate(
        self, about: facts.Facts, clock: Clock
    ) -> tuple[GuardGate | None, JointGuard | None]:
        """Return what keeps the money, on rank 0 alone, and what stops all ranks together."""
        price, asked = self.options.price, self.options.guard
        guarded = asked is not None or (price is not None and os.environ.get("OUTLAY_HOLD"))
        if not guarded or self._disabled or about.rank == SUPERVISOR:
            return None, None
        from outlay.guard.gate import GuardGate, read_guarding
        from outlay.runs.guarding import JointGuard

        if about.rank != 0:
            return None, JointGuard(None, clock=clock)
        guarding = read_guarding(asked, os.environ, priced=price is not None, clock=clock)
        assert guarding is not None
        assert price is not None
        gate = GuardGate(guarding, self._rate(price), self.options.name, os.environ, clock=clock)
        return gate, JointGuard(gate, clock=clock)

    def _rate(self, price: Price) -> Rate:
        """Return what the whole run costs per hour."""
        return Rate(price.micros_per_hour * self._gpus, price.currency)

    def _header(self, about: facts.Facts) -> AttemptStarted:
        options = self.options
        return AttemptStarted(
            t_ns=self._start_ns,
            model=options.model,
            name=options.name,
            tags=options.tags,
            gpu=options.gpu,
            gpus=options.gpus,
            price=options.price,
            stopped_price=options.stopped_price,
            **{name: getattr(about, name) for name in facts.Facts.__slots__},
        )

    def _on_sigterm(self, dies: bool) -> None:  # noqa: FBT001 - a callback's only argument
        self._signalled = True
        if dies:
            self.close()
        else:
            self._recorder.note("SIGTERM received")
            self._recorder.writer.sync()
            self._show_budget()

    def _show_budget(self) -> None:
        """Leave the budget as it stands: what comes next may be a SIGKILL."""
        if self._budget_gate is not None and os.getpid() == self._pid:
            self._budget_gate.refresh()

    def _close_at_exit(self) -> None:
        """The script ended without closing the run; the interpreter knows how."""
        error: Any = getattr(sys, "last_value", None)
        status, reason = _outcome(error)
        self.close(status, reason)


def _outcome(error: BaseException | None) -> tuple[EndStatus, str]:
    """Return how an attempt ended; of an error only its type, since its text may hold a secret."""
    match error:
        case None | GeneratorExit():
            return "completed", ""
        case KeyboardInterrupt():
            return "interrupted", "KeyboardInterrupt"
        case SystemExit(code=None | 0):
            return "completed", ""
        case _:
            return "failed", type(error).__name__
