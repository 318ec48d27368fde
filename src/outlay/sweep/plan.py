"""A grid becomes a plan: every run with its id, its content's hash and what it should cost. Pure.

The same grid gives the same plan, byte for byte. How a planned run is launched is the subject of
``outlay.sweep.launch``.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from outlay.budget.dimensions import MODES
from outlay.errors import Finding, InvalidValue, choices
from outlay.sweep.arguments import AMP_DTYPES, AMP_VARIABLE, override, placeholders
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.grid import Entry, Grid, Settings
from outlay.sweep.prediction import Prediction, predict
from outlay.sweep.redaction import is_secret_name
from outlay.units import Money

RUN_PLACEHOLDERS: Final = ("run_dir", "run_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run before it is started.

    Attributes:
        id: ``<index>_<group>[_<combo>]``; also the name of its directory.
        fingerprint: A hash of everything that decides what it computes, and of nothing else.
        configuration: A hash of what it shares with the runs that differ from it in seed alone.
        params: Its parameters, the seed included.
        overrides: The parameters, and what the grid adds, as Hydra overrides.
        world_size: Processes per node.
        env: What the grid sets in its environment.
        metadata: What the grid says about it, its budget and target included.
        prediction: What it should take and cost; its parts None where nothing says.
    """

    id: str
    group: str
    fingerprint: str
    params: Mapping[str, Any]
    overrides: tuple[str, ...]
    world_size: int
    env: Mapping[str, str]
    metadata: Mapping[str, Any]
    settings: Settings
    prediction: Prediction
    configuration: str = ""

    @property
    def gpus(self) -> int | None:
        """GPUs over all nodes; None where the number of nodes is a range."""
        nodes = self.settings.nnodes or 1
        return self.world_size * nodes if isinstance(nodes, int) else None

    @property
    def by_torchrun(self) -> bool:
        """Whether torchrun starts its processes: where the grid says so, or there are several."""
        settings = self.settings
        if settings.launcher:
            return settings.launcher == "torchrun"
        several = self.world_size > 1 or str(settings.nnodes or 1) != "1"
        return settings.engine == "torchrun" or (settings.engine == "slurm" and several)

    @property
    def most_gpus(self) -> int:
        """GPUs over as many nodes as there may be."""
        nodes = str(self.settings.nnodes or 1).rpartition(":")[2]
        return self.world_size * int(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs of a sweep, in order, and what they should cost together."""

    grid: Grid
    runs: tuple[PlannedRun, ...]
    warnings: tuple[Finding, ...] = ()

    @property
    def predicted_cost(self) -> Money | None:
        """The sum over all runs; None where one of them has no prediction or currencies differ."""
        costs = [run.prediction.cost for run in self.runs]
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(costs) or len({cost.currency for cost in known}) != 1:
            return None
        return sum(known[1:], start=known[0])

    @property
    def predicted_ns(self) -> int | None:
        """The time of all runs, one after the other; None where one has no prediction."""
        times = [run.prediction.ns for run in self.runs]
        known = [ns for ns in times if ns is not None]
        return sum(known) if len(known) == len(times) else None


def make_plan(grid: Grid) -> Plan:
    """Return the plan of a grid.

    Raises:
        InvalidGrid: A parameter, placeholder or exclusion cannot be used; names all of them.
    """
    findings = [finding for entry in grid.entries for finding in _problems(entry, grid.source)]
    if findings:
        raise InvalidGrid(findings)
    runs: list[PlannedRun] = []
    for entry in grid.entries:
        combinations = list(_combinations(entry))
        metadata = {**entry.settings.metadata, **_budget_metadata(entry.settings)}
        for combo, params in enumerate(combinations, start=1):
            suffix = f"_{combo:02d}" if len(combinations) > 1 else ""
            name = f"{len(runs) + 1:03d}_{slug(entry.name)}{suffix}"
            runs.append(_planned(grid, entry, name, params, metadata))
    if not runs:
        raise InvalidGrid(
            [Finding(source=grid.source, line=1, message="`exclude` leaves out every run")]
        )
    warnings = tuple(warning for entry in grid.entries for warning in _doubts(entry, grid.source))
    return Plan(grid=grid, runs=tuple(_configured(grid, _distinct(runs))), warnings=warnings)


def slug(name: str) -> str:
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
    world_size = params.get("world_size", 1)
    own = {key: value for key, value in params.items() if key != "world_size"}
    env = dict(settings.env)
    if "amp_dtype" in own:
        env[AMP_VARIABLE] = own["amp_dtype"]
    run = PlannedRun(
        id=name,
        group=entry.name,
        fingerprint="",
        params=params,
        overrides=_overrides(grid, settings, own),
        world_size=world_size,
        env=env,
        metadata=metadata,
        settings=settings,
        prediction=Prediction(),
    )
    return replace(
        run, fingerprint=_fingerprint(grid, run), prediction=predict(settings, run.most_gpus)
    )


def _overrides(grid: Grid, settings: Settings, params: Mapping[str, Any]) -> tuple[str, ...]:
    own = (override(key, value, grid.aliases) for key, value in params.items())
    return (*settings.overrides, *own)


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


def _fingerprint(grid: Grid, run: PlannedRun) -> str:
    return _hash(_content(grid, run))


def _content(grid: Grid, run: PlannedRun) -> dict[str, Any]:
    """Return what decides a run's result: not its name, place, price or patience."""
    settings = run.settings
    budget = settings.budget
    content: dict[str, Any] = {
        "entrypoint": settings.entrypoint,
        "engine": settings.engine,
        "arguments": settings.arguments,
        "work_dir": grid.work_dir,
        "params": run.params,
        "overrides": run.overrides,
        "env": {key: value for key, value in run.env.items() if not is_secret_name(key)},
        "budget": None if budget is None else [budget.mode, budget.limits, budget.charge],
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


def _configured(grid: Grid, runs: Iterable[PlannedRun]) -> Iterator[PlannedRun]:
    """Give runs that differ in their seed alone the same configuration, and only those."""
    # No secret enters a hash that is written down: those that differ are numbered instead.
    numbers: dict[frozenset[tuple[str, str]], int] = {}
    for run in runs:
        secrets = frozenset((key, value) for key, value in run.env.items() if is_secret_name(key))
        number = numbers.setdefault(secrets, len(numbers))
        yield replace(run, configuration=_configuration(grid, run, secrets=number))


def _configuration(grid: Grid, run: PlannedRun, *, secrets: int) -> str:
    """Return the hash of a run without its seed; where it runs and for how much do count.

    Who compares machines or prices gives them entries that are alike in all else. Names count,
    since whoever gives two entries one name says that they belong together.
    """
    settings, slurm = run.settings, run.settings.slurm
    params = {key: value for key, value in run.params.items() if key != "seed"}
    own = {key: value for key, value in params.items() if key != "world_size"}
    return _hash(
        _content(grid, run)
        | {
            "params": params,
            "overrides": _overrides(grid, settings, own),
            "secrets": secrets,
            "group": run.group,
            "metadata": run.metadata,
            "gpu": settings.gpu,
            "price": None if settings.price is None else str(settings.price),
            "slurm": [slurm.partition, slurm.gres, slurm.constraint, slurm.extra],
        }
    )


def _distinct(runs: Iterable[PlannedRun]) -> Iterator[PlannedRun]:
    """Number runs of the same content, so that each has a fingerprint of its own."""
    seen: dict[str, int] = {}
    for run in runs:
        count = seen[run.fingerprint] = seen.get(run.fingerprint, 0) + 1
        yield run if count == 1 else replace(run, fingerprint=f"{run.fingerprint}-{count}")


def _problems(entry: Entry, source: str) -> Iterator[Finding]:
    for message in _messages(entry):
        yield Finding(source=source, line=entry.line, message=message)


def _messages(entry: Entry) -> Iterator[str]:
    settings = entry.settings
    for value in entry.axes.get("amp_dtype", ()):
        if value not in AMP_DTYPES:
            yield str(InvalidValue("amp_dtype", value, choices(AMP_DTYPES)))
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
        for name in excluded.keys() - names:
            message = f"{entry.name}: `exclude` names {name!r}, which is no parameter here"
            yield Finding(source=source, line=entry.line, message=message, severity="warning")
