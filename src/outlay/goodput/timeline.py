"""A run's timeline: an exact partition of its wall time, and of the time and money of a window.

The timeline is a sequence of intervals: attempts, the ``recovery`` or ``paused`` time between them,
and idle time after a completed attempt, which is outside of wall time. It is a pure function of the
account and the present; results are cached while the account grows.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from outlay.account.columns import Ints
from outlay.account.run import RunAccount
from outlay.errors import InvalidValue
from outlay.goodput import phases as ph
from outlay.goodput.attempt import AttemptTimeline, OwnTimes
from outlay.goodput.steps import SortedTimes, Typical
from outlay.ledger import Attempt, SegmentId, SlicesChanged
from outlay.ledger.attempts import DEAD_AFTER_NS, alive_until
from outlay.rates import RateFunction, apportion
from outlay.units import Money


@dataclass(frozen=True, slots=True)
class TimelineInterval:
    """An attempt, or the gap after one.

    Attributes:
        attempt: The index of the attempt, or of the one before the gap.
        timeline: The attempt's phases; None for a gap.
        idle: A gap after a completed attempt, outside of wall time.
        gap: The phase of a gap that is not idle.
    """

    start_ns: int
    end_ns: int
    attempt: int
    timeline: AttemptTimeline | None = None
    idle: bool = False
    gap: str = ph.RECOVERY

    def before(self, t_ns: int) -> dict[str, int]:
        """Return the phases of the interval up to ``t_ns``."""
        if self.timeline is not None:
            return self.timeline.whole if t_ns == self.end_ns else self.timeline.before(t_ns)
        return {} if self.idle else {self.gap: t_ns - self.start_ns}


@dataclass(slots=True, kw_only=True, eq=False)
class Timeline:
    """The phases of a run from its first start to the present."""

    attempts: Sequence[Attempt]
    intervals: Sequence[TimelineInterval]
    end_ns: int
    now_ns: int
    alive: bool
    typical: Typical | None
    times: SortedTimes
    own: Sequence[OwnTimes]
    last_seen_ns: int
    start_ns: int = field(init=False)
    _starts: list[int] = field(init=False)
    _before: list[dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        self._starts = [interval.start_ns for interval in self.intervals]
        self.start_ns = self._starts[0]
        wholes = (interval.before(interval.end_ns) for interval in self.intervals)
        self._before = list(accumulate(wholes, ph.added, initial=dict[str, int]()))

    @property
    def attempt_timelines(self) -> list[AttemptTimeline]:
        """The timelines of the attempts, oldest first."""
        return [each.timeline for each in self.intervals if each.timeline is not None]

    def before(self, t_ns: int) -> dict[str, int]:
        """Return the nanoseconds of each phase from the run's start to ``t_ns``."""
        index = bisect.bisect_right(self._starts, t_ns) - 1
        if index < 0:
            return {}
        interval = self.intervals[index]
        if t_ns >= interval.end_ns:
            return self._before[index + 1]
        return ph.added(self._before[index], interval.before(t_ns))

    def between(self, start_ns: int, end_ns: int) -> dict[str, int]:
        """Return the nanoseconds of each phase during ``[start_ns, end_ns)``; none are zero."""
        return ph.difference(self.before(end_ns), self.before(start_ns))

    def last_step(self, before_ns: int | None = None) -> int | None:
        """Return the last step that ended (before an instant) and was not undone, if any."""
        found = (each.last_step_before(before_ns) for each in reversed(self.attempt_timelines))
        return next((step for step in found if step is not None), None)

    def committed_step(self) -> int | None:
        """Return the step of the last committed checkpoint, if any."""
        attempts = self.attempt_timelines
        committed = (checkpoint for attempt in attempts for checkpoint in attempt.checkpoints)
        last = max(committed, key=lambda checkpoint: checkpoint.t_ns, default=None)
        return None if last is None else last.step

    def idle_between(self, start_ns: int, end_ns: int) -> int:
        """Return the idle time after completed attempts during ``[start_ns, end_ns)``."""
        overlaps = (
            min(end_ns, interval.end_ns) - max(start_ns, interval.start_ns)
            for interval in self.intervals
            if interval.idle
        )
        return sum(ns for ns in overlaps if ns > 0)


