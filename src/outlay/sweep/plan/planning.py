"""From a grid to a plan: expands axes, checks, prices and fingerprints runs, shows them. Pure.

The same grid gives the same plan, byte for byte.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from outlay.budget.limits import TENTH, StartUp, cost_in
from outlay.budget.terms import Budget
from outlay.errors import Finding, InvalidValue, choices
from outlay.guard.lease import Terms
from outlay.ledger import Price
from outlay.ledger.price import AUTO, split_kind
from outlay.record.redaction import Redactor, is_secret_name
from outlay.runs.command_budget import CommandTerms, refuse_uncounted
from outlay.sweep.engines.base import ENGINES, is_scheduled
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.grid.grid import MOST_RUNS, Grid, GridEntry
from outlay.sweep.grid.parsing import AMP_DTYPES, AMP_VARIABLE, STYLES, overrides, placeholders
from outlay.sweep.plan.launch import SWEEP_MARK, Place, command_of
from outlay.sweep.plan.plan import (
    NO_LIKELY_COSTS,
    LikelyCost,
    LikelyCosts,
    PlannedRun,
    Prediction,
    RungTotal,
    SweepPlan,
    at_rung,
    charged_gpus,
    predict,
    predict_whole,
    predicted_rungs,
    rung_totals,
    start_up_share,
    total_of,
)
from outlay.sweep.search.samplers import check_method, planned_points, tpe_point
from outlay.sweep.search.search_options import Halving
from outlay.sweep.search.space import Point, is_in, params_of, values_of
from outlay.units import Money
from outlay.units.quantity import duration_text
from outlay.units.shown import counted, money_text

# Fingerprints of runs and hashes of their configurations.


def with_fingerprints(grid: Grid, runs: Iterable[PlannedRun]) -> Iterator[PlannedRun]:
    """Yield runs with a unique fingerprint and the hash of their configuration.

    Duplicates of a run get a numbered fingerprint. Only runs that differ in seed alone share a
    configuration.
    """
    seen: dict[str, int] = {}
    # Secrets must not enter a hash that is stored: different sets of them are numbered instead.
    numbers: dict[frozenset[tuple[str, str]], int] = {}
    for run in runs:
        secrets = {key: value for key, value in run.env.items() if is_secret_name(key)}
        number = numbers.setdefault(frozenset(secrets.items()), len(numbers))
        content = _content(grid, run, secrets)
        fingerprint = _hash(content)
        count = seen[fingerprint] = seen.get(fingerprint, 0) + 1
        yield replace(
            run,
            fingerprint=fingerprint if count == 1 else f"{fingerprint}-{count}",
            configuration=_configuration(grid, run, content, secrets=number),
        )


def _content(grid: Grid, run: PlannedRun, secrets: Collection[str]) -> dict[str, Any]:
    """Return what decides a run's result; not its name, machine, price or time limits."""
    entry, budget = run.entry, _last_budget(run.entry)
    terms = None if budget is None else [budget.mode, budget.limits, budget.charge]
    if budget is not None and budget.charge_cost != "all" and terms is not None:
        terms.append(budget.charge_cost)
    content: dict[str, Any] = {
        "entrypoint": entry.entrypoint,
        "engine": entry.engine,
        "arguments": entry.arguments,
        "work_dir": grid.work_dir,
        "params": run.params,
        "overrides": run.overrides,
        "env": {key: value for key, value in run.env.items() if key not in secrets},
        "budget": terms,
        "steps_per_epoch": None if budget is None else budget.steps_per_epoch,
        "nnodes": entry.nnodes,
        "node_rank": entry.node_rank,
    }
    if entry.enforce:
        content["enforce"] = True
    if entry.launcher:
        content["launcher"] = entry.launcher
    return content


def _last_budget(entry: GridEntry) -> Budget | None:
    """Return the budget of an entry's runs; that of the last rung, whichever they are at."""
    halving = entry.search.halving
    return entry.budget if halving is None else halving.rungs[-1]


