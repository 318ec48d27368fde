"""One row per run: its figures, and the label of its configuration. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import msgspec

from outlay.account.columns import Work
from outlay.budget.limits import currency_in, total_key
from outlay.runs.figures import BY_NAME
from outlay.store.run_row import RunRow
from outlay.sweep.grid.parsing import Target, target_in
from outlay.sweep.state.manifest import ManifestRun
from outlay.sweep.state.outcomes import ON_PURPOSE, RunState
from outlay.units.quantity import MILLIJOULES_PER_WH

# The figures of one run, from a log or from CSV files; the cache holds them.


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One value of a metric: elapsed wall time since the run's start, step and epoch.

    ``paused_ns`` is the part of that time in which the run was paused.
    """

    value: float
    elapsed_ns: int | None = None
    step: int | None = None
    epoch: float | None = None
    paused_ns: int = 0


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a sweep compares of one run, over all attempts and ranks; None where unknown.

    Attributes:
        source: ``ledger`` or ``csv``.
        row: The run's figures, from its log; None without one.
        work: Of its lowest rank, repeated steps included.
        energy_mj: As in its CSV files.
        items: Samples (tokens where no samples were counted) over all ranks.
        metrics: The values of each metric, in recorded order.
        stop_reason: The limit that ended it, in words.
        trained: Whether the training itself recorded, not only its supervisor.
        phase_micros: The cost by phase.
        paused_ns: How long it was paused in all.
        problems: What is wrong in its CSV files.
    """

    source: str
    row: RunRow | None = None
    work: Work = Work()
    items: float = 0.0
    comm_bytes: int | None = None
    energy_mj: int | None = None
    flops: int | None = None
    fidelity_mean: float | None = None
    stop_reason: str = ""
    trained: bool = True
    metrics: dict[str, list[Seen]] = {}
    phase_micros: dict[str, int] = {}
    paused_ns: int = 0
    problems: list[str] = []

    @property
    def findings(self) -> list[str]:
        """What is wrong in its CSV files and in its log."""
        return self.problems + ([] if self.row is None else list(map(str, self.row.findings)))

    @property
    def unit(self) -> str:
        """The unit of its cost; costs of different units are never added or compared."""
        cost = None if self.row is None else self.row.cost
        return "" if cost is None else str(cost.unit)

    @property
    def busy_ns(self) -> int:
        """The total time of its steps, the wait for data included."""
        return self.work.step_ns + self.work.wait_ns

    @property
    def items_per_second(self) -> float | None:
        """Throughput: total items over total time, not a mean of rates."""
        return self.items / self.busy_ns * 1e9 if self.busy_ns and self.items else None

    @property
    def step_ms(self) -> float | None:
        """The mean time of a step."""
        steps = self.work.steps
        return self.busy_ns / steps / 1e6 if steps and self.busy_ns else None

    @property
    def bytes_per_step(self) -> float | None:
        """Mean payload of collectives per step."""
        steps = self.work.steps
        return self.comm_bytes / steps if steps and self.comm_bytes is not None else None

    @property
    def energy_wh(self) -> float | None:
        """Its energy, as in its CSV files, else as in its log."""
        if self.energy_mj is not None:
            return self.energy_mj / MILLIJOULES_PER_WH
        return None if self.row is None else BY_NAME["energy_Wh"].number(self.row)


def unit_of(currency: str | None, kind: str | None) -> str:
    """Return the unit of a cost: its currency, with the kind unless it is cash."""
    return f"{currency} {kind}" if kind not in (None, "", "cash") else currency or ""


# Labels of configurations: the runs that differ in seed alone share one.
#
# A label is short: the parameters that differ, and further differences only where those are equal.

_KEY_FIELDS: Final = ("group", "params", "metadata", "budget", "engine", "world_size", "nnodes")
"""The fields that distinguish configurations in manifests without a hash of them."""


def labels_of(runs: Sequence[ManifestRun]) -> list[str]:
    """Return the label of each run's configuration, in one line; equal only for seeds of one."""
    keys = [_key(run) for run in runs]
    firsts: dict[Hashable, ManifestRun] = {}
    for key, run in zip(keys, runs, strict=True):
        firsts.setdefault(key, run)
    labels = dict(zip(firsts, _distinct(list(firsts.values())), strict=True))
    return [labels[key] for key in keys]


def _key(run: ManifestRun) -> Hashable:
    """Return a key that is equal for the runs of one configuration."""
    if run.configuration:
        return run.configuration
    kept = {name: getattr(run, name) for name in _KEY_FIELDS} | {"params": _params(run)}
    return ("kept", json.dumps(kept, sort_keys=True, default=str))


def _params(run: ManifestRun) -> dict[str, Any]:
    return {name: value for name, value in run.params.items() if name != "seed"}


