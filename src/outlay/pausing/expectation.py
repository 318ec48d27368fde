"""What a plan would cost: its policy replayed on stored prices, beside running at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from outlay import rates
from outlay.pausing.pause_plan import PausePlan, RunProgress
from outlay.policy.policies import AlwaysOn
from outlay.policy.simulation import PriceChange, SimulatedJob, simulate
from outlay.policy.situation import JobTerms
from outlay.units import Money, Rate

_STARTS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceReplay:
    """A policy on stored prices, as the mean over starts that are evenly spaced in them.

    Attributes:
        starts: How many; one if the prices are of a shorter time than the job's, of which the last
            then holds on.
        cost: Pauses included.
        always_on: The cost of running at once and to the end.
        later_ns: How much later it would have been done than that.
        late: How many of them would have missed the deadline.
    """

    starts: int
    days: float
    cost: Money
    always_on: Money
    later_ns: int
    pauses: float
    late: int


def job_of(plan: PausePlan, run: RunProgress, now_ns: int) -> JobTerms | None:
    """Return what is left of a run as a job from now on; None if its length is not known."""
    time_ns = plan.deadline_ns - now_ns
    if run.left_ns is None or time_ns <= 0:
        return None
    return JobTerms(work_ns=max(1, run.left_ns), time_ns=time_ns, pause=run.pause)


def replay(plan: PausePlan, history: Sequence[PriceChange], job: JobTerms) -> PriceReplay | None:
    """Replay a plan's policy on stored prices; None with fewer than two."""
    if len(history) < 2:
        return None
    first_ns, last_ns = history[0].at_ns, history[-1].at_ns
    span_ns = max(0, last_ns - first_ns - job.time_ns)
    count = _STARTS if span_ns else 1
    starts = [first_ns + span_ns * n // count for n in range(count)]
    ours = [simulate(plan.policy, history, job, start_ns=at_ns) for at_ns in starts]
    always = [simulate(AlwaysOn(), history, job, start_ns=at_ns) for at_ns in starts]
    return PriceReplay(
        starts=count,
        days=(last_ns - first_ns) / (24 * rates.NS_PER_HOUR),
        cost=_mean([one.cost + _paused(one, plan.stopped) for one in ours]),
        always_on=_mean([one.cost for one in always]),
        later_ns=round(fmean(_done(a) - _done(b) for a, b in zip(ours, always, strict=True))),
        pauses=fmean(one.starts - 1 for one in ours),
        late=sum(bool(one.late_ns) for one in ours),
    )


def _paused(job: SimulatedJob, stopped: Rate | None) -> Money:
    if stopped is None:
        return job.cost.unit.money(0)
    return rates.cost(stopped, _done(job) - job.paid_ns)


def _done(job: SimulatedJob) -> int:
    assert job.done_ns is not None  # Stored prices have no time without one.
    return job.done_ns


def _mean(amounts: Sequence[Money]) -> Money:
    total = sum((one.micros for one in amounts), 0)
    return amounts[0].unit.money(round(total / len(amounts)))
