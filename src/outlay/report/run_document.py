"""A run's report: verdict, charts, time and money, what to change. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlay.budget.limits import Bound
from outlay.clock import utc_text
from outlay.escaping import html_text
from outlay.goodput import phases as ph
from outlay.goodput.attempt import AttemptTimeline
from outlay.goodput.summary import GoodputSummary, PhaseRow
from outlay.goodput.timeline import Timeline
from outlay.report import html, svg
from outlay.report.document import (
    Block,
    Chart,
    Document,
    Figure,
    Known,
    NoteBlock,
    Table,
    sections,
)
from outlay.report.html import of_phase
from outlay.runs.reading import RunReading
from outlay.units.quantity import duration_text

# A run in a few sentences: what it got for its money, where the rest went, how it ended.


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
        return " It stopped without recording an end (killed or crashed)."
    how = "failed" if end.status == "failed" else f"was {end.status}"
    return f" It {how}: {end.reason}." if end.reason else f" It {how}."


def _stop(run: RunReading) -> str:
    if run.budget is None:
        return ""
    if run.budget.stop_reason is not None:
        return f" Its budget stopped it: {run.budget.stop_reason}."
    return " It is within its budget."


# The charts of one run: phases over time, step times, and what a kill would have cost.

_COLUMNS: Final = 160
_POINTS: Final = 240
_MOST_CHECKPOINTS: Final = 200
_STRIP_HEIGHT: Final = 90


def phase_strip(timeline: Timeline, order: list[str]) -> str:
    """Return the run from left to right, each column split into the phases that filled it."""
    start_ns, whole_ns = timeline.start_ns, timeline.end_ns - timeline.start_ns
    columns = []
    for index in range(_COLUMNS):
        begin_ns = start_ns + whole_ns * index // _COLUMNS
        end_ns = start_ns + whole_ns * (index + 1) // _COLUMNS
        found = timeline.between(begin_ns, end_ns)
        columns.append(_column(index, found, end_ns - begin_ns, order))
    ends = (
        f'<text class="tick" x="0" y="{_STRIP_HEIGHT + 18}">0</text>'
        f'<text class="tick" x="{svg.WIDTH}" y="{_STRIP_HEIGHT + 18}" text-anchor="end">'
        f"{duration_text(whole_ns)}</text>"
    )
    return svg.picture("Phases over time", "".join(columns) + ends, _STRIP_HEIGHT + 24)


def _column(index: int, found: dict[str, int], whole_ns: int, order: list[str]) -> str:
    width, top, parts = svg.WIDTH / _COLUMNS, 0.0, []
    for phase in order:
        height = found.get(phase, 0) / (whole_ns or 1) * _STRIP_HEIGHT
        if height > 0:
            parts.append(
                f'<rect fill="{of_phase(phase)}" x="{index * width:.1f}" y="{top:.1f}" '
                f'width="{width + 0.2:.1f}" height="{height:.1f}"/>'
            )
            top += height
    return "".join(parts)


def phase_legend(order: list[str], texts: dict[str, str]) -> str:
    """Return which colour is which phase, with what is said of each."""
    items = (
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true"><rect fill="{of_phase(phase)}" '
        f'width="12" height="12"/></svg> {html_text(phase)} {html_text(texts[phase])}</li>'
        for phase in order
    )
    return f'<ul class="legend squares">{"".join(items)}</ul>'


def step_times(timeline: Timeline) -> tuple[str, list[str]] | None:
    """Return the own time of steps by their order of execution, and what its curves are called.

    A long run is drawn in groups of steps: the median and the longest of each, so that no stall is
    lost between two points.
    """
    own = own_seconds(timeline)
    if len(own) < 2:
        return None
    groups = np.array_split(own, min(len(own), _POINTS))
    firsts = np.cumsum([0, *(len(group) for group in groups[:-1])])
    middle = tuple(
        (float(at), float(np.median(group))) for at, group in zip(firsts, groups, strict=True)
    )
    longest = tuple((float(at), float(g.max())) for at, g in zip(firsts, groups, strict=True))
    curves = [svg.Curve(label="median", points=middle), svg.Curve(label="longest", points=longest)]
    if len(groups) == len(own):
        curves = [svg.Curve(label="each step", points=longest)]
    chart = svg.curves(curves, x_title="steps executed", y_title="seconds a step")
    return chart, [curve.label for curve in curves]


def own_seconds(timeline: Timeline) -> NDArray[np.float64]:
    """Return the own time of every step of the run, in the order of execution."""
    return np.concatenate([attempt.own_times() for attempt in _attempt_timelines(timeline)]) / 1e9


def at_risk(timeline: Timeline) -> str | None:
    """Return how much work a kill would have undone at each moment.

    None without a checkpoint, and with so many that no eye could tell their teeth apart.
    """
    attempts = _attempt_timelines(timeline)
    count = sum(len(attempt.checkpoints) for attempt in attempts)
    if not 0 < count <= _MOST_CHECKPOINTS:
        return None
    curves = [
        svg.Curve(label=f"attempt {number}", points=tuple(_sawtooth(timeline, attempt)))
        for number, attempt in enumerate(attempts, 1)
    ]
    return svg.curves(curves, x_title="seconds", y_title="seconds of work not yet safe")


def _sawtooth(timeline: Timeline, attempt: AttemptTimeline) -> list[tuple[float, float]]:
    points = []
    since_ns = attempt.start_ns
    commits = sorted(c.t_ns for c in attempt.checkpoints if c.t_ns <= attempt.end_ns)
    for until_ns in [*commits, attempt.end_ns]:
        found = timeline.between(since_ns, until_ns)
        worked_ns = found.get(ph.STEP, 0) + found.get(ph.WASTED_PROGRESS, 0)
        points += [
            ((since_ns - timeline.start_ns) / 1e9, 0.0),
            ((until_ns - timeline.start_ns) / 1e9, worked_ns / 1e9),
        ]
        since_ns = until_ns
    return points


def _attempt_timelines(timeline: Timeline) -> list[AttemptTimeline]:
    return [stretch.timeline for stretch in timeline.stretches if stretch.timeline is not None]


# A run's report: what became of its time and money, how sure that is, and what to change.

_MOST_ROWS: Final = 20


def run_document(run: RunReading) -> Document:
    """Return a run's report."""
    identity = run.view.identity
    return Document(
        title=identity.name or identity.model or identity.run_id,
        verdict=verdict(run),
        sections=sections(
            [
                ("The run", _run(run)),
                ("Budget", _budget(run)),
                ("Where time and money went", _phases(run)),
                ("What a unit cost", _units(run)),
                ("Step times", _steps(run)),
                ("Checkpoints", _checkpoints(run)),
                ("Reliability", _reliability(run.goodput)),
                ("What to change", _advice(run)),
                ("What the figures rest on", _ground(run)),
            ]
        ),
    )


