"""The recorder: writes records of what a training loop does, and calls the gates.

Failures of recording never raise into the loop. Timestamps are the wall clock at the start plus the
monotonic time elapsed since, so that setting back the wall clock does no harm. Steps are timed on
the host, without synchronising an accelerator.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from outlay.clock import Clock
from outlay.errors import InvalidValue
from outlay.ledger import (
    AttemptEnded,
    BudgetEvent,
    CheckpointCommitted,
    EndStatus,
    GpuCount,
    Heartbeat,
    KnownRecord,
    Metric,
    Note,
    Price,
    PriceChanged,
    SegmentWriter,
    SlicesChanged,
    SpanBegun,
    SpanEnded,
    Step,
)
from outlay.ledger.records import LARGEST
from outlay.units import Duration

_log = logging.getLogger("outlay")

FillStep = Callable[[Step], Step]
Observe = Callable[[KnownRecord, int], None]

# Gates


class Gate(Protocol):
    """Decides whether training continues, such as a budget; see ``Recorder.attach``."""

    def before_step(self, *, tokens: int, samples: int) -> str | None:
        """Return why a step of this size must not run, or None to let it run."""

    def after_step(self, step: Step) -> str | None:
        """Take note of a step that ran; return why no further one may, or None."""

    def finish(self, status: EndStatus) -> None:
        """End with the attempt; only the end is recorded after this returns."""


# Writers


class NullWriter:
    """Drops all records, for runs with recording switched off."""

    lost = 0
    gap_numbers: frozenset[int] = frozenset()

    def append(self, record: KnownRecord) -> int:
        """Drop the record."""
        del record
        return 0

    def sync(self) -> None:
        """Do nothing."""

    def check_place(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


Writer = SegmentWriter | NullWriter

# Spans: a context manager and a decorator, for plain and async code

F = TypeVar("F", bound=Callable[..., Any])


class Span:
    """Named work, such as ``checkpoint_save``; each ``with`` records one span.

    Its begin is written before the work starts, so that a kill in the middle can be attributed.
    """

    __slots__ = ("_begun", "_name", "_overlapped", "_recorder")

    def __init__(self, recorder: Recorder, name: str, *, overlapped: bool) -> None:
        self._recorder = recorder
        self._name = name
        self._overlapped = overlapped
        self._begun: list[int] = []  # A stack, so that one Span may be entered recursively.

    def __enter__(self) -> Span:
        self._begun.append(self._recorder.begin_span(self._name, overlapped=self._overlapped))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._recorder.end_span(self._begun.pop())

    async def __aenter__(self) -> Span:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__(*exc_info)

    def __call__(self, function: F) -> F:
        """Return ``function`` with every call of it recorded as a span."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    def _again(self) -> Span:
        # Calls may overlap (tasks, threads), so each needs its own stack.
        return Span(self._recorder, self._name, overlapped=self._overlapped)


# Single steps: ``with run.step(tokens=4096): ...``


class StepTimer:
    """Times one step; its amounts may be set while it runs."""

    comm_bytes = 0
    energy_mj = 0
    flops = 0
    count = 1
    _wait_ns = 0

    def __init__(self, recorder: Recorder, tokens: int, samples: int) -> None:
        self._recorder = recorder
        self.tokens = tokens
        self.samples = samples

    def __enter__(self) -> StepTimer:
        self.number = self._recorder.begin_step()
        self._begun_ns = self._recorder.monotonic_ns()
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, *exc_info: object) -> None:
        if exc_type is not None:
            return  # A failed step does not count; its time is `other`.
        recorder = self._recorder
        ended_ns = recorder.monotonic_ns()
        recorder.end_step(
            Step(
                t_ns=ended_ns + recorder.wall_offset_ns,
                step=self.number,
                dur_ns=ended_ns - self._begun_ns,
                wait_ns=self._wait_ns,
                tokens=self.tokens,
                samples=self.samples,
                comm_bytes=self.comm_bytes,
                energy_mj=self.energy_mj,
                flops=self.flops,
                count=self.count,
            )
        )