@dataclass(slots=True)
class _Leader:
    """The lowest rank of an attempt, with what was computed from its records.

    Attributes:
        sorted_steps: How many of its steps are in the builder's sorted times.
        sorted_revision: The revision of its own times that these are of.
        timeline: The attempt's timeline, cached for ``revision`` and ``redone_from``.
    """

    times: OwnTimes
    sorted_steps: int = 0
    sorted_revision: int = 0
    timeline: AttemptTimeline | None = None
    revision: int = -1
    redone_from: int | None = None

    @property
    def has_stale_times(self) -> bool:
        """Whether times that were sorted already have changed."""
        return bool(self.sorted_steps) and self.sorted_revision != self.times.revision

    def pop_new_times(self) -> Ints:
        """Return own times per step that are not sorted yet, without the attempt's first step."""
        first, self.sorted_steps = self.sorted_steps, self.times.segment.step_count
        self.sorted_revision = self.times.revision
        return self.times.per_step(max(first, 1))

    def timeline_of(
        self, attempt: Attempt, typical: Typical | None, redone_from: int | None
    ) -> AttemptTimeline:
        """Return the attempt's timeline; the cached one if nothing changed."""
        revision, bounds = self.times.segment.revision, (attempt.start_ns, attempt.last_sign_ns)
        cached = self.timeline
        if (
            cached is not None
            and (self.revision, self.redone_from) == (revision, redone_from)
            and (cached.start_ns, cached.end_ns) == bounds
        ):
            self.timeline = cached.with_typical(typical)
        else:
            self.timeline = AttemptTimeline(*bounds, self.times, typical, redone_from)
            self.revision, self.redone_from = revision, redone_from
        return self.timeline


@dataclass(slots=True)
class TimelineBuilder:
    """Builds timelines of one run as its account grows, and caches intermediate results."""

    account: RunAccount = field(default_factory=RunAccount)
    _leaders: dict[SegmentId, _Leader] = field(default_factory=dict)
    _times: SortedTimes = field(default_factory=SortedTimes)
    _last_leaders: list[_Leader] = field(default_factory=list)

    def build(
        self, now_ns: int, *, alive: bool | None = None, dead_after_ns: int = DEAD_AFTER_NS
    ) -> Timeline | None:
        """Return the run's timeline at ``now_ns``, or None if nothing was recorded.

        By default the last attempt is ``alive`` if its last sign of life is at most
        ``dead_after_ns`` old.
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
        leaders = [self._leader_of(attempt) for attempt in attempts]
        times = self._times_of(attempts, leaders)
        typical = times.typical()
        timelines = _attempt_timelines(attempts, leaders, typical)
        end_ns = attempts[-1].last_sign_ns
        own = [leader.times for leader in leaders]
        return Timeline(
            attempts=attempts,
            intervals=list(_intervals(attempts, timelines, max(now_ns, end_ns))),
            end_ns=end_ns,
            now_ns=now_ns,
            alive=alive,
            typical=typical,
            times=times.with_run(_first_times(own)),
            own=own,
            last_seen_ns=last.last_sign_ns,
        )

    def _leader_of(self, attempt: Attempt) -> _Leader:
        """Return the leader of an attempt; that of an altered attempt is not cached."""
        if attempt.is_altered:
            return _Leader(OwnTimes(self.account.of(attempt)))
        if attempt.segment not in self._leaders:
            times = OwnTimes(self.account.segments[attempt.segment])
            self._leaders[attempt.segment] = _Leader(times)
        return self._leaders[attempt.segment]

    def _times_of(self, attempts: Sequence[Attempt], leaders: list[_Leader]) -> SortedTimes:
        """Return the sorted own times of all steps but the first of each attempt."""
        is_altered = any(attempt.is_altered for attempt in attempts)
        changed = [leader for leader in leaders if leader.times.update()]
        still_leading = {id(leader) for leader in leaders}
        if (
            is_altered  # Rare; steps may have been removed.
            or any(leader.has_stale_times for leader in changed)
            or any(id(leader) not in still_leading for leader in self._last_leaders)
        ):
            self._times, changed = SortedTimes(), leaders
            for leader in self._last_leaders:
                leader.sorted_steps = 0
        self._last_leaders = leaders
        if changed:
            new = np.concatenate([leader.pop_new_times() for leader in changed])
            self._times = self._times.extended_by(new)
        return self._times


def _attempt_timelines(
    attempts: Sequence[Attempt], leaders: Sequence[_Leader], typical: Typical | None
) -> list[AttemptTimeline]:
    """Return each attempt's timeline; built from the last, since later attempts undo steps."""
    timelines: list[AttemptTimeline] = []
    redone_from: int | None = None
    for attempt, leader in zip(reversed(attempts), reversed(leaders), strict=True):
        timelines.append(leader.timeline_of(attempt, typical, redone_from))
        if (least := leader.times.segment.least_number) is not None:
            redone_from = least if redone_from is None else min(redone_from, least)
    return timelines[::-1]


