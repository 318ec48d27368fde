"""The Run, and ``outlay.run()`` that starts it: one attempt of one run, inside training.

The Run owns the attempt's start and end; the Recorder records what happens in between. A loop
drives it with ``steps``; where a trainer owns the loop, its callback does with ``begin_step``,
``end_step``, ``phase`` and ``should_stop``.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, NotARun
from outlay.escaping import html_text
from outlay.handlers import ExitWatch
from outlay.ledger import EndStatus, Price, gpu_count_of, unsaved_steps, unsaved_text
from outlay.record import Recorder, Span, StepTimer, facts
from outlay.record.meters.step_meters import StepMeters
from outlay.record.recorder import Count, DrivenLoop, HeartbeatThread
from outlay.runs.attempt_start import open_attempt, start_shipping
from outlay.runs.options import (
    Arguments,
    RunOptions,
    gpu_count,
    parse_price,
    resolve,
    warn_of_old_price,
)
from outlay.runs.preemption import JobEndWatch, PreemptionGate, ReclaimWatch, TerminationWatch
from outlay.slurm import SlurmJob, job_status
from outlay.units.money import GPU_TIME

if TYPE_CHECKING:
    from outlay.budget.tracker import BudgetTracker
    from outlay.goodput.follower import GoodputFollower, RunView

_log = logging.getLogger("outlay")

Batch = TypeVar("Batch")
_RESUMABLE_STATES = ("", "RUNNING", "PENDING", "PREEMPTED", "REQUEUED", "SUSPENDED", "NODE_FAIL")
"""Slurm states in which SIGTERM means that the job will resume later; "" without an answer."""


class Run:
    """One attempt of one run, inside the training process.

    Attributes:
        dir: The directory of its log.
        run_id: The run, as in its directory's ``run.json``.
        resume_step: The step to resume with: the one after the last committed checkpoint, else 0.
        rank: The rank of this process.
        world_size: The number of processes that train together.
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
        self._reclaim = self._watch_for_reclaim()
        if options.notice is not None:
            self._preemption_gate().listen([options.notice])
        elif self.world_size == 1:
            # Stopping several ranks together takes a collective, which must be asked for: a rank
            # that records alone would wait for the others.
            self._stop_before_the_job_ends()
        self._exits = ExitWatch()
        if (shipping := start_shipping(options)) is not None:
            self.on_close(shipping.finish)
        atexit.register(self._close_at_exit)

    def __repr__(self) -> str:
        state = self._recorder.stop_reason or "running"
        state = "closed" if self._ended else state
        steps = "no step" if self.step_number < 0 else f"last step {self.step_number}"
        return f"<Run {self.options.name}: {state}, {steps}, {self.dir}>"

    def _repr_html_(self) -> str:
        """Return the run's report up to now, for a notebook."""
        from outlay.runs.reading import RunReading  # Loads NumPy.

        try:
            return RunReading(self._view())._repr_html_()
        except NotARun:  # Recording is disabled, or nothing could be written yet.
            return f"<code>{html_text(repr(self))}</code>"

    # For a training loop

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

        Yields nothing once the run must stop. Around several loops write
        ``for epoch in run.epochs(n):``, which then ends too.

        Args:
            loader: Any iterable of batches.
            tokens: The tokens of a batch: a number, or a function of the batch. Without it, a token
                budget counts the elements of ``input_ids`` or of integer inputs, else the samples
                of the views that a mapping names; a batch without these is refused.
            samples: The samples of a batch, likewise.
            start: The number of the first step; default: the last committed checkpoint + 1.
            skip: Skips the batches that earlier attempts did, over several calls if a loader is
                shorter; the time of skipping is ``training_prep``.
        """
        self._warn_of_stop()
        if self._budget_gate is not None:
            tokens = self._budget_gate.before_loop(loader, tokens)
        batches = self._without_done(loader) if skip else loader
        return self._recorder.steps(batches, tokens=tokens, samples=samples, start=start)

    def epochs(self, count: int, *, steps_per_epoch: int | None = None) -> Iterator[int]:
        """Yield epoch numbers until all have run or the run must stop.

        On several ranks all must iterate together.

        Args:
            count: The number of epochs of the whole training.
            steps_per_epoch: If given, a resumed run begins with the epoch that was interrupted, and
                ``steps(loader, skip=True)`` skips the part of it that was done.
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
        """Return whether a step of this size may run: ``while run.may_step(): ...``.

        For loops that cannot use ``run.steps``; on several ranks all must call it together.
        """
        return self._recorder.may_step(tokens=tokens, samples=samples)

    def step(self, *, tokens: int = 0, samples: int = 0) -> StepTimer:
        """Return a timer for one step, for loops that cannot use ``run.steps``."""
        return StepTimer(self._recorder, tokens, samples)

    # For a trainer's callback

    def begin_step(self, *, wait_ns: int = 0) -> int:
        """Begin a step after a data wait of ``wait_ns``; return its number.

        Ends the open phase. A step that is never ended is not recorded.
        """
        return self._driven.begin_step(wait_ns)

    def end_step(self, *, tokens: int = 0, samples: int = 0, count: int = 1) -> None:
        """Record the step that was begun; tokens and samples are this rank's own.

        ``count`` is how many steps the trainer counted meanwhile, as with several optimizers; the
        next step's number is advanced by it.
        """
        self._driven.end_step(tokens, samples, count)

    def phase(self, name: str | None) -> None:
        """Begin a phase such as ``evaluation``; the next phase, the next step or None ends it.

        One that begins in the body of a ``run.steps`` loop ends with that body.
        """
        if name is None:
            self._recorder.end_phase()
        else:
            self._recorder.begin_phase(name)

    def resume_from(self, step: int) -> None:
        """State which step (from 0) runs next, as the trainer's own checkpoint has it.

        A budget counts the work of earlier attempts below that step, and none beyond it.
        """
        if type(step) is not int or step < 0:
            raise InvalidValue("step", step, "the number of a step, zero or more")
        self.resume_step = self._recorder.next_step = step
        self._to_skip = None

    def should_stop(self, *, tokens: int = 0, samples: int = 0) -> bool:
        """Return whether the loop must end before a step of this size.

        Call it once before each step, on several ranks on all of them; each gets the same answer.
        """
        return not self.may_step(tokens=tokens, samples=samples)

    def span(self, name: str, *, overlapped: bool = False) -> Span:
        """Return a span, for ``with`` or as a decorator; ``overlapped`` if beside training."""
        return self._recorder.span(name, overlapped=overlapped)

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record a number about the training, such as ``run.metric("accuracy", 0.91)``.

        A value that is not a number is dropped and counted, with one warning.

        Raises:
            InvalidValue: The name is not text, or empty.
        """
        self._recorder.metric(name, value, step)

    def checkpoint_committed(self, step: int | None = None) -> None:
        """Record that everything up to ``step`` (default: the last one) is safe on storage."""
        self._recorder.checkpoint_committed(step)

    def set_price(self, price: object, *, gpus: object = None) -> None:
        """Record a new price per GPU-hour, and optionally a new number of GPUs.

        The price is an amount (``"1.50 USD/h"``) or a name (``"runpod:A100-80:spot"``, ``"auto"``).

        Raises:
            InvalidValue: One of them is not valid; nothing is recorded then.
        """
        new_price = parse_price(
            price, name="price", source="set_price", environ=os.environ, gpu=self.options.gpu
        )
        if self._price is not None and self._price.kind != new_price.kind:
            expected = f"a {self._price.kind} price as before: cash and showback are never added"
            raise InvalidValue("price", new_price.text, expected)
        self._refuse_other_currency(new_price)
        if gpus is not None:
            self._gpus = gpu_count(gpus, name="gpus")
        warn_of_old_price(new_price, os.environ, self._recorder.now_ns())
        self._price = new_price
        self._recorder.price_changed(new_price, gpu_count_of(self._gpus))
        self._update_guard_rate()

    def _refuse_other_currency(self, price: Price) -> None:
        """Check that what limits the run's money still counts what it pays."""
        if self._price is None or price.currency == self._price.currency:
            return
        budget = self._budget_gate.tracker.budget if self._budget_gate is not None else None
        gate = self._guard_gate
        limited = gate is not None and gate.unit != GPU_TIME
        limited = limited or (budget is not None and budget.limits_money)
        if limited:
            currency = self._price.currency
            expected = (
                f"a price in {currency}, in which the run's money is limited: currencies are never "
                "added, so that the limit would no longer stop the run"
            )
            raise InvalidValue("price", price.text, expected)

    def set_slices(self, active: int, total: int, available: int | None = None) -> None:
        """Record how many slices of an elastic run train from now on.

        Slices that are not available were given back, and are no longer charged.

        Args:
            active: How many train.
            total: How many the run was given.
            available: How many could train; default: ``active``.

        Raises:
            InvalidValue: Not ``active <= available <= total``.
        """
        available = active if available is None else available
        if not 0 <= active <= available <= total or total < 1:
            counts = (active, total, available)
            raise InvalidValue("slices", counts, "0 <= active <= available <= total, total >= 1")
        self._recorder.slices_changed(active=active, total=total, available=available)
        self._kept_slices = Fraction(available, total)
        self._update_guard_rate()

    def heartbeat(self) -> None:
        """Record a heartbeat."""
        self._recorder.heartbeat()

    def note(self, text: str, **data: object) -> None:
        """Record a text, with data, in the run log."""
        self._recorder.note(text, **data)

    def sync(self) -> None:
        """Fsync the log, so that everything recorded so far survives a power loss.

        A killed process loses nothing anyway; committed checkpoints and ends are synced already. A
        failed fsync is logged, and raises nothing.
        """
        self._recorder.writer.sync()

    def preempted(self, reason: str = "preempted") -> None:
        """State that the machine is preempted: the time until the next start is not billed."""
        self._preempted = reason
        self._write_budget()

    def on_stop(self, save: Callable[[], object]) -> None:
        """Call ``save`` once when a budget, the guard or a preemption ends the loop.

        It is called between two steps, in the loop's thread, on every rank after the same step, and
        recorded as ``checkpoint_save``; several functions in the order in which they were given.
        It should call ``checkpoint_committed``: steps in no checkpoint are trained and charged
        again at the next start, and the run says so when it ends. It is not called if no step was
        trained, nor if the loop ends in another way (its end, ``break``, an exception). An
        exception in it is raised in the loop, after the other functions were called.

        Signals and the end of a Slurm job are notices as with ``on_preemption``.
        """
        if not self._recorder.on_stop:
            self._preemption_gate().hooks.append(self._recorder.announce_stop)
            self._listen_for_notices()
        self._recorder.on_stop.append(save)

    def on_preemption(self, save: Callable[[], object]) -> None:
        """Call ``save`` when the machine is about to be preempted, and then end the loop.

        From now on SIGTERM and SIGUSR2 are preemption notices; in a Slurm job so is the end of its
        time limit, less the grace (``OUTLAY_GRACE``). ``save`` is called between two steps, on
        every rank after the same one; the attempt then ends ``preempted``.
        """
        self._preemption_gate().hooks.append(save)
        self._listen_for_notices()

    # State

    @property
    def recorder(self) -> Recorder:
        """The recorder underneath, for integrations."""
        return self._recorder

    @property
    def step_number(self) -> int:
        """The number of the current or last step."""
        return self._recorder.step_number

    @property
    def stop_reason(self) -> str | None:
        """Why no further step may run, or None."""
        return self._recorder.stop_reason

    @property
    def budget(self) -> BudgetTracker | None:
        """The run's budget: what is used, what is left, ``snapshot`` for checkpoints, ``load``.

        None without one; a tracker without limits if it is disabled (``enabled: false``).
        """
        return self._tracker

    @property
    def meters(self) -> StepMeters:
        """The meters that add to a step's record; ``run.meters.flops`` may be set."""
        if self._meters is None:  # Attached on first use: most runs without a budget need none.
            self._meters = StepMeters()
            self._recorder.attach(fill_step=self._meters.fill)
        return self._meters

    def allows(self, work: str = "evaluation") -> bool:
        """Return whether the budget has room for work such as an evaluation.

        Compared with the most expensive such span so far. On several ranks all must call it
        together, and get the same answer. Without a budget everything is allowed.
        """
        return self._budget_gate is None or self._budget_gate.allows(work)

    def summary(self, *, numbers: bool = False) -> dict[str, Any]:
        """Return the figures of all attempts as a flat dict for an experiment tracker.

        Args:
            numbers: Floats only, and more of them: goodput, wasted cost, the used share of the
                budget, seconds and money by phase. Text is in ``facts()``.
        """
        state = {"outlay/lost_records": self._recorder.writer.lost}
        try:
            view = self._view()
        except NotARun:  # Recording is disabled, or nothing could be written yet.
            return state if numbers else state | {"outlay/stop_reason": self.stop_reason}
        from outlay.runs.figures import flat  # Load NumPy, as the view did already.
        from outlay.runs.reading import RunReading

        reading = RunReading(view)
        if numbers:
            return reading.values | {name: float(lost) for name, lost in state.items()}
        return flat(reading.figures) | state | {"outlay/stop_reason": self.stop_reason}

    def facts(self) -> dict[str, str]:
        """Return the texts about the run, such as its model and currency, as a flat dict."""
        return {n: v for n, v in self.summary().items() if isinstance(v, str)}

    def _view(self) -> RunView:
        if self._follower is None:
            from outlay.goodput.follower import GoodputFollower  # Loads NumPy.

            self._follower = GoodputFollower(self.dir)
        return self._follower.view(self._recorder.now_ns())

    def on_close(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` once the attempt's end is recorded; its exceptions are logged."""
        self._on_close.append(tell)

    # End of the attempt

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(*_outcome_of(error))

    def close(
        self, status: EndStatus = "completed", reason: str = "", *, exit_code: int | None = None
    ) -> None:
        """Record the end of the attempt; further calls do nothing."""
        if self._ended or os.getpid() != self._pid:
            return  # Ended already, or a forked child of the training process.
        if status != "completed":
            self._recorder.drop_left_step()
        self._recorder.end_phase()
        if self._preempted:
            status, reason = "preempted", self._preempted
        elif self._terminated:
            status, reason = "terminated", self._terminated
        elif status == "completed" and self._budget_gate is not None and self._budget_gate.pauses:
            status = "paused"
        self._ended = True
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._job_end is not None:
            self._job_end.stop()
        if self._reclaim is not None:
            self._reclaim.stop()
        if self._preemption is not None:  # Before the other gates, which may wait or fail.
            self._preemption.finish(status)
        self._recorder.close(status, reason or self._recorder.stop_reason or "", exit_code)
        self._warn_of_unsaved_steps()
        self._watch.remove()
        self._exits.remove()
        atexit.unregister(self._close_at_exit)
        if self._lock is not None:
            self._lock.release()
        for callback in self._on_close:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - a tracker must not fail the training
                _log.warning("a tracker did not get the end of the run: %r", error)

    def _without_done(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Return a loader's batches after those that earlier attempts did."""
        batches = iter(loader)
        left = self.resume_step if self._to_skip is None else self._to_skip
        if left:
            with self.span("training_prep"):
                left -= sum(1 for _ in itertools.islice(batches, left))
        self._to_skip = left
        return batches

    def _warn_of_stop(self) -> None:
        if self.stop_reason is not None and not self._warned_of_stop:
            self._warned_of_stop = True
            _log.warning(
                "this run must stop (%s): steps() yields nothing more, but the loop around it "
                "still costs money. Write `for epoch in run.epochs(n):` around run.steps(), "
                "or `if run.stop_reason: break` after it.",
                self.stop_reason,
            )

    def _stop_before_the_job_ends(self) -> None:
        """In a Slurm job, end the loop one grace before its end, or on its script's signal.

        Signals that the program handles itself are left alone.
        """
        job = SlurmJob.of(os.environ)
        if job is None or facts.is_disabled(os.environ):
            return
        gate = self._preemption_gate()
        gate.listen_where_deadly([signal.SIGUSR1, signal.SIGUSR2])
        if self._job_end is None and self.rank == 0:
            self._job_end = JobEndWatch(job, gate.announce, grace=self.options.grace)

    def _watch_for_reclaim(self) -> ReclaimWatch | None:
        """End the loop when the cloud says that it takes the machine back, if that was asked for.

        All ranks take part, as with a signal; rank 0 asks.
        """
        source = self.options.reclaim
        if source is None or facts.is_disabled(os.environ):
            return None
        gate = self._preemption_gate()
        gate.listen_where_deadly([signal.SIGUSR1, signal.SIGUSR2])  # ``outlay exec`` sends one.
        return ReclaimWatch(source, gate.announce) if self.rank == 0 else None

    def _listen_for_notices(self) -> None:
        self._preemption_gate().listen([signal.SIGUSR2, signal.SIGTERM])
        if self.options.notice is None:
            self._stop_before_the_job_ends()

    def _warn_of_unsaved_steps(self) -> None:
        """Log which steps a stop throws away; rank 0 knows the checkpoints."""
        recorder = self._recorder
        unsaved = unsaved_steps(recorder.committed_step, recorder.next_step - 1)
        if self.rank == 0 and unsaved and (recorder.stop_reason or self._preempted):
            _log.warning(
                "outlay: %s, and would be trained and charged again at the next start; "
                "run.on_stop(save) can save them",
                unsaved_text(unsaved),
            )

    def _apply_notice(self, reason: str) -> None:
        """Record a notice as preemption, or as termination if the Slurm job was cancelled.

        A job that Slurm is still ending may be either: it counts as terminated.
        """
        job = SlurmJob.of(os.environ) if reason.startswith("SIGTERM") else None
        status = None if job is None else job_status(job.id)
        state = "" if status is None else status.state
        if state in _RESUMABLE_STATES:
            self.preempted(reason)
        else:
            self._terminated = "SIGTERM: the job was cancelled" if state == "CANCELLED" else reason

    def _preemption_gate(self) -> PreemptionGate:
        if self._preemption is None:
            self._preemption = PreemptionGate(self.rank, self._apply_notice)
            self._recorder.attach(gate=self._preemption)
        return self._preemption

    def _update_guard_rate(self) -> None:
        if self._guard_gate is not None:
            gate, gpus = self._guard_gate, self._gpus * self._kept_slices
            gate.change_rate(gate.rate_of(self._price, gpus))

    def _on_sigterm(self, dies: bool) -> None:  # noqa: FBT001 - a callback's only argument
        self._terminated = "SIGTERM"
        if dies:
            self.close()
        else:
            self._recorder.note("SIGTERM received")
            self._recorder.writer.sync()
            self._write_budget()

    def _write_budget(self) -> None:
        """Write the budget's state now: SIGKILL may follow."""
        if self._budget_gate is not None and os.getpid() == self._pid:
            self._budget_gate.refresh()

    def _close_at_exit(self) -> None:
        """Close a run that the script left open, with the status of the interpreter's exit."""
        error: Any = getattr(sys, "last_value", None) or self._exits.error
        self.close(*_outcome_of(error))


def _outcome_of(error: BaseException | None) -> tuple[EndStatus, str]:
    """Return status and reason; of an error only its type, since its text may hold a secret."""
    match error:
        case None | GeneratorExit():
            return "completed", ""
        case KeyboardInterrupt():
            return "interrupted", "KeyboardInterrupt"
        case SystemExit(code=None | 0):
            return "completed", ""
        case _:
            return "failed", type(error).__name__


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
    config: object = None,
    rank: int | None = None,
    world_size: int | None = None,
    clock: Clock = SYSTEM,
) -> Run:
    """Start or resume a run; use it in a ``with`` statement.

    Defaults come from the environment: ``OUTLAY_RUN_DIR``, ``OUTLAY_PRICE``,
    ``OUTLAY_GPUS``, ``OUTLAY_STOPPED_PRICE``, ``OUTLAY_BUDGET``, ``OUTLAY_HOLD``.
    ``OUTLAY_DISABLED=1`` makes the run a no-op.

    If the process was started to train and this is its first run, the run begins with the process:
    imports and loading before this call are ``program_startup``.

    Args:
        model: The name of the model that is trained.
        dir: The run's directory; an existing one gets a new attempt of the same run.
        name: The run's name; default: the model.
        gpu: The GPU model; default: as the driver reports it.
        gpus: The number of GPUs of the whole run, or a share of one: ``8``, ``0.5``, ``"1/7"``;
            default: those of Slurm's allocation, else the visible ones of all nodes, else the world
            size, as an assumption.
        price: Per GPU-hour, such as ``"1.50 USD/h"``, or by name: ``"lambda:8xH100"``, ``"auto"``;
            ``showback`` may follow it. Without one, money reads "no price".
        stopped_price: Per hour of the whole machine while it is stopped between attempts.
        tags: Labels for cost allocation, such as ``{"team": "nlp"}``.
        heartbeat: The interval of background heartbeats, such as ``"30s"``; default: none.
        budget: The limits that stop the run, such as ``outlay.iso_cost("5 USD")`` or
            ``"iso_time=2h"``.
        guard: The guard whose ceiling applies: a ``BudgetGuard``, or the path of a spend log.
        config: The training's configuration: a mapping, an OmegaConf node, a dataclass or an
            argparse namespace. Recorded without secrets, and shown with the run.
        rank: The rank of this process; default: from torch.distributed if initialised, else the
            environment (``RANK``, ``LOCAL_RANK`` with ``NODE_RANK``, Slurm). If two of these
            differ, that is an error.
        world_size: The number of processes that train together; default: likewise.
        clock: The clocks to use.

    Raises:
        InvalidValue: An argument or an environment variable is not valid.
        PriceFileUnusable: The price is a name, and the price file cannot be read.
        Refused: Something that the budget limits cannot be measured here, or the guard refuses.
        RunInUse: A live process records this rank of this run already.
    """
    if model is None:
        raise InvalidValue("model", model, "a non-empty name")
    arguments = Arguments(
        model=model, dir=dir, name=name, gpu=gpu, gpus=gpus, price=price,
        stopped_price=stopped_price, tags=tags, heartbeat=heartbeat, budget=budget, guard=guard,
        config=config, rank=rank, world_size=world_size,
    )  # fmt: skip
    return Run(resolve(arguments, os.environ, clock.wall_ns()), clock)
