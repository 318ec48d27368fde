"""The recorder: turns what a training loop does into records, and asks the gates.

It never raises into the loop for its own reasons. Its axis of time is the wall clock at its start
plus the monotonic clock since, so that a wall clock that is set back does no harm. Steps are
timed on the host, without synchronising an accelerator.
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
    SlicesChanged,
    SpanBegun,
    SpanEnded,
    Step,
)
from outlay.units import Duration

_log = logging.getLogger("outlay")

# What may stop a loop: a gate is called before each step and after it.
#
# Budgets and guards are gates. The recorder knows nothing else about them.


class Gate(Protocol):
    """Decides whether training goes on; every gate that is attached binds."""

    def before_step(self, *, tokens: int, samples: int) -> str | None:
        """Return why a step of this size must not run, or None to let it run."""

    def after_step(self, step: Step) -> str | None:
        """Record a step that ran; return why no further one may, or None."""

    def finish(self, status: EndStatus) -> None:
        """The attempt is over; nothing is recorded after this returns."""


# Where a recorder's records go: to a segment, or nowhere.


class Writer(Protocol):
    """What a recorder writes to.

    Attributes:
        lost: How many records could not be written.
        gap_numbers: The sequence numbers that it used for gaps, which nobody appended.
    """

    lost: int
    gap_numbers: set[int]

    def append(self, record: KnownRecord) -> int:
        """Write one record and return its sequence number."""

    def sync(self) -> None:
        """Make what was written survive a power loss."""

    def check_place(self) -> None:
        """Look whether what is written still goes where it belongs."""

    def close(self) -> None:
        """Stop writing."""


class NullWriter:
    """A writer that keeps nothing, for when recording is switched off."""

    def __init__(self) -> None:
        self.lost = 0
        self.gap_numbers: set[int] = set()

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


# Named stretches of work: a context manager and a decorator, for plain and async code.

F = TypeVar("F", bound=Callable[..., Any])


class Span:
    """One stretch of work by name, such as ``checkpoint_save``; each ``with`` is one stretch.

    Its begin is on disk before the work starts, so that a kill in the middle is seen as what it
    was.
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
        # Calls may overlap (tasks, threads), so each gets a stack of its own.
        return Span(self._recorder, self._name, overlapped=self._overlapped)


# One step of a loop that outlay does not drive: ``with run.step(tokens=4096): ...``.