def _run(run: RunReading) -> Iterator[Block]:
    summary, cost = run.goodput, run.cost
    yield Figure("started", summary.window.start_ns, utc_text(summary.window.start_ns))
    until = "present" if summary.alive else "ended"
    yield Figure(until, summary.window.end_ns, utc_text(summary.window.end_ns))
    yield Figure("wall time", summary.wall_ns, duration_text(summary.wall_ns))
    yield Figure("attempts", len(run.view.timeline.attempts), _attempts(run))
    if summary.goodput is not None:
        yield Figure("goodput", summary.goodput, f"{summary.goodput:.1%}")
    if summary.cost is not None:
        yield Figure("cost", summary.cost, str(summary.cost), _cost_grade(run))
    if summary.assumed:
        yield Figure("of which assumed", summary.assumed, str(summary.assumed), "assumed")
    yield from _guard(run)
    yield Figure("GPU time", cost.gpu_ns, duration_text(cost.gpu_ns))
    if cost.steps:
        yield Figure("steps executed", cost.steps, f"{cost.steps:,}")
    if cost.tokens:
        yield Figure("tokens", cost.tokens, f"{cost.tokens:,}")
    if cost.samples:
        yield Figure("samples", cost.samples, f"{cost.samples:,}")
    if cost.accuracy is not None:
        yield Figure("best accuracy", cost.accuracy, f"{cost.accuracy:.4g}")
    rate = summary.throughput
    if rate.tokens:
        text = f"{rate.per_wall_second:,.0f} tokens/s of wall time"
        yield Figure("throughput", rate.per_wall_second, text)


