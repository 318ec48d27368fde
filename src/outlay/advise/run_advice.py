"""All recommendations that follow from a run's own log."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

import numpy as np

from outlay.account.run import MetricCurve
from outlay.advise.batch_size import advise_batch_size, parameters_of
from outlay.advise.dataset import recommend_fewer_passes
from outlay.advise.overhead import (
    CheckpointHistory,
    Checkpointing,
    recommend_badput,
    recommend_checkpoint_interval,
)
from outlay.advise.recommendation import OptimizationRecommendation, least_saving, merged
from outlay.advise.stopping import (
    EpochPrice,
    advise_epoch_count,
    recommend_early_stopping,
    undecided,
)
from outlay.advise.tiers import (
    RESTART_HOURS,
    SAVE_HOURS,
    SPOT_MTTF_HOURS,
    ComputeJob,
    Option,
    options_of,
    recommend_compute_tier,
)
from outlay.budget.report import budget_report
from outlay.cost.run_cost import ACCURACY, LEARNING_RATE, LOSS, RunCost, cost_of, last_reported
from outlay.errors import InvalidValue
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView
from outlay.goodput.reliability import (
    RESTART,
    checkpoint_spacing,
    count_disruptions,
    disruptions,
    mean_save_ns,
    mean_time_to_failure,
)
from outlay.goodput.throughput import ModelFlops, utilisation
from outlay.ledger import exact_gpus
from outlay.prices.gpus import resolve
from outlay.prices.offer import Offer
from outlay.rates import NS_PER_HOUR
from outlay.units import Money
from outlay.units.quantity import duration_text
from outlay.units.shown import amount_text

_STARTS = (ph.RECOVERY, *RESTART)
_LOW_RATE = 0.02  # Of the largest learning rate: it can hardly fall further.


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Facts that a run's log does not have.

    Attributes:
        offers: Machines that could be rented instead.
        speeds: Speed of this training on other GPUs, relative to the current one.
        total_evaluations: How many evaluations the run will do in total; default: those until its
            budget stops it, if it has one.
        spot_mttf_hours: Mean time until a spot machine is preempted.
        deadline_hours: The longest that a run like this one may take.
    """

    offers: Sequence[Offer] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)
    total_evaluations: int | None = None
    spot_mttf_hours: float = SPOT_MTTF_HOURS
    deadline_hours: float | None = None


def advise_run(
    view: RunView, around: Circumstances | None = None
) -> list[OptimizationRecommendation]:
    """Return recommendations for a run, the largest saving first; none without a price."""
    around = around or Circumstances()
    cost = cost_of(view)
    if not cost.cost or not cost.wall_ns:
        return []
    spent = _Spent(
        amount=float(cost.cost.amount),
        currency=cost.cost.currency,
        hours=cost.wall_ns / NS_PER_HOUR,
    )
    checkpoints = _checkpoint_interval(view, cost, spent)
    found = [
        *_stopping(view, spent, around),
        checkpoints,
        _badput(view, cost, spent, without=_phases_advised(view, checkpoints)),
        _compute(view, spent, around),
        advise_batch_size(
            view, price_per_hour=spent.per_hour, hours=spent.hours, currency=spent.currency
        ),
        recommend_fewer_passes(
            cost.epochs or 0.0, spent.amount, spent.hours, currency=spent.currency
        ),
        _idle_gpus(view, cost, spent),
        _slow_imports(view, cost, spent),
        _low_mfu(view, spent),
        _other(cost, spent),
    ]
    least = least_saving(spent.amount)
    return merged(
        replace(each, subject=cost.run_id)
        for each in found
        if each is not None and (each.estimated_savings >= least or each.kind == "observation")
    )


