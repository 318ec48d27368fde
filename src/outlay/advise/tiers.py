"""Advice on what to rent: expected cost and hours of the same work on each offer.

A GPU that costs more per hour may cost less per job. On machines that may be preempted, work is
lost and repeated; how much depends on the mean time to preemption and on the time of a checkpoint
(see ``overhead``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outlay.advise.overhead import Reliability, expected_ratio, optimal_interval
from outlay.advise.recommendation import (
    OptimizationRecommendation,
    bounded,
    calibrated,
    confidence_of,
)
from outlay.clock import utc_datetime
from outlay.errors import InvalidValue
from outlay.prices.gpus import matching_names
from outlay.prices.offer import Offer, Tier
from outlay.units.shown import amount_text

SPOT_MTTF_HOURS = 6.0
"""How often a spot machine is taken back where nothing is known."""
SAVE_HOURS = 1 / 60
RESTART_HOURS = 1 / 12
_SPEED_ERROR = 0.1  # Relative standard deviation of a speed measured elsewhere.
_SHORTEST_HOURS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A machine or a group of GPUs to run on.

    Attributes:
        price_per_hour: Of all its GPUs together.
        speed: Work per hour, in any one unit.
        memory_gb: Of one GPU; None if unknown.
        mttf_hours: Mean time to preemption; None if it is never preempted.
        seen: Date and source of its price; "" for a stated price.
    """

    name: str
    price_per_hour: float
    speed: float
    memory_gb: float | None = None
    mttf_hours: float | None = None
    seen: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.price_per_hour < float("inf"):
            raise InvalidValue("price", self.price_per_hour, "a finite price, zero or more")
        if not 0 < self.speed < float("inf"):
            raise InvalidValue("throughput", self.speed, "a finite throughput above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeJob:
    """The work to be done, and its limits.

    Attributes:
        work: In the unit of ``Option.speed`` times hours.
        memory_gb: Memory needed on each GPU; None if unknown.
        save_hours: Time to save a checkpoint; ``restart_hours``: time to restart after a failure.
        per: What the cost is for, such as "a month".
    """

    work: float
    memory_gb: float | None = None
    deadline_hours: float | None = None
    save_hours: float = SAVE_HOURS
    restart_hours: float = RESTART_HOURS
    currency: str = "USD"
    per: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """Expected time and cost of the job on an option.

    Attributes:
        overhead: Expected wall time divided by the time of the work itself.
        refused: Why the job cannot run there; "" if it can.
    """

    option: Option
    hours: float
    cost: float
    overhead: float
    refused: str = ""


def estimate_job(option: Option, job: ComputeJob) -> JobEstimate:
    """Return the expected hours and cost of the job on an option."""
    overhead = _overhead(option, job)
    hours = job.work / option.speed * overhead
    return JobEstimate(
        option=option,
        hours=hours,
        cost=hours * option.price_per_hour,
        overhead=overhead,
        refused=_refusal(option, job, hours),
    )


def ranked(options: Iterable[Option], job: ComputeJob) -> list[JobEstimate]:
    """Return an estimate per option: usable ones first, the cheapest first."""
    found = [estimate_job(option, job) for option in options]
    return sorted(found, key=lambda f: (f.refused != "", f.cost, f.hours, f.option.name))


def _overhead(option: Option, job: ComputeJob) -> float:
    if option.mttf_hours is None:
        return 1.0
    reliability = Reliability(
        save=job.save_hours, mttf=option.mttf_hours, restart=job.restart_hours
    )
    # If a save takes no time the optimal interval is 0, which has no ratio.
    return expected_ratio(reliability, max(optimal_interval(reliability), _SHORTEST_HOURS))


def _refusal(option: Option, job: ComputeJob, hours: float) -> str:
    has, needs = option.memory_gb, job.memory_gb
    if has is not None and needs is not None and has < needs:
        return f"{has:g} GB are fewer than the {needs:g} GB it needs"
    if hours == math.inf:
        return f"it is taken back every {option.mttf_hours:g} h, too often ever to get done"
    if job.deadline_hours is not None and hours > job.deadline_hours:
        return f"it would take {hours:.1f} h, beyond the deadline of {job.deadline_hours:g} h"
    return ""


def options_of(
    offers: Iterable[Offer],
    speeds: Mapping[str, float],
    *,
    gpus: int,
    spot_mttf_hours: float,
    currency: str = "USD",
) -> list[Option]:
    """Return the offers in one currency whose GPU has a known speed, as options.

    Speeds are work per hour on ``gpus`` GPUs, by card or family.
    """
    found = []
    for offer in offers:
        names = (name for name in speeds if matching_names(name, [offer.gpu]))
        name = next(names, None)
        # Half a machine cannot be rented, and two machines are another job. A reservation is paid
        # for its whole term, however short the job.
        unfit = offer.gpu_count != gpus or offer.tier is Tier.RESERVED
        if name is None or unfit or offer.price.currency != currency:
            continue
        found.append(
            Option(
                name=f"{offer.provider} {offer.gpu_count}x {offer.gpu} {offer.label}",
                price_per_hour=float(offer.price.amount),
                speed=speeds[name],
                memory_gb=offer.memory_gb,
                mttf_hours=spot_mttf_hours if offer.tier is Tier.SPOT else None,
                seen=f"price of {utc_datetime(offer.fetched_ns):%Y-%m-%d}, {offer.source}",
            )
        )
    return found


def recommend_compute_tier(
    current: Option, alternatives: Sequence[Option], job: ComputeJob, *, least_saving: float
) -> OptimizationRecommendation | None:
    """Return the option on which the same work costs least; None if that saves too little.

    How often that holds is known for what was simulated: the same speed, never taken back.
    """
    now = estimate_job(current, job)
    usable = [finish for finish in ranked(alternatives, job) if not finish.refused]
    if not usable:
        return None
    best = usable[0]
    saved = now.cost - best.cost
    if saved < least_saving or saved <= 0:
        return None
    margin = 1.28 * _SPEED_ERROR * best.cost
    low, high = saved - margin, saved + margin
    faster = now.hours - best.hours
    risks = [] if faster >= 0 else [f"it takes {-faster:.1f} h longer"]
    assumptions = [f"the throughputs are right within {_SPEED_ERROR:.0%}"]
    if best.option.mttf_hours is not None:
        risks.append("it may be taken back at any time")
        assumptions.append(f"it is taken back every {best.option.mttf_hours:g} h on average")
    found = OptimizationRecommendation(
        category="compute",
        title=f"Move from {current.name} to {best.option.name}",
        description=(
            f"The same work takes {_takes(best, job)} there instead of {_takes(now, job)}: "
            f"{amount_text(saved, job.currency)} less{job.per and ' ' + job.per}."
        ),
        estimated_savings=saved,
        estimated_time_saved=faster,
        confidence=confidence_of(0.9 if low > 0 else 0.6, "estimated"),
        action=f"Rent {best.option.name}",
        risks=risks,
        savings_low=low,
        savings_high=high,
        grade="estimated",
        evidence=[f"{finish.option.name}: {_takes(finish, job)}" for finish in [now, *usable[:3]]],
        assumptions=assumptions,
        needed=["throughput of this training on that GPU"],
        currency=job.currency,
    )
    found = bounded(found, now.cost)
    is_the_same = best.option.speed == current.speed and best.option.mttf_hours is None
    return calibrated(found, "compute") if is_the_same else found


def _takes(finish: JobEstimate, job: ComputeJob) -> str:
    seen = f" ({finish.option.seen})" if finish.option.seen else ""
    return f"{finish.hours:.1f} h and {amount_text(finish.cost, job.currency)}{seen}"
