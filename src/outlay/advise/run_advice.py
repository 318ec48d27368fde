"""Everything that a run's own log says should be changed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median

from outlay.advise.batch_size import advise_batch_size
from outlay.advise.dataset import recommend_fewer_passes
from outlay.advise.observations import observe
from outlay.advise.overhead import Checkpointing, recommend_badput, recommend_checkpoint_interval
from outlay.advise.recommendation import OptimizationRecommendation, least_saving, merged
from outlay.advise.stopping import EpochPrice, advise_epoch_count, recommend_early_stopping
from outlay.advise.tiers import ComputeJob, Option, options_of, recommend_compute_tier
from outlay.cost.run_cost import ACCURACY, LOSS, RunCost, cost_of
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView
from outlay.goodput.reliability import (
    RESTART,
    checkpoint_spacing,
    disruptions,
    mean_time_to_failure,
)
from outlay.ledger import exact_gpus
from outlay.prices.gpus import resolve
from outlay.prices.offer import Offer
from outlay.rates import NS_PER_HOUR
from outlay.units import Money

SPOT_MTTF_HOURS = 6.0
_STARTS = (ph.RECOVERY, *RESTART)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a run's log does not say.

    Attributes:
        offers: What could be rented instead.
        speeds: How fast this training would be on other GPUs, the present one being 1.0.
        total_evaluations: How many times the run will evaluate in all.
        spot_mttf_hours: Mean time until a spot machine is taken back.
        deadline_hours: How long a run like this one may take.
    """

    offers: Sequence[Offer] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)
    total_evaluations: int | None = None
    spot_mttf_hours: float = SPOT_MTTF_HOURS
    deadline_hours: float | None = None


def advise_run(
    view: RunView, around: Circumstances | None = None
) -> list[OptimizationRecommendation]:
    """Return what should be changed about a run, the largest saving first; none without a price."""
    around = around or Circumstances()
    cost = cost_of(view)
    if not cost.cost or not cost.wall_ns:
        return []
    spent = _Spent(
        amount=float(cost.cost.amount),
        currency=cost.cost.currency,
        hours=cost.wall_ns / NS_PER_HOUR,
    )
    checkpoints = _checkpoints(view, cost, spent)
    found = [
        *_stopping(view, spent, around),
        checkpoints,
        _badput(view, cost, spent, without=_computed(view, checkpoints)),
        _compute(view, spent, around),
        advise_batch_size(
            view, price_per_hour=spent.per_hour, hours=spent.hours, currency=spent.currency
        ),
        recommend_fewer_passes(
            cost.epochs or 0.0, spent.amount, spent.hours, currency=spent.currency
        ),
        *observe(view, cost),
    ]
    least = least_saving(spent.amount)
    return merged(
        replace(each, subject=cost.run_id)
        for each in found
        if each is not None and (each.estimated_savings >= least or each.kind == "observation")
    )


def floor_of(view: RunView) -> Money | None:
    """Return below which saving nothing is said about a run; None without a price."""
    spent = cost_of(view).cost
    return None if spent is None else Money(round(least_saving(spent.micros)), spent.currency)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    """What a run cost, in currency units, and how long it took."""

    amount: float
    currency: str
    hours: float

    @property
    def per_hour(self) -> float:
        """What an hour of the whole run cost."""
        return self.amount / self.hours


def _stopping(
    view: RunView, spent: _Spent, around: Circumstances
) -> list[OptimizationRecommendation]:
    """A live run may stop now; of one that is over the next may be shorter."""
    losses = view.account.series(*LOSS)
    points = losses or view.account.series(*ACCURACY)
    values = [-point.value if losses else point.value for point in points]
    if len(points) < 2:
        return []
    apart = [after.t_ns - before.t_ns for before, after in pairwise(points)]
    # A live run goes on at its typical pace; one that is over cost what all of it took.
    hours = (median(apart) if view.timeline.alive else fmean(apart)) / NS_PER_HOUR
    epoch = EpochPrice(
        hours=hours, price_per_hour=spent.per_hour, unit="evaluation", currency=spent.currency
    )
    if not view.timeline.alive:
        return advise_epoch_count(values, epoch, negated=bool(losses))
    found = recommend_early_stopping(values, epoch, total_epochs=around.total_evaluations)
    return [] if found is None else [found]


