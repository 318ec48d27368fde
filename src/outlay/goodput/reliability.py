"""Disruptions of a run: how often they come and how much time each costs. Pure.

A disruption is a new attempt after one that did not complete. The mean time to failure is the
uptime per disruption, with the exact Poisson interval (Garwood 1936). ETTR, the effective training
time ratio, is the share of wall time not lost to disruptions (after Kokolis et al. 2024,
arXiv:2410.21680).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from outlay.goodput import phases as ph
from outlay.goodput.attempt import AttemptTimeline
from outlay.goodput.timeline import Breakdown, Timeline, TimelineInterval, Window

RESTART = (ph.ACCELERATOR_INIT, ph.TRAINING_PREP, ph.CHECKPOINT_RESTORE, ph.PROGRAM_STARTUP)
_LOST_TO_DISRUPTIONS = (ph.RECOVERY, ph.WASTED_PROGRESS, *RESTART)
CONFIDENCE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """One disruption and the recovery from it, in nanoseconds.

    Attributes:
        at_ns: The last sign of life of the disrupted attempt.
        host: The host of the disrupted attempt; the next attempt may run on another.
        down_ns: Time until the next attempt began.
        init_ns: Initialising accelerators and preparing training.
        restore_ns: Restoring a checkpoint.
        startup_ns: The excess of the first step.
        catch_up_ns: Own time of repeated steps.
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
    """Uptime per disruption with its confidence interval; None if unbounded."""

    disruptions: int
    uptime_ns: int
    mean_ns: int | None
    low_ns: int
    high_ns: int | None
    confidence: float = CONFIDENCE


def disruptions(timeline: Timeline, window: Window | None = None) -> list[Disruption]:
    """Return the disruptions whose new attempt began in the window (default: ever)."""
    return _restarts_after(timeline, _disrupted(timeline, window))


def restarts(timeline: Timeline) -> list[Disruption]:
    """Return all disruptions, and in the same form the pauses, which were on purpose."""
    attempts = timeline.attempts
    again = (pair for pair in _consecutive(timeline) if not attempts[pair[0].attempt].completed)
    return _restarts_after(timeline, again)


def count_disruptions(timeline: Timeline, window: Window | None = None) -> int:
    """Return the number of ``disruptions``, without computing them."""
    return sum(1 for _ in _disrupted(timeline, window))


def _disrupted(
    timeline: Timeline, window: Window | None
) -> Iterator[tuple[TimelineInterval, TimelineInterval]]:
    """Yield the attempts before and after each disruption."""
    for before, after in _consecutive(timeline):
        is_inside = window is None or window.start_ns <= after.start_ns < window.end_ns
        ended = timeline.attempts[before.attempt]
        if is_inside and not (ended.completed or ended.paused):
            yield before, after


def _consecutive(timeline: Timeline) -> Iterator[tuple[TimelineInterval, TimelineInterval]]:
    return pairwise(each for each in timeline.intervals if each.timeline is not None)


def _restarts_after(
    timeline: Timeline, pairs: Iterable[tuple[TimelineInterval, TimelineInterval]]
) -> list[Disruption]:
    furthest = list(accumulate((each.furthest_step for each in timeline.attempt_timelines), max))
    return [
        _disruption(timeline, before, after, furthest[before.attempt]) for before, after in pairs
    ]


def mean_time_to_failure(timeline: Timeline) -> MeanTimeToFailure:
    """Return the mean uptime of the run before a disruption."""
    count = count_disruptions(timeline)
    uptime_ns = sum(each.end_ns - each.start_ns for each in timeline.attempt_timelines)
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


def start_up_ns(timeline: Timeline, attempt: AttemptTimeline) -> int:
    """Return an attempt's time until its first step was done, without what the step itself took."""
    spent = timeline.between(attempt.start_ns, attempt.first_step_end_ns)
    return sum(spent.get(phase, 0) for phase in RESTART)


def mean_save_ns(timeline: Timeline) -> float | None:
    """Return the mean time for which a checkpoint's save blocks training; None without any."""
    saves = sum(len(attempt.checkpoints) for attempt in timeline.attempt_timelines)
    saving_ns = timeline.before(timeline.end_ns).get(ph.CHECKPOINT_SAVE, 0)
    return saving_ns / saves if saves else None


def checkpoint_spacing(timeline: Timeline) -> int | None:
    """Return the median time between two checkpoints of an attempt, without the saves, in ns.

    If no attempt has two, it is the time from the first step's end to the first checkpoint; None
    if that was committed before.
    """
    attempts = timeline.attempt_timelines
    commits = [sorted(c.t_ns for c in attempt.checkpoints) for attempt in attempts]
    between = [pair for times in commits for pair in pairwise(times)] or [
        (attempt.first_step_end_ns, times[0])
        for attempt, times in zip(attempts, commits, strict=True)
        if times and times[0] > attempt.first_step_end_ns
    ]
    spent = (timeline.between(start, end) for start, end in between)
    apart = [sum(ns for name, ns in each.items() if name != ph.CHECKPOINT_SAVE) for each in spent]
    return round(median(apart)) if apart else None


def _disruption(
    timeline: Timeline, before: TimelineInterval, after: TimelineInterval, furthest_step: int
) -> Disruption:
    assert after.timeline is not None
    disrupted = timeline.attempts[before.attempt]
    end = disrupted.end
    restart = timeline.between(after.start_ns, after.timeline.first_step_end_ns)
    caught_up_ns = after.timeline.start_of_step_after(furthest_step)
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