def floor_of(view: RunView) -> Money | None:
    """Return the smallest saving that is reported for a run; None without a price."""
    spent = cost_of(view).cost
    return None if spent is None else spent.unit.money(round(least_saving(spent.micros)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    """A run's cost in currency units, and its wall time."""

    amount: float
    currency: str
    hours: float

    @property
    def per_hour(self) -> float:
        return self.amount / self.hours


def _stopping(
    view: RunView, spent: _Spent, around: Circumstances
) -> list[OptimizationRecommendation]:
    """Recommend to stop a live run now, or to make the next run shorter."""
    found = evaluations_of(view)
    if found is None or len(found.values) < 2:
        return []
    apart = [after - before for before, after in pairwise(found.t_ns)]
    # A live run continues at its median pace; a finished one is charged for all of its time.
    hours = (median(apart) if view.timeline.alive else fmean(apart)) / NS_PER_HOUR
    epoch = EpochPrice(
        hours=hours,
        price_per_hour=spent.per_hour,
        unit=found.unit,
        currency=spent.currency,
        each=found.each,
    )
    schedule = _schedule(view, found.t_ns)
    values, bound = found.values, found.bound
    if not view.timeline.alive:
        if schedule == "varies":
            return []  # A shorter training has another schedule.
        stages = schedule if isinstance(schedule, list) else ()
        return advise_epoch_count(values, epoch, negated=found.negated, bound=bound, stages=stages)
    total = _values_in_all(view, found, around, hours)
    may_change = schedule is not None
    stop = recommend_early_stopping(
        values, epoch, total_epochs=total, bound=bound, may_change=may_change
    )
    if stop is None and total is not None:
        stop = undecided(values, epoch, total, bound=bound, may_change=may_change)
    return [] if stop is None else [stop]


def _values_in_all(
    view: RunView, found: Evaluations, around: Circumstances, hours: float
) -> int | None:
    """Return how many values a live run will have: as stated, or until its budget stops it."""
    if around.total_evaluations is not None and found.each == 1:
        return around.total_evaluations
    try:
        report = budget_report(view)
    except InvalidValue:  # What is wrong with a budget is said where it is shown.
        return None
    ahead = None if report is None else report.forecast
    if ahead is None or hours <= 0:
        return None
    left_ns = view.timeline.end_ns + ahead.time_left_ns - found.t_ns[-1]
    return len(found.values) + int(left_ns / NS_PER_HOUR / hours)


_SAYS_SO = ("val", "eval", "test")
_BLOCKS = 50  # A loss that is logged at each step is averaged to about so many values.


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """The values that tell how well a run learns, higher is better.

    Attributes:
        each: How many units one value stands for.
        bound: No value can be above it.
    """

    values: list[float]
    t_ns: list[int]
    negated: bool
    unit: str
    each: int
    bound: float


def evaluations_of(view: RunView) -> Evaluations | None:
    """Return a run's evaluations; without any, its loss per step, averaged over blocks.

    An evaluation is a metric whose name says so, or that was logged in ``evaluation`` spans, or
    less often than at every tenth step.
    """
    account = view.account
    names = account.metric_names()
    series = {name: account.recorded(name) for name in (*LOSS, *ACCURACY) if name in names}
    known = [name for name, points in series.items() if len(points)]
    name = next((each for each in known if _is_evaluation(view, each, series[each])), None)
    each = 1
    if name is None:
        name = next(iter(known), None)
        each = 1 if name is None else -(-len(series[name]) // _BLOCKS)
    if name is None:
        return None
    points, negated = series[name], name in LOSS
    firsts = range(0, len(points) - each + 1, each)
    seen = [fmean(points.value[at : at + each].tolist()) for at in firsts]
    return Evaluations(
        values=[-value if negated else value for value in seen],
        t_ns=points.t_ns[each - 1 :: each].tolist(),
        negated=negated,
        unit="evaluation" if each == 1 else "step",
        each=each,
        bound=_bound_of(seen, negated=negated),
    )


def _is_evaluation(view: RunView, name: str, points: MetricCurve) -> bool:
    if any(part in name for part in _SAYS_SO):
        return True
    segments = [view.account.segments[each.segment] for each in view.timeline.attempts]
    if len(points) * 10 <= sum(segment.work.steps for segment in segments):
        return True
    spans = sorted(
        (span.begin_ns, span.end_ns)
        for segment in segments
        for span in segment.spans
        if span.name == ph.EVALUATION
    )
    if not spans:
        return False
    # Evaluations do not overlap: a point is in the last one that began before it, or in none.
    begins, ends = np.array(spans).T
    last = np.searchsorted(begins, points.t_ns, side="right") - 1
    inside = np.count_nonzero((last >= 0) & (points.t_ns <= ends[last]))
    return bool(2 * inside > len(points))


def _bound_of(values: Sequence[float], *, negated: bool) -> float:
    """Return what no value can exceed: a loss that was never negative ends above zero."""
    low, high = min(values), max(values)
    if negated:
        return -0.0 if low >= 0 else math.inf
    if low < 0:
        return math.inf
    return 1.0 if high <= 1 else 100.0 if high <= 100 else math.inf


def _schedule(view: RunView, t_ns: Sequence[int]) -> list[int] | Literal["varies"] | None:
    """Return where the learning rate fell in steps: the first evaluation of each later stage.

    "varies" if it changes otherwise, None if it is not recorded, or fell to almost nothing.
    """
    points = view.account.recorded(*LEARNING_RATE)
    if not len(points):
        return None
    at = np.maximum(np.searchsorted(points.t_ns, t_ns, side="right") - 1, 0)
    rates = points.value[at].tolist()
    largest = max(rates)
    if view.timeline.alive and rates[-1] <= _LOW_RATE * largest:
        return None
    falls = [i for i in range(1, len(rates)) if rates[i] <= rates[i - 1] / 2]
    changes = [i for i in range(1, len(rates)) if abs(rates[i] - rates[i - 1]) > 0.01 * largest]
    is_stepwise = set(changes) <= set(falls)
    return falls if is_stepwise else "varies"


def _checkpoint_interval(
    view: RunView, cost: RunCost, spent: _Spent
) -> OptimizationRecommendation | None:
    save_s, apart_ns = _save_s(view), checkpoint_spacing(view.timeline)
    if not save_s or not apart_ns:
        return None
    mttf = mean_time_to_failure(view.timeline)
    starts = sum(_amount_of(cost, name) for name in _STARTS)
    return recommend_checkpoint_interval(
        Checkpointing(
            interval=apart_ns / 1e9,
            save=save_s,
            restart=_restart_s(view),
            mttf=None if mttf.mean_ns is None else mttf.mean_ns / 1e9,
            mttf_low=mttf.low_ns / 1e9,
            mttf_high=None if mttf.high_ns is None else mttf.high_ns / 1e9,
            cost=spent.amount - starts,
            currency=spent.currency,
            whole=spent.amount,
            history=_checkpoint_history(view, cost, spent),
        )
    )


def _checkpoint_history(view: RunView, cost: RunCost, spent: _Spent) -> CheckpointHistory:
    attempts = view.timeline.attempt_timelines
    failed = [
        at.end_ns - at.first_step_end_ns + at.own_ns(0) - at.first_step_excess_ns
        for at, attempt in zip(attempts, view.timeline.attempts, strict=True)
        if at.step_count and not (attempt.completed or attempt.paused)
    ]
    # The last attempt of a run that is not over was not disrupted.
    failed = failed[: count_disruptions(view.timeline)]
    waste = sum(_amount_of(cost, name) for name in (ph.CHECKPOINT_SAVE, ph.WASTED_PROGRESS))
    phases = view.break_down().phases
    work_s, repeated_s = (phases.get(name, 0) / 1e9 for name in (ph.STEP, ph.WASTED_PROGRESS))
    return CheckpointHistory(
        uptimes=tuple(ns / 1e9 for ns in failed),
        work=work_s,
        step=(work_s + repeated_s) / cost.steps if cost.steps else 0.0,
        waste=waste,
        price=spent.per_hour / 3600,
    )


def _amount_of(cost: RunCost, phase: str) -> float:
    return float(cost.by_phase[phase].amount) if phase in cost.by_phase else 0.0


def _phases_advised(view: RunView, checkpoints: OptimizationRecommendation | None) -> list[str]:
    """Return the phases that the checkpoint interval decides, for which no general remedy applies.

    If the interval is optimal already, saves can still be made shorter, but repeated work is what
    that interval costs.
    """
    known = [ph.WASTED_PROGRESS] if checkpoint_spacing(view.timeline) is not None else []
    return known if checkpoints is None else [*known, ph.CHECKPOINT_SAVE]


def _save_s(view: RunView) -> float:
    """Return the mean duration of a checkpoint's save; 0 if unknown."""
    return (mean_save_ns(view.timeline) or 0.0) / 1e9


def _restart_s(view: RunView) -> float:
    """Return the mean time from a disruption until training resumed; 0 if unknown."""
    found = disruptions(view.timeline)
    restarts = [d.down_ns + d.init_ns + d.restore_ns + d.startup_ns for d in found]
    return sum(restarts) / len(restarts) / 1e9 if restarts else 0.0


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
        disruptions=count_disruptions(view.timeline),
        imports=_imports(view, cost),
    )


def _imports(view: RunView, cost: RunCost) -> float:
    """Return the cost of start-up before the first record: imports, and the launch."""
    startup_ns = view.break_down().phases.get(ph.PROGRAM_STARTUP, 0)
    if not startup_ns:
        return 0.0
    excess_ns = sum(each.first_step_excess_ns for each in view.timeline.attempt_timelines)
    share = max(0.0, 1 - excess_ns / startup_ns)
    return share * _amount_of(cost, ph.PROGRAM_STARTUP)


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
    # The run's own speed is measured, and the same on that GPU elsewhere.
    speeds = {gpu.name: 1.0} | dict(around.speeds)
    options = options_of(
        around.offers,
        speeds,
        gpus=math.ceil(exact_gpus(header.gpus)),  # Nobody offers half a GPU.
        spot_mttf_hours=around.spot_mttf_hours,
        currency=spent.currency,
    )
    job = ComputeJob(
        work=spent.hours,
        memory_gb=gpu.memory_gb,
        deadline_hours=around.deadline_hours,
        save_hours=_save_s(view) / 3600 or SAVE_HOURS,
        restart_hours=_restart_s(view) / 3600 or RESTART_HOURS,
        currency=spent.currency,
        per="for a run like this one",
    )
    least = least_saving(spent.amount)
    return recommend_compute_tier(current, options, job, least_saving=least)


# Observations: money that bought little. How much of it could be saved is not known.

MFU = ("mfu", "model_flops_utilization", "model_flops_utilisation")

# Dense peak of the tensor cores in bfloat16, or in half precision where the card lacks it, FLOP/s,
# as the makers publish it.
PEAK_FLOPS = {
    "V100": 125e12,
    "T4": 65e12,
    "A10": 125e12,
    "A10G": 125e12,
    "A30": 165e12,
    "A40": 149.7e12,
    "A100": 312e12,
    "L4": 121e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "RTX4090": 165e12,
    "MI250X": 383e12,
    "MI300X": 1307e12,
}
_FLOPS_PER_PARAMETER = 6  # Forward and backward, for each token (arXiv:2001.08361).
_LEAST_IDLE = 0.3
_LOW_MFU = 0.2
_USUAL_MFU = 0.4
_LEAST_OTHER = 0.05


def _idle_gpus(view: RunView, cost: RunCost, spent: _Spent) -> OptimizationRecommendation | None:
    """Report the cost of idle GPUs; a busy share of exactly 0 means that it was not sampled."""
    busy = view.account.gpu_busy_ns / cost.wall_ns
    if not 0 < busy <= 1 - _LEAST_IDLE:
        return None
    idle = (1 - busy) * spent.amount
    return OptimizationRecommendation(
        category="idle_gpu",
        title=f"GPUs were idle {1 - busy:.0%} of the time",
        description=(
            f"They were busy {busy:.0%} of the time, so that {amount_text(idle, spent.currency)} "
            f"of {amount_text(spent.amount, spent.currency)} paid for idle GPUs."
        ),
        estimated_savings=0.0,
        confidence=1.0,
        action="Find out what the program waits for, or rent fewer or smaller GPUs",
        grade="measured",
        evidence=[f"GPUs busy {busy:.1%} of wall time, sampled"],
        needed=["steps and spans (outlay.run), which show what the time was spent on"],
        currency=spent.currency,
        kind="observation",
        at_stake=idle,
    )


def _slow_imports(view: RunView, cost: RunCost, spent: _Spent) -> OptimizationRecommendation | None:
    """Report the cost of the time before the first record."""
    imports = _imports(view, cost)
    if imports < _LEAST_OTHER * spent.amount or not imports:
        return None
    text = amount_text(imports, spent.currency)
    return OptimizationRecommendation(
        category="imports",
        title=f"{imports / spent.amount:.0%} of the cost came before the first record",
        description=f"{text} was spent on the launch and on imports.",
        estimated_savings=0.0,
        confidence=1.0,
        action="Start fewer processes for the same work, or import less",
        grade="measured",
        evidence=[f"from the start of the process to its first record: {text}"],
        needed=["python -X importtime, which shows the slowest imports"],
        currency=spent.currency,
        kind="observation",
        at_stake=imports,
    )


def _low_mfu(view: RunView, spent: _Spent) -> OptimizationRecommendation | None:
    found = _mfu(view)
    if found is None or not 0 < found < _LOW_MFU:
        return None
    steps = view.break_down().cost_by_phase.get(ph.STEP)
    stake = (1 - found / _USUAL_MFU) * (spent.amount if steps is None else float(steps.amount))
    return OptimizationRecommendation(
        category="mfu",
        title=f"Steps use {found:.1%} of what the GPUs can do",
        description=(
            f"Model FLOPs utilisation while steps run is {found:.1%}; at {_USUAL_MFU:.0%}, which "
            "is usual for large models, the same steps would cost "
            f"{amount_text(stake, spent.currency)} less."
        ),
        estimated_savings=0.0,
        confidence=1.0,
        action="Profile a step: larger batches, compiled and fused kernels, lower precision",
        grade="estimated",
        evidence=[f"MFU {found:.1%} while productive"],
        assumptions=[f"{_USUAL_MFU:.0%} can be reached; small models seldom do"],
        needed=["a profile of a few steps"],
        currency=spent.currency,
        kind="observation",
        at_stake=stake,
    )


def _mfu(view: RunView) -> float | None:
    """Return the MFU of step time: as reported by the run, else from tokens and parameters."""
    reported = last_reported(view.account, MFU)
    if reported is not None:
        return reported if reported <= 1 else reported / 100
    header = view.timeline.attempts[-1].header
    parameters, tokens = parameters_of(view.account), view.account.work.tokens
    if not header.gpu or parameters is None or not tokens:
        return None
    gpu = resolve(header.gpu)
    peak = PEAK_FLOPS.get(gpu.name if gpu.spec is None else gpu.spec.family)
    if peak is None:
        return None
    model = ModelFlops(per_token=_FLOPS_PER_PARAMETER * parameters, peak=peak)
    return utilisation(tokens, model, view.timeline, [view.whole]).of_productive


def _other(cost: RunCost, spent: _Spent) -> OptimizationRecommendation | None:
    """Report the cost of time outside of steps and spans."""
    money = cost.by_phase.get(ph.OTHER)
    other = 0.0 if money is None else float(money.amount)
    if not other or other < _LEAST_OTHER * spent.amount:
        return None
    text = amount_text(other, spent.currency)
    where = "between steps" if cost.steps else "without a recorded step"
    return OptimizationRecommendation(
        category="other",
        title=f"{other / spent.amount:.0%} of the cost is not accounted for",
        description=f"{text} was spent {where}, outside all spans.",
        estimated_savings=0.0,
        confidence=1.0,
        action=(
            "Put spans around the code between steps, to see what it is"
            if cost.steps
            else "Record steps, to see what the time was spent on"
        ),
        grade="measured",
        evidence=[f"other: {text} in {duration_text(cost.wall_ns)}"],
        needed=['with run.span("logging"): ...' if cost.steps else "for batch in run.steps(data)"],
        currency=spent.currency,
        kind="observation",
        at_stake=other,
    )
