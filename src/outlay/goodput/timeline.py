"""A run's timeline: an exact partition of its wall time, and how to build it incrementally.

The axis is made of stretches: attempts, the ``recovery`` between them, and idle time after an
attempt that completed, which is outside wall time. Everything here is a pure function of the fold
and of the present.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from outlay.account.run import RunAccount
from outlay.account.steps import Ints
from outlay.goodput import phases as ph
from outlay.goodput.attempt import AttemptTimeline
from outlay.goodput.steps import OwnTimes, SortedTimes, Typical
from outlay.ledger import Attempt, SegmentId
from outlay.ledger.attempts import DEAD_AFTER_NS, alive_until


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of the axis: an attempt, or the time after one.

    Attributes:
        attempt: The attempt's index, or that of the one before the gap.
        timeline: The attempt's phases; None for a gap.
        idle: A gap after a completed attempt: outside wall time.
    """

    start_ns: int
    end_ns: int
    attempt: int
    timeline: AttemptTimeline | None = None
    idle: bool = False

    def before(self, t_ns: int) -> dict[str, int]:
        """Return the phases of the stretch up to ``t_ns``."""
        if self.timeline is not None:
            return self.timeline.whole if t_ns == self.end_ns else self.timeline.before(t_ns)
        return {} if self.idle else {ph.RECOVERY: t_ns - self.start_ns}


class Timeline:
    """Every instant of a run, from its first start to the present."""

    def __init__(
        self,
        attempts: Sequence[Attempt],
        stretches: Sequence[Stretch],
        *,
        end_ns: int,
        now_ns: int,
        alive: bool,
        typical: Typical | None,
        times: SortedTimes,
        own: Sequence[OwnTimes],
        last_seen_ns: int,
    ) -> None:
        self.attempts = attempts
        self.stretches = stretches
        self.start_ns = stretches[0].start_ns
        self.end_ns = end_ns
        self.now_ns = now_ns
        self.alive = alive
        self.typical = typical
        self.times = times
        self.own = own
        self.last_seen_ns = last_seen_ns
        self._starts = [stretch.start_ns for stretch in stretches]
        self._before: list[dict[str, int]] = [{}]
        for stretch in stretches:
            whole = stretch.before(stretch.end_ns)
            self._before.append(ph.added(self._before[-1], whole))

    def before(self, t_ns: int) -> dict[str, int]:
        """Return the nanoseconds of each phase from the run's start to ``t_ns``."""
        index = bisect.bisect_right(self._starts, t_ns) - 1
        if index < 0:
            return {}
        stretch = self.stretches[index]
        if t_ns >= stretch.end_ns:
            return self._before[index + 1]
        return ph.added(self._before[index], stretch.before(t_ns))

    def between(self, start_ns: int, end_ns: int) -> dict[str, int]:
        """Return the nanoseconds of each phase during ``[start_ns, end_ns)``; none are zero."""
        return ph.difference(self.before(end_ns), self.before(start_ns))

    def last_step(self, before_ns: int | None = None) -> int | None:
        """Return the last step that was done (before an instant) and not undone since, if any."""
        for stretch in reversed(self.stretches):
            attempt = stretch.timeline
            if attempt is not None and (last := attempt.last_step_before(before_ns)) is not None:
                return last
        return None

    def idle_between(self, start_ns: int, end_ns: int) -> int:
        """Return how long the run rested after completed attempts during ``[start_ns, end_ns)``."""
        overlaps = (
            min(end_ns, stretch.end_ns) - max(start_ns, stretch.start_ns)
            for stretch in self.stretches
            if stretch.idle
        )
        return sum(ns for ns in overlaps if ns > 0)


@dataclass(slots=True)
class _Seen:
    """How much of a segment's own times has been taken into the sorted times."""

    steps: int
    revision: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """An attempt's timeline, and what it was made of."""

    timeline: AttemptTimeline
    revision: int
    redone_from: int | None

    def is_of(self, attempt: Attempt, times: OwnTimes, redone_from: int | None) -> bool:
        """Say whether the timeline of the attempt is this one, but for what is typical."""
        bounds = (self.timeline.start_ns, self.timeline.end_ns)
        made_of = (self.revision, self.redone_from, *bounds)
        now = (times.segment.revision, redone_from, attempt.start_ns, attempt.last_sign_ns)
        return made_of == now and not attempt.is_clipped