_encoder = msgspec.json.Encoder(enc_hook=str, order="sorted")


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_encoder.encode(content)).hexdigest()[:16]


def _configuration(grid: Grid, run: PlannedRun, content: Mapping[str, Any], *, secrets: int) -> str:
    """Return the hash of a run without its seed, but with its group, machine and price.

    Entries that differ in machine or price alone are compared with each other, and entries with
    different names are kept apart. A named price counts by its name, whatever its amount was.
    """
    entry = run.entry
    asked = {name: options.identity for name, options in entry.engine_options.items()}
    compared = {
        **content,
        "secrets": secrets,
        "group": entry.name,
        "metadata": run.metadata,
        "gpu": entry.gpu,
        "price": entry.price_name or (entry.price and str(entry.price.stated)),
    }
    if "seed" in run.params:
        params = {key: value for key, value in run.params.items() if key != "seed"}
        compared["params"] = params
        compared["overrides"] = overrides(entry.overrides, params, grid.aliases)
    return _hash(compared | asked)


# Prices: as named, else the rate of the partition.


def with_prices(grid: Grid, look_up: Callable[[str], Price], rates: Mapping[str, Price]) -> Grid:
    """Return the grid with the prices of price names and partitions.

    ``look_up`` returns the price of a name; ``rates`` are the partition rates.

    Raises:
        InvalidGrid: A name has no price; names all such entries.
    """
    entries: list[GridEntry] = []
    findings: list[Finding] = []
    for entry in grid.entries:
        try:
            price = _price(entry, look_up, rates)
        except InvalidValue as error:
            findings.append(Finding(source=grid.source, line=entry.line, message=str(error)))
            continue
        entries.append(replace(entry, price=price))
    if findings:
        raise InvalidGrid(sorted(set(findings)))
    return replace(grid, entries=tuple(entries))


def _price(
    entry: GridEntry, look_up: Callable[[str], Price], rates: Mapping[str, Price]
) -> Price | None:
    on_cluster = is_scheduled(entry.engine)
    is_auto = split_kind(entry.price_name)[0].lower() == AUTO
    if entry.price_name and not (is_auto and on_cluster):
        return look_up(entry.price_name)
    if entry.price is not None or not on_cluster:
        return entry.price
    # ``auto`` on a cluster is the partition's rate.
    partition = "" if entry.options is None else entry.options.partition
    if entry.price_name and partition not in rates:
        shown = partition or "PARTITION"
        expected = f'a partition with a rate: outlay prices partition set {shown} "1.20 USD/h"'
        raise InvalidValue("price", entry.price_name, expected)
    return rates.get(partition)


RUN_PLACEHOLDERS: Final = ("run_dir", "run_id")


def make_plan(
    grid: Grid,
    start_up: StartUp | None = None,
    suggested: Mapping[str, Sequence[Point]] | None = None,
) -> SweepPlan:
    """Return the plan of a grid.

    ``start_up`` is measured on earlier runs of the program; None if unknown. ``suggested`` are the
    points that a search has tried already, by entry, in their order.

    Raises:
        InvalidGrid: A parameter, placeholder or exclusion cannot be used; names all of them.
    """
    findings = [
        Finding(source=grid.source, line=entry.line, message=message)
        for entry in grid.entries
        for message in _problems(entry)
    ]
    total = sum(map(_run_count, grid.entries))
    if total > MOST_RUNS:
        line = max(grid.entries, key=_run_count).line
        message = f"its axes multiply to {total:,} runs; a sweep has at most {MOST_RUNS:,}"
        findings.append(Finding(source=grid.source, line=line, message=message))
    if findings:
        raise InvalidGrid(findings)
    runs: list[PlannedRun] = []
    unsuggested: dict[str, int] = {}
    for entry in grid.entries:
        if entry.search.method == "grid":
            made = [PointParams(params) for params in _combinations(entry)]
        else:
            points = list(entry_points(entry, (suggested or {}).get(entry.name, ())))
            made = [one for point in points for one in seeded(entry, point)]
            unsuggested[entry.name] = (entry.search.trials or 0) - len(points)
        runs += plan_points(grid, entry, made, first=len(runs) + 1, start_up=start_up)
    if not runs:
        raise InvalidGrid(
            [Finding(source=grid.source, line=1, message="`exclude` leaves out every run")]
        )
    warnings = [
        Finding(source=grid.source, line=entry.line, message=message, severity="warning")
        for entry in grid.entries
        for message in _warnings(entry)
    ]
    if start_up is not None:
        warnings += _slow_start_warnings(runs, start_up, grid.source)
    return SweepPlan(
        grid=grid, runs=finished(grid, runs), warnings=tuple(warnings), start_up=start_up,
        unsuggested={name: more for name, more in unsuggested.items() if more > 0},
    )  # fmt: skip


