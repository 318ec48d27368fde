"""How often a run is disrupted, and what each disruption costs.

A disruption is a new attempt after one that did not complete. The mean time to failure is the
uptime per disruption, with the exact Poisson interval (Garwood 1936). ETTR, the effective training
time ratio, is the share of wall time not lost to disruptions (after Kokolis et al. 2024,
arXiv:2410.21680).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from outlay.goodput import phases as ph
from outlay.goodput.breakdown import Breakdown, Window
from outlay.goodput.timeline import Stretch, Timeline

_RESTART = (ph.ACCELERATOR_INIT, ph.TRAINING_PREP, ph.CHECKPOINT_RESTORE, ph.PROGRAM_STARTUP)
_LOST_TO_DISRUPTIONS = (ph.RECOVERY, ph.WASTED_PROGRESS, *_RESTART)
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
    attempts = [stretch for stretch in timeline.stretches if stretch.timeline is not None]
    found = (
        _disruption(timeline, before, after)
        for before, after in pairwise(attempts)
        if not timeline.attempts[before.attempt].completed
    )
    return [
        disruption
        for disruption in found
        if window is None or window.start_ns <= disruption.resumed_ns < window.end_ns
    ]


def mean_time_to_failure(timeline: Timeline) -> MeanTimeToFailure:
    """Return how long the run stays up on average before it is disrupted."""
    count = len(disruptions(timeline))
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


def _disruption(timeline: Timeline, before: Stretch, after: Stretch) -> Disruption:
    assert after.timeline is not None
    disrupted = timeline.attempts[before.attempt]
    end = disrupted.end
    restart = timeline.between(after.start_ns, after.timeline.first_step_end_ns)
    caught_up_ns = after.timeline.when_past(_furthest_step(timeline, after))
    return Disruption(
        at_ns=before.end_ns,
        host=disrupted.header.host,
        resumed_ns=after.start_ns,
        reason="killed without a word" if end is None else f"{end.status} {end.reason}".strip(),
        down_ns=after.start_ns - before.end_ns,
        init_ns=restart.get(ph.ACCELERATOR_INIT, 0) + restart.get(ph.TRAINING_PREP, 0),
        restore_ns=restart.get(ph.CHECKPOINT_RESTORE, 0),
        startup_ns=restart.get(ph.PROGRAM_STARTUP, 0),
        catch_up_ns=timeline.between(after.start_ns, caught_up_ns).get(ph.STEP, 0),
    )


def _furthest_step(timeline: Timeline, before: Stretch) -> int:
    """Return the highest step number that was executed before a stretch; -1 without any."""
    earlier = (s.timeline for s in timeline.stretches if s.start_ns < before.start_ns)
    return max((attempt.furthest_step for attempt in earlier if attempt is not None), default=-1)


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
