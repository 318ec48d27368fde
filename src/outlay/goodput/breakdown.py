"""Where a window's time and money went, what of it is safe, and how elastic slices weigh. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from outlay.errors import InvalidValue
from outlay.goodput import phases as ph
from outlay.goodput.timeline import Timeline
from outlay.ledger import SlicesChanged
from outlay.rates import RateFunction, apportion
from outlay.units import Money

# Intervals that somebody wants left out: put in order, and measured against a range.
#
# Works on any numbers, such as POSIX seconds.

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in order, with those that touch or overlap as one; empty ones go."""
    kept: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if kept and begin <= kept[-1][1]:
            kept[-1] = (kept[-1][0], max(kept[-1][1], end))
        else:
            kept.append((begin, end))
    return kept


def overlap(begin: float, end: float, intervals: Sequence[Interval]) -> float:
    """Return how much of a range the intervals cover; where several do, it counts once."""
    parts = (min(end, b) - max(begin, a) for a, b in merged(intervals))
    return sum((part for part in parts if part > 0), start=0.0)


# Where a window's time and money went: phases in nanoseconds and in exact money.
#
# A window is ``[start_ns, end_ns)``, clipped to what the run has of it and not to what was
# logged, so that an outage shows as 0 %. Parts sum to the whole: to the nanosecond, and to the
# micro-unit.


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A half-open interval of UTC nanoseconds."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """How long the window is."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """What became of some wall time.

    Attributes:
        windows: What was looked at, exclusions left out.
        wall_ns: Wall time in the windows; equals the sum of ``phases``.
        idle_ns: Rest after completed attempts, outside wall time.
        phases: Nanoseconds by phase; none are zero.
        cost: What the windows cost; None without a price. Equals the sum of ``cost_by_phase``.
        assumed: What of the cost is assumed: no record says whether it was to be paid.
        assumptions: What the cost rests on that nobody measured.
    """

    windows: tuple[Window, ...]
    wall_ns: int
    idle_ns: int
    phases: dict[str, int]
    cost: Money | None
    cost_by_phase: dict[str, Money]
    assumed: Money | None
    assumptions: tuple[str, ...]

    @property
    def goodput(self) -> float | None:
        """The productive share of wall time, 0 to 1; None when there was no wall time."""
        return self.share(ph.STEP)

    def share(self, phase: str) -> float | None:
        """Return a phase's share of wall time, 0 to 1; None when there was none."""
        return self.phases.get(phase, 0) / self.wall_ns if self.wall_ns else None

    @property
    def badput(self) -> dict[str, int]:
        """Nanoseconds of every phase that was not productive, in reading order."""
        return {name: self.phases[name] for name in ph.in_order(self.phases) if name != ph.STEP}


def break_down(
    timeline: Timeline, rates: RateFunction | None, windows: Sequence[Window]
) -> Breakdown:
    """Return what became of the windows, which must not overlap."""
    phases: dict[str, int] = {}
    for window in windows:
        phases = ph.added(phases, timeline.between(window.start_ns, window.end_ns))
    micros = {} if rates is None else _micros_by_phase(timeline, rates, windows, phases)
    return Breakdown(
        windows=tuple(windows),
        wall_ns=sum(phases.values()),
        idle_ns=sum(timeline.idle_between(w.start_ns, w.end_ns) for w in windows),
        phases=phases,
        cost=None if rates is None else Money(sum(micros.values()), rates.currency),
        cost_by_phase={}
        if rates is None
        else {name: Money(amount, rates.currency) for name, amount in micros.items()},
        assumed=_assumed(rates, windows),
        assumptions=_assumptions(rates, windows),
    )


def without(window: Window, exclusions: Iterable[Window]) -> list[Window]:
    """Return what is left of a window when the exclusions, in any order, are cut out."""
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
    """Yield what of some windows lies in ``[start_ns, end_ns)``."""
    for window in windows:
        part = Window(max(window.start_ns, start_ns), min(window.end_ns, end_ns))
        if part.length_ns > 0:
            yield part


def rolling(whole: Window, length_ns: int, every_ns: int) -> list[Window]:
    """Return windows of ``length_ns`` that end every ``every_ns``, the last at the end of all.

    Those near the start reach back before it: there is no wall time there, so they are shorter in
    effect. Oldest first.

    Raises:
        InvalidValue: A length is not above zero.
    """
    for name, value in (("length_ns", length_ns), ("every_ns", every_ns)):
        if value <= 0:
            raise InvalidValue(name, value, "a number of nanoseconds above zero")
    ends = range(whole.end_ns, whole.start_ns, -every_ns)
    return [Window(end_ns - length_ns, end_ns) for end_ns in reversed(ends)]


def _micros_by_phase(
    timeline: Timeline,
    rates: RateFunction,
    windows: Sequence[Window],
    phases: ph.Phases,
) -> dict[str, int]:
    units = dict.fromkeys(ph.in_order(phases), 0)
    for piece in rates.pieces:
        for part in within(windows, piece.start_ns, piece.end_ns):
            for name, ns in timeline.between(part.start_ns, part.end_ns).items():
                units[name] += piece.units(ns)
    return apportion(units)