# Points of a search.


@dataclass(frozen=True, slots=True)
class PointParams:
    """The parameters of a run, and the point of the search that they are of."""

    params: Mapping[str, Any]
    point: Point = field(default_factory=dict)


def entry_points(entry: GridEntry, suggested: Sequence[Point]) -> Iterator[Point]:
    """Yield the points that an entry tries: those suggested before, then new ones.

    Of a method that needs results, only the first point is known before there are any.
    """
    search, space = entry.search, entry.axes
    check_method(search)
    kept = [point for point in suggested if is_in(space, point)]
    yield from kept
    if search.is_adaptive:
        if not kept:
            yield tpe_point(space, search, (), more_is_better=entry.target.more_is_better)
        return
    tried = {tuple(point.values()) for point in kept}
    fresh = (
        point
        for point in planned_points(space, search)
        if tuple(point.values()) not in tried
        and not any(_matches(params_of(space, point), one) for one in entry.exclude)
    )
    yield from itertools.islice(fresh, max((search.trials or 0) - len(kept), 0))


def seeded(entry: GridEntry, point: Point) -> Iterator[PointParams]:
    """Yield the runs of a point: one for each seed."""
    params = params_of(entry.axes, point)
    for seed in entry.seeds or (None,):
        yield PointParams(params if seed is None else {**params, "seed": seed}, point)


def plan_points(
    grid: Grid,
    entry: GridEntry,
    made: Sequence[PointParams],
    *,
    first: int,
    start_up: StartUp | None,
    combo: int = 0,
) -> Iterator[PlannedRun]:
    """Yield the runs of an entry with these parameters, numbered from ``first``."""
    metadata = {**entry.metadata, **_budget_metadata(entry)}
    ns, group = 0 if start_up is None else start_up.ns, _slug(entry.name)
    several = len(made) > 1 or entry.search.is_adaptive
    predictions: dict[int, tuple[Prediction, ...]] = {}
    for index, one in enumerate(made):
        suffix = f"_{combo + index:02d}" if several else ""
        world_size = one.params.get("world_size", 1)
        if world_size not in predictions:
            gpus = charged_gpus(entry, world_size)
            predictions[world_size] = predicted_rungs(entry, gpus, ns) or (
                predict(entry, gpus, ns),
            )
        rungs = predictions[world_size]
        yield PlannedRun(
            id=f"{first + index:03d}_{group}{suffix}",
            entry=entry,
            params=one.params,
            overrides=overrides(entry.overrides, one.params, grid.aliases),
            world_size=world_size,
            env=_environment(entry, one.params),
            metadata=metadata,
            prediction=rungs[0],
            point=one.point,
            rungs=() if entry.search.halving is None else rungs,
        )


def finished(grid: Grid, runs: Iterable[PlannedRun]) -> tuple[PlannedRun, ...]:
    """Return runs with fingerprints, as they start at the first rung."""
    return tuple(at_rung(run, 0) for run in with_fingerprints(grid, runs))