@dataclass(slots=True)
class TimelineBuilder:
    """Builds timelines of one run as its account grows; what was computed before is kept."""

    account: RunAccount = field(default_factory=RunAccount)
    _own: dict[SegmentId, OwnTimes] = field(default_factory=dict)
    _times: SortedTimes = field(default_factory=SortedTimes)
    _seen: dict[SegmentId, _Seen] = field(default_factory=dict)
    _kept: dict[SegmentId, _Kept] = field(default_factory=dict)

    def build(
        self, now_ns: int, *, alive: bool | None = None, dead_after_ns: int = DEAD_AFTER_NS
    ) -> Timeline | None:
        """Return the run's timeline at ``now_ns``, or None when nothing was recorded.

        Args:
            now_ns: The present.
            alive: Whether the last attempt still runs, where that is known.
            dead_after_ns: Where it is not: how long silence means life.
        """
        attempts = self.account.attempts()
        if not attempts:
            return None
        last = attempts[-1]
        if alive is None:
            alive = now_ns - last.last_sign_ns <= dead_after_ns
        alive = alive and last.end is None
        if alive:
            attempts = alive_until(attempts, now_ns)
        own = [self._own_of(attempt) for attempt in attempts]
        times = self._times_of(attempts, own)
        typical = times.typical()
        timelines = self._attempt_timelines(attempts, own, typical)
        end_ns = attempts[-1].last_sign_ns
        return Timeline(
            attempts,
            list(_stretches(attempts, timelines, max(now_ns, end_ns))),
            end_ns=end_ns,
            now_ns=now_ns,
            alive=alive,
            typical=typical,
            times=times.beside(_first_times(own)),
            own=own,
            last_seen_ns=last.last_sign_ns,
        )

    def _own_of(self, attempt: Attempt) -> OwnTimes:
        if attempt.is_clipped:
            return OwnTimes(self.account.of(attempt))
        if attempt.segment not in self._own:
            self._own[attempt.segment] = OwnTimes(self.account.segments[attempt.segment])
        return self._own[attempt.segment]

    def _times_of(self, attempts: Sequence[Attempt], own: Sequence[OwnTimes]) -> SortedTimes:
        """Return the own times of all steps but the attempts' first ones."""
        if any(attempt.is_clipped for attempt in attempts):
            # Rare: what counts may have shrunk, so nothing that was taken in before is kept.
            self._forget()
            return SortedTimes().and_more(np.concatenate([times.per_step(1) for times in own]))
        for times in own:
            times.before()
        leading = {times.segment.life.segment for times in own}
        if not self._seen.keys() <= leading or any(self._is_stale(times) for times in own):
            self._forget()
        new = np.concatenate([self._new_times(times) for times in own])
        self._times = self._times.and_more(new)
        return self._times

    def _new_times(self, times: OwnTimes) -> Ints:
        seen = self._seen.setdefault(times.segment.life.segment, _Seen(0, times.revision))
        first, seen.steps = seen.steps, times.segment.step_count
        return times.per_step(max(first, 1))  # An attempt's first step is left out.

    def _is_stale(self, times: OwnTimes) -> bool:
        seen = self._seen.get(times.segment.life.segment)
        return seen is not None and seen.revision != times.revision

    def _forget(self) -> None:
        self._times = SortedTimes()
        self._seen.clear()

    def _attempt_timelines(
        self, attempts: Sequence[Attempt], own: Sequence[OwnTimes], typical: Typical | None
    ) -> list[AttemptTimeline]:
        """Return each attempt's timeline; the last one first, since later ones undo earlier."""
        timelines: list[AttemptTimeline] = []
        redone_from: int | None = None
        for attempt, times in zip(reversed(attempts), reversed(own), strict=True):
            kept = self._kept.get(attempt.segment)
            if kept is not None and kept.is_of(attempt, times, redone_from):
                timeline = kept.timeline.beside(typical)
            else:
                bounds = (attempt.start_ns, attempt.last_sign_ns)
                timeline = AttemptTimeline(*bounds, times, typical, redone_from)
            self._kept[attempt.segment] = _Kept(timeline, times.segment.revision, redone_from)
            timelines.append(timeline)
            if (least := times.segment.least_number) is not None:
                redone_from = least if redone_from is None else min(redone_from, least)
        return timelines[::-1]


def _first_times(own: Sequence[OwnTimes]) -> Ints:
    """Return own time per step of the attempts' first records."""
    first = [times for times in own if times.segment.step_count]
    times = np.array([times.before()[0][1] for times in first], dtype=np.int64)
    return times // np.array([times.segment.steps.count[0] for times in first], dtype=np.int64)


def _stretches(
    attempts: Sequence[Attempt], timelines: Sequence[AttemptTimeline], until_ns: int
) -> Iterator[Stretch]:
    following: Sequence[Attempt | None] = [*attempts[1:], None]
    for index, (attempt, timeline, later) in enumerate(
        zip(attempts, timelines, following, strict=True)
    ):
        yield Stretch(attempt.start_ns, attempt.last_sign_ns, index, timeline)
        gap_end_ns = until_ns if later is None else later.start_ns
        if gap_end_ns > attempt.last_sign_ns:
            yield Stretch(attempt.last_sign_ns, gap_end_ns, index, idle=attempt.completed)
