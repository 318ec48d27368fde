"""Opens, drives and closes a run from a trainer's hooks; shared by all integrations.

Refusals and bad arguments raise when the run is opened, before the first step. Later errors of
outlay do not reach the trainer: they are counted, and the first is logged. Only a budget that turns
out not to be measurable still raises Refused: it would be ignored otherwise.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from outlay.budget.measurements import counted_tokens
from outlay.clock import SYSTEM, Clock
from outlay.errors import Refused
from outlay.ledger import EndStatus
from outlay.runs.live import Run
from outlay.runs.live import run as start_run

_log = logging.getLogger("outlay")

P = ParamSpec("P")
R = TypeVar("R")
Counts = Callable[[Any], int | None]
"""Counts a batch by its shapes, without copying data from an accelerator; None if it cannot."""


def guarded(method: Callable[P, R]) -> Callable[P, R | None]:
    """Wrap a driver's method: errors other than Refused are counted, not raised."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return method(*args, **kwargs)
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - bookkeeping must not end a training
            driver = args[0]
            assert isinstance(driver, LoopDriver)
            driver.report_error(method.__name__, error)
            return None

    return call


class LoopDriver:
    """Drives a run from a trainer's hooks.

    Args:
        options: Arguments of ``outlay.run`` that the user stated.
        clock: Times data waits.

    Attributes:
        run: The run, while it is open.
        stopped: Whether the run must stop.
        errors: How many errors of outlay were not raised into the trainer.
        summary: The run's figures on rank 0, once it is closed.
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
        """Open the run; options that the user stated override the trainer's defaults.

        Raises:
            InvalidValue: An option is not valid.
            Refused: The guard refuses, or something that the budget limits cannot be measured here.
        """
        if self.run is not None:  # Training raised, and was started again in the same process.
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
        """Start timing a data wait."""
        self._waits_since_ns = self._monotonic_ns()

    def end_waiting(self) -> None:
        """End the data wait."""
        if self._waits_since_ns is not None:
            self._waited_ns += self._monotonic_ns() - self._waits_since_ns
            self._waits_since_ns = None

    @guarded
    def begin_step(self) -> None:
        """Begin a step; data waits since the last step belong to it."""
        self.end_waiting()
        waited_ns, self._waited_ns = self._waited_ns, 0
        if self.run is not None:
            self.run.begin_step(wait_ns=waited_ns)

    @guarded
    def end_step(self, *, tokens: int = 0, samples: int = 0, count: int = 1) -> None:
        """End the step; ``count`` is how many steps the trainer counts it as."""
        if self.run is not None:
            self.run.end_step(tokens=tokens, samples=samples, count=count)

    def count(self, count_of: Counts, batch: Any) -> int | None:
        """Return a batch's tokens or samples; None if that is unknown, or counting raises."""
        try:
            return count_of(batch)
        except Exception as error:  # noqa: BLE001 - a user's function must not end a training
            self.report_error("counting a batch", error)
            return None

    def check_tokens(self, tokens: int | None, batch: Any) -> int:
        """Return a batch's tokens, 0 if they are unknown.

        Raises:
            BudgetRefused: They are unknown, and limited.
        """
        if self.run is None or (tracker := self.run.budget) is None:
            return tokens or 0
        return counted_tokens(tracker.budget, tracker.used, tokens, batch)

    @guarded
    def phase(self, name: str | None) -> None:
        """Begin a phase, or end it with None; cancels a data wait."""
        self._waits_since_ns = None
        if self.run is not None:
            self.run.phase(name)

    @guarded
    def ask(self, *, tokens: int = 0, samples: int = 0) -> bool:
        """Return whether training must stop before a step of this size; call it on all ranks."""
        if self.run is not None and not self.stopped:
            self.stopped = self.run.should_stop(tokens=tokens, samples=samples)
        return self.stopped

    @guarded
    def commit(self, step: int) -> None:
        """Record a committed checkpoint; on rank 0 only."""
        if self.run is not None and self.run.rank == 0:
            self.run.checkpoint_committed(step)

    @guarded
    def metrics(self, values: Mapping[str, Any] | None) -> None:
        """Record the numbers among a trainer's metrics."""
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
            self.summary = run.summary()  # After the end: reading the log is not charged.

    def finish_with(self, error: BaseException) -> None:
        """Close the run of a training that raised."""
        interrupted = isinstance(error, KeyboardInterrupt)
        self.finish("interrupted" if interrupted else "failed", type(error).__name__)

    def _finish_at_exit(self) -> None:
        """Close the run of a training that raised without calling a hook."""
        error = getattr(sys, "last_value", None)
        if error is None:
            self.finish("failed", "training did not reach its end")
        else:
            self.finish_with(error)

    def report_error(self, where: str, error: Exception) -> None:
        """Count an error that is not raised; log the first one."""
        self.errors += 1
        if self.errors == 1:
            _log.warning(
                "outlay: %s failed, training continues: %s: %s (logged once)",
                where, type(error).__name__, error,
            )  # fmt: skip


class LoopCallback:
    """What trainers' callbacks share: a driver, and the sizes of the batches of the running step.

    Attributes:
        driver: Drives the run.
    """

    def __init__(
        self, options: Mapping[str, Any], clock: Clock, tokens: Counts, samples: Counts
    ) -> None:
        self.driver = LoopDriver(options, clock)
        self._tokens_of, self._samples_of = tokens, samples
        self._tokens = self._samples = 0

    @property
    def run(self) -> Run | None:
        """The run, while it trains."""
        return self.driver.run

    @property
    def summary(self) -> dict[str, str | int | float | None]:
        """The run's figures, once training has ended."""
        return self.driver.summary

    def _size_of(self, batch: Any) -> tuple[int, int]:
        """Return a batch's tokens and samples.

        Raises:
            BudgetRefused: Its tokens are unknown, and limited.
        """
        driver = self.driver
        tokens = driver.check_tokens(driver.count(self._tokens_of, batch), batch)
        return tokens, driver.count(self._samples_of, batch) or 0