def _slow_start_warnings(
    runs: Sequence[PlannedRun], start_up: StartUp, source: str
) -> Iterator[Finding]:
    """Yield a warning for each group whose start-up takes more than a tenth of a budget."""
    shares: dict[str, float] = {}
    for run in runs:
        share = start_up_share(run.entry, run.most_gpus, start_up.ns)
        shares[run.entry.name] = max(share, shares.get(run.entry.name, 0.0))
    for group, share in shares.items():
        if share > 1 / TENTH:
            message = f"{group}: starting takes {share:.0%} of a budget, judged by earlier runs"
            yield Finding(source=source, message=message, severity="warning")


def _run_count(entry: GridEntry) -> int:
    """Return how many runs an entry's axes multiply to, excluded ones included."""
    if entry.search.trials is not None:
        return entry.search.trials * (len(entry.seeds) or 1)
    counts = [len(values_of(axis)) for axis in entry.axes.values()]
    return math.prod([*counts, len(entry.seeds) or 1])


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "", name.replace(" ", "-")) or "run"


def _combinations(entry: GridEntry) -> Iterator[Mapping[str, Any]]:
    """Yield the Cartesian product of the axes, the last fastest, without excluded ones."""
    axes = {name: values_of(axis) for name, axis in entry.axes.items()}
    if entry.seeds:
        axes["seed"] = entry.seeds
    for values in itertools.product(*axes.values()):
        params = dict(zip(axes, values, strict=True))
        if not any(_matches(params, excluded) for excluded in entry.exclude):
            yield params


def _matches(params: Mapping[str, Any], excluded: Mapping[str, tuple[Any, ...]]) -> bool:
    return all(
        name in params and any(_same(params[name], value) for value in values)
        for name, values in excluded.items()
    )


def _same(one: object, other: object) -> bool:
    # In Python True equals 1; in a grid they are different values.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _environment(entry: GridEntry, params: Mapping[str, Any]) -> dict[str, str]:
    env = dict(entry.env)
    if "amp_dtype" in params:
        env[AMP_VARIABLE] = str(params["amp_dtype"]).lower()
    return env


def _budget_metadata(entry: GridEntry) -> dict[str, Any]:
    budget, target = _last_budget(entry), entry.target
    about: dict[str, Any] = {}
    if budget is not None:
        key = budget.own_key
        about |= {"budget_mode": budget.mode, "budget_limit_key": key}
        about["budget_limit_value"] = budget.limits[key]
    if target.metric:
        about |= {"target_metric": target.metric, "target_value": target.value}
        about["target_direction"] = target.direction
    return about


def _problems(entry: GridEntry) -> Iterator[str]:
    for value in values_of(entry.axes.get("amp_dtype", ())):
        if str(value).lower() not in AMP_DTYPES:
            yield str(InvalidValue("amp_dtype", value, choices(AMP_DTYPES)))
    price, budget = entry.price, entry.budget
    if price is not None and budget is not None and budget.limits_money:
        stated, paid = cost_in(budget.currency).key, cost_in(price.currency).key
        if stated != paid:
            yield (
                f"{stated} is in {budget.currency}, and the price in {price.currency}; state both "
                f'in one: `{paid}`, or `limit: "5 {price.currency}"` in mode iso_cost'
            )
    engine = ENGINES.get(entry.engine)
    if engine is not None and engine.one_node and str(entry.nnodes or 1) != "1":
        yield f"nnodes: {entry.nnodes}, and engine: {entry.engine} runs each run on one node"
    if engine is not None and engine.needed and not getattr(entry.options, engine.needed, None):
        yield f"engine: {entry.engine} needs `{entry.engine}: {{{engine.needed}: ...}}`"
    yield from _enforce_problems(entry)
    known = {*entry.axes, *RUN_PLACEHOLDERS} | ({"seed"} if entry.seeds else set())
    for name in sorted(placeholders(entry.entrypoint) - known):
        yield f"the command has {{{name}}}, which is no parameter; expected {choices(known)}"


