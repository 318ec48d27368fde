"""A sweep's plan: every run with its id, fingerprint, prediction and rate. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

from outlay.budget.limits import COST, TIME, StartUp
from outlay.budget.terms import Budget
from outlay.budget.usage import Usage
from outlay.errors import Finding
from outlay.guard.lease import Terms
from outlay.rates import gpu_rate, rate_of
from outlay.record.redaction import Redactor
from outlay.runs.command_budget import CommandTerms
from outlay.sweep.engines.base import is_scheduled
from outlay.sweep.grid.grid import Grid, GridEntry
from outlay.sweep.search.space import Point
from outlay.units import Duration, Money, Rate
from outlay.units.money import GPU_TIME
from outlay.units.quantity import duration_text
from outlay.units.shown import counted, money_text, range_text

# Predictions of time and cost, from budget, timeout and price.

NOTICE_NS: Final = 10 * 10**9
"""The time between SIGTERM and SIGKILL."""
_STARTING_NS: Final = 120 * 10**9
REACTION_NS: Final = 10**9
"""How long the harness may take to notice that a run must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A prediction; None where nothing limits a run.

    Attributes:
        basis: What limits it, in words.
    """

    ns: int | None = None
    cost: Money | None = None
    basis: str = ""


def predict(entry: GridEntry, gpus: Fraction, start_up_ns: int = 0) -> Prediction:
    """Return the prediction for a run on ``gpus`` GPUs: the tightest of its limits.

    A time budget counts training alone, so that a known start-up is added to it.
    """
    trained_ns, stated = _budgeted(entry.budget)
    times: dict[str, int] = {}
    if trained_ns is not None:
        times["its time budget"] = trained_ns + start_up_ns
    if entry.timeout is not None:
        times["its timeout"] = entry.timeout.ns
    rate = None if entry.price is None else rate_of(entry.price.stated, gpus)
    paid_ns = None if stated is None or rate is None else Terms(rate=rate).paid_ns(stated)
    if paid_ns is not None:
        times["its cost budget"] = paid_ns
    if not times:
        return Prediction(cost=stated, basis="" if stated is None else "its cost budget")
    basis = min(times, key=lambda name: times[name])
    cost = stated if basis == "its cost budget" else _cost(rate, times[basis])
    return Prediction(ns=times[basis], cost=cost, basis=basis)


def start_up_share(entry: GridEntry, gpus: int, start_up_ns: int) -> float:
    """Return start-up as a share of the limit on time or cost, the larger of the two."""
    limit_ns, stated = _budgeted(entry.budget)
    shares = [] if limit_ns is None else [start_up_ns / limit_ns]
    rate = None if entry.price is None else entry.price.stated * gpus
    paid = _cost(rate, start_up_ns)
    if stated is not None and paid is not None:
        shares.append(paid.micros / stated.micros)
    return max(shares, default=0.0)


def _budgeted(budget: Budget | None) -> tuple[int | None, Money | None]:
    """Return the limits of a budget on time and on money; None where it has none."""
    if budget is None:
        return None, None
    limits = {bound.dimension.name: bound.limit for bound in budget.bounds_known}
    units = limits.get(COST.name)
    cost = None if units is None else Usage(cost_units=units).cost_micros
    return limits.get(TIME.name), None if cost is None else Money(cost, budget.currency)


def measured(rate: Rate | None, finished_ns: Sequence[int]) -> Prediction:
    """Return the prediction from the longest of the finished runs."""
    if not finished_ns:
        return Prediction()
    longest = max(finished_ns)
    return Prediction(ns=longest, cost=_cost(rate, longest), basis="finished runs")


def at_most(rate: Rate | None, predicted: Prediction, timeout: Duration | None) -> Prediction:
    """Return the most that a run may take if its hold cannot be extended while it runs.

    Its timeout; else the prediction plus a tenth and two minutes, for start-up and for what a
    budget does not count.
    """
    if predicted.ns is None:
        return predicted
    ns = predicted.ns + predicted.ns // 10 + _STARTING_NS if timeout is None else timeout.ns
    return Prediction(ns=ns, cost=_cost(rate, ns), basis=predicted.basis)


def _cost(rate: Rate | None, ns: int) -> Money | None:
    return None if rate is None else Terms(rate=rate).cost(ns)


def terms_of(rate: Rate, predicted_ns: int) -> Terms:
    """Return the terms of a run's lease: small slices after the predicted time.

    The hold includes the notice, during which an ending run still costs, and the reaction time.
    """
    notice_ns = min(NOTICE_NS, predicted_ns // 10) + REACTION_NS
    slice_ns = max(REACTION_NS, min(300 * 10**9, predicted_ns // 4))
    return Terms(
        rate=rate, slice=Duration(slice_ns), notice=Duration(notice_ns),
        reaction=Duration(REACTION_NS),
    )  # fmt: skip


def most_nodes(entry: GridEntry) -> int:
    """Return the largest number of nodes that a run of an entry may have."""
    return int(str(entry.nnodes or 1).rpartition(":")[2])


def charged_gpus(entry: GridEntry, world_size: int) -> Fraction:
    """Return the GPUs that a run is charged for: as stated, else as requested from a cluster.

    Else one per process, over the largest number of nodes.
    """
    if entry.gpus is not None:
        return entry.gpus
    on_node = None if entry.options is None else entry.options.gpus_on_node
    return Fraction((world_size if on_node is None else on_node) * most_nodes(entry))


@dataclass(frozen=True, slots=True)
class OutsideLimit:
    """A limit that the harness enforces: the run time at which it is reached, and its text."""

    ns: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run before it is started.

    Attributes:
        id: ``<index>_<group>[_<combo>]``; also the name of its directory.
        fingerprint: A hash of everything that decides what it computes, and of nothing else.
        configuration: A hash of what it shares with the runs that differ in seed alone.
        params: With the seed.
        overrides: The grid's overrides and the parameters, as Hydra overrides.
        world_size: Processes per node.
        env: The variables that the grid sets.
        metadata: The grid's metadata, with budget and target.
        point: Where it is in the space of its search; empty for a grid.
        rungs: The prediction for each rung alone; empty without halving.
        rung: The one that it is started at, from 0.
    """

    id: str
    entry: GridEntry
    params: Mapping[str, Any]
    overrides: tuple[str, ...]
    world_size: int
    env: Mapping[str, str]
    metadata: Mapping[str, Any]
    prediction: Prediction
    fingerprint: str = ""
    configuration: str = ""
    point: Point = field(default_factory=dict)
    rungs: tuple[Prediction, ...] = ()
    rung: int = 0

    @property
    def gpus(self) -> int | None:
        """GPUs over all nodes; None for a range of nodes."""
        nodes = self.entry.nnodes or 1
        return self.world_size * nodes if isinstance(nodes, int) else None

    @property
    def by_torchrun(self) -> bool:
        """Whether torchrun starts its processes: as stated, else by engine and their number."""
        entry = self.entry
        if entry.launcher:
            return entry.launcher == "torchrun"
        several = self.world_size > 1 or str(entry.nnodes or 1) != "1"
        return entry.engine == "torchrun" or (is_scheduled(entry.engine) and several)

    @property
    def most_gpus(self) -> int:
        """GPUs over the largest number of nodes."""
        return self.world_size * most_nodes(self.entry)

    @property
    def states_gpus(self) -> bool:
        """Whether the grid states its GPUs, or requests them from a cluster."""
        options = self.entry.options
        on_node = None if options is None else options.gpus_on_node
        return self.entry.gpus is not None or on_node is not None

    @property
    def charged_gpus(self) -> Fraction:
        """GPUs that are paid for."""
        return charged_gpus(self.entry, self.world_size)

    @property
    def outside_limit(self) -> OutsideLimit | None:
        """The first of its limits that is enforced from outside; None if none is."""
        entry, limits = self.entry, list[OutsideLimit]()
        if entry.budget is None or not entry.enforce:
            return None
        for bound in CommandTerms(budget=entry.budget).enforced:
            ns: int | None = bound.limit
            if bound.dimension != TIME:
                ns = self._paid_ns(_budgeted(entry.budget)[1])
            if ns is not None:
                limits.append(OutsideLimit(ns, bound.dimension.text(bound.limit)))
        return min(limits, key=lambda limit: limit.ns, default=None)

    def _paid_ns(self, amount: Money | None) -> int | None:
        rate = self.rate
        return None if amount is None or rate is None else Terms(rate=rate).paid_ns(amount)

    @property
    def most_cost(self) -> Money | None:
        """The cost of all attempts up to their timeout, and of ending them; None without one."""
        timeout = self.entry.timeout
        if timeout is None:
            return None
        attempts = self.entry.retries + 1
        return _cost(self.rate, attempts * (timeout.ns + NOTICE_NS + REACTION_NS))

    def ending_micros(self, rate: Rate | None) -> int:
        """Return what its hold has besides its predicted cost: for ending it.

        A run on a cluster cannot extend its hold, which has more for start-up.
        """
        predicted = self.prediction
        if rate is None or predicted.ns is None:
            return 0
        terms = terms_of(rate, predicted.ns)
        ns = predicted.ns
        if is_scheduled(self.entry.engine):
            ns = at_most(rate, predicted, self.entry.timeout).ns or ns
        return terms.cost(terms.notice.ns + ns - predicted.ns).micros

    @property
    def rate(self) -> Rate | None:
        """Its cost per hour over all GPUs; a ceiling holds it whether it is cash or showback."""
        price = self.entry.price
        return None if price is None else rate_of(price.stated, self.charged_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The runs of a sweep, in order.

    Attributes:
        start_up: Measured on earlier runs of the program; None if unknown.
        unsuggested: How many configurations of an entry are chosen later, by results.
        grid_text: The grid of a command line, which is in no file yet; "" for that of a file.
    """

    grid: Grid
    runs: tuple[PlannedRun, ...]
    warnings: tuple[Finding, ...] = ()
    start_up: StartUp | None = None
    grid_text: str = ""
    unsuggested: Mapping[str, int] = field(default_factory=dict)

    @property
    def searches(self) -> bool:
        """Whether results decide what runs."""
        return any(entry.search.needs_metric for entry in self.grid.entries)

    @property
    def run_count(self) -> int:
        """How many runs there will be."""
        seeds = {entry.name: len(entry.seeds) or 1 for entry in self.grid.entries}
        return len(self.runs) + sum(more * seeds[name] for name, more in self.unsuggested.items())

    @property
    def predicted_cost(self) -> Money | None:
        """The total; None if a run has no prediction, or currencies or kinds differ."""
        kinds = {run.entry.price.kind for run in self.runs if run.entry.price is not None}
        if len(kinds) > 1:
            return None
        if self.searches:
            return total_of([total.expected for total in rung_totals(self)])
        return total_of([run.prediction.cost for run in self.runs])

    @property
    def rungs_cost(self) -> Money | None:
        """The most that its runs cost if they end at their budgets; None if unknown."""
        return total_of([total.most for total in rung_totals(self)])

    @property
    def predicted_ns(self) -> int | None:
        """The total time, one run after the other; None if a run has no prediction."""
        times = [run.prediction.ns for run in self.runs]
        if self.searches:
            times = [total.ns for total in rung_totals(self)]
        known = [ns for ns in times if ns is not None]
        return sum(known) if len(known) == len(times) else None

    @property
    def most_cost(self) -> Money | None:
        """The most that can be spent: the ceiling, or less by timeouts; None if nothing limits it.

        A book that it draws on may have less.
        """
        limits = [] if self.grid.ceiling is None else [self.grid.ceiling]
        costs = [run.most_cost for run in self.runs]
        if self.searches:
            costs = [total.most_each for total in rung_totals(self) for _ in range(total.runs)]
        known = [cost for cost in costs if cost is not None]
        if len(known) == len(costs) and len({cost.currency for cost in [*known, *limits]}) == 1:
            limits.append(sum(known[1:], start=known[0]))
        return min(limits, default=None)

    def is_enough(self, room: Money, predicted: Money | None) -> bool | None:
        """Say whether an amount is enough for all runs; None if that is not known.

        With an unknown start-up it never is. Runs need ``predicted``, and the money to end them
        on top: with less, the last ones are ended before they reach their budgets.
        """
        if predicted is None or predicted.unit != room.unit:
            return None
        if predicted > room:
            return False
        if self.start_up is None:
            return None
        in_time = room.unit == GPU_TIME
        rates = ((run, gpu_rate(run.charged_gpus) if in_time else run.rate) for run in self.runs)
        ends = sum(run.ending_micros(rate) for run, rate in rates)
        return predicted.micros + ends <= room.micros

    def redactor(self, environ: Mapping[str, str]) -> Redactor:
        """Return a redactor of the secrets of its runs and of an environment."""
        return Redactor([environ, *(run.env for run in self.runs)])


# Rungs: what a run takes at each, and what the rungs of a sweep cost.


def predicted_rungs(entry: GridEntry, gpus: Fraction, start_up_ns: int) -> tuple[Prediction, ...]:
    """Return the prediction for each rung alone: what its budget adds, and a start-up.

    A run that is not paused starts up once, which is part of its first rung.
    """
    halving = entry.search.halving
    if halving is None:
        return ()
    return tuple(
        predict(
            replace(entry, budget=budget),
            gpus,
            start_up_ns if rung == 0 or halving.resumable else 0,
        )
        for rung, budget in enumerate(halving.increments)
    )


def at_rung(run: PlannedRun, rung: int, spent: Money | None = None) -> PlannedRun:
    """Return a run as it is started at a rung, after it has ``spent`` so much below."""
    halving = run.entry.search.halving
    if halving is None:
        return run
    entry = replace(run.entry, budget=halving.budget_at(rung))
    if not halving.resumable:
        return replace(run, entry=entry, prediction=predict_whole(run))
    return replace(run, entry=entry, rung=rung, prediction=_rest(run, rung, spent))


def predict_whole(run: PlannedRun) -> Prediction:
    """Return the prediction for all rungs in one attempt."""
    costs, times = [one.cost for one in run.rungs], [one.ns for one in run.rungs]
    known = [ns for ns in times if ns is not None]
    ns = sum(known) if len(known) == len(times) else None
    timeout = run.entry.timeout
    if timeout is not None and (ns is None or timeout.ns < ns):
        return replace(run.rungs[0], ns=timeout.ns, cost=_cost(run.rate, timeout.ns))
    return Prediction(ns=ns, cost=total_of(costs), basis=run.rungs[-1].basis)


def _rest(run: PlannedRun, rung: int, spent: Money | None) -> Prediction:
    """Return the prediction for a rung of a run that has spent so much below."""
    prediction, halving = run.rungs[rung], run.entry.search.halving
    assert halving is not None
    whole = _budgeted(halving.rungs[rung])[1]
    if spent is None or whole is None or prediction.basis != "its cost budget":
        return prediction
    left = whole.micros - spent.micros
    if spent.currency != whole.currency or left <= 0 or run.rate is None:
        return prediction
    cost = whole.unit.money(left)
    return replace(prediction, cost=cost, ns=Terms(rate=run.rate).paid_ns(cost))


@dataclass(frozen=True, slots=True, kw_only=True)
class RungTotal:
    """A rung of an entry: how many runs reach it, and what that costs.

    Attributes:
        budget: From a run's start, in words; "" without halving.
        each: The most that a run takes there, on top of the rungs below.
        most: The most that all cost there.
        expected: The same with the mean of the runs.
        ns: The time of all, one after the other.
        most_each: What an attempt costs up to its timeout at most; None without one.
    """

    entry: str
    rung: int
    budget: str
    runs: int
    each: Prediction
    most: Money | None
    expected: Money | None
    ns: int | None
    most_each: Money | None = None

    @property
    def of_halving(self) -> bool:
        """Whether some runs end there."""
        return bool(self.budget)


def rung_totals(plan: SweepPlan) -> list[RungTotal]:
    """Return the rungs of every entry; one for an entry without halving."""
    return [total for entry in plan.grid.entries for total in _entry_totals(plan, entry)]


def _entry_totals(plan: SweepPlan, entry: GridEntry) -> Iterator[RungTotal]:
    runs = [run for run in plan.runs if run.entry.name == entry.name]
    if not runs:
        return
    more = plan.unsuggested.get(entry.name, 0) * (len(entry.seeds) or 1)
    halving = entry.search.halving
    seeds = len(entry.seeds) or 1
    sizes = [len(runs) + more]
    if halving is not None:
        sizes = [size * seeds for size in halving.sizes(sizes[0] // seeds)]
    for rung, size in enumerate(sizes):
        each = [run.prediction for run in runs]
        if halving is not None:
            each = [run.rungs[rung] for run in runs]
        budget = "" if halving is None else halving.text_at(rung)
        total = _total(rung, size, each)
        dearest = [run.most_cost for run in runs if run.most_cost is not None]
        yield replace(
            total, entry=entry.name, budget=budget,
            most_each=max(dearest) if len(dearest) == len(runs) else None,
        )  # fmt: skip


def _total(rung: int, size: int, each: Sequence[Prediction]) -> RungTotal:
    """Return a rung of ``size`` runs; ``each`` are the predictions of those that are known."""
    costs = [one.cost for one in each if one.cost is not None]
    times = [one.ns for one in each if one.ns is not None]
    most = expected = None
    if len(costs) == len(each) and len({cost.unit for cost in costs}) == 1:
        unit, micros = costs[0].unit, sorted((cost.micros for cost in costs), reverse=True)
        dearest = micros[:size]
        most = unit.money(sum(dearest) + (size - len(dearest)) * micros[0])
        expected = unit.money(round(Fraction(sum(micros) * size, len(micros))))
    ns = None
    if len(times) == len(each):
        ns = round(Fraction(sum(times) * size, len(times)))
    dearest_each = max(each, key=lambda one: 0 if one.cost is None else one.cost.micros)
    return RungTotal(
        entry="", rung=rung, budget="", runs=size, each=dearest_each, most=most,
        expected=expected, ns=ns,
    )  # fmt: skip


def total_of(amounts: Sequence[Money | None]) -> Money | None:
    """Return a sum; None if an amount is unknown, or units differ."""
    known = [amount for amount in amounts if amount is not None]
    if len(known) < len(amounts) or len({amount.unit for amount in known}) != 1:
        return None
    return sum(known[1:], start=known[0])


# What runs are likely to cost, by recorded ones.


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyCost:
    """The likely time and cost of a run, with an 80 % interval; no cost without a price."""

    ns: int
    low_ns: int
    high_ns: int
    cost: Money | None
    low: Money | None
    high: Money | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyCosts:
    """The likely costs of a plan's runs, by id, and what they rest on.

    Attributes:
        basis: What they rest on and what they extrapolate, in one line; without any likely cost,
            why there is none, or "".
    """

    runs: Mapping[str, LikelyCost]
    basis: str = ""

    @property
    def sentence(self) -> str:
        """The total and its basis; "" if there is neither."""
        if not self.runs:
            return self.basis
        ns = sum(each.ns for each in self.runs.values())
        total = total_of([each.cost for each in self.runs.values()])
        low = total_of([each.low for each in self.runs.values()])
        high = total_of([each.high for each in self.runs.values()])
        money = "" if total is None else f"{money_text(total)}, "
        if low is not None and high is not None:
            money = f"{money_text(total or low)} ({range_text(low, high)}), "
        of = counted(len(self.runs), "run")
        return f"{of} likely: {money}{duration_text(ns)} in all, {self.basis}."


NO_LIKELY_COSTS: Final = LikelyCosts(runs={})
