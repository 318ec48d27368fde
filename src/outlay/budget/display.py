"""Shows a run's budget while it trains: ``budget.json``, events in the log, a bar or lines."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from outlay.budget import snapshots
from outlay.budget.limits import StopReason, Threshold
from outlay.budget.tracker import BudgetTracker
from outlay.clock import Clock
from outlay.decoding import BadDocument, read_file
from outlay.errors import Finding, InvalidValue
from outlay.files import make_private, write_whole
from outlay.ledger import EndStatus
from outlay.record import Recorder, facts
from outlay.units import Duration
from outlay.units.shown import counted

# ``budget.json``: the budget's state in the run's directory, replaced atomically

NAME: Final = "budget.json"


def write_document(run_dir: Path, snapshot: Mapping[str, Any]) -> Finding | None:
    """Replace ``budget.json``; return a finding if the disk fails.

    The new file is synced before it replaces the old one, so that a crash or a full disk leaves
    one of the two.
    """
    path = run_dir / NAME
    try:
        make_private(run_dir)
        write_whole(path, snapshots.as_json(snapshot).encode(), synced=True, private=True)
    except OSError as error:
        message = f"could not be written: {error.strerror}"
        return Finding(source=str(path), message=message, severity="warning")
    return None


def read_document(run_dir: Path) -> dict[str, Any] | None:
    """Return the content of ``budget.json``, or None if it cannot be read."""
    try:
        return snapshots.from_json(read_file(run_dir / NAME))
    except (OSError, BadDocument, InvalidValue):
        return None


# A bar on a terminal, else lines

_BAR_EVERY_NS = 500_000_000
_LINE_EVERY_NS = 60_000_000_000
_BAR_COLUMNS = 16


def budget_line(tracker: BudgetTracker, *, ended: bool = False) -> str:
    """Return the budget in one line: what is used and left of each limit, and the forecast.

    A run that has ended has no forecast.
    """
    limits = [
        f"{bound.dimension.text(bound.left(tracker.used))} left of "
        f"{bound.dimension.text(bound.limit)}"
        for bound in tracker.bounds
    ]
    return _join_line(tracker, limits, ended=ended)


def short_line(tracker: BudgetTracker, *, ended: bool = False) -> str:
    """Return the same for a narrow terminal: only the limit that is closest to its end."""
    total = tracker.used
    nearest_last = sorted(tracker.bounds, key=lambda bound: bound.share(total))
    left = [f"{bound.dimension.text(bound.left(total))} left" for bound in nearest_last[-1:]]
    return _join_line(tracker, left, ended=ended)


def shortest_line(tracker: BudgetTracker, *, ended: bool = False) -> str:
    """Return the same without what is left: what stopped the run, or when it will end."""
    return _join_line(tracker, [], ended=ended)


def _join_line(tracker: BudgetTracker, limits: list[str], *, ended: bool) -> str:
    words = [f"budget {tracker.fraction_used:.0%} used", *limits]
    if (reason := tracker.stop_reason) is not None:
        words.append(f"stopped by {reason.bound.dimension.label}")
    elif not ended and (forecast := tracker.forecast()) is not None:
        time_left = Duration(forecast.time_left_ns)
        words.append(f"about {time_left} ({counted(forecast.steps_left, 'step')}) to go")
    return ", ".join(words)


class BudgetLines:
    """A line at the start, at every quarter of a budget, once a minute, and at the end."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._stream = stream
        self._monotonic_ns = clock.monotonic_ns
        self._next_ns = 0
        self._next_fraction = 0.0
        self._written = ""

    def update(self, tracker: BudgetTracker) -> None:
        """Write a line if one is due."""
        now_ns, fraction = self._monotonic_ns(), tracker.fraction_used
        if now_ns >= self._next_ns or fraction >= self._next_fraction:
            self._next_ns = now_ns + _LINE_EVERY_NS
            self._next_fraction = (int(fraction * 4) + 1) / 4
            self._write(tracker)

    def close(self, tracker: BudgetTracker) -> None:
        """Write the last line, unless it was written already."""
        self._write(tracker, ended=True)

    def _write(self, tracker: BudgetTracker, *, ended: bool = False) -> None:
        line = f"outlay: {budget_line(tracker, ended=ended)}\n"
        if line == self._written:
            return
        self._written = line
        with _ignore_lost_stream():
            self._stream.write(line)
            self._stream.flush()


