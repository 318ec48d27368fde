"""Everything the timeline says about a window of a run, disruptions included, as one value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from outlay.errors import Finding
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView
from outlay.goodput.throughput import (
    ModelFlops,
    RankRow,
    Throughput,
    Utilisation,
    gpu_time,
    throughput,
    tokens_in,
    utilisation,
)
from outlay.goodput.timeline import (
    Breakdown,
    Progress,
    SliceEfficiency,
    Stretch,
    Timeline,
    Window,
    progress,
    rolling,
    slice_efficiency,
)
from outlay.units import Money

# How often a run is disrupted, and what each disruption costs.
#
# A disruption is a new attempt after one that did not complete. The mean time to failure is the
# uptime per disruption, with the exact Poisson interval (Garwood 1936). ETTR, the effective
# training time ratio, is the share of wall time not lost to disruptions (after Kokolis et al.
# 2024, arXiv:2410.21680).

RESTART = (ph.ACCELERATOR_INIT, ph.TRAINING_PREP, ph.CHECKPOINT_RESTORE, ph.PROGRAM_STARTUP)
_LOST_TO_DISRUPTIONS = (ph.RECOVERY, ph.WASTED_PROGRESS, *RESTART)
CONFIDENCE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """One disruption and the way back, in nanoseconds.

    Attributes:
        at_ns: When the disrupted attempt gave its last sign of life.
        host: Where that was, which need not be where the next attempt ran.
        down_ns: Until the next attempt began.
        init_ns: Initialising accelerators and preparing training.
        restore_ns: Restoring a checkpoint.
        startup_ns: The excess of the first step.
        catch_up_ns: Own time of steps that repeated what had been done before.
    """

    at_ns: int
    host: str
    resumed_ns: int
    reason: str
    down_ns: int
    init_ns: int
    restore_ns: int
    startup_ns: int
    catch_up_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTimeToFailure:
    """Uptime per disruption, with its interval; None where nothing bounds it."""

    disruptions: int
    uptime_ns: int
    mean_ns: int | None
    low_ns: int
    high_ns: int | None
    confidence: float = CONFIDENCE


def disruptions(timeline: Timeline, window: Window | None = None) -> list[Disruption]:
    """Return the disruptions whose new attempt began in the window (default: ever)."""
    steps = (s.timeline.furthest_step for s in timeline.stretches if s.timeline is not None)
    furthest = list(accumulate(steps, max))
    return [
        _disruption(timeline, before, after, furthest[before.attempt])
        for before, after in _disrupted(timeline, window)
    ]


def count_disruptions(timeline: Timeline, window: Window | None = None) -> int:
    """Return how many disruptions there were, counted as ``disruptions`` lists them."""
    return sum(1 for _ in _disrupted(timeline, window))


def _disrupted(timeline: Timeline, window: Window | None) -> Iterator[tuple[Stretch, Stretch]]:
    """Yield the attempts before and after each disruption."""
    attempts = [stretch for stretch in timeline.stretches if stretch.timeline is not None]
    for before, after in pairwise(attempts):
        is_inside = window is None or window.start_ns <= after.start_ns < window.end_ns
        if is_inside and not timeline.attempts[before.attempt].completed:
            yield before, after


def mean_time_to_failure(timeline: Timeline) -> MeanTimeToFailure:
    """Return how long the run stays up on average before it is disrupted."""
    count = count_disruptions(timeline)
    uptime_ns = sum(
        stretch.end_ns - stretch.start_ns
        for stretch in timeline.stretches
        if stretch.timeline is not None
    )
    tail = (1 - CONFIDENCE) / 2
    most = _poisson_mean(lambda mean: _poisson_at_most(count, mean) > tail, count)
    least = _poisson_mean(lambda mean: 1 - _poisson_at_most(count - 1, mean) < tail, count)
    return MeanTimeToFailure(
        disruptions=count,
        uptime_ns=uptime_ns,
        mean_ns=uptime_ns // count if count else None,
        low_ns=round(uptime_ns / most),
        high_ns=round(uptime_ns / least) if count else None,
    )


def effective_training_time_ratio(breakdown: Breakdown) -> float | None:
    """Return the share of wall time not lost to disruptions and restarts, 0 to 1."""
    if not breakdown.wall_ns:
        return None
    lost_ns = sum(breakdown.phases.get(phase, 0) for phase in _LOST_TO_DISRUPTIONS)
    return 1 - lost_ns / breakdown.wall_ns


def checkpoint_spacing(timeline: Timeline) -> int | None:
    """Return the median time between two checkpoints of an attempt, without the saves, in ns.

    From the end of an attempt's start to its first checkpoint counts where no attempt has two.
    """
    attempts = [stretch.timeline for stretch in timeline.stretches if stretch.timeline is not None]
    commits = [sorted(c.t_ns for c in attempt.checkpoints) for attempt in attempts]
    between = [pair for times in commits for pair in pairwise(times)] or [
        (attempt.first_step_end_ns, times[0])
        for attempt, times in zip(attempts, commits, strict=True)
        if times
    ]
    spent = (timeline.between(start, end) for start, end in between)
    apart = [sum(ns for name, ns in each.items() if name != ph.CHECKPOINT_SAVE) for each in spent]
    return round(median(apart)) if apart else None


def _disruption(
    timeline: Timeline, before: Stretch, after: Stretch, furthest_step: int
) -> Disruption:
    assert after.timeline is not None
    disrupted = timeline.attempts[before.attempt]
    end = disrupted.end
    restart = timeline.between(after.start_ns, after.timeline.first_step_end_ns)
    caught_up_ns = after.timeline.when_past(furthest_step)
    return Disruption(
        at_ns=before.end_ns,
        host=disrupted.header.host,
        resumed_ns=after.start_ns,
        reason="killed or crashed" if end is None else f"{end.status} {end.reason}".strip(),
        down_ns=after.start_ns - before.end_ns,
        init_ns=restart.get(ph.ACCELERATOR_INIT, 0) + restart.get(ph.TRAINING_PREP, 0),
        restore_ns=restart.get(ph.CHECKPOINT_RESTORE, 0),
        startup_ns=restart.get(ph.PROGRAM_STARTUP, 0),
        catch_up_ns=timeline.between(after.start_ns, caught_up_ns).get(ph.STEP, 0),
    )


def _poisson_at_most(count: int, mean: float) -> float:
    """Return the probability of at most ``count`` events where ``mean`` are expected."""
    if count < 0:
        return 0.0
    logs = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(count + 1))
    return math.fsum(math.exp(log) for log in logs)


def _poisson_mean(is_below: Callable[[float], bool], count: int) -> float:
    """Return the mean at which ``is_below`` turns from true to false, by bisection."""
    low, high = 1e-12, count + 20 * math.sqrt(count + 1) + 20
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low


_OF_WHOLE_RUN = ("mttf", "progress", "typical_step_ns", "stalls", "ranks")


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase of a breakdown: nanoseconds, share of wall time (0 to 1), money."""

    phase: str
    ns: int
    share: float
    cost: Money | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """One of many windows: wall time in nanoseconds, goodput 0 to 1 (None where unknown).

    ``badput`` is the phase that took most of the rest; None when all of it was productive.
    """

    window: Window
    wall_ns: int
    goodput: float | None
    badput: str | None
    cost: Money | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputSummary:
    """What became of a window of a run. Times are nanoseconds, shares 0 to 1.

    Attributes:
        goodput: Productive share of wall time; None when the window holds none, and when no
            process of the run recorded a step: then nobody knows.
        ettr: Share of wall time not lost to disruptions.
        slices: How well an elastic run used its slices; None when it never counted them.
        assumed: What of the cost is assumed: no record says whether it was to be paid.
        beside: Overlapped spans by phase, not part of the partition.
        throughput: Of all ranks; a step counts where it ended.
        mfu: Model FLOPs utilisation; None unless the model was described.
        of_whole_run: Which of these figures are of the whole run, although a part was asked for.
    """

    window: Window
    alive: bool
    wall_ns: int
    idle_ns: int
    goodput: float | None
    ettr: float | None
    slices: SliceEfficiency | None
    cost: Money | None
    assumed: Money | None
    phases: list[PhaseRow]
    beside: dict[str, int]
    disruptions: list[Disruption]
    mttf: MeanTimeToFailure
    progress: Progress
    typical_step_ns: int | None
    stalls: int
    throughput: Throughput
    mfu: Utilisation | None
    ranks: list[RankRow]
    of_whole_run: tuple[str, ...]
    assumptions: tuple[str, ...]
    findings: tuple[Finding, ...]