def _enforce_problems(entry: GridEntry) -> Iterator[str]:
    """Yield why the budget of an entry cannot be enforced from outside."""
    if not entry.enforce or entry.budget is None:
        return
    try:
        refuse_uncounted(CommandTerms(budget=entry.budget), name="budget with `enforce`")
    except InvalidValue as error:
        yield f"{error.name}: got {error.seen}; expected limits on time and cost alone"
    if is_scheduled(entry.engine):
        yield f"budget with `enforce`: engine {entry.engine} ends runs only at their `timeout`"
    if entry.budget.limits_money and entry.price is None and not entry.price_name:
        yield 'budget with `enforce`: no price to count its cost by; add `price: "1.50 USD/h"`'


def _warnings(entry: GridEntry) -> Iterator[str]:
    """Yield warnings about settings that are probably mistakes."""
    several = str(entry.nnodes or 1) != "1"
    if several and entry.engine == "torchrun" and not entry.rendezvous.get("endpoint"):
        yield (
            f"{entry.name}: several nodes and no rendezvous endpoint; every node needs the same "
            "MASTER_ADDR and MASTER_PORT in `env`"
        )
    if entry.overrides and entry.arguments not in ("overrides", "pairs"):
        yield f"{entry.name}: `overrides` are not passed with `arguments: {entry.arguments}`"
    names = {*entry.axes, "seed"}
    for excluded in entry.exclude:
        for name in sorted(excluded.keys() - names):
            yield f"{entry.name}: `exclude` names {name!r}, which is no parameter here"


# A plan as JSON and as text.

_CONTINUED: Final = " \\"


def plan_document(
    plan: SweepPlan, environ: Mapping[str, str], likely: LikelyCosts = NO_LIKELY_COSTS
) -> dict[str, Any]:
    """Return the plan as plain data, the same for the same grid and earlier runs.

    Secrets of ``environ`` are redacted.
    """
    cost = plan.predicted_cost
    grid, redact = plan.grid, plan.redactor(environ)
    return {
        "name": grid.name,
        "output_dir": grid.output_dir,
        "ceiling": None if grid.ceiling is None else str(grid.ceiling),
        "trials": plan.run_count,
        "predicted_cost": None if cost is None else str(cost),
        "most_cost": None if (most := plan.most_cost) is None else str(most),
        "enough": None if grid.ceiling is None else plan.is_enough(grid.ceiling, cost),
        "predicted_hours": _hours(plan.predicted_ns),
        "start_up_seconds": None if plan.start_up is None else plan.start_up.ns / 1e9,
        "start_up_attempts": 0 if plan.start_up is None else plan.start_up.attempts,
        "runs": [_run_document(plan, run, redact, likely) for run in plan.runs],
        "likely_from": likely.basis,
        "search": search_sentences(plan),
        "rungs": [_rung_document(total) for total in rung_totals(plan) if total.of_halving],
        "warnings": [str(warning) for warning in plan.warnings],
    }


def _run_document(
    plan: SweepPlan, run: PlannedRun, redact: Redactor, likely: LikelyCosts
) -> dict[str, Any]:
    entry, budget, prediction = run.entry, run.entry.budget, run.prediction
    return {
        "id": run.id,
        "fingerprint": run.fingerprint,
        "engine": entry.engine,
        "arguments": entry.arguments,
        "params": redact.data(run.params),
        "command": planned_command(plan, run, redact),
        "env": redact.environment(run.env),
        "metadata": redact.data(run.metadata),
        "budget": None if budget is None else {"mode": budget.mode, **budget.limits},
        "gpus": run.gpus,
        "price": None if entry.price is None else entry.price.text,
        "price_from": None if entry.price is None else entry.price.origin,
        "predicted_hours": _hours(prediction.ns),
        "predicted_cost": None if prediction.cost is None else str(prediction.cost),
        "predicted_from": prediction.basis,
        **_likely_fields(likely.runs.get(run.id)),
    }