def _distinct(firsts: Sequence[ManifestRun]) -> list[str]:
    """Return a unique label for the first run of each configuration."""
    hidden = _shared(firsts)
    labels = [_named(run, hidden) for run in firsts]
    alike: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        alike.setdefault(label, []).append(place)
    for places in alike.values():
        for place, more in zip(places, _differences([firsts[p] for p in places]), strict=True):
            labels[place] += more
    # A user's own text may equal an added one. Ids are unique, so that this loop ends.
    while repeated := {label for label, count in Counter(labels).items() if count > 1}:
        for place, label in enumerate(labels):
            if label in repeated:
                labels[place] += f" ({firsts[place].id})"
    return labels


def _shared(firsts: Sequence[ManifestRun]) -> set[str]:
    """Return the parameters that are the same in all configurations, unless all of them are."""
    hidden = {"world_size"} if len({run.world_size for run in firsts}) == 1 else set()
    values: dict[str, list[str]] = {}
    for run in firsts:
        for name, value in _params(run).items():
            values.setdefault(name, []).append(json.dumps(value, sort_keys=True, default=str))
    same = {name for name, of_it in values.items() if of_it == of_it[:1] * len(firsts)}
    return hidden if not values.keys() - same - hidden else hidden | same


def _named(run: ManifestRun, hidden: Collection[str]) -> str:
    """Return a configuration's parameters; its group's name if it has none."""
    params = {name: value for name, value in _params(run).items() if name not in hidden}
    stated = ", ".join(f"{name}={_text(value)}" for name, value in params.items())
    return stated or run.group or run.id


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _differences(alike: Sequence[ManifestRun]) -> list[str]:
    """Return suffixes for equal labels: the first aspects that distinguish them."""
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
    """Return what describes a configuration besides its parameters, most specific first."""
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


# One row per run: the documented columns, and further ones from the log.

