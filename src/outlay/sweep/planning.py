"""A grid becomes a plan: its axes multiplied, its runs named, checked and priced. Pure.

The same grid gives the same plan, byte for byte.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from outlay.budget.dimensions import COST, MODES
from outlay.budget.limits import TENTH, StartUp
from outlay.errors import Finding, InvalidValue, choices
from outlay.sweep.arguments import AMP_DTYPES, AMP_VARIABLE, overrides, placeholders
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.fingerprints import told_apart
from outlay.sweep.grid import Entry, Grid, Settings
from outlay.sweep.plan import Plan, PlannedRun
from outlay.sweep.prediction import Prediction, predict, start_up_share

MOST_RUNS: Final = 100_000
"""How many runs a sweep may have: a manifest of more would not be read in reasonable time."""
RUN_PLACEHOLDERS: Final = ("run_dir", "run_id")


def make_plan(grid: Grid, start_up: StartUp | None = None) -> Plan:
    """Return the plan of a grid.

    Args:
        grid: What is to be run.
        start_up: What earlier runs of the program took to start; None where nothing is known.

    Raises:
        InvalidGrid: A parameter, placeholder or exclusion cannot be used; names all of them.
    """
    findings = [finding for entry in grid.entries for finding in _problems(entry, grid.source)]
    combined = sum(map(_combined, grid.entries))
    if combined > MOST_RUNS:
        line = max(grid.entries, key=_combined).line
        message = f"its axes multiply to {combined:,} runs; a sweep has at most {MOST_RUNS:,}"
        findings.append(Finding(source=grid.source, line=line, message=message))
    if findings:
        raise InvalidGrid(findings)
    runs: list[PlannedRun] = []
    for entry in grid.entries:
        combinations = list(_combinations(entry))
        metadata = {**entry.settings.metadata, **_budget_metadata(entry.settings)}
        for combo, params in enumerate(combinations, start=1):
            suffix = f"_{combo:02d}" if len(combinations) > 1 else ""
            name = f"{len(runs) + 1:03d}_{_slug(entry.name)}{suffix}"
            run = _planned(grid, entry, name, params, metadata)
            ns = None if start_up is None else start_up.ns
            runs.append(replace(run, prediction=predict(entry.settings, run.charged_gpus, ns)))
    if not runs:
        raise InvalidGrid(
            [Finding(source=grid.source, line=1, message="`exclude` leaves out every run")]
        )
    warnings = [warning for entry in grid.entries for warning in _doubts(entry, grid.source)]
    warnings += _slow_starts(runs, grid.source)
    told = tuple(told_apart(grid, runs))
    return Plan(grid=grid, runs=told, warnings=tuple(warnings), start_up=start_up)


def _slow_starts(runs: Sequence[PlannedRun], source: str) -> Iterator[Finding]:
    """Yield the groups whose runs take more than a tenth of a budget to start, each once."""
    shares: dict[str, float] = {}
    for run in runs:
        if run.prediction.start_up_ns is not None:
            share = start_up_share(run.settings, run.most_gpus, run.prediction.start_up_ns)
            shares[run.group] = max(share, shares.get(run.group, 0.0))
    for group, share in shares.items():
        if share > 1 / TENTH:
            message = f"{group}: starting takes {share:.0%} of a budget, judged by earlier runs"
            yield Finding(source=source, message=message, severity="warning")


def _combined(entry: Entry) -> int:
    """Return how many runs an entry's axes multiply to, those left out included."""
    counts = [len(values) for values in entry.axes.values()]
    return math.prod([*counts, len(entry.settings.seeds) or 1])


def _slug(name: str) -> str:
    """Return a name as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9_-]", "", name.replace(" ", "-")) or "run"


def _combinations(entry: Entry) -> Iterator[Mapping[str, Any]]:
    """Yield the Cartesian product of the axes, the last fastest, without what is excluded."""
    axes = dict(entry.axes)
    if entry.settings.seeds:
        axes["seed"] = entry.settings.seeds
    for values in itertools.product(*axes.values()):
        params = dict(zip(axes, values, strict=True))
        if not any(_matches(params, excluded) for excluded in entry.settings.exclude):
            yield params


def _matches(params: Mapping[str, Any], excluded: Mapping[str, tuple[Any, ...]]) -> bool:
    return all(
        name in params and any(_same(params[name], value) for value in values)
        for name, values in excluded.items()
    )


def _same(one: object, other: object) -> bool:
    # In Python True equals 1; in a grid they are different values.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _planned(
    grid: Grid, entry: Entry, name: str, params: Mapping[str, Any], metadata: Mapping[str, Any]
) -> PlannedRun:
    settings = entry.settings
    env = dict(settings.env)
    if "amp_dtype" in params:
        env[AMP_VARIABLE] = params["amp_dtype"]
    return PlannedRun(
        id=name,
        group=entry.name,
        params=params,
        overrides=overrides(settings.overrides, params, grid.aliases),
        world_size=params.get("world_size", 1),
        env=env,
        metadata=metadata,
        settings=settings,
        prediction=Prediction(),
    )


def _budget_metadata(settings: Settings) -> dict[str, Any]:
    budget, target = settings.budget, settings.target
    about: dict[str, Any] = {}
    if budget is not None:
        key = MODES[budget.mode].key
        about |= {"budget_mode": budget.mode, "budget_limit_key": key}
        about["budget_limit_value"] = budget.limits[key]
    if target.metric:
        about |= {"target_metric": target.metric, "target_value": target.value}
        about["target_direction"] = target.direction
    return about


def _problems(entry: Entry, source: str) -> Iterator[Finding]:
    for message in _messages(entry):
        yield Finding(source=source, line=entry.line, message=message)


def _messages(entry: Entry) -> Iterator[str]:
    settings = entry.settings
    for value in entry.axes.get("amp_dtype", ()):
        if value not in AMP_DTYPES:
            yield str(InvalidValue("amp_dtype", value, choices(AMP_DTYPES)))
    price, limits = settings.price, {} if settings.budget is None else settings.budget.limits
    if price is not None and price.currency != "USD" and COST.key in limits:
        yield f"{COST.key} is in USD, and the price in {price.currency}; state both in USD"
    known = {*entry.axes, *RUN_PLACEHOLDERS} | ({"seed"} if settings.seeds else set())
    for name in sorted(placeholders(settings.entrypoint) - known):
        yield f"the command has {{{name}}}, which is no parameter; expected {choices(known)}"


def _doubts(entry: Entry, source: str) -> Iterator[Finding]:
    """Yield what may be meant, and probably is not."""
    settings = entry.settings
    several = str(settings.nnodes or 1) != "1"
    if several and settings.engine == "torchrun" and not settings.rendezvous.get("endpoint"):
        message = (
            f"{entry.name}: several nodes and no rendezvous endpoint; every node needs the same "
            "MASTER_ADDR and MASTER_PORT in `env`"
        )
        yield Finding(source=source, line=entry.line, message=message, severity="warning")
    names = {*entry.axes, "seed"}
    for excluded in settings.exclude:
        for name in sorted(excluded.keys() - names):
            message = f"{entry.name}: `exclude` names {name!r}, which is no parameter here"
            yield Finding(source=source, line=entry.line, message=message, severity="warning")
