"""A run's own timeline, replayed under other terms. Pure.

The run is a list of attempts and of the gaps between them, each with its time by kind and its exact
cost. Terms change some of it and leave the rest as it was, so that a replay without other terms is
the run, to the nanosecond and the micro-unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from outlay.advise.spot import CheckpointedWork, ReclaimRate, SpotOutlook, outlook
from outlay.advise.tiers import Option
from outlay.errors import InvalidValue
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView
from outlay.goodput.reliability import RESTART, checkpoint_spacing
from outlay.goodput.timeline import TimelineInterval
from outlay.ledger import exact_gpus
from outlay.policy.pauses import pause_cost_of
from outlay.policy.situation import PauseCost
from outlay.rates import NS_PER_HOUR, RateFunction, hourly, round_units
from outlay.units import Money, Rate, Unit

_KINDS = {
    ph.STEP: "work",
    ph.WASTED_PROGRESS: "repeated",
    ph.CHECKPOINT_SAVE: "save",
    ph.RECOVERY: "between",
    ph.PAUSED: "between",
} | dict.fromkeys(RESTART, "start")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeByKind:
    """Nanoseconds of a run, or of a part of it.

    Attributes:
        work: Steps that survived; ``repeated``: steps whose work was lost.
        start: From the start of an attempt to its first step.
        between: Between two attempts.
        other: Data, evaluation, stalls and all else inside attempts.
    """

    work: int = 0
    repeated: int = 0
    save: int = 0
    start: int = 0
    between: int = 0
    other: int = 0

    def __add__(self, also: TimeByKind) -> TimeByKind:
        return TimeByKind(
            work=self.work + also.work,
            repeated=self.repeated + also.repeated,
            save=self.save + also.save,
            start=self.start + also.start,
            between=self.between + also.between,
            other=self.other + also.other,
        )

    @property
    def total_ns(self) -> int:
        """All of it: wall time."""
        return self.work + self.repeated + self.save + self.start + self.between + self.other


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedPart:
    """An attempt, or the gap after one.

    Attributes:
        units: Its exact cost, in micro-units per hour times nanoseconds.
        ended: For an attempt: whether it ended on purpose, with its work saved.
    """

    time: TimeByKind
    units: Fraction
    is_attempt: bool
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTerms:
    """What to change about a run; None keeps what it was.

    Attributes:
        checkpoint_every_ns: Training between two saves.
        speed: Of one GPU, relative to the run's own.
        price: Per GPU-hour.
        gpus: Their number; ``scaling`` is the share of the ideal speed-up that it brings.
        restart_ns: From a failure until training resumes.
        reclaim: Machines are taken back at random, instead of what happened to the run.
        failures_ns: Instants since the start at which it fails, instead of what happened to it.
        deadline_ns: The longest that it may take.
    """

    checkpoint_every_ns: int | None = None
    speed: Fraction | None = None
    price: Rate | None = None
    gpus: int | None = None
    scaling: Fraction = Fraction(1)
    restart_ns: int | None = None
    reclaim: ReclaimRate | None = None
    checkpoint_source: str = ""
    failures_ns: tuple[int, ...] | None = None
    deadline_ns: int | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoint_every_ns", "speed", "gpus", "deadline_ns"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidValue(name, value, "more than zero")
        if self.scaling <= 0:
            raise InvalidValue("scaling", float(self.scaling), "a share above zero, such as 0.93")
        if self.reclaim is not None and self.failures_ns is not None:
            raise InvalidValue("trace", "a trace and a reclaim rate", "one of the two")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRun:
    """A run as it was, or as it would have been.

    Attributes:
        cost: None without a price.
        failures: Interruptions that were not on purpose.
        spot: Where chance decides: the interval of time and cost, and the chance to finish; its
            expected values are those of ``time`` and ``cost``, and restarts are in ``repeated``.
        assumptions: What was assumed, in words.
    """

    time: TimeByKind
    cost: Money | None
    failures: int
    start_ns: int
    spot: SpotOutlook | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def done_ns(self) -> int:
        """The instant at which it would have been done."""
        return self.start_ns + self.time.total_ns


def parts_of(view: RunView) -> list[ReplayedPart]:
    """Return the attempts of a run and the gaps between them, in order."""
    timeline = view.timeline
    kept = [each for each in timeline.intervals if each.start_ns < timeline.end_ns]
    return [_part(view, each) for each in kept]


def _part(view: RunView, of: TimelineInterval) -> ReplayedPart:
    spent = dict.fromkeys(("work", "repeated", "save", "start", "between", "other"), 0)
    for phase, ns in of.before(of.end_ns).items():
        spent[_KINDS.get(phase, "other")] += ns
    ended = view.timeline.attempts[of.attempt]
    return ReplayedPart(
        time=TimeByKind(**spent),
        units=Fraction(_units(view.rates, of.start_ns, of.end_ns)),
        is_attempt=of.timeline is not None,
        ended=ended.completed or ended.paused,
    )


def _units(rates: RateFunction | None, start_ns: int, end_ns: int) -> int:
    return 0 if rates is None else rates.units_between(start_ns, end_ns)


def replay(view: RunView, terms: OtherTerms | None = None) -> ReplayedRun:
    """Return the run under other terms; without any, the run itself."""
    terms = terms or OtherTerms()
    parts, pause = parts_of(view), pause_cost_of(view.timeline)
    assumptions = list(_assumptions(view, terms, pause))
    faster = _speed_up(view, terms)
    if terms.reclaim is not None:
        return _by_chance(view, parts, terms, pause, faster, assumptions)
    if terms.failures_ns is not None or terms.checkpoint_every_ns is not None:
        found = _by_failures(view, parts, terms, pause, faster)
    else:
        found = [
            _scaled(part, terms, faster, is_first=not index) for index, part in enumerate(parts)
        ]
    time = sum((part.time for part in found), TimeByKind())
    return ReplayedRun(
        time=time,
        cost=_cost(view, found, terms),
        failures=sum(part.is_attempt and not part.ended for part in found[:-1]),
        start_ns=view.timeline.start_ns,
        assumptions=tuple(assumptions),
    )


def _speed_up(view: RunView, terms: OtherTerms) -> Fraction:
    faster = terms.speed or Fraction(1)
    if terms.gpus is not None:
        faster *= terms.gpus / _gpus_of(view) * terms.scaling
    return faster


def _gpus_of(view: RunView) -> Fraction:
    return exact_gpus(view.timeline.attempts[-1].header.gpus)


def _scaled(
    part: ReplayedPart, terms: OtherTerms, faster: Fraction, *, is_first: bool
) -> ReplayedPart:
    """Return a part with the same failures and saves, at another speed and restart time."""
    old = part.time
    if part.is_attempt:
        restart_ns = None if is_first else terms.restart_ns
        time = TimeByKind(
            work=round(old.work / faster),
            repeated=round(old.repeated / faster),
            save=old.save,
            start=old.start if restart_ns is None else restart_ns,
            other=round(old.other / faster),
        )
    else:  # The stated time includes it, unless the run was paused or done.
        is_kept = terms.restart_ns is None or part.ended
        time = old if is_kept else TimeByKind()
    return replace(part, time=time, units=_rescaled(part, time.total_ns))


def _rescaled(part: ReplayedPart, ns: int) -> Fraction:
    """Return the cost of a part at its own mean rate, if it takes another time."""
    old_ns = part.time.total_ns
    return part.units if ns == old_ns or not old_ns else part.units * ns / old_ns


def _cost(view: RunView, parts: Sequence[ReplayedPart], terms: OtherTerms) -> Money | None:
    unit, stated = _unit_of(view, terms), _stated_rate(view, terms)
    if unit is None:
        return None
    units = sum((part.units for part in parts), Fraction(0))
    if stated is not None:
        units = Fraction(sum(p.time.total_ns for p in parts if p.is_attempt) * stated)
        units += sum((p.units for p in parts if not p.is_attempt), Fraction(0))
    return unit.money(round_units(round(units)))


def _unit_of(view: RunView, terms: OtherTerms) -> Unit | None:
    if terms.price is not None:
        return terms.price.unit
    return None if view.rates is None else view.rates.unit


def _stated_rate(view: RunView, terms: OtherTerms) -> int | None:
    """Return micro-units per hour of all GPUs if the price or their number is stated."""
    gpus = _gpus_of(view) if terms.gpus is None else Fraction(terms.gpus)
    if terms.price is not None:
        return hourly(terms.price.micros_per_hour, gpus)
    if terms.gpus is None or view.rates is None:
        return None
    return round(_mean_rate(view) * gpus / _gpus_of(view))


def _mean_rate(view: RunView) -> Fraction:
    """Return the mean micro-units per hour of the run's attempts."""
    attempts = [part for part in parts_of(view) if part.is_attempt]
    ns = sum(part.time.total_ns for part in attempts)
    return sum((part.units for part in attempts), Fraction(0)) / ns if ns else Fraction(0)


