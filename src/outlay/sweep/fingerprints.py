"""What tells runs apart: a hash of what each computes, and one of what its seeds share. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from outlay.sweep.arguments import overrides
from outlay.sweep.grid import Grid
from outlay.sweep.plan import PlannedRun
from outlay.sweep.redaction import is_secret_name


def told_apart(grid: Grid, runs: Iterable[PlannedRun]) -> Iterator[PlannedRun]:
    """Yield runs, each with a fingerprint of its own and the configuration of its seeds.

    Runs of the same content are numbered. Runs that differ in their seed alone, and only those,
    have the same configuration.
    """
    seen: dict[str, int] = {}
    # No secret enters a hash that is written down: those that differ are numbered instead.
    numbers: dict[frozenset[tuple[str, str]], int] = {}
    for run in runs:
        fingerprint = _hash(_content(grid, run))
        count = seen[fingerprint] = seen.get(fingerprint, 0) + 1
        secrets = frozenset((key, value) for key, value in run.env.items() if is_secret_name(key))
        number = numbers.setdefault(secrets, len(numbers))
        yield replace(
            run,
            fingerprint=fingerprint if count == 1 else f"{fingerprint}-{count}",
            configuration=_configuration(grid, run, secrets=number),
        )


def _content(grid: Grid, run: PlannedRun) -> dict[str, Any]:
    """Return what decides a run's result: not its name, place, price or patience."""
    settings = run.settings
    budget = settings.budget
    terms = None if budget is None else [budget.mode, budget.limits, budget.charge]
    if budget is not None and budget.charge_cost != "all" and terms is not None:
        terms.append(budget.charge_cost)
    content: dict[str, Any] = {
        "entrypoint": settings.entrypoint,
        "engine": settings.engine,
        "arguments": settings.arguments,
        "work_dir": grid.work_dir,
        "params": run.params,
        "overrides": run.overrides,
        "env": {key: value for key, value in run.env.items() if not is_secret_name(key)},
        "budget": terms,
        "steps_per_epoch": None if budget is None else budget.steps_per_epoch,
        "nnodes": settings.nnodes,
        "node_rank": settings.node_rank,
    }
    if settings.launcher:
        content["launcher"] = settings.launcher
    return content


def _hash(content: Mapping[str, Any]) -> str:
    encoded = msgspec.json.encode(content, enc_hook=str, order="sorted")
    return hashlib.sha256(encoded).hexdigest()[:16]


def _configuration(grid: Grid, run: PlannedRun, *, secrets: int) -> str:
    """Return the hash of a run without its seed; where it runs and for how much do count.

    Who compares machines or prices gives them entries that are alike in all else. Names count,
    since whoever gives two entries one name says that they belong together. So do names of prices,
    whatever they stood for when a run was started.
    """
    settings, slurm = run.settings, run.settings.slurm
    params = {key: value for key, value in run.params.items() if key != "seed"}
    return _hash(
        _content(grid, run)
        | {
            "params": params,
            "overrides": overrides(settings.overrides, params, grid.aliases),
            "secrets": secrets,
            "group": run.group,
            "metadata": run.metadata,
            "gpu": settings.gpu,
            "price": settings.price_name or (settings.price and str(settings.price.rate)),
            "slurm": [slurm.partition, slurm.gres, slurm.constraint, slurm.extra],
        }
    )
