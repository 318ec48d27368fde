"""Derives a run's attempts: the segments of each start, and when and how it began and ended.

A run's timeline is that of its lowest recorded rank, almost always rank 0; other ranks and a
supervisor add signs of life. An attempt begins, per node, with the first process there, as far as
that was recorded, and ends with the last. A cluster's accounting, if added to the log, decides the
attempt's begin and end. It counts whole seconds: an end in the log within the same second is more
precise and is kept, so that no record is cut off; records in a later second do not count.

A wall clock may be set between two starts. On one machine the attempts before are then moved onto
the clock of the attempt after, with everything before them: by as much as the clock was set, if
both recorded the time since boot, else so that two that overlap are end to end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate, pairwise, zip_longest
from pathlib import Path
from typing import Literal, TypeVar

from msgspec.structs import replace as replace_fields

from outlay.errors import Finding
from outlay.files import open_own
from outlay.ledger.codec import decode_block
from outlay.ledger.price import Price
from outlay.ledger.reader import LedgerReader
from outlay.ledger.records import (
    AttemptEnded,
    AttemptStarted,
    PriceChanged,
    PriceCorrected,
    Record,
    SlicesChanged,
    Step,
    exact_gpus,
)
from outlay.ledger.segments import SUPERVISOR, SegmentId, order_of_starts, segment_paths

DEAD_AFTER_NS = 600 * 10**9
"""Without a sign of life for this long, an attempt that recorded no end counts as dead."""
ACCOUNTS = "sacct"
"""Prefix of the launch id, and of the source of GPUs, in segments from a cluster's accounting."""
_SECOND_NS = 10**9
"""A cluster's accounting rounds times down to this; a clock that was set by less is not moved."""


@dataclass(slots=True)
class SegmentLife:
    """The begin, end, prices and last sign of life of one process, folded from its records.

    ``moved_ns`` is added to its recorded times, to be on the clock of a later attempt.
    """

    segment: SegmentId
    header: AttemptStarted | None = None
    end: AttemptEnded | None = None
    prices: list[PriceChanged] = field(default_factory=list)
    slices: list[SlicesChanged] = field(default_factory=list)
    corrections: list[PriceCorrected] = field(default_factory=list)
    last_sign_ns: int = 0
    moved_ns: int = 0

    def __post_init__(self) -> None:
        self.last_sign_ns = self.segment.start_ns

    @property
    def start_ns(self) -> int:
        """The time of its first record."""
        return self.segment.start_ns + self.moved_ns

    def moved(self, ns: int) -> SegmentLife:
        """Return the same life, ``ns`` later (negative: earlier)."""
        if not ns:
            return self
        life = SegmentLife(
            self.segment,
            header=None if self.header is None else _moved_header(self.header, ns),
            end=None if self.end is None else _moved_record(self.end, ns),
            prices=[_moved_record(change, ns) for change in self.prices],
            slices=[_moved_record(change, ns) for change in self.slices],
            corrections=self.corrections,
            moved_ns=self.moved_ns + ns,
        )
        life.last_sign_ns = self.last_sign_ns + ns
        return life

    @property
    def is_account(self) -> bool:
        """Whether the segment is from a cluster's accounting, not from a process."""
        return self.header is not None and self.header.launch.startswith(f"{ACCOUNTS}-")

    def fold(self, records: Sequence[Record]) -> None:
        """Add records of the segment; their order does not matter."""
        for record in records:
            match record:
                case Step():
                    continue  # Handled below: there may be millions, and only the last matters.
                case AttemptStarted():
                    self.header = record
                case AttemptEnded():
                    self.end = record
                case PriceChanged():
                    self.prices.append(record)
                case PriceCorrected():
                    self.corrections.append(record)
                    continue  # Not by the run.
                case SlicesChanged():
                    self.slices.append(record)
                case _:
                    pass
            self.last_sign_ns = max(self.last_sign_ns, record.t_ns)
        steps = (record.t_ns for record in reversed(records) if type(record) is Step)
        self.last_sign_ns = max(self.last_sign_ns, next(steps, 0))