# Other failures or saves: an attempt ends at the same time as it did, or when the trace says so,
# and what was trained since the last save is lost.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """An attempt to come: a start-up, then training; without an end, until the work is done."""

    start_ns: int
    trains_ns: int | None
    gap: ReplayedPart | None = None
    is_orderly: bool = False


def _by_failures(
    view: RunView,
    parts: Sequence[ReplayedPart],
    terms: OtherTerms,
    pause: PauseCost,
    faster: Fraction,
) -> list[ReplayedPart]:
    whole = sum((part.time for part in parts), TimeByKind())
    drag = Fraction(whole.other, max(1, whole.work + whole.repeated))
    work_ns = round(whole.work / faster)
    every_ns = terms.checkpoint_every_ns or checkpoint_spacing(view.timeline)
    # The interval is of training: of steps and what comes with them.
    needed_ns = round(work_ns * (1 + drag))
    every_ns = max(1, needed_ns + 1 if every_ns is None else every_ns)
    stretches = _own_stretches(parts, terms) if terms.failures_ns is None else _traced(terms, pause)
    rate = _stated_rate(view, terms)
    per_ns = _mean_rate(view) if rate is None else Fraction(rate)
    found: list[ReplayedPart] = []
    left_ns = needed_ns
    for stretch in stretches:
        fits_ns = left_ns + (left_ns - 1) // every_ns * pause.save_ns
        if stretch.trains_ns is None or fits_ns <= stretch.trains_ns:
            found.append(_trained(left_ns, fits_ns - left_ns, 0, stretch, drag, per_ns, ended=True))
            return found
        cycles = stretch.trains_ns // (every_ns + pause.save_ns)
        saves_ns = cycles * pause.save_ns
        trained_ns = stretch.trains_ns - saves_ns
        kept_ns = min(left_ns, trained_ns if stretch.is_orderly else cycles * every_ns)
        lost_ns = trained_ns - kept_ns
        found.append(
            _trained(kept_ns, saves_ns, lost_ns, stretch, drag, per_ns, ended=stretch.is_orderly)
        )
        if stretch.gap is not None:
            found.append(stretch.gap)
        left_ns -= kept_ns
    return found


