"""A run's report: verdict, charts, time and cost, setup, advice. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from outlay.advise.recommendation import gain_text, nothing_above, of_kind
from outlay.budget.limits import COST, Bound
from outlay.budget.usage import Usage
from outlay.clock import utc_text
from outlay.goodput import phases as ph
from outlay.goodput.follower import GoodputSummary, PhaseRow
from outlay.goodput.reliability import checkpoint_spacing
from outlay.ledger import unsaved_text
from outlay.report.document import (
    Block,
    ChartBlock,
    Document,
    Figure,
    NoteBlock,
    Table,
    sections,
)
from outlay.report.html import Cell, amount
from outlay.report.run_charts import Axis, at_risk, metric_charts, phase_strip, step_times
from outlay.runs.figures import Known
from outlay.runs.reading import RunReading
from outlay.units import Money
from outlay.units.quantity import duration_text
from outlay.units.shown import beside_text, counted, money_text, unit_cost_text

# The verdict


def verdict(run: RunReading) -> str:
    """Return the run in a few sentences: duration, cost, goodput, largest loss, how it ended."""
    summary = run.goodput
    if not summary.wall_ns:
        return "Nothing is recorded yet: the run has no wall time."
    state = "So far" if summary.alive else "In all"
    price = "no price" if summary.cost is None else money_text(summary.cost)
    price += beside_text(each.cost for each in summary.cost_beside)
    spent = f"{state} {duration_text(summary.wall_ns)} of wall time, {price}"
    if summary.goodput is None:
        got = "; no steps were recorded, so the productive share is unknown."
    else:
        got = f"; {summary.goodput:.1%} of the time was productive. {_loss(summary)}"
    return f"{spent}{got}{_stop(run)}{_end(run)}"


def _loss(summary: GoodputSummary) -> str:
    """Return the costliest phase besides productive steps."""
    losses = [row for row in summary.phases if row.phase != ph.STEP]
    if not losses:
        return "Nothing was lost."
    worst = max(losses, key=_worth)
    lost = duration_text(worst.ns)
    if worst.cost:
        lost += f", {money_text(worst.cost)}"
    count = len(summary.disruptions)
    again = f", over {counted(count, 'disruption')}" if count else ""
    return f"The largest loss was {worst.phase} ({lost}){again}."


def _worth(row: PhaseRow) -> tuple[int, int]:
    return (0 if row.cost is None else row.cost.micros, row.ns)


def _end(run: RunReading) -> str:
    """Return how a run ended, unless it completed or still runs."""
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


# The report

_MOST_ROWS: Final = 20
_MOST_METRICS: Final = 12
_ESTIMATES: Final = (
    "Amounts are time multiplied by a price. Measured: time from the run's log, at a price from a "
    "vendor's offer. Stated: measured time at a price that a user typed. Estimated: computed from "
    "measurements. Assumed: not measured by anything."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """How a run was started, from sources other than its log.

    Attributes:
        hide: Removes names of people from a text.
    """

    command: Sequence[str] = ()
    configuration: Mapping[str, object] = field(default_factory=dict)
    sweep: str = ""
    hide: Callable[[str], str] = str


_NO_SETUP: Final = RunSetup()


def run_document(
    run: RunReading, setup: RunSetup = _NO_SETUP, axes: Sequence[Axis] = ("steps", "dollars")
) -> Document:
    """Return a run's report; ``axes`` are the horizontal axes of its metrics."""
    identity = run.view.identity
    return Document(
        title=identity.name or identity.model or identity.run_id,
        verdict=verdict(run),
        sections=sections(
            [
                ("The run", _run(run)),
                ("Timeline", _timeline(run)),
                ("Metrics", _metrics(run, axes)),
                ("Attempts", _attempt_rows(run)),
                ("Reliability", _reliability(run.goodput)),
                ("Where time and money went", _phases(run)),
                ("Budget", _budget(run)),
                ("What a unit cost", _units(run)),
                ("Step times", _steps(run)),
                ("Checkpoints", _checkpoints(run)),
                ("What to change", _advice(run)),
                ("What was run", _setup(run, setup)),
                ("How the figures are known", _ground(run)),
            ],
            whole=("The run", "Timeline", "Metrics", "Attempts")
            + (("Reliability",) if run.goodput.disruptions else ()),
        ),
    )


