"""Goodput, cost, budget and advice: the blocks that pages and terminals share. Pure, no charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from outlay.advise.recommendation import (
    AdviceKind,
    OptimizationRecommendation,
    gain_text,
    nothing_above,
    of_kind,
    total_savings,
)
from outlay.budget.limits import COST, Bound
from outlay.budget.report import BudgetReport
from outlay.budget.usage import Usage
from outlay.clock import utc_text
from outlay.cost.run_cost import RunCost
from outlay.errors import InvalidValue
from outlay.goodput.follower import GoodputSummary, PhaseRow, RunView
from outlay.goodput.reliability import checkpoint_spacing
from outlay.goodput.scheduling import scheduling_of
from outlay.goodput.timeline import Timeline
from outlay.ledger import unsaved_text
from outlay.prices.energy_factors import MJ_PER_KWH, read_factors
from outlay.report.document import Block, Figure, NoteBlock, Table
from outlay.report.drawing.charts import of_phase
from outlay.report.html import Cell, amount
from outlay.units import Money
from outlay.units.quantity import duration_text
from outlay.units.shown import Grade, amount_text, counted, graded, money_text, unit_cost_text

MOST_ROWS = 20

# Goodput


def headline(view: RunView, summary: GoodputSummary, grade: Grade) -> Iterator[Figure]:
    """Yield the few figures that lead; ``grade`` is that of the cost."""

    def cost(label: str, money: Money, known: Grade) -> Figure:
        return Figure(label, money, money_text(money), known, leads=True)

    if summary.cost is None:
        yield Figure("cost", None, "no price", leads=True)
    else:
        yield cost("cost", summary.cost, grade)
        for each in summary.cost_beside:
            yield cost(f"cost in {each.cost.currency}, beside", each.cost, grade)
        if burn := view.burn_micros_per_hour:
            yield cost("burn per hour", summary.cost.unit.money(burn), "measured")
    share = "unknown: no steps were recorded"
    if summary.goodput is not None:
        share = f"{summary.goodput:.1%}"
    yield Figure("goodput", summary.goodput, share, leads=True)
    yield Figure("wall time", summary.wall_ns, duration_text(summary.wall_ns), leads=True)
    if (last := summary.progress.last_step) is not None:
        yield Figure(f"steps{_whole(summary)}", last + 1, f"{last + 1:,}", leads=True)


def _whole(summary: GoodputSummary) -> str:
    """Return the suffix of figures that are of the whole run, although a window was asked for."""
    return " (whole run)" if summary.of_whole_run else ""


def circumstances(view: RunView, summary: GoodputSummary) -> Iterator[Figure]:
    """Yield status, begin and end, what is assumed, and how fast and fully the machines worked."""
    start_ns, end_ns = summary.window.start_ns, summary.window.end_ns
    yield Figure("status", view.status, view.status)
    since = "from" if summary.of_whole_run else "started"
    yield Figure(since, start_ns, utc_text(start_ns), at_ns=start_ns)
    until = "to" if summary.of_whole_run else "present" if summary.alive else "ended"
    yield Figure(until, end_ns, utc_text(end_ns), at_ns=end_ns)
    if summary.assumed:
        yield Figure("of which assumed", summary.assumed, str(summary.assumed), "assumed")
    if (waited := scheduling_of(view.timeline.attempts)) is not None:
        share = "" if waited.goodput is None else f"; scheduling goodput {waited.goodput:.1%}"
        text = f"{duration_text(waited.queue_ns)} in the cluster's queue, not billed{share}"
        yield Figure(f"queue time{_whole(summary)}", waited.queue_ns, text)
    if rate := summary.throughput.per_wall_second:
        yield Figure("throughput", rate, f"{rate:,.0f} tokens/s of wall time")
    if (mfu := summary.mfu) is not None and mfu.of_productive is not None:
        text = f"{mfu.of_wall:.1%} of wall time, {mfu.of_productive:.1%} while productive"
        yield Figure("MFU", mfu.of_wall, text)
    if (slices := summary.slices) is not None:
        text = (
            f"goodput {slices.goodput:.1%} weighted by slices; "
            f"{slices.stepping:.1%} of them trained, {slices.available:.1%} could"
        )
        yield Figure("slices", slices.goodput, text)


def phases(summary: GoodputSummary, grade: Grade) -> Iterator[Block]:
    """Yield time and cost by phase, with their totals; ``grade`` is that of the cost."""
    if not summary.phases:
        return
    whole = summary.cost
    rows = [
        _phase_row(Cell(text=row.phase, swatch=of_phase(row.phase)), row.cost, whole, time=row)
        for row in summary.phases
        if row.ns or row.cost
    ]
    whole_row = len(rows)
    every = PhaseRow("total", summary.wall_ns, 1.0, whole)
    rows.append(_phase_row(every.phase, whole, whole, time=every))
    if summary.assumed:
        rows.append(_phase_row("of which assumed", summary.assumed, whole))
    for each in summary.cost_beside:
        beside = f"in {each.cost.currency}, beside"
        parts = ((phase, money) for phase, money in each.by_phase.items() if money)
        rows += [_phase_row(f"{phase} {beside}", money, each.cost) for phase, money in parts]
        rows.append(_phase_row(f"total {beside}", each.cost, each.cost))
        if each.assumed:
            rows.append(_phase_row(f"of which assumed {beside}", each.assumed, each.cost))
    headings = ("phase", "share of time", "time", graded("cost", grade), "share of cost")
    shown = len(headings) if whole else len(headings) - 1
    yield Table(headings[:shown], [row[:shown] for row in rows], whole_row, is_list=True)
    for phase, ns in summary.beside.items():
        yield Figure(f"beside: {phase}", ns, f"{duration_text(ns)}, overlapped with training")
    if summary.idle_ns:
        yield Figure("idle after completion", summary.idle_ns, duration_text(summary.idle_ns))


def _phase_row(
    name: str | Cell, cost: Money | None, whole: Money | None, *, time: PhaseRow | None = None
) -> tuple[object, ...]:
    spent: list[object] = [None, None]
    if time is not None:
        share = Cell(text=f"{time.share:.1%}", value=time.share, share=time.share)
        spent = [share, Cell(text=duration_text(time.ns), value=time.ns, is_number=True)]
    part = None
    if cost is not None and whole:
        part = Cell(text=f"{cost.micros / whole.micros:.1%}", is_number=True)
    return (name, *spent, amount(cost), part)


def reliability(summary: GoodputSummary) -> Iterator[Figure]:
    """Yield how often the run was disrupted, and what that took of its time."""
    yield Figure("disruptions", len(summary.disruptions), f"{len(summary.disruptions):,}")
    if summary.ettr is not None:
        # Without a disruption, what is missing was spent on the first start.
        lost = "disruptions" if summary.disruptions else "the start"
        text = f"{summary.ettr:.1%} of time not lost to {lost}"
        yield Figure("ETTR", summary.ettr, text)
    mttf = summary.mttf
    if mttf.mean_ns is not None:
        high = "?" if mttf.high_ns is None else duration_text(mttf.high_ns)
        interval = f"{mttf.confidence:.0%} interval: {duration_text(mttf.low_ns)} to {high}"
        text = f"{duration_text(mttf.mean_ns)} ({interval})"
        yield Figure(f"mean time to failure{_whole(summary)}", mttf.mean_ns, text, "estimated")


def steps(summary: GoodputSummary) -> Iterator[Block]:
    """Yield how long steps took, and which ranks were slowest."""
    if summary.progress.last_step is None:
        yield NoteBlock("No steps were recorded, so the productive share is unknown.")
        return
    whole = _whole(summary)
    if summary.typical_step_ns is not None:
        text = f"{duration_text(summary.typical_step_ns)} (median, host time)"
        yield Figure(f"typical step{whole}", summary.typical_step_ns, text)
    yield Figure(f"stalled steps{whole}", summary.stalls, f"{summary.stalls:,}")
    for row in summary.ranks[:5]:
        text = f"{duration_text(row.median_step_ns)} median step, {row.slowdown:.2f}x the fastest"
        yield Figure(f"rank {row.rank}{whole}", row.median_step_ns, text)


def checkpoints(timeline: Timeline, summary: GoodputSummary) -> Iterator[Figure]:
    """Yield what is saved, and what a failure now would lose."""
    progress, whole = summary.progress, _whole(summary)
    if progress.last_step is None:
        return
    count = sum(len(attempt.checkpoints) for attempt in timeline.attempt_timelines)
    yield Figure(f"committed{whole}", count, counted(count, "checkpoint"))
    if count > 1 and (between := checkpoint_spacing(timeline)) is not None:
        text = f"{duration_text(between)} (median, without saves)"
        yield Figure(f"between two{whole}", between, text)
    since = "the start"
    if progress.committed_step is not None:
        since = f"step {progress.committed_step:,}"
        yield Figure(f"safe up to{whole}", progress.committed_step, since)
    lost = "" if progress.at_risk_cost is None else f" ({money_text(progress.at_risk_cost)})"
    text = f"{duration_text(progress.at_risk_ns)}{lost} since {since}"
    yield Figure(f"at risk{whole}", progress.at_risk_ns, text)


# Cost


def unit_costs(cost: RunCost) -> Iterator[Block]:
    """Yield what each unit of work cost."""
    if cost.cost is None:
        yield NoteBlock("The run has no price. Start it with price=, or set a price in the grid.")
        return
    for unit, each in cost.unit_costs().items():
        if each is not None:
            text = unit_cost_text(each, cost.cost.currency)
            name = "1.0 of accuracy" if unit == "accuracy_point" else unit.replace("_", " ")
            yield Figure(f"per {name}", each, text, cost.grade)


def gpu_time(cost: RunCost) -> Figure:
    """Return the GPUs times the time of attempts."""
    return Figure("GPU time", cost.gpu_ns, duration_text(cost.gpu_ns))


def energy(energy_mj: int, grade: Grade = "measured") -> Iterator[Block]:
    """Yield energy that was measured, and by stated factors what it emitted and cost."""
    if not energy_mj:
        return
    yield Figure("energy", energy_mj, f"{energy_mj / MJ_PER_KWH:,.6g} kWh", grade)
    try:
        factors = read_factors()
    except InvalidValue as error:
        yield NoteBlock(str(error))
        return
    if (grams := factors.emitted_g(energy_mj)) is not None:
        yield Figure("emissions", grams, f"{grams:,.6g} gCO₂e", "stated")
    if (cost := factors.cost(energy_mj)) is not None:
        yield Figure("cost of energy", cost, str(cost), "stated")


def prices(cost: RunCost) -> Iterator[Figure]:
    """Yield the last prices, oldest first, with their origin."""
    for price in cost.prices[-MOST_ROWS:]:
        yield Figure("price", price.text, f"{price.text} per GPU: {price.origin}")


def grounds(cost: RunCost) -> Iterator[NoteBlock]:
    """Yield what begin and end of a cost are known from, and what it assumes."""
    if cost.begin == "record":
        known = "earlier time is not known to belong to it"
        yield NoteBlock(f"The cost starts at its first record: {known}.")
    if cost.end == "last_sign":
        yield NoteBlock("The cost ends at its last sign of life: it recorded no end.")
    yield from assumed(cost.assumptions)


def assumed(texts: Iterable[str]) -> Iterator[NoteBlock]:
    """Yield what a cost assumes."""
    return (NoteBlock(f"Assumed: {text}.") for text in texts)


# Budget


def budget(report: BudgetReport, status: str) -> Iterator[Block]:
    """Yield the use of each limit, the parts of the cost, and what stopped or will stop the run."""
    known, currency = report.budget.bounds_known, report.budget.currency
    limits = [_limit(bound, bound.used(report.used), currency) for bound in known]
    yield Table(("limit", "share", "used", "of", "left"), limits)
    if parts := report.cost_rows():
        yield Table(("part of the cost", "cost", "budget"), parts)
    for clock, ns in report.clocks_ns.items():
        if ns:
            yield Figure(f"{clock} time", ns, duration_text(ns))
    yield from _stop(report, status)
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
    return (bound.dimension.label, part, shown(used), shown(bound.limit), shown(left))


def _stop(report: BudgetReport, status: str) -> Iterator[Block]:
    ahead = report.forecast
    if report.stop_reason is not None:
        yield Figure("stopped by", report.stop_reason, report.stop_reason)
        if report.unsaved:
            yield Figure("not saved", len(report.unsaved), unsaved_text(report.unsaved))
    elif status != "running":
        yield NoteBlock(f"No limit was reached; the run is {status}.")
    elif ahead is None:
        yield NoteBlock("No step has been measured yet, so its stop cannot be estimated.")
    else:
        left = f"{duration_text(ahead.time_left_ns)} at {ahead.bound.dimension.key}"
        text = f"{left}, after {ahead.steps_left:,} more steps"
        yield Figure("will stop in", ahead.time_left_ns, text, "estimated")


# Advice

_NOT_ADDED: Final[dict[AdviceKind, str]] = {
    "trade": "Cheaper but worse; not in the total:",
    "observation": "Money that bought little; how much can be saved is not known yet:",
}


_SHORT = 3


def advice_in_short(
    found: Sequence[OptimizationRecommendation], floor: Money | None, *, is_priced: bool = True
) -> Iterator[NoteBlock]:
    """Yield at most three lines: the largest savings, else that there are none, then the rest."""
    savings = of_kind(found, "saving")
    if not is_priced or not savings:
        first = next(iter(advice(found, floor, is_priced=is_priced)))
        yield first if not found or not is_priced else NoteBlock(nothing_above(floor))
    shown = [*savings, *(each for each in found if each.kind != "saving")]
    for each in shown[: _SHORT if savings else _SHORT - 1]:
        gain = f"{gain_text(each)}, confidence {each.confidence:.0%}"
        yield NoteBlock(f"{each.title}: {graded(gain, each.grade)}")


def advice(
    found: Sequence[OptimizationRecommendation], floor: Money | None, *, is_priced: bool = True
) -> Iterator[NoteBlock]:
    """Yield savings, then trades of quality for money, then observations."""
    if not is_priced:
        yield NoteBlock("Savings cannot be computed without a price.")
        return
    savings = of_kind(found, "saving")
    for each in savings:
        yield from _recommendation(each)
    totals = total_savings(found).items()
    text = ", ".join(amount_text(total, currency) for currency, total in totals)
    added = f"Up to {text} in total; overlapping savings are counted once."
    yield NoteBlock(added if savings else nothing_above(floor))
    for kind, heading in _NOT_ADDED.items():
        if others := of_kind(found, kind):
            yield NoteBlock(heading)
        for each in others:
            yield from _recommendation(each)


def _recommendation(each: OptimizationRecommendation) -> Iterator[NoteBlock]:
    gain = graded(f"{gain_text(each)}, confidence {each.confidence:.0%}", each.grade)
    yield NoteBlock(each.description, title=f"{each.title}: {gain}")
    about = {
        "Evidence": each.evidence, "Assumed": each.assumptions, "Risk": each.risks,
        "To be more certain": each.needed,
    }  # fmt: skip
    for label, lines in about.items():
        if lines:
            yield NoteBlock(f"{label}: {'; '.join(lines)}.", folded="Evidence and assumptions")
