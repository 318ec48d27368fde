"""Reports a run's budget and plans another, replayed from the log's columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import Any

import numpy as np
from msgspec.structs import astuple, replace

from outlay.account.columns import Ints, StepColumns, total
from outlay.account.run import RunAccount, SegmentAccount
from outlay.budget import snapshots
from outlay.budget.display import read_document
from outlay.budget.fold import ProcessSpend, RunSpend, budget_events
from outlay.budget.history import History, history_of, read_history
from outlay.budget.limits import (
    COST,
    CURRENCY,
    DIMENSIONS,
    EPOCHS,
    TIME,
    Bound,
    Forecast,
    StartUp,
    cost_in,
    forecast,
    pace_start,
    reached,
    total_key,
)
from outlay.budget.measurements import unmeasured
from outlay.budget.surviving import Surviving
from outlay.budget.terms import Budget
from outlay.budget.usage import (
    CLOCK_OF_SPAN,
    TRAINING,
    ZERO,
    ClockCharge,
    CostParts,
    Period,
    Usage,
    joined,
    spent_before,
)
from outlay.errors import Finding, InvalidValue
from outlay.goodput.follower import RunView
from outlay.goodput.steps import undone_steps
from outlay.ledger import BudgetEvent, training_ranks, unsaved_steps
from outlay.record.supervision import BY_BUDGET
from outlay.units import Money


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReport:
    """A run's budget and its use over all attempts and ranks.

    Attributes:
        stop_reason: As recorded, of a command with its use up to its end; None if no limit stopped
            the run.
        unsaved: The last steps that are in no checkpoint; empty unless the run was stopped.
        changes: How often the limits were changed on a resume.
        unmeasured: The totals that are zero because nothing measured them.
        cost: None without a price in the budget's currency.
        findings: What is wrong in the log, and what was assumed instead.
    """

    budget: Budget
    used: Usage
    clocks_ns: dict[str, int]
    stop_reason: str | None
    forecast: Forecast | None
    changes: int
    unsaved: range = range(0)
    unmeasured: tuple[str, ...] = ()
    cost: CostParts | None = None
    findings: tuple[Finding, ...] = ()

    def cost_rows(self) -> list[tuple[str, Money, str]]:
        """Return each part's label, cost, and whether a limit on money counts it."""
        if self.cost is None:
            return []
        rows = self.cost.rows(self.budget.charge_cost, self.budget.currency)
        if self.budget.limits_money:
            return rows
        return [(label, cost, "not limited") for label, cost, _ in rows]

    def document(self) -> dict[str, Any]:
        """Return the report for JSON: the keys of ``budget.json``, and what is left."""
        reason = reached(self.used, self.budget.bounds_known)
        document = snapshots.snapshot_of(self.budget, self.used, self.clocks_ns, reason)
        document["stop_reason"] = self.stop_reason
        steps = {"first": self.unsaved[0], "last": self.unsaved[-1]} if self.unsaved else None
        document["unsaved_steps"] = steps
        document["remaining"] = snapshots.remaining_of(self.used, self.budget)
        document["changes"] = self.changes
        document["unmeasured"] = list(self.unmeasured)
        cost, charge = self.cost, self.budget.charge_cost
        currency = self.budget.currency
        document["cost"] = None if cost is None else cost.document(charge, currency)
        document["forecast"] = None if self.forecast is None else forecast_document(self.forecast)
        document["findings"] = [str(finding) for finding in self.findings]
        return document


def forecast_document(ahead: Forecast) -> dict[str, Any]:
    """Return a forecast for JSON."""
    return {
        "limit_key": ahead.bound.dimension.key,
        "steps_left": ahead.steps_left,
        "seconds_left": ahead.time_left_ns / 1e9,
        "at_step": ahead.at_step,
        "basis": "estimated",
    }


def _stop_reason(view: RunView, stops: Sequence[BudgetEvent]) -> str | None:
    end = view.timeline.attempts[-1].end
    if stops and end is not None and end.reason.startswith(BY_BUDGET):
        return end.reason.removeprefix(BY_BUDGET)
    return stops[-1].data.get("text") if stops else None


