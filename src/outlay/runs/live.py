"""The Run: one attempt of one run, inside the training process.

The Run is what a training script holds. It owns the attempt's begin and end; what happens in
between is the Recorder's. A loop drives it with ``steps``, or, where a trainer owns the loop, a
callback does with ``begin_step``, ``end_step``, ``phase`` and ``should_stop``.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, NotARun
from outlay.handlers import ExitWatch
from outlay.ledger import EndStatus, gpu_count_of
from outlay.rates import rate_of
from outlay.record import Recorder, Span, StepTimer, facts
from outlay.record.driven import DrivenLoop
from outlay.record.meters.steps import StepMeters
from outlay.record.recorder import Count, HeartbeatThread
from outlay.record.slurm import SlurmJob
from outlay.runs.figures import figures_of
from outlay.runs.opening import open_attempt, refuse_showback
from outlay.runs.options import RunOptions, gpu_count, parse_price, warn_of_old_price
from outlay.runs.preemption import JobEndWatch, TerminationWatch, ask_state

if TYPE_CHECKING:
    from outlay.budget.tracker import BudgetTracker
    from outlay.goodput.follower import GoodputFollower, RunView
    from outlay.runs.preemption import PreemptionGate

_log = logging.getLogger("outlay")

Batch = TypeVar("Batch")
_GIVES_BACK = ("", "RUNNING", "PENDING", "PREEMPTED", "REQUEUED", "SUSPENDED", "NODE_FAIL")
"""What Slurm calls a job of which SIGTERM means that it will go on later; "" without an answer."""


class Run:
    """One attempt of one run, seen from inside the training process.

    Attributes:
        dir: Where its log is.
        run_id: The run, as in its directory's ``run.json``.
        resume_step: The step to go on with: the one after the last committed checkpoint, else 0.
        rank: Of this process among those that train together.
        world_size: How many they are.
    """

    def __init__(
        self, options: RunOptions, clock: Clock = SYSTEM, *, rank: int | None = None
    ) -> None:
        if rank is not None:
            options = replace(options, place=replace(options.place, rank=rank))
        opening = open_attempt(options, clock)
        self.options = options = opening.options
        self.dir = options.dir
        self.run_id = opening.run_id
        self.resume_step = opening.resume_step
        self.rank = options.place.rank
        self.world_size = options.place.world_size
        self._recorder = opening.recorder
        self._driven = DrivenLoop(opening.recorder)
        self._to_skip: int | None = None
        self._warned_of_stop = False
        self._lock = opening.lock
        self._budget_gate = opening.budget
        self._tracker = opening.tracker
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
        if options.notice is not None:
            self._preemption_gate().listen([options.notice])
        elif self.world_size == 1:
            # Several ranks must meet to stop together, which only they who ask for it may be made
            # to do: a rank that records alone would wait for the others.
            self._stop_before_the_job_ends()
        self._exits = ExitWatch()
        atexit.register(self._close_at_exit)

    # What a training loop calls

    def steps(
        self,
        loader: Iterable[Batch],
        *,
        tokens: Count = None,
        samples: Count = None,
        start: int | None = None,
        skip: bool = False,
    ) -> Iterator[Batch]:
        """Yield the loader's batches, each a step, until the loader or the budget is exhausted.

        Once the run must stop it yields nothing: the body of an exhausted run's loop never runs.
        Around several loops write ``for epoch in run.epochs(n):``, which ends with them.

        Args:
            loader: Any iterable of batches.
            tokens: The tokens of a batch: a number, or a function of the batch. A budget of tokens
                counts the samples of all views by the batch's shape where this is left out.
            samples: The samples of a batch, likewise.
            start: The number of the first step; default: the last committed checkpoint + 1.
            skip: Draws as many batches as earlier attempts have done, over several calls where a
                loader is shorter, and yields those that follow; their time is ``training_prep``.
        """
        self._warn_of_stop()
        if self._budget_gate is not None:
            tokens = self._budget_gate.before_loop(loader, tokens)
        batches = self._without_done(loader) if skip else loader
        return self._recorder.steps(batches, tokens=tokens, samples=samples, start=start)

    def epochs(self, count: int, *, steps_per_epoch: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs, until all have run or the run must stop.

        On several ranks all must iterate together.

        Args:
            count: How many epochs the training has in all.
            steps_per_epoch: The steps of one; a resumed run then begins with the epoch that it was
                interrupted in, and ``steps(loader, skip=True)`` skips what was done of that.
        """
        first = 0
        if steps_per_epoch:
            first = self.resume_step // steps_per_epoch
            self._to_skip = self.resume_step - first * steps_per_epoch
        for epoch in range(first, count):
            if self.should_stop():
                return
            yield epoch

    def may_step(self, *, tokens: int = 0, samples: int = 0) -> bool:
        """Return whether the budget lets a step of this size run: ``while run.may_step(): ...``.

        For loops of another shape than ``run.steps``; on several ranks all must ask together.
        """
        return self._recorder.may_step(tokens=tokens, samples=samples)

    def step(self, *, tokens: int = 0, samples: int = 0) -> StepTimer:
        """Return a timer for one step of a loop of another shape."""
        return StepTimer(self._recorder, tokens, samples)

    # What a callback of a trainer calls

    def begin_step(self, *, wait_ns: int = 0) -> int:
        """Begin a step, for whose data the loop waited ``wait_ns``; return its number.

        Ends the phase that is open. A step that is begun and never ended did not happen.
        """
        return self._driven.begin_step(wait_ns)

    def end_step(self, *, tokens: int = 0, samples: int = 0, count: int = 1) -> None:
        """Record the step that was begun; tokens and samples are this rank's own.

        Where a trainer counted several steps meanwhile, as with several optimizers, ``count`` is
        how many: the next number is that of its next step.
        """
        self._driven.end_step(tokens, samples, count)

    def phase(self, name: str | None) -> None:
        """Begin a phase such as ``evaluation``; it lasts until the next phase or step, or None."""
        if name is None:
            self._driven.end_phase()
        else:
            self._driven.begin_phase(name)

    def resume_from(self, step: int) -> None:
        """State which step runs next, as the trainer's own checkpoint says; from 0 on.

        A budget counts what earlier attempts did below that step, and nothing beyond it.
        """
        if type(step) is not int or step < 0:
            raise InvalidValue("step", step, "the number of a step, zero or more")
        self.resume_step = self._recorder.next_step = step
        self._to_skip = None

    def should_stop(self, *, tokens: int = 0, samples: int = 0) -> bool:
        """Return whether the loop must end before a step of this size.

        Once before each step, on several ranks by all of them; each gets the same answer.
        """
        return not self.may_step(tokens=tokens, samples=samples)

    def span(self, name: str, *, overlapped: bool = False) -> Span:
        """Return a span, for ``with`` or as a decorator; ``overlapped`` if training goes on."""
        return self._recorder.span(name, overlapped=overlapped)

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record a number about the training, such as ``run.metric("accuracy", 0.91)``.

        A value that is no number is left out, counted, and warned of once.

        Raises:
            InvalidValue: The name is no text, or empty.
        """
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
        self._update_guard_rate()

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
        self._update_guard_rate()

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
    def budget(self) -> BudgetTracker | None:
        """The run's budget: what is used, what is left, ``snapshot`` for checkpoints, ``load``.

        None without one; a tracker without limits where it is disabled (``enabled: false``).
        """
        return self._tracker

    @property
    def meters(self) -> StepMeters:
        """What fills in a step's record; ``run.meters.flops`` is there to be set."""
        if self._meters is None:  # Attached when first wanted: most runs without a budget never do.
            self._meters = StepMeters()
            self._recorder.fill_step = self._meters.fill
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
            from outlay.runs.reading import RunReading  # Loads NumPy, as the view did already.

            return RunReading(view).values | {name: float(lost) for name, lost in state.items()}
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
        self._driven.end_phase()
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
        self._exits.remove()
        atexit.unregister(self._close_at_exit)
        if self._lock is not None:
            self._lock.release()
        for tell in self._on_close:
            try:
                tell()
            except Exception as error:  # noqa: BLE001 - a tracker's trouble is not the training's
                _log.warning("a tracker was not told of the end: %r", error)

    def _without_done(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Return what a loader has left after as many batches as were done are drawn from it."""
        batches = iter(loader)
        left = self.resume_step if self._to_skip is None else self._to_skip
        if left:
            with self.span("training_prep"):
                left -= sum(1 for _ in itertools.islice(batches, left))
        self._to_skip = left
        return batches

    def _warn_of_stop(self) -> None:
        """Say once that a loop goes on around a run that must stop."""
        if self.stop_reason is not None and not self._warned_of_stop:
            self._warned_of_stop = True
            _log.warning(
                "this run must stop (%s), and steps() yields nothing more; what the loop around it "
                "does is still paid for. Write `for epoch in run.epochs(n):` around run.steps(), "
                "or `if run.stop_reason: break` after it.",
                self.stop_reason,
            )

    def _stop_before_the_job_ends(self) -> None:
        """In a Slurm job, end the loop one grace before its end, or when its script's signal comes.

        Signals for which the program has handlers are left to them.
        """
        job = SlurmJob.of(os.environ)
        if job is None or facts.is_disabled(os.environ):
            return
        gate = self._preemption_gate()
        gate.listen_where_deadly([signal.SIGUSR1, signal.SIGUSR2])
        if self._job_end is None and self.rank == 0:
            self._job_end = JobEndWatch(job, gate.announce, grace=self.options.grace)

    def _apply_notice(self, reason: str) -> None:
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

            self._preemption = PreemptionGate(self.rank, self._apply_notice)
            self._recorder.gates.append(self._preemption)
        return self._preemption

    def _update_guard_rate(self) -> None:
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
        error: Any = getattr(sys, "last_value", None) or self._exits.error
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