def _trained(
    kept_ns: int, saves_ns: int, lost_ns: int, stretch: _Stretch, drag: Fraction, per_ns: Fraction,
    *, ended: bool,
) -> ReplayedPart:  # fmt: skip
    other_ns = round((kept_ns + lost_ns) * drag / (1 + drag))
    repeated_ns = round(lost_ns / (1 + drag))
    time = TimeByKind(
        work=kept_ns + lost_ns - other_ns - repeated_ns,
        repeated=repeated_ns,
        save=saves_ns,
        start=stretch.start_ns,
        other=other_ns,
    )
    return ReplayedPart(time=time, units=per_ns * time.total_ns, is_attempt=True, ended=ended)


def _own_stretches(parts: Sequence[ReplayedPart], terms: OtherTerms) -> list[_Stretch]:
    found: list[_Stretch] = []
    attempts = [index for index, part in enumerate(parts) if part.is_attempt]
    for index in attempts:
        part, after = parts[index], parts[index + 1 : index + 2]
        gap = after[0] if after and not after[0].is_attempt else None
        is_stated = bool(found) and terms.restart_ns is not None
        if gap is not None and terms.restart_ns is not None and not part.ended:
            gap = None
        found.append(
            _Stretch(
                start_ns=terms.restart_ns or 0 if is_stated else part.time.start,
                trains_ns=part.time.total_ns - part.time.start if index != attempts[-1] else None,
                gap=gap,
                is_orderly=part.ended,
            )
        )
    return found


def _traced(terms: OtherTerms, pause: PauseCost) -> list[_Stretch]:
    assert terms.failures_ns is not None
    restart_ns = pause.start_ns if terms.restart_ns is None else terms.restart_ns
    edges = [0, *sorted(terms.failures_ns)]
    found = []
    for index, (start_ns, end_ns) in enumerate(pairwise(edges)):
        set_up_ns = min(pause.start_ns if not index else restart_ns, end_ns - start_ns)
        found.append(_Stretch(start_ns=set_up_ns, trains_ns=end_ns - start_ns - set_up_ns))
    last_ns = restart_ns if len(edges) > 1 else pause.start_ns
    return [*found, _Stretch(start_ns=last_ns, trains_ns=None)]


# Chance: machines that are taken back at random


