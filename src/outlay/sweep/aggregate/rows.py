"""One row per run: what it got for its budget, under which configuration. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from outlay.budget.limits import currency_in, total_key
from outlay.ledger.price import Kind
from outlay.sweep.grid.reading import Target, usual_direction
from outlay.sweep.state.manifest import ManifestRun
from outlay.sweep.state.outcomes import RunState
from outlay.units.quantity import MILLIJOULES_PER_WH

# What one run got for its budget, whatever it was read from; and its place in a cache.


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One value of the metric: after how much of the run's real time, and at which step."""

    value: float
    elapsed_ns: int | None = None
    step: int | None = None
    epoch: float | None = None


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of one run, all attempts and ranks; None where nothing says.

    Attributes:
        source: ``ledger`` or ``csv``.
        steps: Steps that were executed, repeated ones included.
        step_ns: Their time together, the wait for data included.
        items: Samples (tokens where no samples were counted) over all ranks.
        metrics: The values of each metric, in the order in which they came.
        kind: Of the cost: ``cash``, or ``showback``; the two are never added.
        phases: Wall time by phase.
        stop_reason: Which limit ended it, in words.
        trained: Whether the training itself recorded; otherwise its supervisor alone did.
    """

    source: str
    steps: int = 0
    step_ns: int = 0
    items: float = 0.0
    tokens: int | None = None
    comm_bytes: int | None = None
    energy_mj: int | None = None
    flops: int | None = None
    fidelity_mean: float | None = None
    cost_micros: int | None = None
    assumed_micros: int = 0
    currency: str = ""
    kind: Kind = "cash"
    goodput: float | None = None
    wall_ns: int | None = None
    started_ns: int | None = None
    attempts: int = 1
    stop_reason: str = ""
    trained: bool = True
    metrics: dict[str, list[Seen]] = {}
    phases: dict[str, int] = {}
    phase_micros: dict[str, int] = {}
    assumptions: list[str] = []
    findings: list[str] = []

    @property
    def unit(self) -> str:
        """What its cost is counted in, and shares no sum and no axis with another."""
        return unit_of(self.currency, self.kind)

    @property
    def items_per_second(self) -> float | None:
        """Throughput: everything over all the time, never a mean of rates."""
        return self.items / self.step_ns * 1e9 if self.step_ns and self.items else None

    @property
    def step_ms(self) -> float | None:
        """The mean time of a step."""
        return self.step_ns / self.steps / 1e6 if self.steps and self.step_ns else None

    @property
    def bytes_per_step(self) -> float | None:
        """The mean of what collectives moved in a step."""
        return self.comm_bytes / self.steps if self.steps and self.comm_bytes is not None else None


def unit_of(currency: str | None, kind: str | None) -> str:
    """Return what a cost is counted in: a currency, with the kind of what is not paid in cash."""
    return f"{currency} {kind}" if kind not in (None, "", "cash") else currency or ""


# Configurations of a sweep: which runs differ in their seed alone, and what they are called.
#
# A name says as little as it can: the parameters, and what else differs only where those are
# equal.

_OTHERWISE: Final = ("group", "params", "metadata", "budget", "engine", "world_size", "nnodes")
"""What tells configurations apart in manifests that keep no hash of them."""


def labels_of(runs: Sequence[ManifestRun]) -> list[str]:
    """Return each run's configuration as one line: the same for two runs that differ in seed alone.

    Different configurations have different lines.
    """
    keys = [_key(run) for run in runs]
    firsts: dict[Hashable, ManifestRun] = {}
    for key, run in zip(keys, runs, strict=True):
        firsts.setdefault(key, run)
    labels = dict(zip(firsts, _distinct(list(firsts.values())), strict=True))
    return [labels[key] for key in keys]


def _key(run: ManifestRun) -> Hashable:
    """Return what only the runs of one configuration have in common."""
    if run.configuration:
        return run.configuration
    kept = {name: getattr(run, name) for name in _OTHERWISE} | {"params": _params(run)}
    return ("kept", json.dumps(kept, sort_keys=True, default=str))


def _params(run: ManifestRun) -> dict[str, Any]:
    return {name: value for name, value in run.params.items() if name != "seed"}


def _distinct(firsts: Sequence[ManifestRun]) -> list[str]:
    """Return a line for the first run of each configuration, no two alike."""
    sizes = {run.world_size for run in firsts}
    hidden = () if len(sizes) > 1 else ("world_size",)
    labels = [_named(run, hidden) for run in firsts]
    alike: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        alike.setdefault(label, []).append(place)
    for places in alike.values():
        for place, more in zip(places, _differences([firsts[p] for p in places]), strict=True):
            labels[place] += more
    # A user's own words may look like what was added. Ids differ, so that this comes to an end.
    while repeated := {label for label, count in Counter(labels).items() if count > 1}:
        for place, label in enumerate(labels):
            if label in repeated:
                labels[place] += f" ({firsts[place].id})"
    return labels


def _named(run: ManifestRun, hidden: Sequence[str]) -> str:
    """Return a configuration's parameters as one line; without any, its group's name."""
    params = {name: value for name, value in _params(run).items() if name not in hidden}
    stated = ", ".join(f"{name}={_text(value)}" for name, value in params.items())
    return stated or run.group or run.id


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _differences(alike: Sequence[ManifestRun]) -> list[str]:
    """Return what to add to names that are alike: the first things that tell them apart."""
    every = [_aspects(run) for run in alike]
    chosen: list[str] = []
    for aspect in dict.fromkeys(name for aspects in every for name in aspects):
        if len(set(_added(every, chosen))) == len(alike):
            break
        if len({aspects.get(aspect) for aspects in every}) > 1:
            chosen.append(aspect)
    return _added(every, chosen)


def _added(every: Sequence[Mapping[str, str]], chosen: Sequence[str]) -> list[str]:
    shown = [[aspects[name] for name in chosen if name in aspects] for aspects in every]
    return [f" ({', '.join(texts)})" if texts else "" for texts in shown]


def _aspects(run: ManifestRun) -> dict[str, str]:
    """Return what is known of a configuration besides its parameters, the most specific first."""
    stated = run.stated or {}
    named = {
        "env": stated.get("env", {}),
        "budget": run.limits,
        "metadata": run.metadata,
        "place": {name: getattr(run, name) for name in ("engine", "nnodes", "gpu", "price")},
    }
    aspects = {"group": run.group or ""}
    aspects |= {f"override {text}": text for text in stated.get("overrides", ())}
    aspects |= {
        f"{kind} {name}": f"{name}={_text(value)}"
        for kind, values in named.items()
        for name, value in values.items()
        if value not in (None, "")
    }
    aspects["entrypoint"] = " ".join(stated.get("entrypoint", ()))
    return {name: text for name, text in aspects.items() if text}


# One row per run: the documented columns, and what the ledger knows beyond them.

Row = dict[str, Any]
FIRST: Final = (
    "run_id", "status", "world_size", "ips_mean", "step_time_ms", "bytes_per_step",
    "accuracy_metric", "accuracy_value", "accuracy_best", "target_value", "time_to_target_min",
    "energy_Wh", "fidelity_mean", "planned_cost", "cost", "assumed_cost", "charged_cost",
    "currency", "cost_kind", "goodput", "wall_minutes", "stop_reason", "errors", "configuration",
    "budget_mode",
)  # fmt: skip
TOTALS: Final = ("steps", "time_minutes", "tokens", "comm_bytes", "epochs", "flops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A run to be summarised: what the manifest says of it, how it stands, and its figures."""

    run: ManifestRun
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
        about = self.run.metadata
        metric = str(about.get("target_metric") or "")
        direction = about.get("target_direction") or usual_direction(metric)
        return Target(metric=metric, value=about.get("target_value"), direction=direction)


