"""Advice on what to compute on: expected money and hours to finish the same work on each offer.

Speed counts both ways: a GPU that is dearer by the hour may be cheaper by the job. On machines that
may be taken back, work is lost and repeated; how much follows from how often that happens and what
a checkpoint costs (see ``checkpoints``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outlay.advise.checkpoints import Reliability, exact, expected_ratio
from outlay.advise.recommendation import Grade, OptimizationRecommendation, confidence_of
from outlay.errors import InvalidValue
from outlay.prices.gpus import matching_names
from outlay.prices.offer import Offer, Tier

_SPEED_DOUBT = 0.1  # How far a speed measured elsewhere may be off, one standard deviation.


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Something to compute on.

    Attributes:
        price_per_hour: Of all its GPUs together.
        speed: Work per hour, in any one unit.
        memory_gb: Of one GPU; None where it is not known.
        mttf_hours: Mean time until it is taken back; None where it is not.
    """

    name: str
    price_per_hour: float
    speed: float
    memory_gb: float | None = None
    mttf_hours: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.price_per_hour < float("inf"):
            raise InvalidValue("price", self.price_per_hour, "a finite price, zero or more")
        if not 0 < self.speed < float("inf"):
            raise InvalidValue("throughput", self.speed, "a finite throughput above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work to be done, and its limits.

    Attributes:
        work: In the unit of ``Option.speed`` times hours.
        memory_gb: What it needs of each GPU; None where it is not known.
        deadline_hours: By when it must be done.
        save_hours: How long a checkpoint takes; ``restart_hours``: how long to go on after a loss.
    """

    work: float
    memory_gb: float | None = None
    deadline_hours: float | None = None
    save_hours: float = 1 / 60
    restart_hours: float = 1 / 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What the job takes on an option.

    Attributes:
        overhead: Expected wall time over the time of the work itself.
        refused: Why it cannot be done there; "" where it can.
    """

    option: Option
    hours: float
    cost: float
    overhead: float
    refused: str = ""


def finish_on(option: Option, job: Job) -> Finish:
    """Return the expected hours and cost of the job on an option."""
    overhead = _overhead(option, job)
    hours = job.work / option.speed * overhead
    return Finish(
        option=option,
        hours=hours,
        cost=hours * option.price_per_hour,
        overhead=overhead,
        refused=_refusal(option, job, hours),
    )


def ranked(options: Iterable[Option], job: Job) -> list[Finish]:
    """Return how the job fares on each option: those that can do it first, the cheapest first."""
    found = [finish_on(option, job) for option in options]
    return sorted(found, key=lambda f: (f.refused != "", f.cost, f.hours, f.option.name))


def _overhead(option: Option, job: Job) -> float:
    if option.mttf_hours is None:
        return 1.0
    reliability = Reliability(
        save=job.save_hours, mttf=option.mttf_hours, restart=job.restart_hours
    )
    return expected_ratio(reliability, max(exact(reliability), 1e-9))


def _refusal(option: Option, job: Job, hours: float) -> str:
    has, needs = option.memory_gb, job.memory_gb
    if has is not None and needs is not None and has < needs:
        return f"{has:g} GB are fewer than the {needs:g} GB it needs"
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
    """Return offers as options, where the speed on their GPU is known.

    Args:
        offers: From the price book.
        speeds: Work per hour on ``gpus`` GPUs, by card or family.
        gpus: How many the job uses.
        spot_mttf_hours: Mean time until a spot machine is taken back.
        currency: Offers in another are left out.
    """
    found = []
    for offer in offers:
        names = (name for name in speeds if matching_names(name, [offer.gpu]))
        name = next(names, None)
        # Half a machine cannot be rented, and work split over two is another job.
        if name is None or offer.gpu_count != gpus or offer.price.currency != currency:
            continue
        found.append(
            Option(
                name=f"{offer.provider} {offer.gpu_count}x {offer.gpu} {offer.label}",
                price_per_hour=float(offer.price.amount),
                speed=speeds[name],
                memory_gb=offer.memory_gb,
                mttf_hours=spot_mttf_hours if offer.tier is Tier.SPOT else None,
            )
        )
    return found


def recommend_compute_tier(
    current: Option,
    alternatives: Sequence[Option],
    job: Job,
    *,
    least_saving: float,
    per: str = "",
    grade: Grade = "estimated",
    measured_speeds: bool = False,
) -> OptimizationRecommendation | None:
    """Return the option on which the same work costs least; None where that saves too little.

    Args:
        current: What is used now.
        alternatives: What could be.
        job: The work.
        least_saving: Below this nothing is said.
        per: The period that the job stands for, such as "a month".
        grade: Of the weakest figure.
        measured_speeds: The speeds were measured on these very machines.
    """
    now = finish_on(current, job)
    usable = [finish for finish in ranked(alternatives, job) if not finish.refused]
    if not usable:
        return None
    best = usable[0]
    saved = now.cost - best.cost
    if saved < least_saving or saved <= 0:
        return None
    doubt = 0.0 if measured_speeds else 1.28 * _SPEED_DOUBT * best.cost
    low, high = saved - doubt, saved + doubt
    faster = now.hours - best.hours
    return OptimizationRecommendation(
        category="compute",
        title=f"Move from {current.name} to {best.option.name}",
        description=(
            f"The same work takes {best.hours:.1f} h and ${best.cost:.2f} there instead of "
            f"{now.hours:.1f} h and ${now.cost:.2f}: ${saved:.2f} less{per and ' ' + per}."
        ),
        estimated_savings=saved,
        estimated_time_saved=faster,
        confidence=confidence_of(0.9 if low > 0 else 0.6, grade),
        action=f"Rent {best.option.name}",
        risks=_risks(best, faster),
        savings_low=low,
        savings_high=high,
        grade=grade,
        evidence=[
            f"{finish.option.name}: {finish.hours:.1f} h, ${finish.cost:.2f}"
            for finish in [now, *usable[:3]]
        ],
        assumptions=_assumptions(best, measured_speeds=measured_speeds),
        needed=[] if measured_speeds else ["throughput of this training on that GPU"],
    )


def _risks(best: Finish, faster: float) -> list[str]:
    risks = [] if faster >= 0 else [f"it takes {-faster:.1f} h longer"]
    if best.option.mttf_hours is not None:
        risks.append("it may be taken back at any time")
    return risks


def _assumptions(best: Finish, *, measured_speeds: bool) -> list[str]:
    found = [] if measured_speeds else ["the throughputs are right within 10 %"]
    if best.option.mttf_hours is not None:
        found.append(f"it is taken back every {best.option.mttf_hours:g} h on average")
    return found