def _by_chance(
    view: RunView, parts: Sequence[ReplayedPart], terms: OtherTerms, pause: PauseCost,
    faster: Fraction, assumptions: list[str],
) -> ReplayedRun:  # fmt: skip
    assert terms.reclaim is not None
    work, whole = checkpointed_work(view, terms), sum((p.time for p in parts), TimeByKind())
    rate = _stated_rate(view, terms)
    unit = _unit_of(view, terms)
    per_hour = float(_mean_rate(view) if rate is None else rate) / 1e6
    option = Option(name="as stated", price_per_hour=per_hour, speed=float(faster))
    found = outlook(option, work, terms.reclaim)
    if not found.finishes:
        assumptions.append("with this reclaim rate and these checkpoints it will not finish")
        return ReplayedRun(
            time=TimeByKind(), cost=None, failures=0, start_ns=view.timeline.start_ns, spot=found,
            assumptions=tuple(assumptions),
        )  # fmt: skip
    needed = work.hours / float(faster)
    saves = 0 if work.interval is None else math.ceil(needed / min(work.interval, needed)) - 1
    time = TimeByKind(
        work=round(whole.work / faster),
        other=round(whole.other / faster),
        save=saves * pause.save_ns,
        start=round(work.restart * NS_PER_HOUR),
        repeated=round(found.lost_hours * NS_PER_HOUR),
    )
    return ReplayedRun(
        time=time,
        cost=None if unit is None else unit.money(round(found.cost * 1_000_000)),
        failures=round(found.losses),
        start_ns=view.timeline.start_ns,
        spot=found,
        assumptions=tuple(assumptions),
    )


def checkpointed_work(view: RunView, terms: OtherTerms) -> CheckpointedWork:
    """Return the run's work, checkpoints and restart, in hours, for machines of its own speed."""
    pause = pause_cost_of(view.timeline)
    whole = sum((part.time for part in parts_of(view)), TimeByKind())
    every_ns = terms.checkpoint_every_ns or checkpoint_spacing(view.timeline)
    restart_ns = pause.start_ns if terms.restart_ns is None else terms.restart_ns
    return CheckpointedWork(
        hours=(whole.work + whole.other) / NS_PER_HOUR,
        interval=None if every_ns is None else every_ns / NS_PER_HOUR,
        save=pause.save_ns / NS_PER_HOUR,
        restart=restart_ns / NS_PER_HOUR,
        deadline=None if terms.deadline_ns is None else terms.deadline_ns / NS_PER_HOUR,
    )


def recorded_reclaims(view: RunView) -> ReclaimRate | None:
    """Return how often the run's machines were taken back; None if they never were."""
    attempts = view.timeline.attempts
    count = sum(a.end is not None and a.end.status == "preempted" for a in attempts)
    uptime_ns = sum(a.last_sign_ns - a.start_ns for a in attempts)
    if not count or not uptime_ns:
        return None
    hours = uptime_ns / NS_PER_HOUR
    return ReclaimRate(
        mttf_hours=hours / count, reclaims=count, uptime_hours=hours,
        source=f"recorded: {count} in {hours:.1f} h of this run",
    )  # fmt: skip


def _assumptions(view: RunView, terms: OtherTerms, pause: PauseCost) -> list[str]:
    found: list[str] = []
    changed = terms != OtherTerms(deadline_ns=terms.deadline_ns)
    if changed:
        found += pause.assumed
    if terms.speed is not None:
        found.append(f"steps run {float(terms.speed):g} times as fast; saves and starts as long")
    if terms.gpus is not None:
        share = f"{float(terms.scaling):.0%} of the ideal speed-up"
        found.append(f"{terms.gpus} GPUs bring {share}")
    is_priced = terms.price is not None or terms.gpus is not None
    if is_priced and terms.reclaim is None and len(view.timeline.attempts) > 1:
        found.append("the time between attempts costs what it did")
    if terms.checkpoint_source:
        found.append(terms.checkpoint_source)
    if terms.checkpoint_every_ns is not None and terms.reclaim is None:
        found.append("failures come after the same time in each attempt as they did")
    if terms.failures_ns is not None:
        found.append("it fails at the instants of the trace, and restarts at once")
    if terms.reclaim is not None:
        found.append(
            f"machines are taken back every {terms.reclaim.mttf_hours:g} h on average "
            f"({terms.reclaim.source}), at random and independently of each other"
        )
    if terms.checkpoint_every_ns is None and changed and checkpoint_spacing(view.timeline) is None:
        found.append("no checkpoint was recorded: all work since the start is lost at a failure")
    return found