def summarise(
    view: RunView,
    window: Window | None = None,
    *,
    exclusions: tuple[Window, ...] = (),
    model: ModelFlops | None = None,
) -> GoodputSummary:
    """Return the summary of a window (default: the whole run), without the exclusions.

    Args:
        view: The run.
        window: Which part of it.
        exclusions: What to leave out.
        model: What the model needs and the GPUs can do, for its utilisation.
    """
    timeline = view.timeline
    chosen = view.whole if window is None else window
    breakdown = view.break_down(chosen, exclusions=exclusions)
    attempts = [s.timeline for s in timeline.stretches if s.timeline is not None]
    ranks = view.ranks()
    whole = window is None and not exclusions
    tokens = view.account.work.tokens if whole else tokens_in(view.account, breakdown.windows)
    mfu = None
    if model is not None:
        mfu = utilisation(tokens, model, gpu_time(timeline, breakdown.windows))
    return GoodputSummary(
        window=chosen,
        alive=timeline.alive,
        wall_ns=breakdown.wall_ns,
        idle_ns=breakdown.idle_ns,
        goodput=known_goodput(view, breakdown),
        ettr=effective_training_time_ratio(breakdown),
        slices=slices_used(view, breakdown.windows),
        cost=breakdown.cost,
        assumed=breakdown.assumed,
        phases=_rows(breakdown),
        beside=_beside(view, breakdown.windows),
        disruptions=[d for part in breakdown.windows for d in disruptions(timeline, part)],
        mttf=mean_time_to_failure(timeline),
        progress=progress(timeline, view.rates),
        typical_step_ns=None if timeline.typical is None else timeline.typical.step_ns,
        stalls=sum(len(attempt.stalled) for attempt in attempts),
        throughput=throughput(tokens, breakdown),
        mfu=mfu,
        ranks=ranks if len(ranks) > 1 else [],
        of_whole_run=() if whole else _OF_WHOLE_RUN,
        assumptions=breakdown.assumptions,
        findings=view.findings,
    )


