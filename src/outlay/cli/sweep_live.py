"""How a sweep looks while it runs: a live table on a terminal, a line per change elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from outlay.budget.document import read_document
from outlay.cli.output import console, new_table
from outlay.clock import SYSTEM
from outlay.sweep.harness import Harness
from outlay.sweep.manifest import Manifest
from outlay.sweep.states import RunState
from outlay.units import Money
from outlay.units.quantity import duration_text

_REFRESH_NS = 500_000_000
_ROWS = 30


@contextmanager
def show_while(*, quiet: bool) -> Iterator[Callable[[Harness], None]]:
    """Show a sweep while it runs; yields what the harness calls at every look."""
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield _Table(live).look
    else:
        yield _Lines().look


class _Table:
    """Redraws the table, not more often than an eye can follow."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._next_ns = 0

    def look(self, harness: Harness) -> None:
        """Draw how things stand."""
        now_ns = SYSTEM.monotonic_ns()
        if now_ns >= self._next_ns or not harness.active:
            self._next_ns = now_ns + _REFRESH_NS
            self._live.update(status_table(harness.manifest, SYSTEM.wall_ns()), refresh=True)


class _Lines:
    """Prints a line whenever the status of a run changes."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] | None = None

    def look(self, harness: Harness) -> None:
        """Print what has changed; what an earlier harness did is no news."""
        if self._seen is None:
            earlier = harness.manifest.states.items()
            self._seen = {
                run: (state.status, state.attempts)
                for run, state in earlier
                if state.status == "completed"
            }
        for run, state in harness.manifest.states.items():
            now = (state.status, state.attempts)
            if state.status != "pending" and self._seen.get(run) != now:
                self._seen[run] = now
                tail = f": {state.reason}" if state.reason else ""
                console.print(f"{run} {state.status}{tail}", markup=False, soft_wrap=True)


def status_table(manifest: Manifest, now_ns: int) -> Table:
    """Return the runs of a sweep: those that run or failed first when they are many."""
    table = new_table("run", "status", ">time", ">budget used", ">cost", "reason")
    names = list(manifest.runs)
    if len(names) > _ROWS:
        dull = ("pending", "completed")
        names.sort(key=lambda run: manifest.state(run).status in dull)
    for run in names[:_ROWS]:
        state = manifest.state(run)
        table.add_row(
            escape(run), state.status, _time(state, now_ns),
            _budget_used(manifest.root / manifest.runs[run]["run_dir"]),
            _cost(state), escape(state.reason),
        )  # fmt: skip
    if len(names) > _ROWS:
        table.add_row(f"… {len(names) - _ROWS} more", "", "", "", "", "")
    return table


def _time(state: RunState, now_ns: int) -> str:
    ns = state.elapsed_ns
    if state.status == "running" and state.started_ns is not None:
        ns += now_ns - state.started_ns
    return duration_text(ns) if ns else ""


def _cost(state: RunState) -> str:
    return "" if state.cost_micros is None else str(Money(state.cost_micros, state.currency))


_TOTALS = {"max_minutes": "time_minutes", "max_cost_usd": "cost_usd"}


def _budget_used(run_dir: Path) -> str:
    """Return how much of the fullest limit a run has used, as it last wrote it down."""
    document = read_document(run_dir)
    if document is None:
        return ""
    totals = document.get("totals", {})
    shares = [
        totals.get(_TOTALS.get(key, key.removeprefix("max_")), 0) / limit
        for key, limit in document.get("limits", {}).items()
        if isinstance(limit, int | float) and limit
    ]
    return f"{max(shares):.0%}" if shares else ""