def _likely_fields(likely: LikelyCost | None) -> dict[str, Any]:
    """Return the likely time and cost of a run; nothing if it has none."""
    if likely is None:
        return {}
    costs = {"cost": likely.cost, "cost_low": likely.low, "cost_high": likely.high}
    return {
        "likely_hours": _hours(likely.ns),
        **{f"likely_{name}": None if cost is None else str(cost) for name, cost in costs.items()},
    }


def _rung_document(total: RungTotal) -> dict[str, Any]:
    each = total.each.cost
    return {
        "entry": total.entry,
        "rung": total.rung + 1,
        "budget": total.budget,
        "runs": total.runs,
        "cost_each": None if each is None else str(each),
        "most_cost": None if total.most is None else str(total.most),
        "predicted_hours": _hours(total.ns),
    }


def planned_command(plan: SweepPlan, run: PlannedRun, redact: Redactor) -> list[str]:
    """Return a run's redacted command, with placeholders for directory and port."""
    port = None if is_scheduled(run.entry.engine) else 0
    place = Place(directory=f"{SWEEP_MARK}/{run.id}", port=port)
    return redact.command(command_of(plan, run, place))


def command_lines(words: Sequence[str], width: int) -> list[str]:
    """Return a command as shell input, broken between words to lines of ``width``."""
    lines = [shlex.quote(words[0])]
    for word in map(shlex.quote, words[1:]):
        if len(lines[-1]) + len(word) + len(" ") + len(_CONTINUED) <= width:
            lines[-1] += f" {word}"
        else:
            lines[-1] += _CONTINUED
            lines.append(f"  {word}")
    return lines


def params_text(run: PlannedRun, redact: Redactor) -> str:
    """Return a run's redacted parameters in one line."""
    shown = redact.data(run.params)
    return " ".join(f"{name}={value}" for name, value in shown.items() if name != "world_size")


def time_and_cost(run: PlannedRun, likely: LikelyCosts) -> tuple[str, Money | str]:
    """Return a run's time and cost for display: likely ones with a tilde, "?" if unknown."""
    found, ns, cost = likely.runs.get(run.id), run.prediction.ns, run.prediction.cost
    if found is not None:
        likely_cost = found.cost or cost
        shown = "?" if likely_cost is None else f"~{money_text(likely_cost)}"
        return f"~{duration_text(found.ns)}", shown
    return "?" if ns is None else duration_text(ns), "?" if cost is None else cost


def _hours(ns: int | None) -> float | None:
    return None if ns is None else ns / 3.6e12


def budget_text(run: PlannedRun) -> str:
    """Return a run's limits for display."""
    budget = run.entry.budget
    if budget is None:
        return "none"
    if budget.needs_steps_per_epoch:
        return f"{budget.mode} {budget.limits['max_epochs']} epochs"
    texts = [bound.dimension.text(bound.limit) for bound in budget.bounds]
    if (halving := run.entry.search.halving) is not None:
        return f"{budget.mode} {halving.text_at(0)} to {halving.text_at(-1)}"
    return f"{budget.mode} {', '.join(texts)}"


def search_sentences(plan: SweepPlan) -> list[str]:
    """Return sentences on how a plan's configurations are chosen, and on how many go on."""
    found: list[str] = []
    for entry in plan.grid.entries:
        search = entry.search
        seeds = f" with {len(entry.seeds)} seeds each" if len(entry.seeds) > 1 else ""
        runs = {run.configuration for run in plan.runs if run.entry.name == entry.name}
        tried = search.trials or len(runs)
        if search.is_adaptive:
            chosen = "the first is shown, each later one is chosen by the results before it"
            found.append(f"{entry.name}: {tried} configurations{seeds} by tpe; {chosen}.")
        elif search.method != "grid":
            found.append(f"{entry.name}: {tried} configurations{seeds} by {search.method}.")
        if (halving := search.halving) is not None:
            sizes = " → ".join(map(str, halving.sizes(tried)))
            found.append(_halving_sentence(entry, halving, sizes))
            found += _restart_sentence(plan, entry, halving, tried)
    cost = plan.rungs_cost if found else None
    if cost is not None:
        full = _full_cost(plan)
        against = "" if full is None else f"; all configurations to the last rung: {full}"
        found.append(f"These budgets are {cost} in all{against}.")
    return found