def _run(run: RunReading) -> Iterator[Block]:
    summary, cost = run.goodput, run.cost
    if summary.cost is not None:
        text = money_text(summary.cost)
        yield Figure("cost", summary.cost, text, _cost_grade(run), leads=True)
    for each in summary.cost_beside:
        label, text = f"cost in {each.cost.currency}, beside", money_text(each.cost)
        yield Figure(label, each.cost, text, _cost_grade(run), leads=True)
    burn = run.view.burn_micros_per_hour
    if burn and summary.cost is not None:
        per_hour = summary.cost.unit.money(burn)
        yield Figure("burn per hour", per_hour, money_text(per_hour), leads=True)
    if summary.goodput is not None:
        yield Figure("goodput", summary.goodput, f"{summary.goodput:.1%}", leads=True)
    yield Figure("wall time", summary.wall_ns, duration_text(summary.wall_ns), leads=True)
    if cost.steps:
        yield Figure("steps", run.figures.steps, f"{run.figures.steps:,}", leads=True)
    if cost.accuracy is not None:
        yield Figure("best accuracy", cost.accuracy, f"{cost.accuracy:.4g}", leads=True)
    yield Figure("status", run.status, run.status)
    yield Figure("started", summary.window.start_ns, utc_text(summary.window.start_ns))
    until = "present" if summary.alive else "ended"
    yield Figure(until, summary.window.end_ns, utc_text(summary.window.end_ns))
    yield Figure("attempts", len(run.view.timeline.attempts), _attempts(run))
    if summary.assumed:
        yield Figure("of which assumed", summary.assumed, str(summary.assumed), "assumed")
    yield Figure("GPU time", cost.gpu_ns, duration_text(cost.gpu_ns))
    if cost.steps != run.figures.steps:
        text = f"{cost.steps:,}, repeated ones included"
        yield Figure("steps executed", cost.steps, text)
    if cost.tokens:
        yield Figure("tokens", cost.tokens, f"{cost.tokens:,}")
    if cost.samples:
        yield Figure("samples", cost.samples, f"{cost.samples:,}")
    rate = summary.throughput
    if rate.tokens:
        text = f"{rate.per_wall_second:,.0f} tokens/s of wall time"
        yield Figure("throughput", rate.per_wall_second, text)
    yield from _guard(run)


def _metrics(run: RunReading, axes: Sequence[Axis]) -> Iterator[Block]:
    names = run.view.account.metric_names()
    drawn = [list(metric_charts({"": run.view}, axis, _MOST_METRICS)) for axis in axes]
    for charts in zip_longest(*drawn):  # A metric's axes are side by side.
        yield from (ChartBlock(chart) for chart in charts if chart is not None)
    if len(names) > _MOST_METRICS:
        yield NoteBlock(f"The first {_MOST_METRICS} of {len(names):,} metrics are shown.")


def _attempt_rows(run: RunReading) -> Iterator[Block]:
    """Yield the attempts, where there are several: when, where, and how each ended."""
    attempts = run.view.timeline.attempts
    if len(attempts) < 2:
        return
    rows = tuple(
        (
            number, utc_text(each.start_ns), duration_text(each.last_sign_ns - each.start_ns),
            each.header.host, "no end recorded" if each.end is None else each.end.status,
            "" if each.end is None else each.end.reason,
        )
        for number, each in list(enumerate(attempts, 1))[-_MOST_ROWS:]
    )  # fmt: skip
    yield Table(("attempt", "started", "for", "host", "end", "reason"), rows)


