"""Attempts, derived: which segments make up one start of the run, and how each began and ended.

A run's timeline is that of its lowest recorded rank, almost always rank 0; the other ranks, and a
supervisor that watched from outside, add signs of life. An attempt begins, on each node for
itself, with the first process there, as far as that was recorded, and ends with the last. A
cluster's accounts bound it, where they were added to the log: it lasts as long as they say. Their
instants are whole seconds; an end of the log that lies in the second that they name is finer, and
stands, so that no record is cut off. What the log has in a later second does not count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from msgspec.structs import replace as replace_fields

from outlay.files import open_own
from outlay.ledger.codec import decode_block
from outlay.ledger.reader import LedgerReader
from outlay.ledger.records import (
    AttemptEnded,
    AttemptStarted,
    PriceChanged,
    Record,
    SlicesChanged,
    Step,
    exact_gpus,
)
from outlay.ledger.segments import SUPERVISOR, SegmentId, segment_paths

DEAD_AFTER_NS = 600 * 10**9
"""Without a sign of life for this long, an attempt that recorded no end counts as dead."""
ACCOUNTS = "sacct"
"""How the launch id, and the source of GPUs, begin in what a cluster's accounts added to a log."""
_SECOND_NS = 10**9
"""What a cluster's accounts round instants down to."""


