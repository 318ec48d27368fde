"""Attempts, derived: which segments make up one start of the run, and how each began and ended.

A run's timeline is that of its lowest recorded rank, almost always rank 0; the other ranks add
signs of life.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outlay.ledger.records import AttemptEnded, AttemptStarted, PriceChanged, Record, Step
from outlay.ledger.segments import SegmentId


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
    lowest = min(life.segment.rank for life in ordered)
    leaders = [life for life in ordered if life.segment.rank == lowest]
    followers: dict[SegmentId, list[SegmentLife]] = {life.segment: [] for life in leaders}
    for life in ordered:
        if life.segment.rank != lowest:
            followers[_leader_of(life, leaders).segment].append(life)
    next_starts = [*(life.segment.start_ns for life in leaders[1:]), None]
    return [
        _attempt(leader, followers[leader.segment], next_start)
        for leader, next_start in zip(leaders, next_starts, strict=True)
    ]


def _leader_of(life: SegmentLife, leaders: Sequence[SegmentLife]) -> SegmentLife:
    """Return the leader that was launched together with ``life``: by launch id, else by time."""
    launch = life.header.launch if life.header else ""
    together = [
        leader for leader in leaders if launch and leader.header and leader.header.launch == launch
    ]
    return min(
        together or leaders,
        key=lambda leader: abs(leader.segment.start_ns - life.segment.start_ns),
    )


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
        end=leader.end,
        prices=tuple(sorted(leader.prices, key=lambda change: change.t_ns)),
        start_ns=leader.segment.start_ns,
        last_sign_ns=last_sign_ns,
        overlaps=overlaps,
    )
