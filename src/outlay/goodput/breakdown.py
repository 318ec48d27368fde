"""Where a window's time and money went: phases in nanoseconds and in exact money.

A window is ``[start_ns, end_ns)``, clipped to what the run has of it and not to what was logged, so
that an outage shows as 0 %. Parts sum to the whole: to the nanosecond, and to the micro-unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from outlay.errors import InvalidValue
from outlay.goodput import phases as ph
from outlay.goodput.timeline import Timeline
from outlay.rates import RateFunction, apportion
from outlay.units import Money


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
        assumptions: What the cost rests on that nobody measured.
    """

    windows: tuple[Window, ...]
    wall_ns: int
    idle_ns: int
    phases: dict[str, int]
    cost: Money | None
    cost_by_phase: dict[str, Money]
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
