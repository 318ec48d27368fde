"""The Run: one attempt of one run, inside the training process; and ``outlay.run()``.

The Run is what a training script holds. It owns the attempt's begin and end; what happens in
between is the Recorder's.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, NotARun
from outlay.ledger import SUPERVISOR, EndStatus, gpu_count_of
from outlay.rates import rate_of
from outlay.record import Recorder, Span, StepTimer, facts
from outlay.record.meters.steps import MeteredWriter, StepMeters
from outlay.record.recorder import Count
from outlay.record.slurm import SlurmJob
from outlay.runs.figures import figures_of
from outlay.runs.opening import open_attempt, refuse_showback
from outlay.runs.options import (
    Arguments,
    RunOptions,
    gpu_count,
    parse_price,
    resolve,
    warn_of_old_price,
)
from outlay.runs.preemption import JobEndWatch, TerminationWatch, ask_state
from outlay.units import Duration

if TYPE_CHECKING:
    from outlay.budget.tracker import BudgetTracker
    from outlay.goodput.follower import GoodputFollower, RunView
    from outlay.runs.preemption import PreemptionGate

# A background thread that records signs of life, so that a time of death is known.


class HeartbeatThread:
    """Beats until stopped; never keeps the process alive."""

    def __init__(self, recorder: Recorder, every: Duration) -> None:
        self._recorder = recorder
        self._every_s = every.seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="outlay-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Record no further signs of life."""
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._recorder.heartbeat()
            # A beat is also when a deleted segment is noticed and begun anew.
            self._recorder.writer.sync()


Batch = TypeVar("Batch")
_log = logging.getLogger("outlay")
_GIVES_BACK = ("", "RUNNING", "PENDING", "PREEMPTED", "REQUEUED", "SUSPENDED", "NODE_FAIL")
"""What Slurm calls a job of which SIGTERM means that it will go on later; "" without an answer."""


