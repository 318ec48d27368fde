"""One row per run: the documented columns, and what the ledger knows beyond them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from outlay.sweep.aggregate.configurations import labels_of
from outlay.sweep.aggregate.facts import RunFacts, Seen
from outlay.sweep.states import RunState
from outlay.sweep.targets import Target, usual_direction
from outlay.units import Money
from outlay.units.quantity import MILLIJOULES_PER_WH

Row = dict[str, Any]
FIRST: Final = (
    "run_id", "status", "world_size", "ips_mean", "step_time_ms", "bytes_per_step",
    "accuracy_metric", "accuracy_value", "accuracy_best", "target_value", "time_to_target_min",
    "energy_Wh", "fidelity_mean", "planned_cost", "cost", "charged_cost", "currency", "goodput",
    "wall_minutes", "stop_reason", "errors", "configuration", "budget_mode",
)  # fmt: skip
TOTALS: Final = ("steps", "time_minutes", "tokens", "comm_bytes", "epochs", "flops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A run to be summarised: what the manifest says of it, how it stands, and its figures."""

    static: Mapping[str, Any]
    state: RunState
    facts: RunFacts | None
    totals: Mapping[str, Any]
    problems: tuple[str, ...] = ()

    @property
    def completed(self) -> bool:
        """Whether the run is done."""
        return self.state.status == "completed"

    @property
    def target(self) -> Target:
        """What the run is judged by."""
        about = self.static.get("metadata", {})
        metric = str(about.get("target_metric") or "")
        direction = about.get("target_direction") or usual_direction(metric)
        return Target(metric=metric, value=about.get("target_value"), direction=direction)


def rows_of(subjects: Sequence[Subject]) -> tuple[Row, ...]:
    """Return the summary of every run; those of one configuration say so in ``configuration``."""
    labels = labels_of([subject.static for subject in subjects])
    return tuple(
        _row(subject) | {"configuration": label}
        for subject, label in zip(subjects, labels, strict=True)
    )


def _row(subject: Subject) -> Row:
    """Return the summary of one run by itself; whatever is not known is None."""
    static, state, facts = subject.static, subject.state, subject.facts
    about, target = static.get("metadata", {}), subject.target
    row: Row = {
        "run_id": static["id"],
        "status": "completed" if subject.completed else "error",
        "world_size": static.get("world_size"),
        "accuracy_metric": target.metric or None,
        "target_value": target.value,
        "errors": "; ".join(_errors(subject)),
        "budget_mode": about.get("budget_mode"),
        "planned_cost": _planned(static),
        "charged_cost": subject.totals.get("cost_usd"),
    } | _money(state, facts)
    if facts is not None:
        row |= _figures(facts) | _metric(facts, target, subject.totals)
    limits = (static.get("budget") or {}).get("limits", {})
    row |= {f"limit_{key}": value for key, value in limits.items()}
    row |= _totals(subject)
    row |= {f"param_{key}": value for key, value in static.get("params", {}).items()}
    return row


def _errors(subject: Subject) -> Iterable[str]:
    if not subject.completed:
        reason = subject.state.reason
        yield f"{subject.state.status}: {reason}" if reason else subject.state.status
    yield from subject.problems
    target, facts = subject.target, subject.facts
    if subject.completed and target.metric and facts and target.metric not in facts.metrics:
        yield f"metric {target.metric!r} was not recorded"


def _figures(facts: RunFacts) -> Row:
    row: Row = {
        "ips_mean": facts.items_per_second,
        "step_time_ms": facts.step_ms,
        "bytes_per_step": facts.bytes_per_step,
        "energy_Wh": None if facts.energy_mj is None else facts.energy_mj / MILLIJOULES_PER_WH,
        "fidelity_mean": facts.fidelity_mean,
        "goodput": facts.goodput,
        "wall_minutes": None if facts.wall_ns is None else facts.wall_ns / 60e9,
        "stop_reason": facts.stop_reason or None,
    }
    return row


def _money(state: RunState, facts: RunFacts | None) -> Row:
    """Return what a run cost, as it was captured; of one that goes on, what its log says so far."""
    known = state.logged_micros is not None and state.status != "running"
    if facts is not None and facts.cost_micros is not None and not known:
        return {"cost": facts.cost_micros / 1e6, "currency": facts.currency}
    cost = None if state.cost_micros is None else state.cost_micros / 1e6
    return {"cost": cost, "currency": state.currency or None}


def _planned(static: Mapping[str, Any]) -> float | None:
    text = static.get("predicted_cost")
    return float(Money.parse(text, name="predicted_cost").amount) if text else None


def _metric(facts: RunFacts, target: Target, totals: Mapping[str, Any]) -> Row:
    """Return the metric's last and best value, and when it reached its target."""
    seen = in_time(facts.metrics.get(target.metric, ()))
    if not seen:
        return {}
    best = seen[0].value
    for one in seen:
        best = one.value if target.better(one.value, best) else best
    first = next((one for one in seen if target.reached_by(one.value)), None)
    reached = None if first is None else minutes_of(first, facts, totals)
    return {
        "accuracy_value": seen[-1].value,
        "accuracy_best": best,
        "time_to_target_min": reached,
    }


def in_time(seen: Sequence[Seen]) -> list[Seen]:
    """Return values in the order of time, else of steps, else of epochs, else as they came."""

    def order(one: Seen) -> tuple[float, float, float]:
        known = (one.elapsed_ns, one.step, one.epoch)
        return tuple(-1 if value is None else value for value in known)  # type: ignore[return-value]

    return sorted(seen, key=order)


def minutes_of(one: Seen, facts: RunFacts, totals: Mapping[str, Any]) -> float | None:
    """Return after how many minutes a value was seen; an epoch is so many steps, not one.

    Where no clock was read, steps are counted from 0 and each takes the mean time of a step.
    """
    if one.elapsed_ns is not None:
        return one.elapsed_ns / 60e9
    step_ms = facts.step_ms
    if step_ms is None:
        return None
    if one.step is not None:
        return (one.step + 1) * step_ms / 60e3
    per_epoch = totals.get("steps_per_epoch")
    if one.epoch is not None and per_epoch:
        return (one.epoch + 1) * float(per_epoch) * step_ms / 60e3
    return None


def _totals(subject: Subject) -> Row:
    """Return what was used of the budget: as the run wrote it, else as its figures have it."""
    stated, facts = dict(subject.totals), subject.facts
    if not stated.get("steps_per_epoch"):
        stated["epochs"] = None  # Nobody said how long one is; what was written is no count.
    if facts is None:
        return {name: stated.get(name) for name in TOTALS}
    measured: Row = {
        "steps": facts.steps or None,
        "time_minutes": facts.step_ns / 60e9 if facts.step_ns else None,
        "tokens": facts.tokens,
        "comm_bytes": facts.comm_bytes,
        "epochs": None,
        "flops": facts.flops,
    }
    return {name: stated[name] if name in stated else measured[name] for name in TOTALS}


def exact_money(column: str, value: Any) -> Any:
    """Return a cell for people: amounts to the micro-unit, so that they can be added up by eye."""
    if column.endswith("cost") and isinstance(value, float):
        return f"{value:,.6f}"
    return value


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return every column that a row has, in the documented order, parameters last."""
    names = dict.fromkeys(name for row in rows for name in row)
    limits = [name for name in names if name.startswith("limit_")]
    params = [name for name in names if name.startswith("param_")]
    known = {*FIRST, *TOTALS, *limits, *params}
    rest = [name for name in names if name not in known]
    return [*FIRST, *limits, *TOTALS, *rest, *params]
