"""How a run shows its budget while it trains: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Protocol, TextIO

from outlay.budget.tracker import BudgetTracker
from outlay.clock import Clock
from outlay.units import Duration

_BAR_EVERY_NS = 500_000_000
_LINE_EVERY_NS = 60_000_000_000
_BAR_COLUMNS = 16


class Display(Protocol):
    """Shows how a budget stands."""

    def update(self, tracker: BudgetTracker) -> None:
        """Show the present state, if it is time to."""

    def close(self, tracker: BudgetTracker) -> None:
        """Show the last state, and nothing after it."""


class NoDisplay:
    """Shows nothing."""

    def update(self, tracker: BudgetTracker) -> None:
        """Do nothing."""

    def close(self, tracker: BudgetTracker) -> None:
        """Do nothing."""


def budget_line(tracker: BudgetTracker) -> str:
    """Return how the budget stands in one line: what is left, of what, and until when."""
    limits = [
        f"{bound.dimension.text(bound.left(tracker.used))} left of "
        f"{bound.dimension.text(bound.limit)}"
        for bound in tracker.bounds
    ]
    return ", ".join([_used(tracker), *limits, *_ahead(tracker)])


def short_line(tracker: BudgetTracker) -> str:
    """Return the same for a narrow terminal: of the limits, the one closest to its end."""
    total = tracker.used
    nearest_last = sorted(tracker.bounds, key=lambda bound: bound.used(total) / bound.limit)
    left = [f"{bound.dimension.text(bound.left(total))} left" for bound in nearest_last[-1:]]
    return ", ".join([_used(tracker), *left, *_ahead(tracker)])


def _used(tracker: BudgetTracker) -> str:
    return f"budget {tracker.fraction_used:.0%} used"


def _ahead(tracker: BudgetTracker) -> list[str]:
    """Return what stopped the run, or else when that will happen, if it can be told."""
    if (reason := tracker.stop_reason) is not None:
        return [f"stopped by {reason.key}"]
    if (forecast := tracker.forecast()) is None:
        return []
    return [f"about {Duration(forecast.time_left_ns)} ({forecast.steps_left:,} steps) to go"]


class Lines:
    """A line at the start, at every quarter of a budget, once a minute, and at the end."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._stream = stream
        self._monotonic_ns = clock.monotonic_ns
        self._next_ns = 0
        self._next_fraction = 0.0

    def update(self, tracker: BudgetTracker) -> None:
        """Write a line, if it is time to."""
        now_ns, fraction = self._monotonic_ns(), tracker.fraction_used
        if now_ns >= self._next_ns or fraction >= self._next_fraction:
            self._next_ns = now_ns + _LINE_EVERY_NS
            self._next_fraction = (int(fraction * 4) + 1) / 4
            self._write(tracker)

    def close(self, tracker: BudgetTracker) -> None:
        """Write the last line."""
        self._write(tracker)

    def _write(self, tracker: BudgetTracker) -> None:
        with _ignoring_a_lost_stream():
            self._stream.write(f"outlay: {budget_line(tracker)}\n")
            self._stream.flush()


class Bar:
    """A rich progress bar, redrawn twice a second at most.

    A terminal that goes away, as with a lost connection, takes the bar with it and nothing else.
    """

    def __init__(self, clock: Clock, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._monotonic_ns = clock.monotonic_ns
        self._next_ns = 0
        self._progress = Progress(
            BarColumn(bar_width=_BAR_COLUMNS),
            TextColumn("{task.description}"),
            console=console or Console(stderr=True),
            auto_refresh=False,
        )
        self._task = self._progress.add_task("budget", total=1.0)
        with _ignoring_a_lost_stream():
            self._progress.start()

    def update(self, tracker: BudgetTracker) -> None:
        """Redraw, if it is time to."""
        now_ns = self._monotonic_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + _BAR_EVERY_NS
            self._draw(tracker)

    def close(self, tracker: BudgetTracker) -> None:
        """Draw the last state and give the terminal back."""
        self._draw(tracker)
        with _ignoring_a_lost_stream():
            self._progress.stop()

    def _draw(self, tracker: BudgetTracker) -> None:
        line = budget_line(tracker)
        if len(line) > self._progress.console.width - _BAR_COLUMNS - 1:
            line = short_line(tracker)
        with _ignoring_a_lost_stream():
            self._progress.update(
                self._task,
                completed=min(1.0, tracker.fraction_used),
                description=line,
                refresh=True,
            )


def _ignoring_a_lost_stream() -> contextlib.suppress:
    # A closed or broken stream is no reason to end a training run.
    return contextlib.suppress(OSError, ValueError)


def display_for(stream: TextIO, clock: Clock) -> Display:
    """Return what suits the stream: a bar on a terminal, else lines."""
    return Bar(clock) if stream is sys.stderr and stream.isatty() else Lines(stream, clock)
