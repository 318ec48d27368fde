"""What a run should take and cost, from its budget, its timeout and its price. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from outlay.budget.dimensions import COST, TIME
from outlay.budget.usage import Usage
from outlay.guard.lease import Terms
from outlay.rates import rate_of
from outlay.sweep.grid import Settings
from outlay.units import Duration, Money, Rate

NOTICE_NS: Final = 10 * 10**9
"""How long a run that is told to end has before it is killed."""
_STARTING_NS: Final = 120 * 10**9
REACTION_NS: Final = 10**9
"""How long the harness may take to see that a run must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """An estimate; None where nothing says.

    Attributes:
        ns: How long the run should take.
        cost: What it should cost.
        basis: What the estimate rests on, in words.
        start_up_ns: How much of the time it takes to start, from earlier runs of the program.
    """

    ns: int | None = None
    cost: Money | None = None
    basis: str = ""
    start_up_ns: int | None = None


def predict(settings: Settings, gpus: Fraction, start_up_ns: int | None = None) -> Prediction:
    """Return what a run on so many GPUs should take: the tightest of what limits it.

    A time budget counts training alone, so that starting comes on top of it where it is known.
    """
    budget = settings.budget
    bounds = {} if budget is None else {b.dimension: b.limit for b in budget.bounds_known}
    times = {"its time budget": bounds.get(TIME)}
    if TIME in bounds:
        times["its time budget"] = bounds[TIME] + (start_up_ns or 0)
    times["its timeout"] = None if settings.timeout is None else settings.timeout.ns
    rate = None if settings.price is None else rate_of(settings.price.rate, gpus)
    stated = Money(Usage(cost_units=bounds[COST]).cost_micros) if COST in bounds else None
    if stated is not None and rate is not None and rate.micros_per_hour:
        times["its cost budget"] = Terms(rate=rate).paid_ns(stated)
    known = {basis: ns for basis, ns in times.items() if ns is not None}
    if not known:
        basis = "its cost budget" if stated is not None else ""
        return Prediction(cost=stated, basis=basis, start_up_ns=start_up_ns)
    basis = min(known, key=lambda name: known[name])
    cost = stated if basis == "its cost budget" else _cost(rate, known[basis])
    return Prediction(ns=known[basis], cost=cost, basis=basis, start_up_ns=start_up_ns)


def start_up_share(settings: Settings, gpus: int, start_up_ns: int) -> float:
    """Return the largest share of a limit on time or money that starting takes."""
    budget = settings.budget
    bounds = {} if budget is None else {b.dimension: b.limit for b in budget.bounds_known}
    shares = [start_up_ns / bounds[TIME]] if TIME in bounds else []
    rate = None if settings.price is None else settings.price.rate * gpus
    paid = _cost(rate, start_up_ns)
    if COST in bounds and paid is not None:
        shares.append(paid.micros / Usage(cost_units=bounds[COST]).cost_micros)
    return max(shares, default=0.0)


def measured(rate: Rate | None, finished_ns: Sequence[int]) -> Prediction:
    """Return what a run should take, judged by the longest of those that have finished."""
    if not finished_ns:
        return Prediction()
    longest = max(finished_ns)
    return Prediction(ns=longest, cost=_cost(rate, longest), basis="finished runs")


def at_most(rate: Rate | None, predicted: Prediction, timeout: Duration | None) -> Prediction:
    """Return the most that a run may take where nobody is there to pay for more while it runs.

    Its timeout; without one what is predicted and a tenth and two minutes more, for starting up and
    for what a budget does not count.
    """
    if predicted.ns is None:
        return predicted
    ns = predicted.ns + predicted.ns // 10 + _STARTING_NS if timeout is None else timeout.ns
    return Prediction(ns=ns, cost=_cost(rate, ns), basis=predicted.basis)


def _cost(rate: Rate | None, ns: int) -> Money | None:
    return None if rate is None else Terms(rate=rate).cost(ns)


def terms_of(rate: Rate, predicted_ns: int) -> Terms:
    """Return on what terms money is held for a run: small slices after what was predicted.

    The notice, during which a run that is being ended still costs, is part of what is held, and so
    is the time that noticing takes.
    """
    notice_ns = min(NOTICE_NS, predicted_ns // 10) + REACTION_NS
    slice_ns = max(REACTION_NS, min(300 * 10**9, predicted_ns // 4))
    return Terms(
        rate=rate, slice=Duration(slice_ns), notice=Duration(notice_ns),
        reaction=Duration(REACTION_NS),
    )  # fmt: skip