def _guard(run: RunReading) -> Iterator[Block]:
    """Yield what the guard said last of its money; its head is what `guard verify` can expect."""
    segments = run.view.account.segments.values()
    notes = (note for segment in segments for note in segment.notes)
    said = [note for note in notes if note.text.startswith("guard: ") and "; head " in note.text]
    if said:
        last = max(said, key=lambda each: each.t_ns).text.removeprefix("guard: ")
        yield Figure("guard", last, last)


def _attempts(run: RunReading) -> str:
    attempts = run.view.timeline.attempts
    end = attempts[-1].end
    if end is None:
        how = "still runs" if run.goodput.alive else "stopped without recording an end"
    else:
        how = end.status
    return f"{len(attempts)}; the last {how}"


def _budget(run: RunReading) -> Iterator[Block]:
    report = run.budget
    if report is None:
        yield NoteBlock("The run was started without a budget.")
        return
    rows = tuple(_limit(bound, bound.used(report.used)) for bound in report.budget.bounds_known)
    yield Table(("limit", "used", "of", "left", "share"), rows)
    if report.cost is not None:
        parts = tuple(report.cost.rows(report.budget.charge_cost))
        yield Table(("part of the cost", "cost", "budget"), parts)
    if report.stop_reason is not None:
        yield Figure("stopped by", report.stop_reason, report.stop_reason)
    elif report.forecast is not None and run.goodput.alive:
        ahead = report.forecast
        text = f"{duration_text(ahead.time_left_ns)}, after {ahead.steps_left:,} more steps"
        yield Figure("will stop in", ahead.time_left_ns, text, "estimated")
    if report.changes:
        times = "once" if report.changes == 1 else f"{report.changes:,} times"
        yield NoteBlock(f"Its limits were changed {times} on a resume.")


def _limit(bound: Bound, used: int) -> tuple[object, ...]:
    text = bound.dimension.text
    share = f"{used / bound.limit:.1%}" if bound.limit else "-"
    return (bound.dimension.key, text(used), text(bound.limit), text(bound.limit - used), share)


def _phases(run: RunReading) -> Iterator[Block]:
    summary, cost = run.goodput, run.cost
    if not summary.phases:
        return
    order = [row.phase for row in summary.phases]
    texts = {row.phase: f"{row.share:.1%}" for row in summary.phases}
    strip = phase_strip(run.view.timeline, order)
    yield Chart(strip, legend=phase_legend(order, texts), wide=True)
    rows = [
        (row.phase, duration_text(row.ns), f"{row.share:.2%}", row.cost) for row in summary.phases
    ]
    total = ("total", duration_text(summary.wall_ns), "100%", cost.cost)
    assumed = [("of which assumed", "", "", cost.assumed)] if cost.assumed else []
    yield Table(("phase", "time", "share", "cost"), (*rows, total, *assumed), _cost_grade(run))
    bars = [
        svg.Bar(label=phase, value=part.micros, text=str(part))
        for phase in order
        if (part := cost.by_phase.get(phase))
    ]
    if bars:
        yield Chart(svg.bars(bars, title="Where the money went"), _cost_grade(run))
    for phase, ns in summary.beside.items():
        yield Figure(f"beside: {phase}", ns, f"{duration_text(ns)}, overlapped with training")
    if summary.idle_ns:
        yield Figure("idle after completion", summary.idle_ns, duration_text(summary.idle_ns))


def _units(run: RunReading) -> Iterator[Block]:
    whole = run.cost.cost
    if whole is None:
        yield NoteBlock("The run has no price: start it with price=, or set one in the grid.")
        return
    for unit, amount in run.cost.unit_costs().items():
        if amount is not None:
            label = f"per {unit.replace('_', ' ')}"
            yield Figure(label, amount, f"{amount:.3g} {whole.currency}", _cost_grade(run))


def _cost_grade(run: RunReading) -> Known:
    """Money is as sure as the weakest thing it rests on."""
    if run.goodput.assumptions:
        return "assumed"
    return "measured" if all(price.offer for price in run.cost.prices) else "stated"