@dataclass(slots=True)
class SegmentLife:
    """How one process lived, folded from its records in any order."""

    segment: SegmentId
    header: AttemptStarted | None = None
    end: AttemptEnded | None = None
    prices: list[PriceChanged] = field(default_factory=list)
    slices: list[SlicesChanged] = field(default_factory=list)
    last_sign_ns: int = 0

    def __post_init__(self) -> None:
        self.last_sign_ns = self.segment.start_ns

    @property
    def is_account(self) -> bool:
        """Whether this is what a cluster's accounts added to the log."""
        return self.header is not None and self.header.launch.startswith(f"{ACCOUNTS}-")

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
                case SlicesChanged():
                    self.slices.append(record)
                case _:
                    pass
            self.last_sign_ns = max(self.last_sign_ns, record.t_ns)
        steps = (record.t_ns for record in reversed(records) if type(record) is Step)
        self.last_sign_ns = max(self.last_sign_ns, next(steps, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStay:
    """How long one node took part in an attempt.

    Attributes:
        name: Its host; its number where hosts are not recorded.
        start_ns: When its first process began, as far as that was recorded.
        end_ns: Its last sign of life.
        ended: The end was recorded, by its processes or by the supervisor that reaped them.
        ranks: How many processes recorded there.
        gpus: What was found there of the run's GPUs; 0 where nothing was.
    """

    name: str
    start_ns: int
    end_ns: int
    ended: bool
    ranks: int
    gpus: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the run, from its begin to its last sign of life.

    Attributes:
        segment: The segment whose records make the timeline.
        ranks: The segments of all ranks, the timeline's own first, and of those who watched.
        start_ns: When it began: with the supervisor that started it, else with its first process,
            else (in logs that do not say when that was) with its first record.
        last_sign_ns: Its last record, of any rank; cut where the next attempt begins. Of the
            attempts that a supervisor watched, it is the last one's sign of life.
        overlaps: It was still recording when the next attempt began.
        outlived: Its log goes on after the end that the accounts of its job state; that end counts.
        begin: Who says when it began.
        nodes: Where it ran, the node of the timeline first; empty in logs that do not say.
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
    nodes: tuple[NodeStay, ...] = ()
    slices: tuple[SlicesChanged, ...] = ()

    @property
    def is_clipped(self) -> bool:
        """Whether its log has records after its end, which do not count."""
        return self.overlaps or self.outlived

    @property
    def completed(self) -> bool:
        """Whether the attempt said that the run is done."""
        return self.end is not None and self.end.status == "completed"


def derive_attempts(lives: Iterable[SegmentLife]) -> list[Attempt]:
    """Return the run's attempts, oldest first; the order of ``lives`` does not matter."""
    ordered = sorted(lives, key=lambda life: life.segment)
    starts = sorted(_starts(ordered), key=lambda start: start.begun_ns)
    for earlier, start in zip((None, *starts), starts, strict=False):
        start.settle(earlier)
    return [_attempt(start, following) for start, following in zip_longest(starts, starts[1:])]


def alive_until(attempts: Sequence[Attempt], now_ns: int) -> list[Attempt]:
    """Return the attempts of a run that is alive now: the present counts as its last sign.

    The reader's clock may be behind the writer's; what was recorded has happened all the same.
    """
    last = attempts[-1]
    until_ns = max(now_ns, last.last_sign_ns)
    nodes = tuple(node if node.ended else replace(node, end_ns=until_ns) for node in last.nodes)
    return [*attempts[:-1], replace(last, last_sign_ns=until_ns, nodes=nodes)]


def training_ranks(segments: Sequence[SegmentId]) -> tuple[SegmentId, ...]:
    """Return an attempt's processes that trained; a supervisor only where it saw none of them."""
    ranks = tuple(segment for segment in segments if segment.rank != SUPERVISOR)
    return ranks or tuple(segments)


def energy_of(attempts: Iterable[Attempt], energy_mj: Mapping[SegmentId, int]) -> int:
    """Return the millijoules of a run, each counted once.

    A supervisor sees from outside what the training measures inside; its figure counts where none
    of the attempts that it watched measured anything.
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
        begun_ns: When it began: with its leader, or with the supervisor that it is the first of;
            once settled, with the first process of any node.
        signs: The processes whose signs of life are the attempt's own; of the attempts that a
            supervisor watched, it speaks for the last.
        supervised: Its begin is that of a supervisor, or of the accounts of its job.
        accounts: The accounts of the job that it is an attempt in.
        ended_ns: Its end where accounts state it.
    """

    leader: SegmentLife
    ranks: list[SegmentLife] = field(default_factory=list)
    begun_ns: int = 0
    signs: list[SegmentLife] = field(default_factory=list)
    supervised: bool = False
    nodes: list[NodeStay] = field(default_factory=list)
    accounts: SegmentLife | None = None
    ended_ns: int | None = None

    def __post_init__(self) -> None:
        self.begun_ns = self.leader.segment.start_ns
        self.supervised = self.leader.segment.rank == SUPERVISOR

    @property
    def last_sign_ns(self) -> int:
        """The last record of any process that speaks for it, or the end that accounts state."""
        if self.ended_ns is not None:
            return self.ended_ns
        return max(life.last_sign_ns for life in (self.leader, *self.signs))

    def settle(self, earlier: _Start | None) -> None:
        """Find where it ran and since when, beginning after the attempt before it."""
        if self.leader.header is None or not self.leader.header.nodes:
            return
        by_node: dict[str, list[SegmentLife]] = {_node_of(self.leader): [self.leader]}
        for life in self.signs:
            if life.segment.rank != SUPERVISOR:
                by_node.setdefault(_node_of(life), []).append(life)
        watching = [life for life in self.signs if life.segment.rank == SUPERVISOR]
        stays: list[NodeStay] = []
        for name, lives in by_node.items():
            is_first = not stays
            begun_ns = min(_process_start_ns(life, earlier) for life in lives)
            if self.supervised and (is_first or self.accounts):
                begun_ns = self.begun_ns
            elif earlier is not None:
                after_ns = min(earlier.last_sign_ns, self.leader.segment.start_ns)
                begun_ns = max(begun_ns, after_ns)
            stays.append(_stay(name, begun_ns, lives, watching if is_first else []))
        self.begun_ns = min(stay.start_ns for stay in stays)
        if self.accounts is not None:  # A job has all its nodes from begin to end.
            first_ns, last_ns = self.begun_ns, self.last_sign_ns
            stays = [replace(s, start_ns=first_ns, end_ns=last_ns, ended=True) for s in stays]
        self.nodes = stays


def _starts(ordered: Sequence[SegmentLife]) -> list[_Start]:
    """Return every start of the run with the processes that belong to it."""
    ranks = {life.segment.rank for life in ordered} - {SUPERVISOR}
    lowest = min(ranks, default=SUPERVISOR)
    leaders = [life for life in ordered if life.segment.rank == lowest]
    if lowest == SUPERVISOR:  # What was seen on the node goes before what was read in accounts.
        leaders = [life for life in leaders if not life.is_account] or leaders
    starts = [_Start(life) for life in leaders]
    led = {id(life) for life in leaders}
    watching = [life for life in ordered if life.segment.rank == SUPERVISOR and id(life) not in led]
    starts += _put_supervisors([life for life in watching if not life.is_account], starts)
    for life in ordered:
        if life.segment.rank > lowest:
            start = _launched_with(life, starts)
            start.ranks.append(life)
            start.signs.append(life)
    return starts + _put_accounts([life for life in watching if life.is_account], starts)


def _put_supervisors(supervisors: Sequence[SegmentLife], starts: Sequence[_Start]) -> list[_Start]:
    """Put each supervisor to the starts that it watched; return those of the ones who saw none."""
    alone = []
    for supervisor, until_ns in _watches(supervisors):
        begun_ns = supervisor.segment.start_ns
        watched = [s for s in starts if begun_ns <= s.leader.segment.start_ns <= until_ns]
        if not watched:
            alone.append(_Start(supervisor))
            continue
        for start in watched:
            start.ranks.append(supervisor)
        watched[0].begun_ns = min(watched[0].begun_ns, begun_ns)
        watched[0].supervised = True
        watched[-1].signs.append(supervisor)
    return alone


def _put_accounts(accounts: Sequence[SegmentLife], starts: Sequence[_Start]) -> list[_Start]:
    """Put the accounts of each start of a job to the attempts in it; return those without any."""
    attempts: dict[SegmentId, list[_Start]] = {life.segment: [] for life in accounts}
    for start in sorted(starts, key=lambda start: start.leader.segment):
        t_ns = start.leader.segment.start_ns
        covering = [
            life.segment
            for life in accounts
            if life.segment.start_ns <= t_ns < life.last_sign_ns + _SECOND_NS
        ]
        if covering:  # Two starts of a job may share a second: it is the later one's.
            attempts[covering[-1]].append(start)
    for life in accounts:
        _bound(life, attempts[life.segment])
    return [_Start(life) for life in accounts if not attempts[life.segment]]


def _bound(accounts: SegmentLife, inside: Sequence[_Start]) -> None:
    """Begin and end a job's attempts, oldest first, as its accounts say."""
    if not inside:
        return
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


def _watches(supervisors: Sequence[SegmentLife]) -> Iterator[tuple[SegmentLife, int]]:
    """Yield each supervisor, and until when it watched.

    One without an end is between two signs of life, unless it is dead or another has taken over.
    """
    for life, later in zip_longest(supervisors, supervisors[1:]):
        silent_ns = life.last_sign_ns + (DEAD_AFTER_NS if life.end is None else 0)
        taken_over_ns = silent_ns if later is None else later.segment.start_ns - 1
        yield life, max(life.last_sign_ns, min(silent_ns, taken_over_ns))


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


def _node_of(life: SegmentLife) -> str:
    """Return what tells the node of a process from others."""
    header = life.header
    if header is None:
        return life.segment.host
    return header.host or f"node {header.node}"


def _process_start_ns(life: SegmentLife, earlier: _Start | None) -> int:
    """Return when a process began, as far as it says.

    torchrun's agent is the first process of its node in the first attempt that it starts alone: one
    that is older than the attempt before began that one.
    """
    first_record_ns, header = life.segment.start_ns, life.header
    if header is None:
        return first_record_ns
    begun_ns = header.process_start_ns or first_record_ns
    if header.agent_start_ns and (
        earlier is None or header.agent_start_ns >= earlier.leader.segment.start_ns
    ):
        begun_ns = header.agent_start_ns
    return min(begun_ns, first_record_ns)


def _stay(
    name: str, start_ns: int, lives: Sequence[SegmentLife], watching: Sequence[SegmentLife]
) -> NodeStay:
    reaped = any(life.end is not None for life in watching)
    found = (exact_gpus(life.header.node_gpus) for life in lives if life.header is not None)
    return NodeStay(
        name=name,
        start_ns=start_ns,
        end_ns=max(start_ns, *(life.last_sign_ns for life in (*lives, *watching))),
        ended=reaped or all(life.end is not None for life in lives),
        ranks=len(lives),
        gpus=max(found, default=Fraction(0)),
    )


def _attempt(start: _Start, following: _Start | None) -> Attempt:
    leader, last_sign_ns = start.leader, start.last_sign_ns
    overlaps = following is not None and leader.last_sign_ns > following.begun_ns
    if following is not None:
        last_sign_ns = min(last_sign_ns, following.begun_ns)
    began_before = start.begun_ns < leader.segment.start_ns
    return Attempt(
        segment=leader.segment,
        ranks=tuple(life.segment for life in (leader, *start.ranks)),
        header=_header(start),
        end=leader.end or _witnessed_end(start),
        prices=tuple(sorted(leader.prices, key=lambda change: change.t_ns)),
        start_ns=start.begun_ns,
        last_sign_ns=last_sign_ns,
        overlaps=overlaps,
        outlived=start.ended_ns is not None and leader.last_sign_ns > start.ended_ns,
        begin="supervisor" if start.supervised else "process" if began_before else "record",
        nodes=tuple(replace(node, end_ns=min(node.end_ns, last_sign_ns)) for node in start.nodes),
        slices=tuple(sorted(leader.slices, key=lambda change: (change.t_ns, change.seq))),
    )


def _header(start: _Start) -> AttemptStarted:
    """Return what the leader said at its start.

    The command is its supervisor's, and so are prices that it did not know.
    """
    header = start.leader.header or AttemptStarted(t_ns=start.leader.segment.start_ns)
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
        if stated.command:  # Such as torchrun, which each rank was started by.
            header = replace_fields(header, command=stated.command)
        if header.stopped_machine_price is None:
            header = replace_fields(header, stopped_machine_price=stated.stopped_machine_price)
    return header


def _witnessed_end(start: _Start) -> AttemptEnded | None:
    """Return how a leader that recorded no end ended, as its supervisor or accounts say."""
    ends = [life.end for life in start.signs if life.segment.rank == SUPERVISOR]
    stated = start.accounts.end if start.accounts and start.ended_ns is not None else None
    return next((end for end in (*ends, stated) if end is not None), None)


# When the processes of a run began and ended, read without decoding their steps.
#
# Of a long segment only its first record, its changes of price or size, and its tail are decoded:
# the rest can neither move its begin or end nor change what an hour costs.

WHOLE_BYTES = 1 << 18
"""Segments up to this size are decoded whole."""
TAIL_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 23
_CHANGE = b'_changed","'
"""Ends the kind of every record that changes a price or a number of slices."""


def read_lives(run_dir: Path) -> list[SegmentLife]:
    """Return the life of every segment of a run; empty where there is no log.

    They are those that a fold of the whole log gives. Where a segment is spread over several files,
    or its first or last lines are damaged, that fold is what is done.
    """
    lives: dict[SegmentId, SegmentLife] = {}
    for path in segment_paths(run_dir):
        try:
            records = _boundary_records(path)
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


def _boundary_records(path: Path) -> list[Record]:
    """Return the records that say when a process began and ended and what it paid, in order.

    Empty where the begin or the end of the file cannot be read as it should.
    """
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as stream:
        size = stream.seek(0, 2)
        if size <= WHOLE_BYTES:
            stream.seek(0)
            return _decoded(stream.read())
        stream.seek(0)
        head = _decoded(stream.readline())
        stream.seek(size - TAIL_BYTES)
        tail_block = stream.read().partition(b"\n")[2]
        tail = _decoded(tail_block)
        if not head or not tail:
            return []
        stream.seek(0)
        changes: list[Record] = []
        rest = b""
        left = size - len(tail_block)
        while left > 0 and (block := stream.read(min(_BLOCK_BYTES, left))):
            left -= len(block)
            rest = _take_changes(rest + block, changes)
    return [*head, *changes, *tail]


def _take_changes(block: bytes, changes: list[Record]) -> bytes:
    """Decode a block's lines that hold a change; return what follows its last whole line."""
    end = block.rfind(b"\n") + 1
    found = block.find(_CHANGE, 0, end)
    while found >= 0:
        start, stop = block.rfind(b"\n", 0, found) + 1, block.find(b"\n", found) + 1
        changes += _decoded(block[start:stop])
        found = block.find(_CHANGE, stop, end)
    return block[end:]


def _decoded(block: bytes) -> list[Record]:
    """Return the records of a block's whole lines, in the order of their numbers."""
    whole = block[: block.rfind(b"\n") + 1]
    return sorted(decode_block(whole).records, key=lambda record: record.seq) if whole else []