class BudgetBar:
    """A rich progress bar, redrawn at most twice a second; a lost terminal is ignored."""

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
        with _ignore_lost_stream():
            self._progress.start()

    def update(self, tracker: BudgetTracker) -> None:
        """Redraw if due."""
        now_ns = self._monotonic_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + _BAR_EVERY_NS
            self._draw(tracker)

    def close(self, tracker: BudgetTracker) -> None:
        """Draw the last state and release the terminal."""
        self._draw(tracker, ended=True)
        with _ignore_lost_stream():
            self._progress.stop()

    def _draw(self, tracker: BudgetTracker, *, ended: bool = False) -> None:
        width = self._progress.console.width
        line = budget_line(tracker, ended=ended)
        if len(line) > width - _BAR_COLUMNS - 1:
            line = short_line(tracker, ended=ended)
        if len(line) > width:  # The bar makes room for the line first.
            line = shortest_line(tracker, ended=ended)
        with _ignore_lost_stream():
            self._progress.update(
                self._task,
                completed=min(1.0, tracker.fraction_used),
                description=line,
                refresh=True,
            )


def _ignore_lost_stream() -> contextlib.suppress:
    # A closed or broken stream must not end a training run.
    return contextlib.suppress(OSError, ValueError)


def display_for(stream: TextIO, clock: Clock) -> BudgetBar | BudgetLines:
    """Return a bar for a terminal, else lines."""
    return (
        BudgetBar(clock) if stream is sys.stderr and stream.isatty() else BudgetLines(stream, clock)
    )


# Events in the log, ``budget.json`` and the bar, reported by rank 0

REFRESH_NS: Final = 10_000_000_000
"""How often ``budget.json`` is refreshed during the run."""


class BudgetReporter:
    """Reports budget state; does nothing except on rank 0.

    ``document`` returns the content of ``budget.json``.
    """

    def __init__(
        self,
        rank: int,
        tracker: BudgetTracker,
        recorder: Recorder,
        *,
        run_dir: Path,
        document: Callable[[], dict[str, Any]],
        clock: Clock,
    ) -> None:
        self._reports = rank == 0
        self._tracker = tracker
        self._recorder = recorder
        self._run_dir = run_dir
        self._document = document
        self._monotonic_ns = clock.monotonic_ns
        self._next_refresh_ns = 0
        self._stop_reported = False
        self._display: BudgetBar | BudgetLines | None = None
        if self._reports and facts.is_on(os.environ, "OUTLAY_PROGRESS", default=True):
            self._display = display_for(sys.stderr, clock)
        tracker.on_threshold(self._record_threshold)

    def record_terms(self, before: Mapping[str, Any] | None) -> None:
        """Record the limits, and those ``before`` if they differ."""
        self._event(*self._tracker.budget.stated_after(before))

    def record_epoch(self, steps_per_epoch: int) -> None:
        """Record the loader's length."""
        self._event("epoch", {"steps_per_epoch": steps_per_epoch})

    def record_stop(self, reason: StopReason) -> None:
        """Record why no further step may run; only the first call does."""
        if not self._stop_reported:
            self._stop_reported = True
            self._event("stopped", {"limit_key": reason.key, "text": str(reason)})

    def update(self) -> None:
        """Refresh ``budget.json`` and the display, if due; called after each step."""
        if self._monotonic_ns() >= self._next_refresh_ns:
            self.refresh()
        if self._display is not None:
            self._display.update(self._tracker)

    def refresh(self) -> None:
        """Write ``budget.json`` now; safe in a signal handler, also during a refresh."""
        self._next_refresh_ns = self._monotonic_ns() + REFRESH_NS
        if self._reports:
            finding = write_document(self._run_dir, self._document())
            if finding is not None and finding not in self._tracker.findings:
                self._tracker.findings.append(finding)

    def record_end(self, status: EndStatus) -> None:
        """Record the totals at the attempt's end, and close the display."""
        document = self._document()
        state = {key: document[key] for key in ("totals", "clocks_ms", "stop_reason")}
        self._event("ended", {"status": status, **state})
        self.refresh()
        if self._display is not None:
            self._display.close(self._tracker)

    def _record_threshold(self, threshold: Threshold) -> None:
        data = {"limit_key": threshold.bound.dimension.key, "percent": threshold.percent}
        self._event("threshold", data | {"text": str(threshold)})

    def _event(self, event: str, data: dict[str, Any]) -> None:
        if self._reports:
            self._recorder.budget_event(event, data)