Batch = TypeVar("Batch")
Count = int | Callable[[Any], int] | None


class Recorder:
    """Records one process of one attempt.

    Args:
        writer: The segment to append to; its header is already written.
        clock: Read twice a step.
        wall_offset_ns: Added to the monotonic clock, it gives the attempt's axis.
        first_step: The number of the first step, unless the loop sets another.

    Attributes:
        gates: Called before and after every step; add to them with ``attach``.
        on_stop: Called once, in this order, when the loop must end after a step.
        committed_step: The step of the last committed checkpoint; None without one.
        bad_metrics: How many metrics were dropped because their values were not numbers.
    """

    def __init__(
        self, writer: Writer, clock: Clock, *, wall_offset_ns: int, first_step: int = 0
    ) -> None:
        self.writer = writer
        self.monotonic_ns = clock.monotonic_ns
        self.wall_offset_ns = wall_offset_ns
        self.next_step = first_step
        self.step_number = first_step - 1
        self.stop_reason: str | None = None
        self.gates: list[Gate] = []
        self.on_stop: list[Callable[[], object]] = []
        self.committed_step = first_step - 1 if first_step else None
        self.bad_metrics = 0
        self._fill_steps: list[FillStep] = []
        self._observers: list[Observe] = []
        self._stepping_thread = threading.get_ident()
        self._left: Step | None = None
        self._phase: int | None = None
        self._end_ns: int | None = None
        self._ready = False  # Whether the thread is known and no left step is pending.
        self._stepped = self._stop_announced = False

    def attach(
        self,
        *,
        gate: Gate | None = None,
        fill_step: FillStep | None = None,
        observe: Observe | None = None,
    ) -> None:
        """Add callbacks; those attached earlier are called first.

        Args:
            gate: Called before and after every step; each gate can stop the loop.
            fill_step: Returns a step with its measurements, before it is written.
            observe: Called with each record and its sequence number, after it is written.
        """
        if gate is not None:
            self.gates.append(gate)
        if fill_step is not None:
            self._fill_steps.append(fill_step)
        if observe is not None:
            self._observers.append(observe)

    def now_ns(self) -> int:
        """Return the present time on the attempt's axis, in UTC nanoseconds.

        From the attempt's end on it is that end, so that gates record their final figures as of
        then.
        """
        return self._end_ns or self.monotonic_ns() + self.wall_offset_ns

    def steps(
        self,
        loader: Iterable[Batch],
        *,
        tokens: Count = None,
        samples: Count = None,
        start: int | None = None,
    ) -> Iterator[Batch]:
        """Yield the loader's batches; the time between two is one step.

        The wait for each batch is timed separately. The loop ends with the loader, or when a gate
        stops it. A step left by ``break`` counts; one left by an exception does not. ``Run.steps``
        documents the arguments.
        """
        if start is not None:
            self.next_step = start
        batches = iter(loader)
        ready_ns = self.monotonic_ns()
        while self.stop_reason is None:
            try:
                batch = next(batches)
            except StopIteration:
                return
            batch_tokens, batch_samples = _count(tokens, batch), _count(samples, batch)
            if self.gates and not self.may_step(tokens=batch_tokens, samples=batch_samples):
                return
            number = self.begin_step()
            begun_ns = self.monotonic_ns()
            completed = False
            try:
                yield batch
                completed = True
            finally:
                if self._phase is not None:
                    self.end_phase()
                ended_ns = self.monotonic_ns()
                step = Step(
                    t_ns=ended_ns + self.wall_offset_ns,
                    step=number,
                    dur_ns=ended_ns - begun_ns,
                    wait_ns=begun_ns - ready_ns,
                    tokens=batch_tokens,
                    samples=batch_samples,
                )
                if completed:
                    self.end_step(step)
                else:
                    # Left by `break` or by an exception. It is written at the next call, and
                    # dropped if the run closes on an error.
                    self._left, self._ready = step, False
            ready_ns = ended_ns

    def may_step(self, *, tokens: int = 0, samples: int = 0) -> bool:
        """Return whether every gate allows a step of this size; a refusal ends the loop."""
        for gate in self.gates:
            self.stop_reason = self.stop_reason or gate.before_step(tokens=tokens, samples=samples)
        if self.stop_reason is not None:
            self.announce_stop()
        return self.stop_reason is None

    def announce_stop(self) -> None:
        """Call ``on_stop``, each as a ``checkpoint_save``; only the first call after a step does.

        If one raises, that is recorded, the others are called, and then it is raised.
        """
        if self._stop_announced or not self._stepped:
            return
        self._stop_announced = True
        errors: list[Exception] = []
        for save in self.on_stop:
            try:
                with self.span("checkpoint_save"):
                    save()
            except Exception as error:  # noqa: BLE001 - raised below
                self.note("a function of on_stop failed", error=type(error).__name__)
                errors.append(error)
        if errors:
            raise errors[0]

    def begin_step(self) -> int:
        """Begin the next step and return its number; ends the open phase."""
        if self._phase is not None:
            self.end_phase()
        if not self._ready:
            self._write_left_step()
            self._stepping_thread = threading.get_ident()
            self._ready = True
        self.step_number = number = self.next_step
        return number

    def end_step(self, step: Step) -> None:
        """Write a step that ran to its end, and call the gates."""
        self._end_step(step)
        if self.stop_reason is not None:
            self.announce_stop()

    def _end_step(self, step: Step) -> None:
        for fill_step in self._fill_steps:
            step = fill_step(step)
        self._write(step)
        self.next_step = step.step + step.count
        self._stepped = True
        for gate in self.gates:
            self.stop_reason = gate.after_step(step) or self.stop_reason

    def span(self, name: str, *, overlapped: bool = False) -> Span:
        """Return a span, for ``with`` or as a decorator.

        ``overlapped`` if training continues meanwhile.
        """
        return Span(self, name, overlapped=overlapped)

    def begin_span(self, name: str, *, overlapped: bool) -> int:
        """Record the begin of a span; outside the stepping thread it is always overlapped."""
        overlapped = overlapped or threading.get_ident() != self._stepping_thread
        return self.append(SpanBegun(t_ns=self.now_ns(), name=str(name), overlapped=overlapped))

    def end_span(self, begun: int) -> None:
        """Record the end of the span that began at sequence number ``begun``."""
        self.append(SpanEnded(t_ns=self.now_ns(), begun=begun))

    def begin_phase(self, name: str) -> None:
        """End the open phase and begin another: a span for code that cannot hold a ``with`` open.

        It is ended by the next one, by the next step, and by the end of the step of ``steps``.
        """
        self.end_phase()
        self._phase = self.begin_span(name, overlapped=False)

    def end_phase(self) -> None:
        """End the open phase, if there is one."""
        begun, self._phase = self._phase, None
        if begun is not None:
            self.end_span(begun)

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record a number about the training, such as ``metric("accuracy", 0.91)``."""
        _check_name(name)
        number = self.step_number if step is None else step
        try:
            value = float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # torch raises RuntimeError.
            self._drop_metric(name, type(error).__name__)
            return
        written = value if math.isfinite(value) else str(value)
        self.append(Metric(t_ns=self.now_ns(), name=name, value=written, step=number))

    def checkpoint_committed(self, step: int | None = None) -> None:
        """Record that everything up to ``step`` (default: the last one) is safe on storage."""
        number = self.step_number if step is None else step
        self.committed_step = number
        self.append(CheckpointCommitted(t_ns=self.now_ns(), step=number))
        self.writer.sync()

    def price_changed(self, price: Price, gpus: GpuCount) -> None:
        """Record the price from now on."""
        self.append(PriceChanged(t_ns=self.now_ns(), price=price, gpus=gpus))

    def slices_changed(self, *, active: int, total: int, available: int) -> None:
        """Record the slices of an elastic run from now on."""
        self.append(
            SlicesChanged(t_ns=self.now_ns(), active=active, total=total, available=available)
        )

    def budget_event(self, event: str, data: dict[str, Any]) -> None:
        """Record an event of the budget."""
        self.append(BudgetEvent(t_ns=self.now_ns(), event=event, data=data))

    def heartbeat(self, *, gpu_busy_ns: int = 0, energy_mj: int = 0) -> None:
        """Record a sign of life."""
        # Not through `append`: the background thread must not write a left step.
        beat = Heartbeat(t_ns=self.now_ns(), gpu_busy_ns=gpu_busy_ns, energy_mj=energy_mj)
        self._write(beat)
        self.writer.check_place()

    def note(self, text: str | None, **data: object) -> None:
        """Record free text and data."""
        self.append(Note(t_ns=self.now_ns(), text="" if text is None else str(text), data=data))

    def append(self, record: KnownRecord) -> int:
        """Write a record that is not a step."""
        self._write_left_step()
        return self._write(record)

    def _write(self, record: KnownRecord) -> int:
        seq = self.writer.append(record)
        for observe in self._observers:
            observe(record, seq)
        return seq

    def close(self, status: EndStatus, reason: str = "", exit_code: int | None = None) -> None:
        """Record the end of the attempt and stop writing."""
        self._write_left_step()
        if self.bad_metrics:
            self.note("metrics left out: their values are not numbers", count=self.bad_metrics)
        self._end_ns = self.now_ns()
        for gate in self.gates:
            gate.finish(status)
        self.writer.sync()  # Recreates a deleted segment, so that the end is written.
        end = AttemptEnded(t_ns=self.now_ns(), status=status, reason=reason, exit_code=exit_code)
        self.append(end)
        self.writer.sync()
        self.writer.close()

    def _drop_metric(self, name: str, error: str) -> None:
        self.bad_metrics += 1
        if self.bad_metrics == 1:
            _log.warning("metric %r is left out: its value is not a number (%s)", name, error)

    def drop_left_step(self) -> None:
        """Drop the step that an exception left: it does not count."""
        self._left = None

    def _write_left_step(self) -> None:
        step, self._left = self._left, None
        if step is not None:
            self._end_step(step)  # The loop was left: nothing of it is to be saved here.


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InvalidValue("metric", name, "a name that is not empty")


def _count(count: Count, batch: object) -> int:
    if count is None:
        return 0
    return int(count(batch)) if callable(count) else count


# Loops driven by callbacks, which can neither hold a ``with`` open nor own the ``for``


class DrivenLoop:
    """Records the steps that a trainer's callbacks begin and end."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._step: StepTimer | None = None

    def begin_step(self, wait_ns: int) -> int:
        """Begin the next step after waiting ``wait_ns`` for its data; return its number.

        Ends the open phase. A step that was begun and never ended does not count.
        """
        step = StepTimer(self._recorder, tokens=0, samples=0)
        step._wait_ns = _check_count("wait_ns", wait_ns)
        self._step = step.__enter__()
        return step.number

    def end_step(self, tokens: int, samples: int, count: int = 1) -> None:
        """Record the step that was begun, or ``count`` steps that ran as one.

        Raises:
            InvalidValue: No step was begun, or an amount is below zero.
        """
        step, self._step = self._step, None
        if step is None:
            raise InvalidValue("end_step", None, "a call of begin_step() before it")
        step.tokens = _check_count("tokens", tokens)
        step.samples = _check_count("samples", samples)
        step.count = _check_count("count", count) or 1
        step.__exit__()


def _check_count(name: str, value: int) -> int:
    if not 0 <= value <= LARGEST:
        raise InvalidValue(name, value, "a whole number, zero or more")
    return int(value)


# Heartbeats


class HeartbeatThread:
    """Records heartbeats from a daemon thread, so that the time of a kill is known."""

    def __init__(self, recorder: Recorder, every: Duration) -> None:
        self._recorder = recorder
        self._every_s = every.seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="outlay-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Record no further heartbeats."""
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._recorder.heartbeat()
            self._recorder.writer.sync()
