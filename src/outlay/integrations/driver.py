"""What every integration shares: a run that is opened, driven and closed by a trainer's hooks.

Refusals and bad arguments raise when the run is opened, before the first step. After that nothing
that goes wrong here reaches the trainer: it is logged once, counted, and training goes on. A budget
that turns out not to be measurable is a refusal, too: it would be ignored otherwise.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from outlay.clock import SYSTEM, Clock
from outlay.errors import Refused
from outlay.ledger import EndStatus
from outlay.record.meters.steps import count_tokens
from outlay.runs.live import Run
from outlay.runs.starting import run as start_run

_log = logging.getLogger("outlay")

P = ParamSpec("P")
R = TypeVar("R")
Counts = Callable[[Any], int]
"""Returns what a batch holds, by its shape: without a look at what lies on an accelerator."""


def guarded(method: Callable[P, R]) -> Callable[P, R | None]:
    """Let no error of a driver's method reach the trainer, but for a refusal."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return method(*args, **kwargs)
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - bookkeeping never ends a training
            driver = args[0]
            assert isinstance(driver, LoopDriver)
            driver.report_error(method.__name__, error)
            return None

    return call


class LoopDriver:
    """Drives a run from hooks: what a trainer tells becomes steps, phases and questions.

    Args:
        options: What ``outlay.run`` is to be given, where the trainer does not know better.
        clock: Times the waits for data.

    Attributes:
        run: The run, while it is open.
        stopped: Whether the run must stop; the trainer is told so at its next opportunity.
        errors: How many errors of outlay's own were kept from the trainer.
    """

    def __init__(self, options: Mapping[str, Any], clock: Clock = SYSTEM) -> None:
        self.run: Run | None = None
        self.stopped = False
        self.errors = 0
        self.summary: dict[str, str | int | float | None] = {}
        self._options = dict(options)
        self._clock = clock
        self._monotonic_ns = clock.monotonic_ns
        self._waits_since_ns: int | None = None
        self._waited_ns = 0

    def start(self, **defaults: Any) -> Run:
        """Open the run; what the user stated goes before what the trainer knows.

        Raises:
            InvalidValue: An option cannot be used.
            Refused: The guard has no room, or the budget limits what nothing here can measure.
        """
        if self.run is not None:  # Training raised, and was begun again in the same process.
            self.finish("failed", "training was begun again")
        if os.environ.get("OUTLAY_RUN_DIR"):
            defaults.pop("dir", None)
        options = {"clock": self._clock} | defaults | self._options
        self.stopped, self._waits_since_ns, self._waited_ns = False, None, 0
        self.run = start_run(**options)
        atexit.register(self._finish_at_exit)
        return self.run

    @guarded
    def resume_from(self, step: int) -> None:
        """State which step runs next."""
        if self.run is not None:
            self.run.resume_from(step)

    def begin_waiting(self) -> None:
        """Training waits for data from now on."""
        self._waits_since_ns = self._monotonic_ns()

    def end_waiting(self) -> None:
        """The data is there."""
        if self._waits_since_ns is not None:
            self._waited_ns += self._monotonic_ns() - self._waits_since_ns
            self._waits_since_ns = None

    @guarded
    def begin_step(self) -> None:
        """Begin a step; what training waited since the last one belongs to it."""
        self.end_waiting()
        waited_ns, self._waited_ns = self._waited_ns, 0
        if self.run is not None:
            self.run.begin_step(wait_ns=waited_ns)

    @guarded
    def end_step(self, *, tokens: int = 0, samples: int = 0, count: int = 1) -> None:
        """End the step that was begun, which the trainer counts as so many."""
        if self.run is not None:
            self.run.end_step(tokens=tokens, samples=samples, count=count)

    @guarded
    def phase(self, name: str | None) -> None:
        """Begin a phase, or end it with None; training does not wait for data meanwhile."""
        self._waits_since_ns = None
        if self.run is not None:
            self.run.phase(name)

    @guarded
    def ask(self, *, tokens: int = 0, samples: int = 0) -> bool:
        """Return whether training must stop before a step of this size; all ranks must ask."""
        if self.run is not None and not self.stopped:
            self.stopped = self.run.should_stop(tokens=tokens, samples=samples)
        return self.stopped

    @guarded
    def commit(self, step: int) -> None:
        """Record that a checkpoint is on storage; rank 0 says so for all."""
        if self.run is not None and self.run.rank == 0:
            self.run.checkpoint_committed(step)

    @guarded
    def metrics(self, values: Mapping[str, Any] | None) -> None:
        """Record the numbers among what a trainer reports."""
        for name, value in (values or {}).items():
            if self.run is not None and isinstance(value, int | float):
                self.run.metric(str(name), value)

    @guarded
    def finish(self, status: EndStatus = "completed", reason: str = "") -> None:
        """Close the run and keep its summary."""
        run, self.run = self.run, None
        atexit.unregister(self._finish_at_exit)
        if run is None:
            return
        run.close(status, reason)
        if run.rank == 0:
            self.summary = run.summary()  # After the end: the run does not pay for reading its log.

    def finish_with(self, error: BaseException) -> None:
        """Close the run of a training that raised."""
        interrupted = isinstance(error, KeyboardInterrupt)
        self.finish("interrupted" if interrupted else "failed", type(error).__name__)

    def _finish_at_exit(self) -> None:
        """Close the run of a training that raised, where no hook has told of it."""
        error = getattr(sys, "last_value", None)
        if error is None:
            self.finish("failed", "training did not reach its end")
        else:
            self.finish_with(error)

    def report_error(self, where: str, error: Exception) -> None:
        """Count an error that was kept from the trainer; say so the first time."""
        self.errors += 1
        if self.errors == 1:
            _log.warning(
                "outlay: %s failed and training goes on: %s: %s (said once)",
                where, type(error).__name__, error,
            )  # fmt: skip


# What a batch holds, by its shape


def tokens_of(batch: Any) -> int:
    """Return a batch's tokens: the elements of ``input_ids``, else the samples of its inputs.

    Padding counts, since it is computed. Of a pair of inputs and labels the inputs count.
    """
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    shape = getattr(ids, "shape", None)
    if shape is not None:
        return functools.reduce(lambda product, length: product * int(length), shape, 1)
    return count_tokens(_inputs_of(batch))


def samples_of(batch: Any) -> int:
    """Return a batch's samples: the first dimension of its first tensor."""
    if isinstance(batch, Mapping):
        shapes = [list(getattr(value, "shape", ())) for value in batch.values()]
        return int(next((shape[0] for shape in shapes if shape), 0))
    return count_tokens(_inputs_of(batch))


def _inputs_of(batch: Any) -> Any:
    return batch[0] if isinstance(batch, list | tuple) and batch else batch
