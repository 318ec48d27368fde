"""How a run's budget stands, and what another would mean for a run like it; read from logs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low
from typing import Any

from msgspec.structs import astuple, replace

from outlay.budget import statements as snapshots
from outlay.budget.display import read_document
from outlay.budget.fold import RunSpend, budget_events
from outlay.budget.history import History, read_history, replay
from outlay.budget.limits import (
    COST,
    DIMENSIONS,
    EPOCHS,
    TIME,
    Bound,
    Forecast,
    StartUp,
    forecast,
    reached,
)
from outlay.budget.measurements import unmeasured
from outlay.budget.terms import Budget
from outlay.budget.usage import ZERO, CostParts, Usage
from outlay.errors import Finding, InvalidValue
from outlay.goodput.follower import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReport:
    """A run's budget and what was used of it, all attempts and ranks.

    Attributes:
        stop_reason: Why the run stopped, as it recorded it; None where no limit stopped it.
        forecast: When a run that goes on will stop at its mean pace so far; an estimate.
        changes: How often the limits were changed on a resume.
        unmeasured: The totals whose zero says nothing, because nothing measured them.
        cost: What the run cost, part by part; None where it has no price that counts.
        findings: What is wrong in the log, and what was assumed in its place.
    """

    budget: Budget
    used: Usage
    clocks_ns: dict[str, int]
    stop_reason: str | None
    forecast: Forecast | None
    changes: int
    unmeasured: tuple[str, ...] = ()
    cost: CostParts | None = None
    findings: tuple[Finding, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the report as JSON shows it: the keys of ``budget.json``, and what is left."""
        reason = reached(self.used, self.budget.bounds_known)
        document = snapshots.snapshot_of(self.budget, self.used, self.clocks_ns, reason)
        document["stop_reason"] = self.stop_reason
        document["remaining"] = snapshots.remaining_of(self.used, self.budget)
        document["changes"] = self.changes
        document["unmeasured"] = list(self.unmeasured)
        cost, charge = self.cost, self.budget.charge_cost
        document["cost"] = None if cost is None else cost.document(charge)
        document["forecast"] = None if self.forecast is None else forecast_document(self.forecast)
        document["findings"] = [str(finding) for finding in self.findings]
        return document


def forecast_document(ahead: Forecast) -> dict[str, Any]:
    """Return a forecast as JSON shows it."""
    return {
        "limit_key": ahead.bound.dimension.key,
        "steps_left": ahead.steps_left,
        "seconds_left": ahead.time_left_ns / 1e9,
        "at_step": ahead.at_step,
        "basis": "estimated",
    }


def budget_report(view: RunView) -> BudgetReport | None:
    """Return how a run's budget stands; None where it was started without one."""
    history = _history(view)
    if history.stated is None:
        return None
    budget = Budget.stated_in(history.stated)
    spend = history.spend(view.timeline.end_ns)
    used = spend.total(charge=budget.charge, charge_cost=budget.charge_cost)
    events = budget_events(history.spends)
    stops = [event.data.get("text") for event in events if event.event == "stopped"]
    executed, training_ns = spend.executed, spend.executed.time_ns
    return BudgetReport(
        budget=budget,
        used=used,
        clocks_ns=spend.clocks_ns,
        stop_reason=stops[-1] if stops else None,
        forecast=None if stops else forecast(used, executed, training_ns, budget.bounds_known),
        changes=sum(event.event == "changed" for event in events),
        unmeasured=_unmeasured(view, used),
        cost=spend.parts if spend.parts.total else None,
        findings=tuple(history.findings),
    )


def _history(view: RunView) -> History:
    """Return what a run's log says about its budget.

    A damaged log is read again, record by record: there what is missing is assumed.
    """
    if view.is_damaged and view.dir is not None:
        return read_history(view.dir)
    return replay(view.account)


def _unmeasured(view: RunView, used: Usage) -> tuple[str, ...]:
    """Return the totals that nothing measured: of those that are zero, the ones the run named."""
    said = (read_document(view.dir) or {} if view.dir is not None else {}).get("unmeasured")
    nothing = unmeasured(used)
    return tuple(name for name in nothing if not isinstance(said, list) or name in said)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """What a budget means for a training like one that was measured; an estimate.

    Attributes:
        steps: How many steps the budget allows.
        use: What they use, each thing that was measured; its cost with one start-up.
        measured_steps: How many steps that rests on.
        start_up: What it takes to start; None where that is unknown.
        findings: What is wrong in the log they were read from, and what is doubtful in the plan.
    """

    bound: Bound
    steps: int
    use: Usage
    measured_steps: int
    start_up: StartUp | None = None
    findings: tuple[Finding, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the plan as JSON shows it."""
        return {
            "limit_key": self.bound.dimension.key,
            "steps": self.steps,
            "use": snapshots.totals_of(self.use, None),
            "measured_steps": self.measured_steps,
            "start_up": None if self.start_up is None else start_up_document(self.start_up),
            "basis": "estimated",
            "findings": [str(finding) for finding in self.findings],
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return what the budget means, as people read it."""
        shown = [("steps", f"{self.steps:,}")]
        for dimension in DIMENSIONS:
            amount = getattr(self.use, dimension.name)
            if dimension is not EPOCHS and amount:
                shown.append((dimension.label, dimension.text(amount)))
        start_up = "unknown" if self.start_up is None else TIME.text(self.start_up.ns)
        return [*shown, ("start-up", start_up)]


def start_up_document(start_up: StartUp) -> dict[str, Any]:
    """Return what a start takes as JSON shows it."""
    return {
        "seconds": start_up.ns / 1e9,
        "cost_usd": COST.number(start_up.units),
        "attempts": start_up.attempts,
    }


def plan_from(view: RunView, budget: Budget) -> BudgetPlan:
    """Return what a budget would mean for a run like this one, at its mean pace and price.

    Raises:
        InvalidValue: Nothing was measured of what the budget limits.
    """
    history = _history(view)
    spend = history.spend(view.timeline.end_ns)
    start_up, pace_units = _start_up(spend), spend.parts.charged(budget.charge_cost)
    once = ZERO
    if start_up is not None and budget.charge_cost == "all":
        # Start-ups are paid once, not at every step; nobody foresees being down.
        pace_units -= spend.parts.start_up + spend.parts.down
        once = Usage(cost_units=start_up.units)
    measured = replace(spend.executed, cost_units=pace_units)
    ahead = forecast(once, measured, measured.time_ns, budget.bounds)
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
        findings=(*history.findings, *doubts),
    )


def _start_up(spend: RunSpend) -> StartUp | None:
    times_ns = spend.start_ups_ns
    if not times_ns:
        return None
    units = spend.parts.start_up // len(spend.attempts)
    return StartUp(ns=median_low(times_ns), units=units, attempts=len(times_ns))