def _halving_sentence(entry: GridEntry, halving: Halving, sizes: str) -> str:
    metric, better = entry.target.metric, "high" if entry.target.more_is_better else "low"
    how = "is paused at a rung, and continues from its checkpoint in a new attempt"
    if not halving.resumable:
        how = "goes on in one attempt, and is ended once others are certain to be better"
    return f"{entry.name}: {sizes} configurations by {metric} ({better} is better); a run {how}."


def _restart_sentence(
    plan: SweepPlan, entry: GridEntry, halving: Halving, tried: int
) -> Iterator[str]:
    """Yield a sentence on the start-ups of runs that go on, if they are paused."""
    count = sum(halving.sizes(tried)[1:]) * (len(entry.seeds) or 1)
    if not halving.resumable:
        return
    known = plan.start_up
    if known is None:
        yield f"{entry.name}: {counted(count, 'promotion')}, each with a start-up of unknown time."
        return
    like = next(run for run in plan.runs if run.entry.name == entry.name)
    costs = [] if like.rate is None else [str(Terms(rate=like.rate).cost(count * known.ns))]
    text = ", ".join([duration_text(count * known.ns), *costs])
    inside = ", within the rungs" if halving.rungs[0].limits_money else ""
    yield f"{entry.name}: {counted(count, 'promotion')}, whose start-ups take about {text}{inside}."


def _full_cost(plan: SweepPlan) -> Money | None:
    """Return what it would cost if every run went to its last rung."""
    if not any(run.rungs for run in plan.runs):
        return None
    costs = [predict_whole(run).cost if run.rungs else run.prediction.cost for run in plan.runs]
    return total_of(costs) if not plan.unsuggested else None


def style_text(style: str) -> str:
    """Return a sentence on how parameters are passed."""
    return f"Parameters are passed {STYLES[style]} (arguments: {style})."


def most_text(plan: SweepPlan) -> str:
    """Return a sentence on the most that a sweep can spend."""
    most, ceiling = plan.most_cost, plan.grid.ceiling
    if most is None and plan.grid.book:
        return "The most that can be spent is what its book has."
    if most is None:
        return "Nothing limits what can be spent: neither a ceiling nor a timeout for every run."
    return f"At most {most} can be spent: {'the ceiling' if most == ceiling else 'all timeouts'}."


def enough_text(plan: SweepPlan, room: Money, predicted: Money | None) -> str:
    """Return whether an amount is enough for all runs, to be added to it; "" if not comparable."""
    if predicted is None or predicted.unit != room.unit:
        return ""
    enough = plan.is_enough(room, predicted)
    if enough is None:
        return ": whether it is enough for all is unknown, as start-up is"
    if not enough and predicted <= room:
        return ": not enough for all and for ending them"
    return ": enough for all" if enough else ": not enough for all"


def start_up_text(plan: SweepPlan) -> str:
    """Return a sentence on the predicted start-up of each run."""
    if plan.start_up is None:
        return (
            "Start-up is unknown: no earlier run of this sweep has a log. "
            "`outlay sweep run --probe` measures it on one run first."
        )
    took, attempts = duration_text(plan.start_up.ns), plan.start_up.attempts
    times = "one start" if attempts == 1 else f"{attempts:,} starts"
    return f"Start-up takes about {took} a run, measured on {times} of earlier runs."