Cells = Mapping[str, Any]
"""The values of a row, by column."""
FIRST: Final = (
    "run_id", "status", "world_size", "ips_mean", "step_time_ms", "bytes_per_step",
    "accuracy_metric", "accuracy_value", "accuracy_best", "target_value", "time_to_target_min",
    "energy_Wh", "fidelity_mean", "planned_cost", "cost", "assumed_cost", "charged_cost",
    "currency", "cost_kind", "cost_beside", "goodput", "wall_minutes", "queue_minutes",
    "scheduling_goodput", "stop_reason", "errors", "configuration", "budget_mode",
)  # fmt: skip
TOTALS: Final = ("steps", "time_minutes", "tokens", "comm_bytes", "epochs", "flops")


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepRow(Cells):
    """A run in the summary: from its plan, its state and its figures, a value for each column.

    Attributes:
        totals: Those of its ``budget.json``.
        budget: All of that; its mode and limits count where the grid states none.
        problems: What a completed run lacks.
        label: Of its configuration.
    """

    run: ManifestRun
    state: RunState
    facts: RunFacts | None
    totals: Mapping[str, Any]
    budget: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    label: str = ""

    def __getitem__(self, column: str) -> Any:
        return self.cells[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    @cached_property
    def cells(self) -> dict[str, Any]:
        """Its values, by column."""
        run, facts, target = self.run, self.facts, self.target
        planned = run.planned_cost(self.state)
        cells: dict[str, Any] = {
            "run_id": run.id,
            "status": _shown_status(self.state.status),
            "world_size": run.world_size,
            "accuracy_metric": target.metric or None,
            "target_value": target.value,
            "errors": "; ".join(_errors(self)),
            "budget_mode": run.metadata.get("budget_mode") or self.budget.get("mode"),
            "planned_cost": None if planned is None else float(planned.amount),
            "charged_cost": self.totals.get(total_key(currency_in(run.limits))),
        } | _money(run, self.state, facts)
        if facts is not None:
            cells |= _figures(facts) | _metric(facts, target, self.totals)
        limits = run.limits or self.budget.get("limits")
        if isinstance(limits, Mapping):
            cells |= {f"limit_{key}": value for key, value in limits.items()}
        cells |= _totals(self)
        cells |= {f"param_{key}": value for key, value in run.params.items()}
        return cells | {"configuration": self.label}

    @property
    def completed(self) -> bool:
        """Whether the run completed."""
        return self.state.status == "completed"

    @property
    def target(self) -> Target:
        """The run's target metric."""
        return target_in(self.run.metadata)


def labelled(rows: Sequence[SweepRow]) -> tuple[SweepRow, ...]:
    """Return rows with the labels of their configurations."""
    labels = labels_of([row.run for row in rows])
    return tuple(replace(row, label=label) for row, label in zip(rows, labels, strict=True))


def _shown_status(status: str) -> str:
    """Return a status in the summary; what a search ended on purpose is no error."""
    return status if status in ("completed", *ON_PURPOSE) else "error"


def _errors(row: SweepRow) -> Iterable[str]:
    if not row.completed and row.state.status not in ON_PURPOSE:
        reason = row.state.reason
        yield f"{row.state.status}: {reason}" if reason else row.state.status
    yield from row.problems
    target, facts = row.target, row.facts
    if row.completed and target.metric and facts and target.metric not in facts.metrics:
        yield f"metric {target.metric!r} was not recorded"


def _figures(facts: RunFacts) -> dict[str, Any]:
    logged = facts.row
    cells: dict[str, Any] = {
        "ips_mean": facts.items_per_second,
        "step_time_ms": facts.step_ms,
        "bytes_per_step": facts.bytes_per_step,
        "energy_Wh": facts.energy_wh,
        "fidelity_mean": facts.fidelity_mean,
        "goodput": None if logged is None else logged.goodput,
        "wall_minutes": None if logged is None else logged.wall_ns / 60e9,
        "stop_reason": facts.stop_reason or None,
    }
    if logged is not None and logged.queue_ns is not None:
        cells["queue_minutes"] = logged.queue_ns / 60e9
        cells["scheduling_goodput"] = BY_NAME["scheduling_goodput"].number(logged)
    if logged is not None and logged.cost is not None:
        cells["assumed_cost"] = BY_NAME["assumed"].number(logged) or 0.0
    if logged is not None and logged.cost_beside:
        cells["cost_beside"] = BY_NAME["cost_beside"].cell(logged)
    return cells


def _money(run: ManifestRun, state: RunState, facts: RunFacts | None) -> dict[str, Any]:
    """Return the captured cost of a run; while it runs, the cost in its log."""
    known = state.logged_micros is not None and state.status != "running"
    logged = None if facts is None else facts.row
    if logged is not None and logged.cost is not None and not known:
        cost = BY_NAME["cost"].number(logged)
        return {"cost": cost, "currency": logged.cost.currency, "cost_kind": logged.kind}
    if state.cost_micros is None:
        return {"cost": None, "currency": state.currency or None, "cost_kind": None}
    kind = run.kind_of_cost(state)
    return {"cost": state.cost_micros / 1e6, "currency": state.currency, "cost_kind": kind}


def _metric(facts: RunFacts, target: Target, totals: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metric's last and best value, and when it reached its target."""
    seen = in_time(facts.metrics.get(target.metric, ()))
    if not seen:
        return {}
    first = next((one for one in seen if target.reached_by(one.value)), None)
    best = max if target.more_is_better else min
    return {
        "accuracy_value": seen[-1].value,
        "accuracy_best": best(one.value for one in seen),
        "time_to_target_min": None if first is None else minutes_of(first, facts, totals),
    }


def in_time(seen: Sequence[Seen]) -> list[Seen]:
    """Return values sorted by time, else by step, else by epoch, else in recorded order."""

    def order(one: Seen) -> tuple[float, float, float]:
        known = (one.elapsed_ns, one.step, one.epoch)
        return tuple(-1 if value is None else value for value in known)  # type: ignore[return-value]

    return sorted(seen, key=order)


def minutes_of(one: Seen, facts: RunFacts, totals: Mapping[str, Any]) -> float | None:
    """Return the elapsed minutes at a value.

    Without a recorded time, the steps (an epoch being ``steps_per_epoch``), counted from 0, times
    the mean step time.
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


def _totals(row: SweepRow) -> dict[str, Any]:
    """Return what the run used: as its ``budget.json`` states, else from its figures."""
    stated, facts = dict(row.totals), row.facts
    if not stated.get("steps_per_epoch"):
        stated["epochs"] = None  # Without its length, the stated number is no count.
    if facts is None:
        return {name: stated.get(name) for name in TOTALS}
    measured = {
        "steps": facts.work.steps or None,
        "time_minutes": facts.busy_ns / 60e9 if facts.busy_ns else None,
        "tokens": facts.row.tokens or None if facts.row else None,
        "comm_bytes": facts.comm_bytes,
        "epochs": None,
        "flops": facts.flops,
    }
    return {name: stated[name] if name in stated else measured[name] for name in TOTALS}


def columns_of(rows: Iterable[Cells]) -> list[str]:
    """Return all columns of rows, in the documented order, parameters last."""
    names = dict.fromkeys(name for row in rows for name in row)
    limits = [name for name in names if name.startswith("limit_")]
    params = [name for name in names if name.startswith("param_")]
    known = {*FIRST, *TOTALS, *limits, *params}
    rest = [name for name in names if name not in known]
    return [*FIRST, *limits, *TOTALS, *rest, *params]