def budget_report(view: RunView) -> BudgetReport | None:
    """Return the report of a run's budget; None if it was started without one."""
    recorded = (segment.budget_events for segment in view.account.segments.values())
    if not view.is_damaged and not any(recorded):
        return None
    history = _history(view)
    if history.stated is None:
        return None
    budget = Budget.stated_in(history.stated)
    spend = history.spend(view.timeline.end_ns)
    used = spend.total(charge=budget.charge, charge_cost=budget.charge_cost)
    events = budget_events(history.spends)
    stops = [event for event in events if event.event == "stopped"]
    recent_ns, recent = recent_use(view, budget)
    return BudgetReport(
        budget=budget,
        used=used,
        clocks_ns=spend.clocks_ns,
        stop_reason=_stop_reason(view, stops),
        forecast=None if stops else forecast(used, recent, recent_ns, budget.bounds_known),
        unsaved=_unsaved(view, stops[-1].t_ns) if stops else range(0),
        changes=sum(event.event == "changed" for event in events),
        unmeasured=_unmeasured(view, used, budget.currency),
        cost=spend.parts if spend.parts.total else None,
        findings=(*history.findings, *spend.beside_findings(budget.currency)),
    )


def _unsaved(view: RunView, stopped_ns: int) -> range:
    """Return the steps that are in no checkpoint, if the last attempt is the one that stopped."""
    timeline = view.timeline
    if stopped_ns < timeline.attempts[-1].start_ns:
        return range(0)
    return unsaved_steps(timeline.committed_step(), timeline.last_step())


def recent_use(view: RunView, budget: Budget) -> tuple[int, Usage]:
    """Return what the last attempt's ranks used at its present pace, and in how many nanoseconds.

    As ``RecentUse`` does while it runs; zero without a step.
    """
    attempt = view.timeline.attempts[-1]
    steps = view.account.segments[attempt.segment].steps
    if not len(steps.end):
        return 0, ZERO
    ranks = [view.account.segments[rank] for rank in training_ranks(attempt.ranks)]
    until_ns = int(steps.end[-1])
    since_ns = int(steps.start[0] - steps.wait[0])
    if len(steps.end) > 2:
        since_ns = int(steps.end[pace_start(steps.end)])
    used = joined(_used_between(rank, since_ns, until_ns, budget.charge) for rank in ranks)
    rates = view.rates
    if rates is not None and rates.currency == budget.currency:
        all_charged = budget.charge_cost == "all"
        paid_ns = since_ns if all_charged else until_ns - used.time_ns
        used = replace(used, cost_units=rates.units_between(paid_ns, until_ns))
    return until_ns - since_ns, used


def _used_between(segment: SegmentAccount, since_ns: int, until_ns: int, charge: str) -> Usage:
    """Return what a process's steps that ended in ``(since_ns, until_ns]`` used, without money."""
    steps = segment.steps
    inside = slice(*np.searchsorted(steps.end, [since_ns, until_ns], side="right"))
    closed, still_open = _clock_charges(segment)
    time_ns = total(_charged_ns(segment, closed)[inside])
    if charge == "all":
        for one in (*closed, *still_open):
            time_ns += max(0, min(one.end_ns, until_ns) - max(one.start_ns, since_ns))
    return Usage(
        tokens=total(steps.tokens[inside]),
        steps=total(steps.count[inside]),
        flops=total(steps.flops[inside]),
        time_ns=time_ns,
        energy_mj=total(steps.energy_mj[inside]),
        comm_bytes=total(steps.comm_bytes[inside]),
    )


def _history(view: RunView) -> History:
    """Return a run's history; a damaged log is read again record by record, to repair it."""
    if view.is_damaged and view.dir is not None:
        return read_history(view.dir)
    return replay(view.account, None if view.dir is None else read_document(view.dir))