class StepTimer:
    """Times a step; what it used may be set while it runs."""

    comm_bytes = 0
    energy_mj = 0
    flops = 0
    count = 1

    def __init__(self, recorder: Recorder, tokens: int, samples: int) -> None:
        self._recorder = recorder
        self.tokens = tokens
        self.samples = samples

    def __enter__(self) -> StepTimer:
        self.number = self._recorder.begin_step()
        self._begun_ns = self._recorder.monotonic_ns()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        if exc_type is not None:
            return  # A step that failed did not happen; its time falls to `other`.
        recorder = self._recorder
        ended_ns = recorder.monotonic_ns()
        recorder.end_step(
            Step(
                t_ns=ended_ns + recorder.wall_offset_ns,
                step=self.number,
                dur_ns=ended_ns - self._begun_ns,
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
        wall_offset_ns: What turns the monotonic clock into the attempt's axis.
        first_step: The number of the first step, unless the loop says otherwise.

    Attributes:
        gates: Called before and after every step.
        fill_step: Completes a step's record before it is written: what meters saw during it.
        observe: Told of each record that was written, and of its sequence number.
        bad_metrics: How many metrics were left out because their values were no numbers.
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
        self.fill_step: Callable[[Step], Step] | None = None
        self.observe: Callable[[KnownRecord, int], None] | None = None
        self.bad_metrics = 0
        self._stepping_thread = threading.get_ident()
        self._left: Step | None = None
        self._end_ns: int | None = None
        self._settled = False  # Whether a step can begin without a look at the two above.

    def now_ns(self) -> int:
        """Return the present instant on the attempt's axis, in UTC nanoseconds.

        From the attempt's end on it is that end: what gates record while they settle changes
        nothing about what they settle.
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

        The wait for each batch is timed apart. The loop ends when the loader does, or when a gate
        lets no further step run. A step left by ``break`` counts; one left by an exception does
        not. What the arguments mean is said in ``Run.steps``, through which a training comes here.
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
                    # Left by `break` or by an exception: which of the two is known at the next
                    # call (the step is written) or when the run closes on an error (it is not).
                    self._left, self._settled = step, False
            ready_ns = ended_ns

    def may_step(self, *, tokens: int = 0, samples: int = 0) -> bool:
        """Ask every gate whether a step of this size may run; a refusal ends the loop."""
        for gate in self.gates:
            self.stop_reason = self.stop_reason or gate.before_step(tokens=tokens, samples=samples)
        return self.stop_reason is None

    def begin_step(self) -> int:
        """Record that the next step runs, and return its number."""
        if not self._settled:
            self._settle()
        self.step_number = number = self.next_step
        return number

    def end_step(self, step: Step) -> None:
        """Record a step that ran to its end, and tell the gates."""
        filled = step if self.fill_step is None else self.fill_step(step)
        self._write(filled)
        self.next_step = step.step + step.count
        if self.gates:
            for gate in self.gates:
                self.stop_reason = gate.after_step(step) or self.stop_reason

    def span(self, name: str, *, overlapped: bool = False) -> Span:
        """Return a span, for ``with`` or as a decorator; ``overlapped`` if training goes on."""
        return Span(self, name, overlapped=overlapped)

    def begin_span(self, name: str, *, overlapped: bool) -> int:
        """Record the begin of a span; another thread than the stepping one is beside it."""
        beside = overlapped or threading.get_ident() != self._stepping_thread
        return self.append(SpanBegun(t_ns=self.now_ns(), name=str(name), overlapped=beside))

    def end_span(self, begun: int) -> None:
        """Record the end of the span that began at sequence number ``begun``."""
        self.append(SpanEnded(t_ns=self.now_ns(), begun=begun))

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record a number about the training, such as ``metric("accuracy", 0.91)``."""
        _check_name(name)
        number = self.step_number if step is None else step
        try:
            value = float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: torch's.
            self._leave_out_metric(name, type(error).__name__)
            return
        written = value if math.isfinite(value) else str(value)
        self.append(Metric(t_ns=self.now_ns(), name=name, value=written, step=number))

    def checkpoint_committed(self, step: int | None = None) -> None:
        """Record that everything up to ``step`` (default: the last one) is safe on storage."""
        number = self.step_number if step is None else step
        self.append(CheckpointCommitted(t_ns=self.now_ns(), step=number))
        self.writer.sync()

    def price_changed(self, price: Price, gpus: GpuCount) -> None:
        """Record what the run pays from now on."""
        self.append(PriceChanged(t_ns=self.now_ns(), price=price, gpus=gpus))

    def slices_changed(self, *, active: int, total: int, available: int) -> None:
        """Record how many of an elastic run's slices train from now on, and how many could."""
        self.append(
            SlicesChanged(t_ns=self.now_ns(), active=active, total=total, available=available)
        )

    def budget_event(self, event: str, data: dict[str, Any]) -> None:
        """Record something that happened to the budget."""
        self.append(BudgetEvent(t_ns=self.now_ns(), event=event, data=data))

    def heartbeat(self, *, gpu_busy_ns: int = 0, energy_mj: int = 0) -> None:
        """Record a sign of life."""
        # Past the step that was left: the background thread must not decide what became of it.
        beat = Heartbeat(t_ns=self.now_ns(), gpu_busy_ns=gpu_busy_ns, energy_mj=energy_mj)
        self._write(beat)
        self.writer.check_place()

    def note(self, text: str | None, **data: object) -> None:
        """Record anything worth keeping."""
        self.append(Note(t_ns=self.now_ns(), text="" if text is None else str(text), data=data))

    def append(self, record: KnownRecord) -> int:
        """Write a record that is not a step."""
        self._write_left_step()
        return self._write(record)

    def _write(self, record: KnownRecord) -> int:
        seq = self.writer.append(record)
        if self.observe is not None:
            self.observe(record, seq)
        return seq

    def close(self, status: EndStatus, reason: str = "", exit_code: int | None = None) -> None:
        """Record the end of the attempt and stop writing."""
        self._write_left_step()
        if self.bad_metrics:
            self.note("metrics left out: their values were no numbers", count=self.bad_metrics)
        self._end_ns = self.now_ns()
        for gate in self.gates:
            gate.finish(status)
        self.writer.sync()  # Where the segment was deleted it is begun anew, for the end to be in.
        end = AttemptEnded(t_ns=self.now_ns(), status=status, reason=reason, exit_code=exit_code)
        self.append(end)
        self.writer.sync()
        self.writer.close()

    def _leave_out_metric(self, name: str, error: str) -> None:
        """Count a metric whose value is no number; say so the first time."""
        self.bad_metrics += 1
        if self.bad_metrics == 1:
            _log.warning("metric %r: its value is no number (%s), and is left out", name, error)

    def drop_left_step(self) -> None:
        """Forget the step that an exception left: it did not happen."""
        self._left = None

    def _settle(self) -> None:
        self._write_left_step()
        self._stepping_thread = threading.get_ident()
        self._settled = True

    def _write_left_step(self) -> None:
        step, self._left = self._left, None
        if step is not None:
            self.end_step(step)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InvalidValue("metric", name, "a name that is not empty")


def _count(count: Count, batch: object) -> int:
    if count is None:
        return 0
    return int(count(batch)) if callable(count) else count


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