def _first_times(own: Sequence[OwnTimes]) -> Ints:
    """Return the own time per step of each attempt's first record."""
    first = [times for times in own if times.segment.step_count]
    times = np.array([times.before()[0][1] for times in first], dtype=np.int64)
    return times // np.array([times.segment.steps.count[0] for times in first], dtype=np.int64)


def _intervals(
    attempts: Sequence[Attempt], timelines: Sequence[AttemptTimeline], until_ns: int
) -> Iterator[TimelineInterval]:
    following: Sequence[Attempt | None] = [*attempts[1:], None]
    for index, (attempt, timeline, later) in enumerate(
        zip(attempts, timelines, following, strict=True)
    ):
        yield TimelineInterval(attempt.start_ns, attempt.last_sign_ns, index, timeline)
        gap_end_ns = until_ns if later is None else later.start_ns
        if gap_end_ns > attempt.last_sign_ns:
            yield TimelineInterval(
                attempt.last_sign_ns, gap_end_ns, index, idle=attempt.completed,
                gap=ph.PAUSED if attempt.paused else ph.RECOVERY,
            )  # fmt: skip


# Breakdown of windows by phase: nanoseconds and money, which sum to the total exactly.
#
# A window is clipped to the run, not to what was logged, so that an outage shows as 0 %.


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A half-open interval of UTC nanoseconds."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """The length of the window."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBeside:
    """What windows cost in another currency than the run's first; equals the sum of its phases."""

    cost: Money
    assumed: Money
    by_phase: dict[str, Money]


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedTime:
    """The wall time of windows of a run, and what it cost.

    Attributes:
        cost: None without a price.
        assumed: The part of the cost that is assumed: no record tells whether it was charged.
        assumptions: What the cost depends on that was not measured.
        cost_beside: In other currencies, of the time in which the run paid in them.
    """

    wall_ns: int
    cost: Money | None = None
    assumed: Money | None = None
    assumptions: tuple[str, ...] = ()
    cost_beside: tuple[CostBeside, ...] = ()

    def priced(self) -> dict[str, Any]:
        """Return its fields by name, for a value that has them and more."""
        return {each.name: getattr(self, each.name) for each in fields(PricedTime)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown(PricedTime):
    """Time and cost of windows by phase; the phases sum to wall time and cost.

    Attributes:
        windows: The windows, without exclusions.
        idle_ns: Time after completed attempts, outside of wall time.
        phases: Nanoseconds by phase; none are zero.
    """

    windows: tuple[Window, ...]
    idle_ns: int
    phases: dict[str, int]
    cost_by_phase: dict[str, Money] = field(default_factory=dict)

    @property
    def goodput(self) -> float | None:
        """The productive share of wall time without pauses, 0 to 1; None without such time."""
        active_ns = self.wall_ns - self.phases.get(ph.PAUSED, 0)
        return self.phases.get(ph.STEP, 0) / active_ns if active_ns else None

    def share(self, phase: str) -> float | None:
        """Return a phase's share of wall time, 0 to 1; None without wall time."""
        return self.phases.get(phase, 0) / self.wall_ns if self.wall_ns else None

    @property
    def badput(self) -> dict[str, int]:
        """Nanoseconds of every unproductive phase, in display order."""
        return {name: self.phases[name] for name in ph.in_order(self.phases) if name != ph.STEP}


def break_down(
    timeline: Timeline,
    rates: RateFunction | None,
    windows: Sequence[Window],
    beside: Sequence[RateFunction] = (),
) -> Breakdown:
    """Return the breakdown of windows, which must not overlap.

    ``beside`` are the rates of the run in other currencies.
    """
    phases: dict[str, int] = {}
    for window in windows:
        phases = ph.added(phases, timeline.between(window.start_ns, window.end_ns))
    found = Breakdown(
        windows=tuple(windows),
        wall_ns=sum(phases.values()),
        idle_ns=sum(timeline.idle_between(w.start_ns, w.end_ns) for w in windows),
        phases=phases,
    )
    if rates is None:
        return found
    of_first = _cost_of(timeline, rates, windows, phases)
    every = [_assumptions(function, windows) for function in (rates, *beside)]
    others = (_cost_of(timeline, function, windows, phases) for function in beside)
    return replace(
        found,
        cost=of_first.cost,
        cost_by_phase=of_first.by_phase,
        assumed=of_first.assumed,
        assumptions=tuple(dict.fromkeys(text for texts in every for text in texts)),
        cost_beside=tuple(each for each in others if each.cost),
    )


def _cost_of(
    timeline: Timeline, rates: RateFunction, windows: Sequence[Window], phases: ph.Phases
) -> CostBeside:
    by_phase = _cost_by_phase(timeline, rates, windows, phases)
    assumed = (rates.assumed_between(window.start_ns, window.end_ns) for window in windows)
    nothing = rates.unit.money(0)
    return CostBeside(
        cost=sum(by_phase.values(), start=nothing),
        assumed=sum(assumed, start=nothing),
        by_phase=by_phase,
    )


def without(window: Window, exclusions: Iterable[Window]) -> list[Window]:
    """Return the parts of a window outside of the exclusions, which may be in any order."""
    kept: list[Window] = []
    start_ns = window.start_ns
    for exclusion in sorted(e for e in exclusions if e.start_ns < e.end_ns):
        if start_ns < min(exclusion.start_ns, window.end_ns):
            kept.append(Window(start_ns, min(exclusion.start_ns, window.end_ns)))
        start_ns = max(start_ns, exclusion.end_ns)
    if start_ns < window.end_ns:
        kept.append(Window(start_ns, window.end_ns))
    return kept


def within(windows: Iterable[Window], start_ns: int, end_ns: int) -> Iterator[Window]:
    """Yield windows clipped to ``[start_ns, end_ns)``, without empty ones."""
    for window in windows:
        part = Window(max(window.start_ns, start_ns), min(window.end_ns, end_ns))
        if part.length_ns > 0:
            yield part


def rolling(whole: Window, length_ns: int, every_ns: int) -> list[Window]:
    """Return windows of ``length_ns`` that end every ``every_ns``, oldest first.

    The last one ends with ``whole``; the first ones may begin before it, where there is no wall
    time.

    Raises:
        InvalidValue: A length is not above zero.
    """
    for name, value in (("length_ns", length_ns), ("every_ns", every_ns)):
        if value <= 0:
            raise InvalidValue(name, value, "a number of nanoseconds above zero")
    ends = range(whole.end_ns, whole.start_ns, -every_ns)
    return [Window(end_ns - length_ns, end_ns) for end_ns in reversed(ends)]


def _cost_by_phase(
    timeline: Timeline, rates: RateFunction, windows: Sequence[Window], phases: ph.Phases
) -> dict[str, Money]:
    units = dict.fromkeys(ph.in_order(phases), 0)
    for piece in rates.pieces:
        for part in within(windows, piece.start_ns, piece.end_ns):
            for name, ns in timeline.between(part.start_ns, part.end_ns).items():
                units[name] += piece.units(ns)
    return {name: rates.unit.money(micros) for name, micros in apportion(units).items()}


def _assumptions(rates: RateFunction, windows: Sequence[Window]) -> tuple[str, ...]:
    texts = (
        assumption.text
        for assumption in rates.assumptions
        for window in windows
        if assumption.start_ns < window.end_ns and window.start_ns < assumption.end_ns
    )
    return tuple(dict.fromkeys(texts))


# Progress: productive time up to the last committed checkpoint, and after it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Surviving productive time of a run; what would be lost in a crash now is *at risk*.

    A record of several steps, of which some are committed, is at risk as a whole.
    """

    last_step: int | None
    committed_step: int | None
    committed_ns: int
    at_risk_ns: int
    committed_cost: Money | None
    at_risk_cost: Money | None


def progress(timeline: Timeline, rates: RateFunction | None) -> Progress:
    """Return the committed progress of a run, and the progress at risk."""
    attempts = timeline.attempt_timelines
    committed_step = timeline.committed_step()
    step = -1 if committed_step is None else committed_step
    starts = [start for a in attempts if (start := a.first_kept_after(step)) is not None]
    risk_from_ns = min(starts, default=timeline.end_ns)
    safe = break_down(timeline, rates, [Window(timeline.start_ns, risk_from_ns)])
    risky = break_down(timeline, rates, [Window(risk_from_ns, timeline.end_ns)])
    zero = None if rates is None else rates.unit.money(0)
    return Progress(
        last_step=timeline.last_step(),
        committed_step=committed_step,
        committed_ns=safe.phases.get(ph.STEP, 0),
        at_risk_ns=risky.phases.get(ph.STEP, 0),
        committed_cost=safe.cost_by_phase.get(ph.STEP, zero),
        at_risk_cost=risky.cost_by_phase.get(ph.STEP, zero),
    )


# Goodput of an elastic run, weighted by the share of its slices that train.
#
# Before the first count all slices are taken to train.


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceEfficiency:
    """Use of an elastic run's slices in a window; shares are 0 to 1.

    Attributes:
        goodput: Productive time, weighted by active / total, over wall time.
        stepping: The mean of active / total while counts are known.
        available: The mean of available / total while counts are known.
        known_ns: Time in the window for which counts are known.
    """

    goodput: float
    stepping: float
    available: float
    known_ns: int


def slice_efficiency(
    timeline: Timeline, changes: Iterable[SlicesChanged], windows: Sequence[Window]
) -> SliceEfficiency | None:
    """Return the use of slices in windows; None without counts or wall time."""
    ordered = sorted(changes, key=lambda change: change.t_ns)
    wall_ns = sum(sum(timeline.between(w.start_ns, w.end_ns).values()) for w in windows)
    pieces = [piece for window in windows for piece in _pieces(ordered, window)]
    known = [(piece, slices) for piece, slices in pieces if slices is not None]
    known_ns = sum(piece.length_ns for piece, _ in known)
    if not wall_ns or not known_ns:
        return None
    productive = sum(
        timeline.between(piece.start_ns, piece.end_ns).get(ph.STEP, 0)
        * (1.0 if slices is None else slices.active / slices.total)
        for piece, slices in pieces
    )
    return SliceEfficiency(
        goodput=productive / wall_ns,
        stepping=sum(p.length_ns * s.active / s.total for p, s in known) / known_ns,
        available=sum(p.length_ns * s.available / s.total for p, s in known) / known_ns,
        known_ns=known_ns,
    )


def _pieces(
    ordered: Sequence[SlicesChanged], window: Window
) -> Iterator[tuple[Window, SlicesChanged | None]]:
    """Yield the pieces of a window with constant counts; None before the first count."""
    counts: list[SlicesChanged | None] = [None, *ordered]
    edges = [window.start_ns, *(change.t_ns for change in ordered), window.end_ns]
    for count, (start_ns, end_ns) in zip(counts, pairwise(edges), strict=True):
        for piece in within([window], start_ns, end_ns):
            yield piece, count