def _assumed(rates: RateFunction | None, windows: Sequence[Window]) -> Money | None:
    if rates is None:
        return None
    parts = (rates.assumed_between(window.start_ns, window.end_ns) for window in windows)
    return sum(parts, start=Money(0, rates.currency))


def _assumptions(rates: RateFunction | None, windows: Sequence[Window]) -> tuple[str, ...]:
    if rates is None:
        return ()
    texts = (
        assumption.text
        for assumption in rates.assumptions
        for window in windows
        if assumption.start_ns < window.end_ns and window.start_ns < assumption.end_ns
    )
    return tuple(dict.fromkeys(texts))


# How much progress is safe: productive time up to the last committed checkpoint, and after it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Surviving productive time of a run; what a kill now would take back is *at risk*.

    A record that stands for several steps, of which some are committed, is at risk as a whole.
    """

    last_step: int | None
    committed_step: int | None
    committed_ns: int
    at_risk_ns: int
    committed_cost: Money | None
    at_risk_cost: Money | None


def progress(timeline: Timeline, rates: RateFunction | None) -> Progress:
    """Return how much of the run's progress is committed."""
    attempts = [s.timeline for s in timeline.stretches if s.timeline is not None]
    committed = max(
        (checkpoint for attempt in attempts for checkpoint in attempt.checkpoints),
        key=lambda checkpoint: checkpoint.t_ns,
        default=None,
    )
    step = -1 if committed is None else committed.step
    starts = [start for a in attempts if (start := a.first_kept_after(step)) is not None]
    risk_from_ns = min(starts, default=timeline.end_ns)
    safe = break_down(timeline, rates, [Window(timeline.start_ns, risk_from_ns)])
    risky = break_down(timeline, rates, [Window(risk_from_ns, timeline.end_ns)])
    return Progress(
        last_step=timeline.last_step(),
        committed_step=None if committed is None else committed.step,
        committed_ns=safe.phases.get(ph.STEP, 0),
        at_risk_ns=risky.phases.get(ph.STEP, 0),
        committed_cost=safe.cost_by_phase.get(ph.STEP, _nothing(rates)),
        at_risk_cost=risky.cost_by_phase.get(ph.STEP, _nothing(rates)),
    )


def _nothing(rates: RateFunction | None) -> Money | None:
    return None if rates is None else Money(0, rates.currency)


# Goodput of an elastic run, weighted by how many of its slices train.
#
# An hour in which half of the slices step is half an hour of the goodput that was paid for.
# Before the first count nothing is known, and the run counts as whole.


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceEfficiency:
    """How much of an elastic run's slices was used in a window; shares are 0 to 1.

    Attributes:
        goodput: Productive time, each instant weighted by active / total, over wall time.
        stepping: The mean of active / total while counts are known.
        available: The mean of available / total while counts are known.
        known_ns: How much of the window has counts.
    """

    goodput: float
    stepping: float
    available: float
    known_ns: int


def slice_efficiency(
    timeline: Timeline, changes: Iterable[SlicesChanged], windows: Sequence[Window]
) -> SliceEfficiency | None:
    """Return how well the slices were used in some windows; None without counts or wall time."""
    ordered = sorted(changes, key=lambda change: change.t_ns)
    wall_ns = sum(sum(timeline.between(w.start_ns, w.end_ns).values()) for w in windows)
    pieces = [piece for window in windows for piece in _pieces(ordered, window)]
    known = [(piece, slices) for piece, slices in pieces if slices is not None]
    known_ns = sum(piece.length_ns for piece, _ in known)
    if not wall_ns or not known_ns:
        return None
    productive = sum(
        _productive_ns(timeline, piece) * (1.0 if slices is None else slices.active / slices.total)
        for piece, slices in pieces
    )
    return SliceEfficiency(
        goodput=productive / wall_ns,
        stepping=sum(p.length_ns * s.active / s.total for p, s in known) / known_ns,
        available=sum(p.length_ns * s.available / s.total for p, s in known) / known_ns,
        known_ns=known_ns,
    )


def _productive_ns(timeline: Timeline, window: Window) -> int:
    return timeline.between(window.start_ns, window.end_ns).get(ph.STEP, 0)


def _pieces(
    ordered: Sequence[SlicesChanged], window: Window
) -> Iterator[tuple[Window, SlicesChanged | None]]:
    """Yield the pieces of a window in which the counts stay the same."""
    counts: list[SlicesChanged | None] = [None, *ordered]
    edges = [window.start_ns, *(change.t_ns for change in ordered), window.end_ns]
    for count, (start_ns, end_ns) in zip(counts, pairwise(edges), strict=True):
        for piece in within([window], start_ns, end_ns):
            yield piece, count
