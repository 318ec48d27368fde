"""A run in a few sentences: what it got for its money, where the rest went, how it ended. Pure."""

from __future__ import annotations

from outlay.goodput import phases as ph
from outlay.goodput.summary import GoodputSummary, PhaseRow
from outlay.runs.reading import RunReading
from outlay.units.quantity import duration_text


def verdict(run: RunReading) -> str:
    """Return what a reader in a hurry should know."""
    summary = run.goodput
    if not summary.wall_ns:
        return "Nothing happened yet: the run has no wall time."
    state = "So far" if summary.alive else "In all"
    price = "no price" if summary.cost is None else str(summary.cost)
    spent = f"{state} {duration_text(summary.wall_ns)} of wall time, {price}"
    if summary.goodput is None:
        got = "; no steps were recorded, so nobody knows how much of it was productive."
    else:
        got = f", {summary.goodput:.1%} of it productive. {_loss(summary)}"
    return f"{spent}{got}{_stop(run)}{_end(run)}"


def _loss(summary: GoodputSummary) -> str:
    """Say what cost most besides the steps that count."""
    losses = [row for row in summary.phases if row.phase != ph.STEP]
    if not losses:
        return "Nothing was lost."
    worst = max(losses, key=_worth)
    amount = duration_text(worst.ns)
    if worst.cost:
        amount += f", {worst.cost}"
    noun = "disruption" if len(summary.disruptions) == 1 else "disruptions"
    again = f", over {len(summary.disruptions)} {noun}" if summary.disruptions else ""
    return f"The largest loss was {worst.phase} ({amount}){again}."


def _worth(row: PhaseRow) -> tuple[int, int]:
    return (0 if row.cost is None else row.cost.micros, row.ns)


def _end(run: RunReading) -> str:
    """Say how a run ended that is over and not done."""
    end = run.view.timeline.attempts[-1].end
    if run.goodput.alive or (end is not None and end.status == "completed"):
        return ""
    if end is None:
        return " It ended without a word."
    how = "failed" if end.status == "failed" else f"was {end.status}"
    return f" It {how}: {end.reason}." if end.reason else f" It {how}."


def _stop(run: RunReading) -> str:
    if run.budget is None:
        return ""
    if run.budget.stop_reason is not None:
        return f" Its budget stopped it: {run.budget.stop_reason}."
    return " It is within its budget."
