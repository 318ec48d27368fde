"""Attempts, derived: which segments make up one start of the run, and how each began and ended.

A run's timeline is that of its lowest recorded rank, almost always rank 0; the other ranks, and a
supervisor that watched from outside, add signs of life.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from outlay.ledger.records import AttemptEnded, AttemptStarted, PriceChanged, Record, Step
from outlay.ledger.segments import SUPERVISOR, SegmentId

DEAD_AFTER_NS = 600 * 10**9
"""Without a sign of life for this long, an attempt that did not say goodbye counts as dead."""


@dataclass(slots=True)
class SegmentLife:
    """How one process lived, folded from its records in any order."""

    segment: SegmentId
    header: AttemptStarted | None = None
    end: AttemptEnded | None = None
    prices: list[PriceChanged] = field(default_factory=list)
    last_sign_ns: int = 0

    def __post_init__(self) -> None:
        self.last_sign_ns = self.segment.start_ns

    def fold(self, records: Sequence[Record]) -> None:
        """Take note of more records of the segment."""
        for record in records:
            match record:
                case Step():
                    continue  # Looked at below: there may be millions, and only the last matters.
                case AttemptStarted():
                    self.header = record
                case AttemptEnded():
                    self.end = record
                case PriceChanged():
                    self.prices.append(record)
                case _:
                    pass
            self.last_sign_ns = max(self.last_sign_ns, record.t_ns)
        steps = (record.t_ns for record in reversed(records) if type(record) is Step)
        self.last_sign_ns = max(self.last_sign_ns, next(steps, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the run, from its first record to its last sign of life.

    Attributes:
        segment: The segment whose records make the timeline.
        ranks: The segments of all ranks, the timeline's own first, and of those who watched.
        start_ns: When it began: of the attempts that a supervisor watched, the first with it.
        last_sign_ns: Its last record, of any rank; cut where the next attempt begins. Of the
            attempts that a supervisor watched, it is the last one's sign of life.
        overlaps: It was still recording when the next attempt began.
    """

    segment: SegmentId
    ranks: tuple[SegmentId, ...]
    header: AttemptStarted
    end: AttemptEnded | None
    prices: tuple[PriceChanged, ...]
    start_ns: int
    last_sign_ns: int
    overlaps: bool = False

    @property
    def completed(self) -> bool:
        """Whether the attempt said that the run is done."""
        return self.end is not None and self.end.status == "completed"


def derive_attempts(lives: Iterable[SegmentLife]) -> list[Attempt]:
    """Return the run's attempts, oldest first; the order of ``lives`` does not matter."""
    ordered = sorted(lives, key=lambda life: life.segment)
    starts = sorted(_starts(ordered), key=lambda start: start.begun_ns)
    return [_attempt(start, following) for start, following in zip_longest(starts, starts[1:])]


def alive_until(attempts: Sequence[Attempt], now_ns: int) -> list[Attempt]:
    """Return the attempts of a run that is alive now: the present counts as its last sign.

    The reader's clock may be behind the writer's; what was recorded has happened all the same.
    """
    last_sign_ns = max(now_ns, attempts[-1].last_sign_ns)
    return [*attempts[:-1], replace(attempts[-1], last_sign_ns=last_sign_ns)]


def training_ranks(segments: Sequence[SegmentId]) -> tuple[SegmentId, ...]:
    """Return an attempt's processes that trained; a supervisor only where it saw none of them."""
    ranks = tuple(segment for segment in segments if segment.rank != SUPERVISOR)
    return ranks or tuple(segments)


def energy_of(attempts: Iterable[Attempt], energy_mj: Mapping[SegmentId, int]) -> int:
    """Return the millijoules of a run, each counted once.

    A supervisor sees from outside what the training measures inside; its word counts where none of
    the attempts that it watched measured anything.
    """
    total = 0
    inside_mj: dict[SegmentId, int] = {}
    for attempt in attempts:
        trained = training_ranks(attempt.ranks)
        measured = sum(energy_mj.get(rank, 0) for rank in trained)
        total += measured
        for watching in set(attempt.ranks) - set(trained):
            inside_mj[watching] = inside_mj.get(watching, 0) + measured
    outside = (energy_mj.get(watching, 0) for watching, inside in inside_mj.items() if not inside)
    return total + sum(outside)