def _steps(run: RunReading) -> Iterator[Block]:
    summary = run.goodput
    drawn = step_times(run.view.timeline)
    if drawn is None:
        none = "No steps were recorded: busy or idle is known, productive is not."
        yield NoteBlock("One step was recorded: too few to compare." if run.cost.steps else none)
        return
    chart, labels = drawn
    yield Chart(chart, legend=html.legend(labels))
    if summary.typical_step_ns is not None:
        typical = duration_text(summary.typical_step_ns)
        yield Figure("typical step", summary.typical_step_ns, f"{typical} (host time)")
    yield Figure("stalled steps", summary.stalls, f"{summary.stalls:,}")
    for row in summary.ranks[:5]:
        text = f"{duration_text(row.median_step_ns)} median, {row.slowdown:.2f}x the fastest"
        yield Figure(f"rank {row.rank}", row.median_step_ns, text)


def _checkpoints(run: RunReading) -> Iterator[Block]:
    timeline, progress = run.view.timeline, run.goodput.progress
    commits = sorted(
        commit.t_ns
        for stretch in timeline.stretches
        if stretch.timeline is not None
        for commit in stretch.timeline.checkpoints
    )
    if progress.last_step is None:
        return
    yield Figure("committed", len(commits), f"{len(commits):,} checkpoints")
    if len(commits) > 1:
        between = round(median(b - a for a, b in pairwise(commits)))
        yield Figure("between two", between, f"{duration_text(between)} (median)")
    if progress.committed_step is not None:
        yield Figure("safe up to", progress.committed_step, f"step {progress.committed_step:,}")
    lost = "" if progress.at_risk_cost is None else f" ({progress.at_risk_cost})"
    yield Figure("at risk", progress.at_risk_ns, f"{duration_text(progress.at_risk_ns)}{lost}")
    chart = at_risk(timeline)
    if chart is not None:
        yield NoteBlock("What a kill would have undone, moment by moment:")
        yield Chart(chart)


def _reliability(summary: GoodputSummary) -> Iterator[Block]:
    yield Figure("disruptions", len(summary.disruptions), f"{len(summary.disruptions):,}")
    if summary.ettr is not None:
        yield Figure("ETTR", summary.ettr, f"{summary.ettr:.1%} not lost to disruptions")
    mttf = summary.mttf
    if mttf.mean_ns is not None:
        high = "?" if mttf.high_ns is None else duration_text(mttf.high_ns)
        low = duration_text(mttf.low_ns)
        text = f"{duration_text(mttf.mean_ns)} ({mttf.confidence:.0%}: {low} to {high})"
        yield Figure("mean time to failure", mttf.mean_ns, text, "estimated")
    if not summary.disruptions:
        return
    rows = tuple(
        (
            utc_text(each.at_ns), each.host, each.reason, duration_text(each.down_ns),
            duration_text(each.init_ns), duration_text(each.restore_ns),
            duration_text(each.startup_ns), duration_text(each.catch_up_ns),
        )
        for each in summary.disruptions[-_MOST_ROWS:]
    )  # fmt: skip
    yield Table(("at", "host", "reason", "down", "init", "restore", "first step", "catch-up"), rows)
    if len(summary.disruptions) > _MOST_ROWS:
        yield NoteBlock(f"The last {_MOST_ROWS} of {len(summary.disruptions):,} are shown.")


def _advice(run: RunReading) -> Iterator[Block]:
    if run.cost.cost is None:
        yield NoteBlock("Without a price nothing can be said about what a change would save.")
    elif not run.advice:
        yield NoteBlock("Nothing worth changing was found.")
    for each in run.advice:
        saves = f"saves {each.estimated_savings:,.4g} {each.currency}"
        if each.savings_low is not None and each.savings_high is not None:
            saves += f" ({each.savings_low:,.4g} to {each.savings_high:,.4g})"
        yield Figure(each.title, each.estimated_savings, saves, each.grade)
        yield NoteBlock(each.description)
        for label, lines in (("Evidence", each.evidence), ("Assumed", each.assumptions)):
            if lines:
                yield NoteBlock(f"{label}: {'; '.join(lines)}.")


def _ground(run: RunReading) -> Iterator[Block]:
    yield NoteBlock(
        "Measured: by the run's own log, at prices that a source of offers asked. Stated: measured "
        "time at a price that somebody typed. Estimated: computed from measurements. "
        "Assumed: nobody measured it."
    )
    for text in run.goodput.assumptions:
        yield NoteBlock(f"Assumed: {text}.")
    for finding in run.goodput.findings:
        yield NoteBlock(f"{finding.severity.capitalize()}: {finding}")
    if not run.goodput.findings:
        yield NoteBlock("Nothing is wrong with the log.")
