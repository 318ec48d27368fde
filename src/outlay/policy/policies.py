"""Policies: pure functions from a situation to run, wait or on-demand, with their worst case.

All policies share one rule, in ``decide``: what must run to meet the deadline runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from outlay.errors import UnitMismatch
from outlay.policy.price_thresholds import (
    PriceModel,
    PriceThresholds,
    double_thresholds,
    fixed_thresholds,
    worst_ratio,
)
from outlay.policy.situation import (
    Action,
    JobTerms,
    PolicyDecision,
    PriceBounds,
    Situation,
    unit_of,
)
from outlay.units import Rate
from outlay.units.quantity import NS_PER_HOUR, duration_text


class Policy(Protocol):
    """Decides whether a training runs, as prices or availability change."""

    @property
    def name(self) -> str:
        """Its name in output."""

    @property
    def bounds(self) -> PriceBounds | None:
        """The prices for which its worst case holds."""

    def choose(self, at: Situation) -> PolicyDecision:
        """Return what to do if the deadline leaves a choice."""

    def worst_case_ratio(self, job: JobTerms) -> float | None:
        """Return a bound on cost over the least cost in hindsight; None if there is none."""


def decide(policy: Policy, at: Situation) -> PolicyDecision:
    """Return what to do now: what the deadline forces, else what the policy chooses."""
    unit_of(at.price, at.job)
    if at.work_left_ns <= 0:
        return PolicyDecision(action=Action.WAIT, reason="the work is done")
    forced = _forced(at)
    if forced is not None:
        # If it must start now and cannot, any later start is late.
        least_ns = 1 if forced.action is Action.WAIT else 0
        return replace(forced, late_ns=max(least_ns, at.late_ns))
    chosen = policy.choose(at)
    if chosen.action is not Action.WAIT:
        return chosen
    pause = at.job.pause
    ends_ns = 0 if at.doing is Action.WAIT else pause.save_ns + pause.repeated_ns
    last_ns = at.spare_ns - ends_ns - _net_ns(at)
    review_ns = last_ns if chosen.review_ns is None else min(chosen.review_ns, last_ns)
    return replace(chosen, review_ns=max(1, review_ns))


def _net_ns(at: Situation) -> int:
    """Return the spare time at which waiting ends.

    Where spot is tried first, one more changeover may be lost before on-demand is left.
    """
    pause = at.job.pause
    return pause.start_ns if at.job.on_demand is None else 2 * pause.total_ns


def _forced(at: Situation) -> PolicyDecision | None:
    pause, spare = at.job.pause, duration_text(max(0, at.spare_ns))
    if at.job.on_demand is not None:
        if at.doing is Action.RUN or at.spare_ns > _net_ns(at):
            return None
        return PolicyDecision(
            action=Action.ON_DEMAND,
            reason=f"only {spare} to spare before the deadline: no more than two changeovers",
        )
    if at.doing is Action.RUN and at.spare_ns <= pause.total_ns:
        reason = f"a pause would miss the deadline: {spare} to spare"
        return PolicyDecision(action=Action.RUN, reason=reason)
    if at.doing is Action.WAIT and at.spare_ns <= pause.start_ns:
        if at.price is None:
            reason = "it must start to meet the deadline, but the offer is not available"
            return PolicyDecision(action=Action.WAIT, reason=reason)
        reason = "the last moment at which it can finish in time"
        return PolicyDecision(action=Action.RUN, reason=reason)
    return None


_UNAVAILABLE = PolicyDecision(action=Action.WAIT, reason="the offer is not available")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlwaysOn:
    """Runs from the start to the end; on-demand, if there is such a price."""

    bounds: PriceBounds | None = None
    name: str = "always on"

    def choose(self, at: Situation) -> PolicyDecision:
        """Run."""
        if at.job.on_demand is not None:
            return PolicyDecision(action=Action.ON_DEMAND, reason="always on")
        if at.price is None:
            return _UNAVAILABLE
        return PolicyDecision(action=Action.RUN, reason="always on")

    def worst_case_ratio(self, job: JobTerms) -> float | None:
        """Return the highest over the lowest price that it could have had."""
        if self.bounds is None:
            return None
        high = self.bounds.high if job.on_demand is None else job.on_demand
        return high.micros_per_hour / _least_micros(self.bounds, job)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedThreshold:
    """Runs while the price is at most ``below``.

    Attributes:
        unit_ns: The shortest time for which a price holds.
    """

    below: Rate
    bounds: PriceBounds | None = None
    unit_ns: int = NS_PER_HOUR
    name: str = "fixed threshold"

    def choose(self, at: Situation) -> PolicyDecision:
        """Run up to the threshold."""
        if at.price is None:
            return _UNAVAILABLE
        if at.price.unit != self.below.unit:
            raise UnitMismatch(at.price, self.below)
        runs = at.price.micros_per_hour <= self.below.micros_per_hour
        return _by_price(at.price, self.below.micros_per_hour, runs=runs, bounds=self.bounds)

    def worst_case_ratio(self, job: JobTerms) -> float | None:
        """Return the bound for prices that hold for ``unit_ns``; None without bounds."""
        model = _model(job, self.bounds, self.unit_ns)
        if model is None:
            return None
        return worst_ratio(model, fixed_thresholds(model, float(self.below.micros_per_hour)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubleThreshold:
    """Starts below one price and pauses above a higher one; both fall as work gets done.

    Attributes:
        usual: Where prices are most of the time: thresholds are chosen for these, and the worst
            case is that of ``bounds``. Default: ``bounds``.
        unit_ns: The shortest time for which a price holds; work is bought in such units.
    """

    bounds: PriceBounds
    usual: PriceBounds | None = None
    unit_ns: int = NS_PER_HOUR
    name: str = "double threshold"

    def choose(self, at: Situation) -> PolicyDecision:
        """Run up to the threshold of the last unit that it would do before the next price."""
        if at.price is None:
            return _UNAVAILABLE
        of = self.thresholds(at.job)
        touched = -(-(at.done_ns + self.unit_ns) // self.unit_ns)
        unit = min(len(of.start), touched) - 1
        limit = of.stop[unit] if at.doing is Action.RUN else of.start[unit]
        limit = min(limit, float(self.bounds.high.micros_per_hour))
        runs = at.price.micros_per_hour <= limit
        found = _by_price(at.price, limit, runs=runs, bounds=self.bounds)
        return replace(found, review_ns=self.unit_ns)  # Thresholds fall even if prices do not.

    def worst_case_ratio(self, job: JobTerms) -> float | None:
        """Return the bound for prices that hold for ``unit_ns``; None if a start takes longer."""
        model = _model(job, self.bounds, self.unit_ns)
        return None if model is None else worst_ratio(model, self.thresholds(job))

    def thresholds(self, job: JobTerms) -> PriceThresholds:
        """Return its prices for each unit of the job."""
        model = _model(job, self.usual or self.bounds, self.unit_ns)
        if model is None:  # A start takes longer than a price holds: no pause can pay.
            high, units = float(self.bounds.high.micros_per_hour), -(-job.work_ns // self.unit_ns)
            return PriceThresholds((high,) * units, (high,) * units)
        return double_thresholds(model)


def _by_price(
    price: Rate, limit: float, *, runs: bool, bounds: PriceBounds | None
) -> PolicyDecision:
    shown = price.unit.rate(round(limit))
    reason = f"{price} is {'at most' if runs else 'above'} the threshold of {shown}"
    if bounds is not None and price not in bounds:
        reason += f"; outside {bounds.low} to {bounds.high}, so that its worst case does not hold"
    return PolicyDecision(action=Action.RUN if runs else Action.WAIT, reason=reason)


def _model(job: JobTerms, bounds: PriceBounds | None, unit_ns: int) -> PriceModel | None:
    """Return the model in which a ratio is proved; None without bounds, or if starts take a unit.

    In the unit of a start only a part is work, so that a pause weighs more per unit of work.
    """
    pause = job.pause
    if bounds is None or job.on_demand is not None or pause.restart_ns >= unit_ns:
        return None
    low, high = float(bounds.low.micros_per_hour), float(bounds.high.micros_per_hour)
    productive = (unit_ns - pause.restart_ns) / unit_ns
    return PriceModel(
        low=low,
        high=high,
        units=math.ceil(job.work_ns / unit_ns),
        work=job.work_ns / unit_ns,
        pause=high * pause.total_ns / unit_ns / productive,
        first_start=low * pause.start_ns / unit_ns,
        shifted=pause.restart_ns > 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedySpot:
    """Uses spot whenever it is there; on-demand only when the deadline forces it."""

    bounds: PriceBounds | None = None
    name: str = "greedy"

    def choose(self, at: Situation) -> PolicyDecision:
        """Run on spot, or wait for it."""
        if at.doing is Action.ON_DEMAND:
            return PolicyDecision(action=Action.ON_DEMAND, reason="on-demand to the end")
        if at.price is None:
            return _UNAVAILABLE
        return PolicyDecision(action=Action.RUN, reason="spot is available")

    def worst_case_ratio(self, job: JobTerms) -> float | None:
        """Return the most that it can cost over all work at the lowest price; if done in time.

        Once on on-demand it stays: at most for all work and one start. All other time until the
        deadline it may be on spot in vain; all time, where spot may cost more than on-demand.
        """
        if self.bounds is None or job.on_demand is None:
            return None
        high, on_demand = self.bounds.high.micros_per_hour, job.on_demand.micros_per_hour
        run_ns = min(job.work_ns + job.pause.start_ns, job.time_ns)
        on_demand_ns = run_ns if on_demand > high else 0
        most = on_demand * on_demand_ns + high * (job.time_ns - on_demand_ns)
        return most / _least_paid(self.bounds, job)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformProgress:
    """Spot when it is there; on-demand only to keep up with even progress to the deadline.

    Wu et al., "Can't Be Late", NSDI 2024.
    """

    bounds: PriceBounds | None = None
    name: str = "uniform progress"

    def choose(self, at: Situation) -> PolicyDecision:
        """Compare the work done with even progress from the first decision to the deadline."""
        if at.doing is Action.RUN and at.price is not None:
            return PolicyDecision(action=Action.RUN, reason="on spot until it is taken back")
        if at.doing is Action.ON_DEMAND and self._lead_ns(at, 2 * at.job.pause.total_ns) < 0:
            return PolicyDecision(
                action=Action.ON_DEMAND,
                reason="not far enough ahead of even progress to leave on-demand",
                review_ns=self._catch_up_ns(at),
            )
        if at.price is not None:
            return PolicyDecision(action=Action.RUN, reason="spot is available")
        if at.job.on_demand is not None and self._lead_ns(at) < 0:
            reason = "no spot, and behind even progress to the deadline"
            return PolicyDecision(action=Action.ON_DEMAND, reason=reason)
        lead_ns = self._lead_ns(at) // at.job.work_ns + 1
        reason = "no spot, and ahead of even progress to the deadline"
        return PolicyDecision(action=Action.WAIT, reason=reason, review_ns=lead_ns)

    def worst_case_ratio(self, job: JobTerms) -> float | None:
        """Return the most that it can cost over all work at the lowest price; if done in time.

        It has one machine at a time, on spot or on-demand, and none after the deadline: the most
        is the whole time at the dearer of on-demand and the highest spot price.
        """
        if self.bounds is None or job.on_demand is None:
            return None
        dearer = max(self.bounds.high.micros_per_hour, job.on_demand.micros_per_hour)
        return dearer * job.time_ns / _least_paid(self.bounds, job)

    def _lead_ns(self, at: Situation, ahead_ns: int = 0) -> int:
        """Return work done beyond even progress at a later instant, times the time of the job."""
        return at.done_ns * at.job.time_ns - (at.elapsed_ns + ahead_ns) * at.job.work_ns

    def _catch_up_ns(self, at: Situation) -> int:
        """Return how long it must run to get two changeovers ahead of even progress."""
        missing = -self._lead_ns(at, 2 * at.job.pause.total_ns)
        gains = max(1, at.job.time_ns - at.job.work_ns)
        return at.setup_left_ns + missing // gains + 1


def _least_micros(bounds: PriceBounds, job: JobTerms) -> int:
    """Return the lowest price per hour at which the job can have a machine, in micro-units."""
    low, on_demand = bounds.low.micros_per_hour, job.on_demand
    return low if on_demand is None else min(low, on_demand.micros_per_hour)


def _least_paid(bounds: PriceBounds, job: JobTerms) -> int:
    """Return the least that work and one start can cost, in micro-units per hour times ns."""
    return _least_micros(bounds, job) * (job.work_ns + job.pause.start_ns)