@dataclass(slots=True)
class _Start:
    """An attempt while its processes are being put together.

    Attributes:
        leader: The process whose records make the timeline.
        ranks: The other processes that trained, and every supervisor that watched.
        begun_ns: When it began: with its leader, or with the supervisor that it is the first of.
        signs: The processes whose signs of life are the attempt's own; of the attempts that a
            supervisor watched, it speaks for the last.
    """

    leader: SegmentLife
    ranks: list[SegmentLife] = field(default_factory=list)
    begun_ns: int = 0
    signs: list[SegmentLife] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begun_ns = self.leader.segment.start_ns


def _starts(ordered: Sequence[SegmentLife]) -> list[_Start]:
    """Return every start of the run with the processes that belong to it."""
    ranks = {life.segment.rank for life in ordered} - {SUPERVISOR}
    lowest = min(ranks, default=SUPERVISOR)
    starts = [_Start(life) for life in ordered if life.segment.rank == lowest]
    if lowest != SUPERVISOR:
        supervisors = [life for life in ordered if life.segment.rank == SUPERVISOR]
        # The list is made before it is added to: a supervisor watches none of its kind.
        starts += [
            _Start(life)
            for life, later in zip_longest(supervisors, supervisors[1:])
            if not _watched(life, _seen_until(life, later), starts)
        ]
    for life in ordered:
        if life.segment.rank > lowest and life.segment.rank != SUPERVISOR:
            start = _launched_with(life, starts)
            start.ranks.append(life)
            start.signs.append(life)
    return starts


def _launched_with(life: SegmentLife, starts: Sequence[_Start]) -> _Start:
    """Return the start that a process belongs to: by launch id, else by time."""
    launch = life.header.launch if life.header else ""
    together = [
        start
        for start in starts
        if launch and start.leader.header and start.leader.header.launch == launch
    ]
    return min(
        together or starts,
        key=lambda start: abs(start.leader.segment.start_ns - life.segment.start_ns),
    )


def _seen_until(supervisor: SegmentLife, later: SegmentLife | None) -> int:
    """Return until when a supervisor watched.

    One without an end is between two signs of life, unless it is dead or another has taken over.
    """
    silent_ns = supervisor.last_sign_ns + (DEAD_AFTER_NS if supervisor.end is None else 0)
    taken_over_ns = silent_ns if later is None else later.segment.start_ns - 1
    return max(supervisor.last_sign_ns, min(silent_ns, taken_over_ns))


def _watched(supervisor: SegmentLife, seen_ns: int, starts: Sequence[_Start]) -> bool:
    """Take note of a supervisor where it watched, and say whether it did."""
    begun_ns = supervisor.segment.start_ns
    watched = [start for start in starts if begun_ns <= start.leader.segment.start_ns <= seen_ns]
    if not watched:
        return False
    for start in watched:
        start.ranks.append(supervisor)
    watched[0].begun_ns = min(watched[0].begun_ns, begun_ns)
    watched[-1].signs.append(supervisor)
    return True


def _attempt(start: _Start, following: _Start | None) -> Attempt:
    leader = start.leader
    last_sign_ns = max(life.last_sign_ns for life in (leader, *start.signs))
    overlaps = following is not None and leader.last_sign_ns > following.begun_ns
    if following is not None:
        last_sign_ns = min(last_sign_ns, following.begun_ns)
    return Attempt(
        segment=leader.segment,
        ranks=tuple(life.segment for life in (leader, *start.ranks)),
        header=leader.header or AttemptStarted(t_ns=leader.segment.start_ns),
        end=leader.end or _witnessed_end(start.signs),
        prices=tuple(sorted(leader.prices, key=lambda change: change.t_ns)),
        start_ns=start.begun_ns,
        last_sign_ns=last_sign_ns,
        overlaps=overlaps,
    )


def _witnessed_end(signs: Sequence[SegmentLife]) -> AttemptEnded | None:
    """Return how a leader without a last word ended, as its supervisor saw it."""
    ends = [life.end for life in signs if life.segment.rank == SUPERVISOR]
    return next((end for end in ends if end is not None), None)
