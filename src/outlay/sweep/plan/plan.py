"""A sweep's plan: every run with its id, fingerprint, prediction and rate. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from outlay.units import Duration, Money, Rate
from outlay.units.money import GPU_TIME

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
    budget = entry.budget
    times: dict[str, int] = {}
    if (trained_ns := _time_limit_ns(budget)) is not None:
        times["its time budget"] = trained_ns + start_up_ns
    if entry.timeout is not None:
        times["its timeout"] = entry.timeout.ns
    rate = None if entry.price is None else rate_of(entry.price.stated, gpus)
    stated = _stated_cost(budget)
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
    limit_ns, stated = _time_limit_ns(entry.budget), _stated_cost(entry.budget)
    shares = [] if limit_ns is None else [start_up_ns / limit_ns]
    rate = None if entry.price is None else entry.price.stated * gpus
    paid = _cost(rate, start_up_ns)
    if stated is not None and paid is not None:
        shares.append(paid.micros / stated.micros)
    return max(shares, default=0.0)


def _time_limit_ns(budget: Budget | None) -> int | None:
    bounds = () if budget is None else budget.bounds_known
    return next((bound.limit for bound in bounds if bound.dimension == TIME), None)


def _stated_cost(budget: Budget | None) -> Money | None:
    if budget is None or not budget.limits_money:
        return None
    units = next(b.limit for b in budget.bounds_known if b.dimension.name == COST.name)
    return Money(Usage(cost_units=units).cost_micros, budget.currency)


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
        nodes = str(self.entry.nnodes or 1).rpartition(":")[2]
        return self.world_size * int(nodes)

    @property
    def states_gpus(self) -> bool:
        """Whether the grid states its GPUs, or requests them from a cluster."""
        options = self.entry.options
        on_node = None if options is None else options.gpus_on_node
        return self.entry.gpus is not None or on_node is not None

    @property
    def charged_gpus(self) -> Fraction:
        """GPUs that are paid for: as stated, else as requested from a cluster.

        Else one per process, over the largest number of nodes.
        """
        entry = self.entry
        if entry.gpus is not None:
            return entry.gpus
        on_node = None if entry.options is None else entry.options.gpus_on_node
        if on_node is None:
            return Fraction(self.most_gpus)
        return Fraction(on_node * self.most_gpus, self.world_size)

    @property
    def outside_limit(self) -> OutsideLimit | None:
        """The first of its limits that is enforced from outside; None if none is."""
        entry, limits = self.entry, list[OutsideLimit]()
        if entry.budget is None or not entry.enforce:
            return None
        for bound in CommandTerms(budget=entry.budget).enforced:
            ns: int | None = bound.limit
            if bound.dimension != TIME:
                ns = self._paid_ns(_stated_cost(entry.budget))
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
        return terms.cost(terms.notice.ns + max(0, ns - predicted.ns)).micros

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
        grid_text: The grid of a command line, which is in no file yet; "" for that of a file.
    """

    grid: Grid
    runs: tuple[PlannedRun, ...]
    warnings: tuple[Finding, ...] = ()
    start_up: StartUp | None = None
    grid_text: str = ""

    @property
    def predicted_cost(self) -> Money | None:
        """The total; None if a run has no prediction, or currencies or kinds differ."""
        costs = [run.prediction.cost for run in self.runs]
        known = [cost for cost in costs if cost is not None]
        kinds = {run.entry.price.kind for run in self.runs if run.entry.price is not None}
        if len(known) < len(costs) or len({cost.currency for cost in known}) != 1 or len(kinds) > 1:
            return None
        return sum(known[1:], start=known[0])

    @property
    def predicted_ns(self) -> int | None:
        """The total time, one run after the other; None if a run has no prediction."""
        times = [run.prediction.ns for run in self.runs]
        known = [ns for ns in times if ns is not None]
        return sum(known) if len(known) == len(times) else None

    @property
    def most_cost(self) -> Money | None:
        """The most that can be spent: the ceiling, or less by timeouts; None if nothing limits it.

        A book that it draws on may have less.
        """
        limits = [] if self.grid.ceiling is None else [self.grid.ceiling]
        costs = [run.most_cost for run in self.runs]
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