def _setup(run: RunReading, setup: RunSetup) -> Iterator[Block]:
    """Yield what is needed to run it again: command, commit, host, parameters, versions."""
    header = run.view.timeline.attempts[-1].header
    command = shlex.join(setup.command or run.command)
    stated = {
        "run": run.run_id, "model": run.view.identity.model, "sweep": setup.sweep,
        "command": command, "commit": header.git_commit, "host": header.host, "user": header.user,
        "GPU": f"{run.figures.gpus} x {header.gpu}" if header.gpu else "",
        "Slurm job": header.slurm_job, "partition": header.slurm_partition,
        "machine": header.instance_id, "directory": str(run.view.dir or ""),
    }  # fmt: skip
    for label, text in stated.items():
        if text:
            yield Figure(label, setup.hide(text), setup.hide(text))
    for price in run.cost.prices[-_MOST_ROWS:]:
        yield Figure("price", price.text, f"{price.text} per GPU: {price.origin}")
    for title, found in (
        ("parameter", parameters_of(run, setup)), ("tag", header.tags),
        ("version of", header.versions),
    ):  # fmt: skip
        if found:
            rows = tuple((name, setup.hide(str(found[name]))) for name in found)
            yield Table((title, "value"), rows)


def parameters_of(run: RunReading, setup: RunSetup) -> dict[str, object]:
    """Return a run's parameters; a nested one as ``outer.inner``."""
    return dict(_flat({**setup.configuration, **run.config}, ""))