def _unmeasured(view: RunView, used: Usage, currency: str) -> tuple[str, ...]:
    """Return the totals that nothing measured: the zero ones, if the run listed them."""
    document = None if view.dir is None else read_document(view.dir)
    listed = (document or {}).get("unmeasured")
    zero = unmeasured(used, currency)
    return tuple(name for name in zero if not isinstance(listed, list) or name in listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """How far a budget lasts for a training like a measured one; an estimate.

    Attributes:
        bound: The limit that is reached first.
        use: The use of the ``steps``; its cost includes one start-up.
        measured_steps: How many steps were measured.
        start_up: None if unknown.
        findings: Of the log, and warnings about the plan.
    """

    bound: Bound
    steps: int
    use: Usage
    measured_steps: int
    start_up: StartUp | None = None
    currency: str = CURRENCY
    findings: tuple[Finding, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return {
            "limit_key": self.bound.dimension.key,
            "steps": self.steps,
            "use": snapshots.totals_of(self.use, None, self.currency),
            "measured_steps": self.measured_steps,
            "start_up": self._start_up_document(),
            "basis": "estimated",
            "findings": [str(finding) for finding in self.findings],
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return the plan as labels and texts."""
        shown = [("steps", f"{self.steps:,}")]
        for dimension in (cost_in(self.currency) if one is COST else one for one in DIMENSIONS):
            amount = getattr(self.use, dimension.name)
            if dimension is not EPOCHS and amount:
                shown.append((dimension.label, dimension.text(amount)))
        start_up = "unknown" if self.start_up is None else TIME.text(self.start_up.ns)
        return [*shown, ("start-up", start_up)]

    def _start_up_document(self) -> dict[str, Any] | None:
        if self.start_up is None:
            return None
        return {
            "seconds": self.start_up.ns / 1e9,
            total_key(self.currency): COST.number(self.start_up.units),
            "attempts": self.start_up.attempts,
        }


def plan_from(view: RunView, budget: Budget) -> BudgetPlan:
    """Return the plan of a budget for a run like this one, at its mean pace and price.

    Raises:
        InvalidValue: The run measured nothing that the budget limits.
    """
    history = dataclasses.replace(_history(view), currency=budget.currency)
    spend = history.spend(view.timeline.end_ns)
    done = spend.charged(charge=budget.charge, charge_cost=budget.charge_cost)
    start_up, pace_units = _start_up(spend), done.cost_units
    once = ZERO
    if start_up is not None and budget.charge_cost == "all":
        # Start-up is paid once, not per step; time between attempts is not planned.
        pace_units -= spend.parts.start_up + spend.parts.down
        once = Usage(cost_units=start_up.units)
    measured = replace(done, cost_units=pace_units)
    ahead = forecast(once, measured, spend.executed.time_ns, budget.bounds)
    if ahead is None:
        expected = f"a run that measured what {', '.join(budget.limits)} limits"
        raise InvalidValue("--from", str(view.dir), expected)
    scaled = (amount * ahead.steps_left // measured.steps for amount in astuple(measured))
    doubts = [] if start_up is None else start_up.too_long_for(budget.bounds)
    return BudgetPlan(
        bound=ahead.bound,
        steps=ahead.steps_left,
        use=Usage(*scaled) + once,
        measured_steps=measured.steps,
        start_up=start_up,
        currency=budget.currency,
        findings=(*history.findings, *doubts),
    )


def _start_up(spend: RunSpend) -> StartUp | None:
    times_ns = spend.start_ups_ns
    if not times_ns:
        return None
    units = spend.parts.start_up // len(spend.attempts)
    return StartUp(ns=median_low(times_ns), units=units, attempts=len(times_ns))


# Replay from a run's account: the same as ``ProcessSpend`` folds, by column
#
# A start replays the few records after a statement one by one, without NumPy; reports of a whole
# log use this. A property test checks that both give the same result.

_LAST_INSTANT_NS = 2**63 - 1


class SurvivingColumns(Surviving):
    """The surviving work of one process by column; it does not grow.

    ``kept`` is how many of a record's ``count`` steps from ``number`` on were not undone.
    """

    def __init__(self, steps: StepColumns, kept: Ints, lowest: int | None) -> None:
        super().__init__()
        self.lowest = lowest
        self._steps, self._kept = steps, kept

    def below(self, step: int | None = None) -> Usage:
        """Return the surviving progress of the steps numbered below ``step`` (None: of all)."""
        steps, kept = self._steps, self._kept
        if step is not None:
            kept = np.minimum(kept, np.maximum(step - steps.number, 0))
        tokens, flops = self._share(steps.tokens, kept), self._share(steps.flops, kept)
        return Usage(tokens=tokens, steps=total(kept), flops=flops)

    def _share(self, amounts: Ints, kept: Ints) -> int:
        """Return the part of each record's amount that belongs to its first ``kept`` steps.

        An amount is divided among the record's steps; the first steps get the remainder.
        """
        count = self._steps.count
        if (kept == count).all():
            return total(amounts)
        return total(kept * (amounts // count) + np.minimum(kept, amounts % count))


def replay(account: RunAccount, document: Mapping[str, Any] | None = None) -> History:
    """Return the history of an undamaged log; ``document`` is the content of ``budget.json``."""
    return history_of([spend_of(segment) for segment in account.shown()], document)


def spend_of(segment: SegmentAccount) -> ProcessSpend:
    """Return what one process used."""
    steps, work = segment.steps, segment.work
    closed, still_open = _clock_charges(segment)
    charged = _charged_ns(segment, closed)
    others = [*closed, *still_open]
    first_ns = int(steps.start[0] - steps.wait[0]) if segment.step_count else None
    return ProcessSpend(
        life=segment.life,
        surviving=_surviving(segment),
        executed=Usage(
            tokens=work.tokens,
            steps=work.steps,
            flops=work.flops,
            time_ns=total(charged),
            energy_mj=segment.energy_mj,
            comm_bytes=work.comm_bytes,
        ),
        periods=_periods(segment, charged, others),
        kept=[*segment.budget_events],
        first_step_ns=first_ns,
        before_steps_ns=spent_before(first_ns or 0, others),
    )


def _clock_charges(segment: SegmentAccount) -> tuple[list[ClockCharge], list[ClockCharge]]:
    """Return the charges of closed spans with a clock of their own, and of an open one.

    Of nested spans the outermost counts. An open one lasts to the last sign of life.
    """
    still_open = segment.open_spans(segment.life.last_sign_ns)
    found: tuple[list[ClockCharge], list[ClockCharge]] = ([], [])
    until_ns = 0
    for span in sorted([*segment.spans, *still_open], key=lambda span: span.order):
        clock = CLOCK_OF_SPAN.get(span.name)
        if clock is not None and span.begin_ns >= until_ns:
            charge = ClockCharge(clock, span.begin_ns, span.end_ns - span.begin_ns)
            found[span.order in segment.open].append(charge)
            until_ns = _LAST_INSTANT_NS if span.order in segment.open else span.end_ns
    return found


def _charged_ns(segment: SegmentAccount, closed: list[ClockCharge]) -> Ints:
    """Return the time that each step charges: without spans that have clocks of their own."""
    steps = segment.steps
    whole = steps.end - steps.start + steps.wait
    charged = whole.copy()
    for charge in closed:
        place = int(np.searchsorted(steps.end, charge.end_ns))
        if place < len(whole) and steps.end[place] == charge.end_ns:
            # A span around the step is closed after it; one inside it, before.
            place += charge.start_ns < steps.end[place] - whole[place]
        if place < len(whole):
            begun_ns = int(steps.end[place] - whole[place])
            overlap_ns = min(charge.end_ns, int(steps.end[place])) - max(charge.start_ns, begun_ns)
            charged[place] -= max(overlap_ns, 0)
    return charged


def _periods(segment: SegmentAccount, charged: Ints, others: list[ClockCharge]) -> list[Period]:
    """Return the nanoseconds by clock for each price."""
    end = segment.steps.end
    changes = [change.t_ns for change in (*segment.life.prices, *segment.life.slices)]
    periods = []
    for since_ns, until_ns in pairwise([0, *sorted(changes), _LAST_INSTANT_NS]):
        inside = np.minimum(end, until_ns) - np.maximum(end - charged, since_ns)
        period = Period(since_ns, {TRAINING: total(np.maximum(inside, 0))})
        for charge in others:
            part_ns = min(charge.end_ns, until_ns) - max(charge.start_ns, since_ns)
            if part_ns > 0:
                period.spent_ns[charge.clock] = period.spent(charge.clock) + part_ns
        periods.append(period)
    return periods


def _surviving(segment: SegmentAccount) -> SurvivingColumns:
    steps = segment.steps
    kept = steps.count
    if not segment.only_grows:
        undone = undone_steps(steps.number, steps.count, None, only_grows=False)
        kept = np.where(undone.contains(np.arange(len(kept))), 0, kept)
        for index, (survived, _) in undone.partly.items():
            kept[index] = survived
    return SurvivingColumns(steps, kept, segment.least_number)
