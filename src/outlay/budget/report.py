"""How a run's budget stands, and what another would mean for a run like it; read from logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import astuple

from outlay.budget import snapshots
from outlay.budget.dimensions import DIMENSIONS, EPOCHS
from outlay.budget.document import read_document
from outlay.budget.fold import budget_events
from outlay.budget.forecast import Forecast, forecast
from outlay.budget.history import read_history
from outlay.budget.limits import Bound, reached
from outlay.budget.measurable import unmeasured
from outlay.budget.terms import Budget
from outlay.budget.usage import ZERO, Usage
from outlay.errors import Finding, InvalidValue, NotARun
from outlay.goodput.follower import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReport:
    """A run's budget and what was used of it, all attempts and ranks.

    Attributes:
        stop_reason: Why the run stopped, as it recorded it; None where no limit stopped it.
        forecast: When a run that goes on will stop at its mean pace so far; an estimate.
        changes: How often the limits were changed on a resume.
        unmeasured: The totals whose zero says nothing, because nothing measured them.
        findings: What is wrong in the log, and what was assumed in its place.
    """

    budget: Budget
    used: Usage
    clocks_ns: dict[str, int]
    stop_reason: str | None
    forecast: Forecast | None
    changes: int
    unmeasured: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the report as JSON shows it: the keys of ``budget.json``, and what is left."""
        reason = reached(self.used, self.budget.bounds_known)
        document = snapshots.snapshot_of(self.budget, self.used, self.clocks_ns, reason)
        document["stop_reason"] = self.stop_reason
        document["remaining"] = snapshots.remaining_of(self.used, self.budget)
        document["changes"] = self.changes
        document["unmeasured"] = list(self.unmeasured)
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
    assert view.dir is not None
    try:
        return read_report(view.dir, view.timeline.end_ns)
    except InvalidValue:
        return None


def read_report(run_dir: Path, until_ns: int) -> BudgetReport:
    """Return how a run's budget stands at ``until_ns``.

    Raises:
        NotARun: There is no run log.
        InvalidValue: The run has no budget.
    """
    history = read_history(run_dir)
    if not history.spends:
        raise NotARun(str(run_dir))
    stated = history.stated
    if stated is None:
        raise InvalidValue("run", str(run_dir), "a run that was started with a budget")
    try:
        limits = {**stated["limits"], "steps_per_epoch": stated.get("steps_per_epoch")}
        budget = Budget.of(stated["mode"], limits, charge=stated.get("charge", "training"))
    except (KeyError, TypeError):
        expected = "a run whose log states a mode and its limits"
        raise InvalidValue("run", str(run_dir), expected) from None
    spend = history.spend(until_ns)
    used, events = spend.total(charge=budget.charge), budget_events(history.spends)
    stops = [event.data.get("text") for event in events if event.event == "stopped"]
    executed, training_ns = spend.executed, spend.executed.time_ns
    return BudgetReport(
        budget=budget,
        used=used,
        clocks_ns=spend.clocks_ns,
        stop_reason=stops[-1] if stops else None,
        forecast=None if stops else forecast(used, executed, training_ns, budget.bounds_known),
        changes=sum(event.event == "changed" for event in events),
        unmeasured=_unmeasured(run_dir, used),
        findings=tuple(history.findings),
    )


def _unmeasured(run_dir: Path, used: Usage) -> tuple[str, ...]:
    """Return the totals that nothing measured: of those that are zero, the ones the run named."""
    said = (read_document(run_dir) or {}).get("unmeasured")
    nothing = unmeasured(used)
    return tuple(name for name in nothing if not isinstance(said, list) or name in said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a budget means for a training like one that was measured; an estimate.

    Attributes:
        steps: How many steps the budget allows.
        use: What they use, each thing that was measured.
        measured_steps: How many steps that rests on.
        findings: What is wrong in the log they were read from.
    """

    bound: Bound
    steps: int
    use: Usage
    measured_steps: int
    findings: tuple[Finding, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the plan as JSON shows it."""
        return {
            "limit_key": self.bound.dimension.key,
            "steps": self.steps,
            "use": snapshots.totals_of(self.use, None),
            "measured_steps": self.measured_steps,
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
        return shown


def plan_from(run_dir: Path, budget: Budget, until_ns: int) -> Plan:
    """Return what a budget would mean for a run like this one, at its mean pace and price.

    Raises:
        NotARun: There is no run log.
        InvalidValue: Nothing was measured of what the budget limits.
    """
    history = read_history(run_dir)
    if not history.spends:
        raise NotARun(str(run_dir))
    measured = history.spend(until_ns).executed
    ahead = forecast(ZERO, measured, measured.time_ns, budget.bounds)
    if ahead is None:
        expected = f"a run that measured what {', '.join(budget.limits)} limits"
        raise InvalidValue("--from", str(run_dir), expected)
    scaled = (amount * ahead.steps_left // measured.steps for amount in astuple(measured))
    return Plan(
        bound=ahead.bound,
        steps=ahead.steps_left,
        use=Usage(*scaled),
        measured_steps=measured.steps,
        findings=tuple(history.findings),
    )