def _flat(settings: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _guard(run: RunReading) -> Iterator[Block]:
    """Yield the guard's last note; it has the head for ``outlay guard verify --expect``."""
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
    budget = report.budget
    limits = [_limit(b, b.used(report.used), budget.currency) for b in budget.bounds_known]
    yield Table(("limit", "share", "used", "of", "left"), limits)
    if parts := report.cost_rows():
        yield Table(("part of the cost", "cost", "budget"), parts)
    if report.stop_reason is not None:
        yield Figure("stopped by", report.stop_reason, report.stop_reason)
        if report.unsaved:
            yield Figure("not saved", len(report.unsaved), unsaved_text(report.unsaved))
    elif report.forecast is not None and run.goodput.alive:
        ahead = report.forecast
        text = f"{duration_text(ahead.time_left_ns)}, after {ahead.steps_left:,} more steps"
        yield Figure("will stop in", ahead.time_left_ns, text, "estimated")
    if report.changes:
        times = "once" if report.changes == 1 else f"{report.changes:,} times"
        yield NoteBlock(f"Its limits were changed {times} on a resume.")


def _limit(bound: Bound, used: int, currency: str) -> tuple[object, ...]:
    def shown(value: int) -> object:
        if bound.dimension.name == COST.name:
            return Money(Usage(cost_units=value).cost_micros, currency)
        return Cell(text=bound.dimension.text(value), value=value, is_number=True)

    share = used / bound.limit if bound.limit else None
    part = Cell(text="-" if share is None else f"{share:.1%}", value=share, share=share)
    left = bound.limit - used
    return (bound.dimension.key, part, shown(used), shown(bound.limit), shown(left))


def _timeline(run: RunReading) -> Iterator[Block]:
    rows = run.goodput.phases
    if rows:
        phases = [(row.phase, f"{row.share:.1%}") for row in rows]
        yield ChartBlock(phase_strip(run.view.timeline, phases))


def _phases(run: RunReading) -> Iterator[Block]:
    summary, cost = run.goodput, run.cost
    if not summary.phases:
        return
    rows = [(row.phase, *_phase_cells(row.ns, row.share, row.cost)) for row in summary.phases]
    rows.append(("total", *_phase_cells(summary.wall_ns, 1.0, cost.cost)))
    if cost.assumed:
        rows.append(("of which assumed", None, None, cost.assumed))
    for beside in cost.cost_beside:
        in_it = f"in {beside.cost.currency}, beside"
        parts = beside.by_phase.items()
        rows += [(f"{phase} {in_it}", None, None, money) for phase, money in parts]
        rows.append((f"total {in_it}", None, None, beside.cost))
    headings = ("phase", "share of time", "time", "cost")
    total = len(summary.phases)
    yield Table(headings, tuple(rows), _cost_grade(run), total)
    for phase, ns in summary.beside.items():
        yield Figure(f"beside: {phase}", ns, f"{duration_text(ns)}, overlapped with training")
    if summary.idle_ns:
        yield Figure("idle after completion", summary.idle_ns, duration_text(summary.idle_ns))


def _phase_cells(ns: int, share: float, cost: Money | None) -> tuple[object, ...]:
    part = Cell(text=f"{share:.1%}", value=share, share=share)
    return (part, Cell(text=duration_text(ns), value=ns, is_number=True), amount(cost))


def _units(run: RunReading) -> Iterator[Block]:
    whole = run.cost.cost
    if whole is None:
        yield NoteBlock("The run has no price. Start it with price=, or set a price in the grid.")
        return
    for unit, each in run.cost.unit_costs().items():
        if each is not None:
            label = f"per {unit.replace('_', ' ')}"
            yield Figure(label, each, unit_cost_text(each, whole.currency), _cost_grade(run))


def _cost_grade(run: RunReading) -> Known:
    """Return how the cost is known: as well as its least certain part."""
    if run.goodput.assumptions:
        return "assumed"
    return "measured" if all(price.offer for price in run.cost.prices) else "stated"


def _steps(run: RunReading) -> Iterator[Block]:
    summary = run.goodput
    chart = step_times(run.view.timeline)
    if chart is None:
        none = "No steps were recorded, so the productive share is unknown."
        yield NoteBlock("One step was recorded: too few to compare." if run.cost.steps else none)
        return
    yield ChartBlock(chart)
    if summary.typical_step_ns is not None:
        typical = duration_text(summary.typical_step_ns)
        yield Figure("typical step", summary.typical_step_ns, f"{typical} (median, host time)")
    yield Figure("stalled steps", summary.stalls, f"{summary.stalls:,}")
    for row in summary.ranks[:5]:
        text = f"{duration_text(row.median_step_ns)} median, {row.slowdown:.2f}x the fastest"
        yield Figure(f"rank {row.rank}", row.median_step_ns, text)


def _checkpoints(run: RunReading) -> Iterator[Block]:
    timeline, progress = run.view.timeline, run.goodput.progress
    commits = sorted(
        commit.t_ns
        for interval in timeline.intervals
        if interval.timeline is not None
        for commit in interval.timeline.checkpoints
    )
    if progress.last_step is None:
        return
    yield Figure("committed", len(commits), f"{len(commits):,} checkpoints")
    if len(commits) > 1 and (between := checkpoint_spacing(timeline)) is not None:
        yield Figure("between two", between, f"{duration_text(between)} (median, without saves)")
    if progress.committed_step is not None:
        yield Figure("safe up to", progress.committed_step, f"step {progress.committed_step:,}")
    lost = "" if progress.at_risk_cost is None else f" ({money_text(progress.at_risk_cost)})"
    yield Figure("at risk", progress.at_risk_ns, f"{duration_text(progress.at_risk_ns)}{lost}")
    chart = at_risk(timeline)
    if chart is not None:
        yield ChartBlock(chart)


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
    elif not of_kind(run.advice, "saving"):
        yield NoteBlock(nothing_above(run.advice_floor))
    for each in run.advice:
        how = "" if each.grade == "measured" else f", {each.grade}"
        yield NoteBlock(each.description, title=f"{each.title}: {gain_text(each)}{how}")
        for label, lines in (("Evidence", each.evidence), ("Assumed", each.assumptions)):
            if lines:
                yield NoteBlock(f"{label}: {'; '.join(lines)}.")


def _ground(run: RunReading) -> Iterator[Block]:
    yield NoteBlock(_ESTIMATES)
    for text in run.goodput.assumptions:
        yield NoteBlock(f"Assumed: {text}.")
    for finding in run.goodput.findings:
        yield NoteBlock(f"{finding.severity.capitalize()}: {finding}")
    if not run.goodput.findings:
        yield NoteBlock("No problems were found in the log.")
