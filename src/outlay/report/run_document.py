"""A run's report: what became of its time and money, how sure that is, and what to change. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Final

from outlay.advise.recommendation import Grade
from outlay.budget.limits import Bound
from outlay.clock import utc_text
from outlay.goodput.summary import GoodputSummary
from outlay.report import html, run_charts, svg
from outlay.report.blocks import Block, Chart, Document, Figure, Note, Table, sections
from outlay.report.run_verdict import verdict
from outlay.runs.reading import RunReading
from outlay.units.quantity import duration_text

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
        how = "still runs" if run.goodput.alive else "ended without a word"
    else:
        how = end.status
    return f"{len(attempts)}; the last {how}"


def _budget(run: RunReading) -> Iterator[Block]:
    report = run.budget
    if report is None:
        yield Note("The run was started without a budget.")
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
        yield Note(f"Its limits were changed {times} on a resume.")


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
    strip = run_charts.phase_strip(run.view.timeline, order)
    yield Chart(strip, legend=run_charts.phase_legend(order, texts), wide=True)
    rows = [
        (row.phase, duration_text(row.ns), f"{row.share:.2%}", row.cost) for row in summary.phases
    ]
    total = ("total", duration_text(summary.wall_ns), "100%", cost.cost)
    yield Table(("phase", "time", "share", "cost"), (*rows, total), _cost_grade(run))
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
        yield Note("The run has no price: start it with price=, or set one in the grid.")
        return
    for unit, amount in run.cost.unit_costs().items():
        if amount is not None:
            label = f"per {unit.replace('_', ' ')}"
            yield Figure(label, amount, f"{amount:.3g} {whole.currency}", _cost_grade(run))


def _cost_grade(run: RunReading) -> Grade:
    """Money is as sure as the weakest thing it rests on."""
    return "assumed" if run.goodput.assumptions else "measured"


def _steps(run: RunReading) -> Iterator[Block]:
    summary = run.goodput
    drawn = run_charts.step_times(run.view.timeline)
    if drawn is None:
        none = "No steps were recorded: busy or idle is known, productive is not."
        yield Note("One step was recorded: too few to compare." if run.cost.steps else none)
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
    chart = run_charts.at_risk(timeline)
    if chart is not None:
        yield Note("What a kill would have undone, moment by moment:")
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
        yield Note(f"The last {_MOST_ROWS} of {len(summary.disruptions):,} are shown.")


def _advice(run: RunReading) -> Iterator[Block]:
    if run.cost.cost is None:
        yield Note("Without a price nothing can be said about what a change would save.")
    elif not run.advice:
        yield Note("Nothing worth changing was found.")
    for each in run.advice:
        saves = f"saves {each.estimated_savings:,.4g} {each.currency}"
        if each.savings_low is not None and each.savings_high is not None:
            saves += f" ({each.savings_low:,.4g} to {each.savings_high:,.4g})"
        yield Figure(each.title, each.estimated_savings, saves, each.grade)
        yield Note(each.description)
        for label, lines in (("Evidence", each.evidence), ("Assumed", each.assumptions)):
            if lines:
                yield Note(f"{label}: {'; '.join(lines)}.")


def _ground(run: RunReading) -> Iterator[Block]:
    yield Note(
        "Measured: by the run's own log. Estimated: computed from measurements. "
        "Assumed: nobody measured it."
    )
    for text in run.goodput.assumptions:
        yield Note(f"Assumed: {text}.")
    for finding in run.goodput.findings:
        yield Note(f"{finding.severity.capitalize()}: {finding}")
    if not run.goodput.findings:
        yield Note("Nothing is wrong with the log.")