def _checkpoints(view: RunView, cost: RunCost, spent: _Spent) -> OptimizationRecommendation | None:
    saves, apart_ns = _saves(view), checkpoint_spacing(view.timeline)
    saving_ns = view.break_down().phases.get(ph.CHECKPOINT_SAVE, 0)
    if not saves or not saving_ns or not apart_ns:
        return None
    mttf = mean_time_to_failure(view.timeline)
    starts = sum(float(cost.by_phase[name].amount) for name in _STARTS if name in cost.by_phase)
    return recommend_checkpoint_interval(
        Checkpointing(
            interval=apart_ns / 1e9,
            save=saving_ns / saves / 1e9,
            restart=_restart_s(view),
            mttf=None if mttf.mean_ns is None else mttf.mean_ns / 1e9,
            mttf_low=mttf.low_ns / 1e9,
            mttf_high=None if mttf.high_ns is None else mttf.high_ns / 1e9,
            cost=spent.amount - starts,
            currency=spent.currency,
            whole=spent.amount,
        )
    )


def _computed(view: RunView, checkpoints: OptimizationRecommendation | None) -> list[str]:
    """Return the phases for which the best interval was computed, so that no usual remedy counts.

    Where the run saves as often as is best, saves can still be made shorter; work that is repeated
    is then what that costs.
    """
    known = [ph.WASTED_PROGRESS] if checkpoint_spacing(view.timeline) is not None else []
    return known if checkpoints is None else [*known, ph.CHECKPOINT_SAVE]


def _saves(view: RunView) -> int:
    """Return how many checkpoints were committed."""
    attempts = (stretch.timeline for stretch in view.timeline.stretches)
    return sum(len(attempt.checkpoints) for attempt in attempts if attempt is not None)


def _restart_s(view: RunView) -> float:
    found = disruptions(view.timeline)
    ways_back = [d.down_ns + d.init_ns + d.restore_ns + d.startup_ns for d in found]
    return sum(ways_back) / len(ways_back) / 1e9 if ways_back else 0.0


def _badput(
    view: RunView, cost: RunCost, spent: _Spent, *, without: Collection[str]
) -> OptimizationRecommendation | None:
    costs = {name: float(money.amount) for name, money in cost.by_phase.items()}
    phases = view.break_down().phases
    hours = {name: ns / NS_PER_HOUR for name, ns in phases.items()}
    return recommend_badput(
        costs,
        hours,
        currency=spent.currency,
        without=without,
        disruptions=len(disruptions(view.timeline)),
    )


def _compute(
    view: RunView, spent: _Spent, around: Circumstances
) -> OptimizationRecommendation | None:
    header = view.timeline.attempts[-1].header
    gpu = resolve(header.gpu) if header.gpu else None
    if gpu is None or not around.offers:
        return None
    current = Option(
        name=f"{header.gpus}x {gpu.name} as now", price_per_hour=spent.per_hour, speed=1.0
    )
    # The run's own speed is measured; it carries over to the same GPU elsewhere.
    speeds = {gpu.name: 1.0} | dict(around.speeds)
    options = options_of(
        around.offers,
        speeds,
        gpus=math.ceil(exact_gpus(header.gpus)),  # Half a GPU is not on offer.
        spot_mttf_hours=around.spot_mttf_hours,
        currency=spent.currency,
    )
    job = ComputeJob(
        work=spent.hours,
        memory_gb=gpu.memory_gb,
        deadline_hours=around.deadline_hours,
        currency=spent.currency,
        per="for a run like this one",
    )
    return recommend_compute_tier(
        current, options, _with_measured_losses(job, view), least_saving=least_saving(spent.amount)
    )


def _with_measured_losses(job: ComputeJob, view: RunView) -> ComputeJob:
    """Return the job with the times to save and to restart that the run was seen to take."""
    saves, saving_ns = _saves(view), view.break_down().phases.get(ph.CHECKPOINT_SAVE, 0)
    if saves and saving_ns:
        job = replace(job, save_hours=saving_ns / saves / NS_PER_HOUR)
    if restart_s := _restart_s(view):
        job = replace(job, restart_hours=restart_s / 3600)
    return job