def roll(
    view: RunView,
    length_ns: int,
    every_ns: int,
    *,
    within: Window | None = None,
    exclusions: tuple[Window, ...] = (),
) -> list[WindowRow]:
    """Return windows of one length over a part of a run (default: all of it), oldest first.

    The first ones begin where the part begins, so that windows as far apart as they are long add up
    to it.

    Raises:
        InvalidValue: A length is not above zero.
    """
    whole = view.whole if within is None else within
    rows = []
    for each in rolling(whole, length_ns, every_ns):
        window = Window(max(each.start_ns, whole.start_ns), each.end_ns)
        found = view.break_down(window, exclusions=exclusions)
        rows.append(
            WindowRow(
                window=window,
                wall_ns=found.wall_ns,
                goodput=known_goodput(view, found),
                badput=max(found.badput, key=lambda phase: found.badput[phase], default=None),
                cost=found.cost,
            )
        )
    return rows


def known_goodput(view: RunView, breakdown: Breakdown) -> float | None:
    """Return the productive share of wall time; None where no step says what was productive."""
    return breakdown.goodput if view.account.work.steps else None


def slices_used(view: RunView, windows: Sequence[Window]) -> SliceEfficiency | None:
    """Return how an elastic run used its slices in some windows; None when it never counted."""
    changes = (change for own in view.timeline.own for change in own.segment.slices)
    return slice_efficiency(view.timeline, changes, windows)


def _rows(breakdown: Breakdown) -> list[PhaseRow]:
    return [
        PhaseRow(name, ns, ns / breakdown.wall_ns, breakdown.cost_by_phase.get(name))
        for name in ph.in_order(breakdown.phases)
        if (ns := breakdown.phases[name])
    ]


def _beside(view: RunView, windows: Sequence[Window]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for window in windows:
        totals = ph.added(totals, beside_ns(view, window))
    return totals


def beside_ns(view: RunView, window: Window) -> dict[str, int]:
    """Return how long overlapped spans took in the window, each by itself."""
    totals: dict[str, int] = {}
    for attempt in view.timeline.attempts:
        beside = view.account.segments[attempt.segment].beside
        if not len(beside):
            continue
        inside = beside.columns().within(window.start_ns, window.end_ns)
        for phase, spans in inside.by(ph.phase_of_span):
            totals[phase] = totals.get(phase, 0) + int((spans.end - spans.begin).sum())
    return totals