Timed = TypeVar("Timed", AttemptStarted, AttemptEnded, PriceChanged, SlicesChanged)


def _moved_record(record: Timed, ns: int) -> Timed:
    return replace_fields(record, t_ns=record.t_ns + ns)


def _moved_header(header: AttemptStarted, ns: int) -> AttemptStarted:
    starts = {
        name: recorded_ns + ns
        for name in ("process_start_ns", "agent_start_ns", "queued_ns")
        if (recorded_ns := getattr(header, name))
    }
    return replace_fields(_moved_record(header, ns), **starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInterval:
    """One node of an attempt, and how long it was used.

    Attributes:
        name: Its host, or its number if hosts are not recorded.
        start_ns: When its first process began, as far as that was recorded.
        end_ns: Its last sign of life.
        ended: Whether its processes, or the supervisor that reaped them, recorded the end.
        ranks: How many processes recorded there.
        gpus: How many of the run's GPUs were detected there; 0 if none were.
        instance_id: The vendor's id of the machine, if it was recorded.
    """

    name: str
    start_ns: int
    end_ns: int
    ended: bool
    ranks: int
    gpus: Fraction
    instance_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the run, from its begin to its last sign of life.

    Attributes:
        segment: The segment whose records make the timeline.
        ranks: The segments of all ranks and supervisors, the timeline's own first.
        start_ns: The start of its supervisor, else of its first process, else (in logs without
            process starts) its first record.
        last_sign_ns: The last record of any rank, at most the begin of the next attempt. A
            supervisor's records count for the last attempt that it watched.
        overlaps: Whether it was still recording when the next attempt began.
        outlived: Whether its log continues after the end in the cluster's accounting, which counts.
        begin: The source of ``start_ns``.
        nodes: The node of the timeline first; empty in logs without nodes.
        moved_ns: What was added to the recorded times of its timeline, to be on the clock of a
            later attempt; all times here are moved.
        clock_set_ns: How far the clock was set between this attempt and the next, as far as that
            is known; negative if back.
        queued_ns: When its job was queued, by the accounting if that says so; 0 if unknown.
        paused_price: Of the whole machine until the next attempt, if its supervisor paused it and
            stated one.
    """

    segment: SegmentId
    ranks: tuple[SegmentId, ...]
    header: AttemptStarted
    end: AttemptEnded | None
    prices: tuple[PriceChanged, ...]
    start_ns: int
    last_sign_ns: int
    overlaps: bool = False
    outlived: bool = False
    begin: Literal["supervisor", "process", "record"] = "record"
    nodes: tuple[NodeInterval, ...] = ()
    slices: tuple[SlicesChanged, ...] = ()
    moved_ns: int = 0
    clock_set_ns: int = 0
    queued_ns: int = 0
    paused_price: Price | None = None

    @property
    def is_clipped(self) -> bool:
        """Whether its log has records after its end; they do not count."""
        return self.overlaps or self.outlived

    @property
    def is_altered(self) -> bool:
        """Whether its timeline differs from its log: it is moved, or a part does not count."""
        return self.is_clipped or self.moved_ns != 0

    @property
    def completed(self) -> bool:
        """Whether the attempt recorded that the run is done."""
        return self.end is not None and self.end.status == "completed"

    @property
    def paused(self) -> bool:
        """Whether the attempt ended on purpose to continue later."""
        return self.end is not None and self.end.status == "paused"


def derive_attempts(lives: Iterable[SegmentLife]) -> list[Attempt]:
    """Return the run's attempts, oldest first; the order of ``lives`` does not matter."""
    ordered = sorted(lives, key=lambda life: life.segment)
    starts = _in_order(_starts(ordered))
    _move_onto_last_clock(starts)
    for earlier, start in zip((None, *starts), starts, strict=False):
        start.find_nodes(earlier)
    every = sorted(
        (each for life in ordered for each in life.corrections),
        key=lambda each: (each.t_ns, each.seq),
    )
    return [
        _with_prices(_attempt(start, following), every)
        for start, following in zip_longest(starts, starts[1:])
    ]


def _with_prices(attempt: Attempt, corrections: Iterable[PriceCorrected]) -> Attempt:
    """Return an attempt with the prices that count after corrections, oldest first."""
    for each in corrections:
        header, changes = attempt.header, attempt.prices
        if _is_same_price(header.price, each.was):
            header = replace_fields(header, price=each.price)
        changes = tuple(
            replace_fields(change, price=each.price)
            if _is_same_price(change.price, each.was)
            else change
            for change in changes
        )
        attempt = replace(attempt, header=header, prices=changes)
    return attempt


def _is_same_price(price: Price | None, other: Price | None) -> bool:
    if price is None or other is None:
        return price is other
    return price.rate == other.rate


def alive_until(attempts: Sequence[Attempt], now_ns: int) -> list[Attempt]:
    """Return the attempts of a run that is alive: ``now_ns`` is its last sign of life.

    The reader's clock may be behind the writer's, so the last sign never moves back.
    """
    last = attempts[-1]
    until_ns = max(now_ns, last.last_sign_ns)
    nodes = tuple(node if node.ended else replace(node, end_ns=until_ns) for node in last.nodes)
    return [*attempts[:-1], replace(last, last_sign_ns=until_ns, nodes=nodes)]


_OVERLAPS = "was still recording when the next attempt began; the later one counts"
_QUEUED_LATER = (
    "is said to be queued after it began, so that its time in the queue is not known; do the "
    "clocks of the cluster agree?"
)
_OUTLIVED = "was still recording after its job had ended by the accounts; their end counts"


def attempt_findings(attempts: Iterable[Attempt]) -> Iterator[Finding]:
    """Yield findings of attempts whose timeline differs from its log, or whose times disagree."""
    for attempt in attempts:
        source = attempt.segment.file_name
        if attempt.is_clipped:
            message = _OVERLAPS if attempt.overlaps else _OUTLIVED
            yield Finding(source=source, message=message, severity="warning")
        if attempt.queued_ns > attempt.start_ns:
            yield Finding(source=source, message=_QUEUED_LATER, severity="warning")
        if attempt.clock_set_ns:
            yield Finding(source=source, message=_clock_set(attempt), severity="warning")


def _clock_set(attempt: Attempt) -> str:
    by = f"{abs(attempt.clock_set_ns) / _SECOND_NS:,.3f} s"
    where = "back" if attempt.clock_set_ns < 0 else "ahead"
    return (
        f"the clock of its machine was set {where} by {by} before the next attempt; all of its "
        "time counts, and its times are shown on the later clock"
    )


def training_ranks(segments: Sequence[SegmentId]) -> tuple[SegmentId, ...]:
    """Return the segments of an attempt that trained; its supervisors' if there are none."""
    ranks = tuple(segment for segment in segments if segment.rank != SUPERVISOR)
    return ranks or tuple(segments)


def energy_of(attempts: Iterable[Attempt], energy_mj: Mapping[SegmentId, int]) -> int:
    """Return the millijoules of a run, each counted once.

    A supervisor measures the same energy as the training; its figure counts only if none of the
    attempts that it watched measured any.
    """
    total = 0
    measured_mj: dict[SegmentId, int] = {}
    for attempt in attempts:
        trained = training_ranks(attempt.ranks)
        measured = sum(energy_mj.get(rank, 0) for rank in trained)
        total += measured
        for supervisor in set(attempt.ranks) - set(trained):
            measured_mj[supervisor] = measured_mj.get(supervisor, 0) + measured
    return total + sum(
        energy_mj.get(supervisor, 0) for supervisor, inside in measured_mj.items() if not inside
    )


@dataclass(slots=True)
class _Start:
    """An attempt under construction.

    Attributes:
        leader: The process whose records make the timeline.
        ranks: The other processes that trained, and every supervisor that watched.
        begun_ns: The start of its leader, or of the supervisor whose first attempt it is; after
            ``find_nodes``, of the first process on any node.
        signs: The processes whose signs of life are the attempt's; a supervisor's are those of the
            last attempt that it watched.
        supervised: Whether its begin is that of a supervisor, or from its job's accounting.
        accounts: The accounting of its job.
        ended_ns: Its end according to ``accounts``.
        clock_set_ns: How far the clock was set between this start and the next.
    """

    leader: SegmentLife
    ranks: list[SegmentLife] = field(default_factory=list)
    begun_ns: int = 0
    signs: list[SegmentLife] = field(default_factory=list)
    supervised: bool = False
    nodes: list[NodeInterval] = field(default_factory=list)
    accounts: SegmentLife | None = None
    ended_ns: int | None = None
    clock_set_ns: int = 0

    def __post_init__(self) -> None:
        self.begun_ns = self.leader.start_ns
        self.supervised = self.leader.segment.rank == SUPERVISOR

    @property
    def last_sign_ns(self) -> int:
        """The end in the accounting, else the last record of the leader and of ``signs``."""
        if self.ended_ns is not None:
            return self.ended_ns
        return max(life.last_sign_ns for life in (self.leader, *self.signs))

    def move(self, ns: int) -> None:
        """Add ``ns`` to all times."""
        self.leader = self.leader.moved(ns)
        self.ranks = [life.moved(ns) for life in self.ranks]
        self.signs = [life.moved(ns) for life in self.signs]
        self.begun_ns += ns
        self.ended_ns = None if self.ended_ns is None else self.ended_ns + ns

    def find_nodes(self, earlier: _Start | None) -> None:
        """Find the nodes and their start times, not before the end of the ``earlier`` attempt."""
        if self.leader.header is None or not self.leader.header.nodes:
            return
        by_node: dict[str, list[SegmentLife]] = {_node_of(self.leader): [self.leader]}
        for life in self.signs:
            if life.segment.rank != SUPERVISOR:
                by_node.setdefault(_node_of(life), []).append(life)
        watching = [life for life in self.signs if life.segment.rank == SUPERVISOR]
        nodes: list[NodeInterval] = []
        for name, lives in by_node.items():
            is_first = not nodes
            begun_ns = min(_process_start_ns(life, earlier) for life in lives)
            if self.supervised and (is_first or self.accounts):
                begun_ns = self.begun_ns
            elif earlier is not None:
                after_ns = min(earlier.last_sign_ns, self.leader.start_ns)
                begun_ns = max(begun_ns, after_ns)
            nodes.append(_node_interval(name, begun_ns, lives, watching if is_first else []))
        self.begun_ns = min(node.start_ns for node in nodes)
        if self.accounts is not None:  # A job keeps all its nodes from begin to end.
            first_ns, last_ns = self.begun_ns, self.last_sign_ns
            nodes = [replace(n, start_ns=first_ns, end_ns=last_ns, ended=True) for n in nodes]
        self.nodes = nodes


def _starts(ordered: Sequence[SegmentLife]) -> list[_Start]:
    """Return every start of the run with its processes."""
    ranks = {life.segment.rank for life in ordered} - {SUPERVISOR}
    lowest = min(ranks, default=SUPERVISOR)
    leaders = [life for life in ordered if life.segment.rank == lowest]
    if lowest == SUPERVISOR:  # A supervisor on the node takes precedence over accounting.
        leaders = [life for life in leaders if not life.is_account] or leaders
    starts = [_Start(life) for life in leaders]
    led = {id(life) for life in leaders}
    watching = [life for life in ordered if life.segment.rank == SUPERVISOR and id(life) not in led]
    starts += _add_supervisors([life for life in watching if not life.is_account], starts)
    for life in ordered:
        if life.segment.rank > lowest:
            start = _find_start(life, starts)
            seen = _on_clock_of(start.leader, life)
            start.ranks.append(seen)
            start.signs.append(seen)
    return starts + _add_accounts([life for life in watching if life.is_account], starts)


def _add_supervisors(supervisors: Sequence[SegmentLife], starts: Sequence[_Start]) -> list[_Start]:
    """Add each supervisor to the starts that it watched; return new starts for those without."""
    alone = []
    for supervisor, silent_ns in _watch_ends(supervisors):
        watched = []
        for start in starts:
            seen = _on_clock_of(start.leader, supervisor)
            if seen.start_ns <= start.leader.start_ns <= seen.last_sign_ns + silent_ns:
                watched.append(start)
                start.ranks.append(seen)
        if not watched:
            alone.append(_Start(supervisor))
            continue
        first, last = watched[0], watched[-1]
        first.begun_ns = min(first.begun_ns, first.ranks[-1].start_ns)
        first.supervised = True
        last.signs.append(last.ranks[-1])
    return alone


def _add_accounts(accounts: Sequence[SegmentLife], starts: Sequence[_Start]) -> list[_Start]:
    """Add each job's accounting to the starts in it; return new starts for jobs without any."""
    attempts: dict[SegmentId, list[_Start]] = {life.segment: [] for life in accounts}
    for start in sorted(starts, key=lambda start: start.leader.segment):
        t_ns = start.leader.segment.start_ns
        covering = [
            life.segment
            for life in accounts
            if life.segment.start_ns <= t_ns < life.last_sign_ns + _SECOND_NS
        ]
        if covering:  # Two starts of a job may share a second, which belongs to the later one.
            attempts[covering[-1]].append(start)
    for life in accounts:
        if inside := attempts[life.segment]:
            _set_job_bounds(life, inside)
    return [_Start(life) for life in accounts if not attempts[life.segment]]


def _set_job_bounds(accounts: SegmentLife, inside: Sequence[_Start]) -> None:
    """Set begin and end of a job's attempts, oldest first, from its accounting."""
    first, last = inside[0], inside[-1]
    granted_ns, returned_ns = accounts.segment.start_ns, accounts.last_sign_ns
    agrees = returned_ns <= last.last_sign_ns < returned_ns + _SECOND_NS
    ended_ns = last.last_sign_ns if agrees else max(returned_ns, last.leader.segment.start_ns)
    for start in inside:
        start.accounts = accounts
        start.ranks.append(accounts)
    first_record_ns = first.leader.segment.start_ns
    first.begun_ns = min(granted_ns + ended_ns - returned_ns, first_record_ns)
    first.supervised = True
    last.ended_ns = ended_ns


def _watch_ends(supervisors: Sequence[SegmentLife]) -> Iterator[tuple[SegmentLife, int]]:
    """Yield each supervisor, and how long it watched after its last sign of life.

    One without a recorded end is taken to watch until it counts as dead or another takes over.
    """
    for life, later in zip_longest(supervisors, supervisors[1:]):
        silent_ns = DEAD_AFTER_NS if life.end is None else 0
        if later is not None:
            taken_over_ns = _on_clock_of(life, later).start_ns - 1
            silent_ns = min(silent_ns, taken_over_ns - life.last_sign_ns)
        yield life, max(silent_ns, 0)


def _find_start(life: SegmentLife, starts: Sequence[_Start]) -> _Start:
    """Return the start of a process: the nearest in time, of those with its launch id if any."""
    launch = life.header.launch if life.header else ""
    together = [
        start
        for start in starts
        if launch and start.leader.header and start.leader.header.launch == launch
    ]
    return min(
        together or starts,
        key=lambda start: abs(start.leader.start_ns - _on_clock_of(start.leader, life).start_ns),
    )


# The order of starts, and the clock on which they are


def is_same_machine(before: AttemptStarted, after: AttemptStarted) -> bool | None:
    """Return whether two attempts ran on one machine; None if unknown.

    The first that both recorded decides: the instance id; the Slurm job; the boot id *and* the
    start of process 1, since a container sees its host's boot id. In old logs, without nodes, a
    different boot id tells nothing.
    """
    same_boot = before.boot_id == after.boot_id if before.boot_id and after.boot_id else None
    if not (before.nodes and after.nodes):
        return True if same_boot else None
    if before.instance_id and after.instance_id:
        return before.instance_id == after.instance_id
    if before.slurm_job or after.slurm_job:
        return before.slurm_job == after.slurm_job  # Another start of it: rates.given_back.
    if same_boot and before.init_start and after.init_start:
        return before.init_start == after.init_start
    return False if same_boot is False else None


def _clock_set_ns(before: SegmentLife, after: SegmentLife) -> int | None:
    """Return how far the clock was set between two starts of one boot; None if unknown."""
    first, then = before.header, after.header
    if first is None or then is None or not first.boot_id or first.boot_id != then.boot_id:
        return None
    if not (first.since_boot_ns and then.since_boot_ns):
        return None
    return (then.t_ns - then.since_boot_ns) - (first.t_ns - first.since_boot_ns)


def _on_clock_of(other: SegmentLife, life: SegmentLife) -> SegmentLife:
    """Return a process on the clock of another of the same boot."""
    set_ns = _clock_set_ns(life, other) or 0
    return life.moved(set_ns) if abs(set_ns) > _SECOND_NS else life


def _in_order(starts: Sequence[_Start]) -> list[_Start]:
    """Return the starts by their begin, and those of one boot by the time since it."""
    begins = [(start.begun_ns, start.leader.header) for start in starts]
    return [starts[place] for place in order_of_starts(begins)]


def _move_onto_last_clock(starts: Sequence[_Start]) -> None:
    """Move every start onto the clock of the last one, as far as their relation is known."""
    for earlier, later in pairwise(starts):
        earlier.clock_set_ns = _set_between(earlier, later)
    moves = accumulate(start.clock_set_ns for start in reversed(starts))
    for start, ns in zip(reversed(starts), moves, strict=True):
        if ns:
            start.move(ns)


def _set_between(earlier: _Start, later: _Start) -> int:
    """Return how far the clock was set between two starts, as far as that is known; else 0."""
    set_ns = _clock_set_ns(earlier.leader, later.leader)
    if earlier.accounts or later.accounts:
        return 0  # The accounting decides when they began and ended.
    if set_ns is not None and abs(set_ns) > _SECOND_NS:
        return set_ns
    watching = (life for life in earlier.signs if life.segment.rank == SUPERVISOR)
    ended_ns = max(life.last_sign_ns for life in (earlier.leader, *watching))
    overlap_ns = ended_ns - later.leader.start_ns
    if overlap_ns <= 0 or (set_ns is not None and overlap_ns > _SECOND_NS):
        return 0  # In the second case both really ran at once.
    first, then = earlier.leader.header, later.leader.header
    if first is None or then is None or first.host != then.host:
        return 0
    if not is_same_machine(first, then):
        return 0
    begun_ns = min(later.begun_ns, then.process_start_ns or later.begun_ns)
    return begun_ns - ended_ns


def _node_of(life: SegmentLife) -> str:
    header = life.header
    if header is None:
        return life.segment.host
    return header.host or f"node {header.node}"


def _process_start_ns(life: SegmentLife, earlier: _Start | None) -> int:
    """Return when a process began; torchrun's agent counts as part of it.

    The agent's start counts only in the first attempt that it starts: an agent older than the
    earlier attempt started that one.
    """
    first_record_ns, header = life.start_ns, life.header
    if header is None:
        return first_record_ns
    begun_ns = header.process_start_ns or first_record_ns
    if header.agent_start_ns and (
        earlier is None or header.agent_start_ns >= earlier.leader.start_ns
    ):
        begun_ns = header.agent_start_ns
    return min(begun_ns, first_record_ns)


def _node_interval(
    name: str, start_ns: int, lives: Sequence[SegmentLife], watching: Sequence[SegmentLife]
) -> NodeInterval:
    reaped = any(life.end is not None for life in watching)
    found = (exact_gpus(life.header.node_gpus) for life in lives if life.header is not None)
    return NodeInterval(
        name=name,
        start_ns=start_ns,
        end_ns=max(start_ns, *(life.last_sign_ns for life in (*lives, *watching))),
        ended=reaped or all(life.end is not None for life in lives),
        ranks=len(lives),
        gpus=max(found, default=Fraction(0)),
        instance_id=max((life.header.instance_id for life in lives if life.header), default=""),
    )


def _attempt(start: _Start, following: _Start | None) -> Attempt:
    leader, last_sign_ns = start.leader, start.last_sign_ns
    overlaps = following is not None and leader.last_sign_ns > following.begun_ns
    if following is not None:
        last_sign_ns = min(last_sign_ns, following.begun_ns)
    began_before = start.begun_ns < leader.start_ns
    paused = _paused_by(start)
    return Attempt(
        segment=leader.segment,
        ranks=tuple(life.segment for life in (leader, *start.ranks)),
        header=_header(start),
        end=_end(start, paused),
        prices=tuple(sorted(leader.prices, key=lambda change: change.t_ns)),
        start_ns=start.begun_ns,
        last_sign_ns=last_sign_ns,
        overlaps=overlaps,
        outlived=start.ended_ns is not None and leader.last_sign_ns > start.ended_ns,
        begin="supervisor" if start.supervised else "process" if began_before else "record",
        nodes=tuple(replace(node, end_ns=min(node.end_ns, last_sign_ns)) for node in start.nodes),
        slices=tuple(sorted(leader.slices, key=lambda change: (change.t_ns, change.seq))),
        moved_ns=leader.moved_ns,
        clock_set_ns=start.clock_set_ns,
        queued_ns=_queued_ns(start),
        paused_price=paused.header.stopped_machine_price if paused and paused.header else None,
    )


def _paused_by(start: _Start) -> SegmentLife | None:
    """Return the supervisor that paused the attempt; None if it ended in another way."""
    watched = (life for life in (start.leader, *start.signs) if life.segment.rank == SUPERVISOR)
    return next((each for each in watched if each.end and each.end.status == "paused"), None)


def _end(start: _Start, paused: SegmentLife | None) -> AttemptEnded | None:
    """Return how an attempt ended.

    Of a pause by its supervisor the program only knows that it was told to end.
    """
    own = start.leader.end
    if paused is not None and (own is None or own.status not in ("completed", "paused")):
        return paused.end
    return own or _witnessed_end(start)


def _queued_ns(start: _Start) -> int:
    """Return when the job of a start was queued: by its accounting, else as a process recorded.

    A supervisor may have watched the start of the job before, too: what it recorded is of that.
    """
    own = start.leader.header
    lives = sorted((start.leader, *start.ranks), key=lambda life: not life.is_account)
    headers = ((life.header, life.is_account) for life in lives)
    recorded = (
        header.queued_ns
        for header, is_account in headers
        if header is not None and (is_account or own is None or _is_same_start(header, own))
    )
    return next(filter(None, recorded), 0)


def _is_same_start(one: AttemptStarted, other: AttemptStarted) -> bool:
    return (one.slurm_job, one.slurm_restart) == (other.slurm_job, other.slurm_restart)


def _header(start: _Start) -> AttemptStarted:
    """Return the leader's header, with the supervisor's command and the prices it did not know."""
    header = start.leader.header or AttemptStarted(t_ns=start.leader.start_ns)
    for account in (life for life in start.ranks if life.is_account):
        if account.header is not None and header.gpus_source == "world_size":
            source = account.header.gpus_source
            header = replace_fields(header, gpus=account.header.gpus, gpus_source=source)
    for life in start.ranks:
        stated = life.header
        if life.segment.rank != SUPERVISOR or stated is None:
            continue
        if header.price is None and stated.price is not None:
            header = replace_fields(
                header, price=stated.price, gpus=stated.gpus, gpus_source=stated.gpus_source
            )
        if stated.command:  # Such as torchrun, which started each rank.
            header = replace_fields(header, command=stated.command)
        if header.stopped_machine_price is None:
            header = replace_fields(header, stopped_machine_price=stated.stopped_machine_price)
    return header


def _witnessed_end(start: _Start) -> AttemptEnded | None:
    """Return the end that a supervisor or the accounting recorded for the leader."""
    ends = [life.end for life in start.signs if life.segment.rank == SUPERVISOR]
    stated = start.accounts.end if start.accounts and start.ended_ns is not None else None
    return next((end for end in (*ends, stated) if end is not None), None)


# Begin and end of processes, read without decoding all steps
#
# Of a long segment only its first record, its changes of price or slices, and its tail are decoded:
# the rest changes neither begin and end nor the rate.

WHOLE_BYTES = 1 << 18
"""Segments up to this size are decoded whole."""
TAIL_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 23
_CHANGE = b'_changed","'
"""Follows the kind of every record that changes a price or a number of slices."""


def read_lives(run_dir: Path, *, times_only: bool = False) -> list[SegmentLife]:
    """Return the life of every segment of a run; empty if there is no log.

    The result equals a fold of the whole log; with ``times_only`` it may lack changes of price and
    slices, and of a long segment only its ends are read. If a segment has several files, or its
    first or last lines are damaged, the whole log is folded.
    """
    lives: dict[SegmentId, SegmentLife] = {}
    for path in segment_paths(run_dir):
        try:
            records = _boundary_records(path, times_only=times_only)
        except OSError:
            continue
        header = records[0] if records else None
        if not isinstance(header, AttemptStarted):
            return _fold_whole(run_dir)
        segment = SegmentId.of(header)
        if segment in lives:
            return _fold_whole(run_dir)
        life = lives[segment] = SegmentLife(segment)
        life.fold(records)
    return list(lives.values())


def _fold_whole(run_dir: Path) -> list[SegmentLife]:
    lives: dict[SegmentId, SegmentLife] = {}
    for chunk in LedgerReader(run_dir).poll():
        lives.setdefault(chunk.segment, SegmentLife(chunk.segment)).fold(chunk.records)
    return list(lives.values())


def _boundary_records(path: Path, *, times_only: bool) -> list[Record]:
    """Return the records that decide a segment's life; empty if its begin or end is damaged."""
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as stream:
        size = stream.seek(0, 2)
        if size <= WHOLE_BYTES:
            stream.seek(0)
            return _decode_whole_lines(stream.read())
        stream.seek(0)
        head = _decode_whole_lines(stream.readline())
        stream.seek(size - TAIL_BYTES)
        tail_block = stream.read().partition(b"\n")[2]
        tail = _decode_whole_lines(tail_block)
        if not head or not tail:
            return []
        if times_only:
            return [*head, *tail]
        stream.seek(0)
        changes: list[Record] = []
        rest = b""
        left = size - len(tail_block)
        while left > 0 and (block := stream.read(min(_BLOCK_BYTES, left))):
            left -= len(block)
            rest = _add_changes(rest + block, changes)
    return [*head, *changes, *tail]


def _add_changes(block: bytes, changes: list[Record]) -> bytes:
    """Decode the block's lines that hold a change; return the bytes after its last whole line."""
    end = block.rfind(b"\n") + 1
    found = block.find(_CHANGE, 0, end)
    while found >= 0:
        start, stop = block.rfind(b"\n", 0, found) + 1, block.find(b"\n", found) + 1
        changes += _decode_whole_lines(block[start:stop])
        found = block.find(_CHANGE, stop, end)
    return block[end:]


def _decode_whole_lines(block: bytes) -> list[Record]:
    """Return the records of a block's whole lines, by sequence number."""
    whole = block[: block.rfind(b"\n") + 1]
    return sorted(decode_block(whole).records, key=lambda record: record.seq) if whole else []
