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
        ranks: The segments of all ranks, the timeline's own included.
        start_ns: When it began.
        last_sign_ns: Its last record, of any rank; cut where the next attempt begins.
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
    if not ordered:
        return []
    seen_ns = _seen_until(ordered)
    leaders = _leaders(ordered, seen_ns)
    followers: dict[SegmentId, list[SegmentLife]] = {life.segment: [] for life in leaders}
    for life in ordered:
        if life.segment not in followers:
            followers[_leader_of(life, leaders, seen_ns).segment].append(life)
    groups = sorted(
        ((leader, followers[leader.segment]) for leader in leaders),
        key=lambda group: _start_ns(*group),
    )
    next_starts = [*(_start_ns(*group) for group in groups[1:]), None]
    return [
        _attempt(leader, followers, next_start)
        for (leader, followers), next_start in zip(groups, next_starts, strict=True)
    ]


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

    A supervisor sees from outside what the training measures inside; its word counts where the
    training measured nothing.
    """
    total = 0
    for attempt in attempts:
        inside = sum(energy_mj.get(rank, 0) for rank in training_ranks(attempt.ranks))
        total += inside or sum(energy_mj.get(rank, 0) for rank in attempt.ranks)
    return total


def _seen_until(ordered: Sequence[SegmentLife]) -> dict[SegmentId, int]:
    """Return until when each supervisor watched.

    One without an end is between two signs of life, unless it is dead or another has taken over.
    """
    supervisors = [life for life in ordered if life.segment.rank == SUPERVISOR]
    until_ns = {}
    for life, later in zip_longest(supervisors, supervisors[1:]):
        silent_ns = life.last_sign_ns + (DEAD_AFTER_NS if life.end is None else 0)
        taken_over_ns = silent_ns if later is None else later.segment.start_ns - 1
        until_ns[life.segment] = max(life.last_sign_ns, min(silent_ns, taken_over_ns))
    return until_ns


def _leaders(ordered: Sequence[SegmentLife], seen_ns: Mapping[SegmentId, int]) -> list[SegmentLife]:
    """Return the segments that make the timeline: one rank's, and supervisors who saw none."""
    ranks = {life.segment.rank for life in ordered}
    lowest = min(ranks - {SUPERVISOR} or ranks)
    leaders = [life for life in ordered if life.segment.rank == lowest]
    if lowest == SUPERVISOR:
        return leaders
    alone = [
        life
        for life in ordered
        if life.segment in seen_ns
        and not any(_watched(life, seen_ns[life.segment], leader) for leader in leaders)
    ]
    return leaders + alone


def _watched(supervisor: SegmentLife, until_ns: int, life: SegmentLife) -> bool:
    return supervisor.segment.start_ns <= life.segment.start_ns <= until_ns


def _leader_of(
    life: SegmentLife, leaders: Sequence[SegmentLife], seen_ns: Mapping[SegmentId, int]
) -> SegmentLife:
    """Return the leader that was launched together with ``life``: by launch id, else by time."""
    if life.segment in seen_ns:
        until_ns = seen_ns[life.segment]
        return next(leader for leader in leaders if _watched(life, until_ns, leader))
    launch = life.header.launch if life.header else ""
    together = [
        leader for leader in leaders if launch and leader.header and leader.header.launch == launch
    ]
    return min(
        together or leaders,
        key=lambda leader: abs(leader.segment.start_ns - life.segment.start_ns),
    )


def _start_ns(leader: SegmentLife, followers: Sequence[SegmentLife]) -> int:
    """Return when an attempt began: with its supervisor where it had one, else with its leader."""
    watching = (f.segment.start_ns for f in followers if f.segment.rank == SUPERVISOR)
    return min([leader.segment.start_ns, *watching])


def _attempt(
    leader: SegmentLife, followers: Sequence[SegmentLife], next_start_ns: int | None
) -> Attempt:
    last_sign_ns = max(life.last_sign_ns for life in (leader, *followers))
    overlaps = next_start_ns is not None and leader.last_sign_ns > next_start_ns
    if next_start_ns is not None:
        last_sign_ns = min(last_sign_ns, next_start_ns)
    return Attempt(
        segment=leader.segment,
        ranks=tuple(life.segment for life in (leader, *followers)),
        header=leader.header or AttemptStarted(t_ns=leader.segment.start_ns),
        end=leader.end or _witnessed_end(followers),
        prices=tuple(sorted(leader.prices, key=lambda change: change.t_ns)),
        start_ns=_start_ns(leader, followers),
        last_sign_ns=last_sign_ns,
        overlaps=overlaps,
    )


def _witnessed_end(followers: Sequence[SegmentLife]) -> AttemptEnded | None:
    """Return how a leader without a last word ended, as its supervisor saw it."""
    ends = [life.end for life in followers if life.segment.rank == SUPERVISOR]
    return next((end for end in ends if end is not None), None)