class Run:
    """One attempt of one run, seen from inside the training process.

    Attributes:
        dir: Where its log is.
        run_id: The run, as in its directory's ``run.json``.
        resume_step: The step to go on with: the one after the last committed checkpoint, else 0.
    """

    def __init__(
        self, options: RunOptions, clock: Clock = SYSTEM, *, rank: int | None = None
    ) -> None:
        opening = open_attempt(options, clock, rank=rank)
        self.options = options = opening.options
        self.dir = options.dir
        self.run_id = opening.run_id
        self.resume_step = opening.resume_step
        self._rank = opening.rank
        self._recorder = opening.recorder
        self._lock = opening.lock
        self._budget_gate = opening.budget
        self._guard_gate = opening.guard
        self._meters = None if opening.budget is None else opening.budget.meters
        self._price, self._gpus = options.price, options.gpus
        self._kept_slices = Fraction(1)
        self._price_kind = None if options.price is None else options.price.kind
        self._ended = False
        self._terminated = ""
        self._preempted = ""
        self._pid = os.getpid()
        self._heartbeat = None
        if options.heartbeat is not None and not facts.is_disabled(os.environ):
            self._heartbeat = HeartbeatThread(self._recorder, options.heartbeat)
        self._follower: GoodputFollower | None = None
        self._on_close: list[Callable[[], object]] = []
        self._watch = TerminationWatch(self._on_sigterm)
        self._preemption: PreemptionGate | None = None
        self._job_end: JobEndWatch | None = None
        if options.notice is not None and self._rank != SUPERVISOR:
            self._preemption_gate().listen([options.notice])
        elif facts.world_size(os.environ) == 1:
            # Several ranks must meet to stop together, which only they who ask for it may be made
            # to do: a rank that records alone would wait for the others.
            self._stop_before_the_job_ends()
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

    def set_price(self, price: object, *, gpus: object = None) -> None:
        """Record that from now on each GPU costs ``price`` (and how many there are).

        The price is typed (``"1.50 USD/h"``) or named (``"runpod:A100-80:spot"``, ``"auto"``).

        Raises:
            InvalidValue: One of them cannot be used; nothing is recorded then.
        """
        new_price = parse_price(
            price, name="price", source="set_price", environ=os.environ, gpu=self.options.gpu
        )
        if self._price_kind not in (None, new_price.kind):
            expected = f"a {self._price_kind} price as before: cash and showback are never added"
            raise InvalidValue("price", new_price.text, expected)
        if self.options.guard is not None:
            refuse_showback(new_price)
        if gpus is not None:
            self._gpus = gpu_count(gpus, name="gpus")
        self._price_kind = new_price.kind
        warn_of_old_price(new_price, os.environ, self._recorder.now_ns())
        self._price = new_price
        self._recorder.price_changed(new_price, gpu_count_of(self._gpus))
        self._tell_guard_the_rate()

    def set_slices(self, active: int, total: int, available: int | None = None) -> None:
        """Record how many of an elastic run's ``total`` slices train from now on.

        Slices that are not available were given back, and are no longer charged.

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
        self._kept_slices = Fraction(available, total)
        self._tell_guard_the_rate()

    def heartbeat(self) -> None:
        """Record a sign of life."""
        self._recorder.heartbeat()

    def note(self, text: str, **data: object) -> None:
        """Record anything worth keeping."""
        self._recorder.note(text, **data)

    def sync(self) -> None:
        """Make everything recorded so far survive a power loss, before something irreversible.

        A killed process loses nothing anyway, and committed checkpoints and ends are synced by
        themselves. A disk that refuses is warned about and raises nothing.
        """
        self._recorder.writer.sync()

    def preempted(self, reason: str = "preempted") -> None:
        """State that the machine is being taken back: time until the next start is not billed."""
        self._preempted = reason
        self._show_budget()

    def on_preemption(self, save: Callable[[], object]) -> None:
        """Call ``save`` when the machine is about to be taken back, and then end the loop.

        From now on SIGTERM and SIGUSR2 mean that notice, and in a Slurm job so does the end of its
        time, one grace before (``OUTLAY_GRACE``). ``save`` is called between two steps, on
        every rank after the same one; the attempt then ends ``preempted``.
        """
        gate = self._preemption_gate()
        gate.hooks.append(save)
        gate.listen([signal.SIGUSR2, signal.SIGTERM])
        if self.options.notice is None:
            self._stop_before_the_job_ends()

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
        """What fills in a step's record; ``run.meters.flops`` is there to be set."""
        if self._meters is None:  # Attached when first wanted: most runs without a budget never do.
            self._meters = StepMeters()
            self._recorder.writer = MeteredWriter(self._recorder.writer, self._meters)
        return self._meters

    def allows(self, work: str = "evaluation") -> bool:
        """Return whether the budget leaves room for work such as an evaluation.

        Judged by the dearest such span so far. On several ranks all must ask together, and get the
        same answer. Without a budget everything is allowed.
        """
        return self._budget_gate is None or self._budget_gate.allows(work)

    def summary(self, *, numbers: bool = False) -> dict[str, Any]:
        """Return the run's figures, all attempts, as a flat dict for any experiment tracker.

        Args:
            numbers: Floats only, and more of them: goodput, wasted cost, the used share of the
                budget, seconds and money by phase. What is text is in ``facts()``.
        """
        state = {"outlay/lost_records": self._recorder.writer.lost}
        try:
            view = self._view()
        except NotARun:  # Recording is switched off, or nothing could be written yet.
            return state if numbers else state | {"outlay/stop_reason": self.stop_reason}
        if numbers:
            from outlay.runs.numbers import numbers_of  # Loads NumPy, as the view did already.

            return numbers_of(view).values | {name: float(lost) for name, lost in state.items()}
        return figures_of(view).flat() | state | {"outlay/stop_reason": self.stop_reason}

    def facts(self) -> dict[str, str]:
        """Return what is text about the run, such as its model and currency, as a flat dict."""
        return {n: v for n, v in self.summary().items() if isinstance(v, str)}

    def _view(self) -> RunView:
        if self._follower is None:
            from outlay.goodput.follower import GoodputFollower  # Loads NumPy.

            self._follower = GoodputFollower(self.dir)
        return self._follower.view(self._recorder.now_ns())

    def on_close(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` once the attempt's end is recorded; what it raises is logged."""
        self._on_close.append(tell)

    # Its begin and its end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        status, reason = _outcome_of(error)
        self.close(status, reason)

    def close(
        self, status: EndStatus = "completed", reason: str = "", *, exit_code: int | None = None
    ) -> None:
        """Record the end of the attempt; further calls do nothing."""
        if self._ended or os.getpid() != self._pid:
            return  # Ended already, or a forked child that inherited its parent's run.
        if status != "completed":
            self._recorder.drop_left_step()
        if self._preempted:
            status, reason = "preempted", self._preempted
        elif self._terminated:
            status, reason = "terminated", self._terminated
        self._ended = True
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._job_end is not None:
            self._job_end.stop()
        if self._preemption is not None:
            self._preemption.remove()
        self._recorder.close(status, reason or self._recorder.stop_reason or "", exit_code)
        self._watch.remove()
        atexit.unregister(self._close_at_exit)
        if self._lock is not None:
            self._lock.release()
        for tell in self._on_close:
            try:
                tell()
            except Exception as error:  # noqa: BLE001 - a tracker's trouble is not the training's
                _log.warning("a tracker was not told of the end: %r", error)

    def _stop_before_the_job_ends(self) -> None:
        """In a Slurm job, end the loop one grace before its end, or when its script's signal comes.

        Signals for which the program has handlers are left to them.
        """
        job = SlurmJob.of(os.environ)
        if job is None or self._rank == SUPERVISOR or facts.is_disabled(os.environ):
            return
        gate = self._preemption_gate()
        gate.listen_where_deadly([signal.SIGUSR1, signal.SIGUSR2])
        if self._job_end is None and self._rank == 0:
            self._job_end = JobEndWatch(job, gate.announce, grace=self.options.grace)

    def _take_notice(self, reason: str) -> None:
        """State what a notice means: of a job that was cancelled no machine is taken back.

        A job that Slurm is still ending may be either: it is not called preempted.
        """
        job = SlurmJob.of(os.environ)
        state = ask_state(job) if reason.startswith("SIGTERM") and job is not None else ""
        if state in _GIVES_BACK:
            self.preempted(reason)
        else:
            self._terminated = "SIGTERM: the job was cancelled" if state == "CANCELLED" else reason

    def _preemption_gate(self) -> PreemptionGate:
        """Return what ends the loop after a scheduler's notice, attached when first wanted."""
        if self._preemption is None:
            from outlay.runs.preemption import PreemptionGate

            self._preemption = PreemptionGate(self._rank, self._take_notice)
            self._recorder.gates.append(self._preemption)
        return self._preemption

    def _tell_guard_the_rate(self) -> None:
        """Let the guard pay for what the run has now."""
        if self._guard_gate is not None and self._price is not None:
            rate = rate_of(self._price.rate, self._gpus * self._kept_slices)
            self._guard_gate.change_rate(rate)

    def _on_sigterm(self, dies: bool) -> None:  # noqa: FBT001 - a callback's only argument
        self._terminated = "SIGTERM"
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
        status, reason = _outcome_of(error)
        self.close(status, reason)


def _outcome_of(error: BaseException | None) -> tuple[EndStatus, str]:
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


# ``outlay.run()``: one call that records a training, prices it, and stops it where it must.


def run(
    model: str,
    *,
    dir: Path | str | None = None,
    name: str | None = None,
    gpu: str | None = None,
    gpus: object = None,
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
    ``OUTLAY_GPUS``, ``OUTLAY_STOPPED_PRICE``, ``OUTLAY_BUDGET``, ``OUTLAY_HOLD``.
    ``OUTLAY_DISABLED=1`` makes all of it a no-op.

    The run begins with the process, where the process was started to train and this is its first
    run: imports and loading before this call are ``program_startup``.

    Args:
        model: What is trained.
        dir: Where the run log goes; reopening one is a new attempt of the same run.
        name: What to call the run; default: the model.
        gpu: The GPU model; default: what the driver says.
        gpus: How many GPUs the whole run uses, or which share of one: ``8``, ``0.5``, ``"1/7"``;
            default: those of Slurm's allocation, else the visible ones of all nodes, else the world
            size, as an assumption.
        price: Per GPU-hour, such as ``"1.50 USD/h"``, or by name: ``"lambda:8xH100"``, ``"auto"``;
            ``showback`` may follow it. Without one, money reads "no price".
        stopped_price: Per hour of the whole machine while it is stopped between attempts.
        tags: Whatever costs are to be allocated by, such as ``{"team": "nlp"}``.
        heartbeat: Records a sign of life this often in the background, such as ``"30s"``.
        budget: Where the run stops, such as ``outlay.iso_cost("5 USD")`` or ``"iso_time=2h"``.
        guard: Whose ceiling it may not pass: a ``BudgetGuard``, or the path of a spend log.
        clock: The clocks to use.

    Raises:
        InvalidValue: An argument or a setting cannot be used.
        PriceFileUnusable: The price is a name, and the known prices cannot be read.
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