def rows_of(subjects: Sequence[Subject]) -> tuple[Row, ...]:
    """Return the summary of every run; those of one configuration say so in ``configuration``."""
    labels = labels_of([subject.run for subject in subjects])
    return tuple(
        _row(subject) | {"configuration": label}
        for subject, label in zip(subjects, labels, strict=True)
    )


def _row(subject: Subject) -> Row:
    """Return the summary of one run by itself; whatever is not known is None."""
    run, facts, target, planned = (
        subject.run,
        subject.facts,
        subject.target,
        subject.run.planned_cost,
    )
    row: Row = {
        "run_id": run.id,
        "status": "completed" if subject.completed else "error",
        "world_size": run.world_size,
        "accuracy_metric": target.metric or None,
        "target_value": target.value,
        "errors": "; ".join(_errors(subject)),
        "budget_mode": run.metadata.get("budget_mode"),
        "planned_cost": None if planned is None else float(planned.amount),
        "charged_cost": subject.totals.get(total_key(currency_in(run.limits))),
    } | _money(run, subject.state, facts)
    if facts is not None:
        row |= _figures(facts) | _metric(facts, target, subject.totals)
    row |= {f"limit_{key}": value for key, value in run.limits.items()}
    row |= _totals(subject)
    row |= {f"param_{key}": value for key, value in run.params.items()}
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
    if facts.cost_micros is not None:
        row["assumed_cost"] = facts.assumed_micros / 1e6
    return row


def _money(run: ManifestRun, state: RunState, facts: RunFacts | None) -> Row:
    """Return what a run cost, as it was captured; of one that still runs, what its log says."""
    known = state.logged_micros is not None and state.status != "running"
    if facts is not None and facts.cost_micros is not None and not known:
        cost = facts.cost_micros / 1e6
        return {"cost": cost, "currency": facts.currency, "cost_kind": facts.kind}
    if state.cost_micros is None:
        return {"cost": None, "currency": state.currency or None, "cost_kind": None}
    kind = run.kind_of_cost(state)
    return {"cost": state.cost_micros / 1e6, "currency": state.currency, "cost_kind": kind}


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


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return every column that a row has, in the documented order, parameters last."""
    names = dict.fromkeys(name for row in rows for name in row)
    limits = [name for name in names if name.startswith("limit_")]
    params = [name for name in names if name.startswith("param_")]
    known = {*FIRST, *TOTALS, *limits, *params}
    rest = [name for name in names if name not in known]
    return [*FIRST, *limits, *TOTALS, *rest, *params]
