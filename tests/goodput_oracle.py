"""The phase and the price of every instant of a run: by brute force, from the rules alone.

It looks at each nanosecond by itself, so it is only for histories of a few hundred of them. It
shares no code with outlay: records are read as plain values, and money is a ``Fraction``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, zip_longest

import msgspec

from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    Price,
    PriceChanged,
    Record,
    SegmentId,
    SlicesChanged,
    SpanBegun,
    SpanEnded,
    Step,
)

SPANS_WITH_A_NAME = {
    "accelerator_init",
    "training_prep",
    "data_loading",
    "checkpoint_save",
    "checkpoint_restore",
    "evaluation",
    "elastic_slice_down",
    "elastic_scale_up",
    "elastic_reinitialization",
}
IDLE = "idle"
NS_PER_HOUR = 3600 * 10**9
TEN_MINUTES = 600 * 10**9  # Without a sign of life for longer, a process is dead.

Segments = Mapping[SegmentId, Sequence[Record]]


@dataclass
class Process:
    """One segment, as plain facts."""

    id: SegmentId
    records: Sequence[Record]

    @property
    def rank(self) -> int:
        return self.id.rank

    @property
    def start(self) -> int:
        return self.id.start_ns

    @property
    def last_sign(self) -> int:
        return max([self.start, *(record.t_ns for record in self.records)])

    @property
    def header(self) -> AttemptStarted:
        found = [record for record in self.records if isinstance(record, AttemptStarted)]
        return found[0] if found else AttemptStarted(t_ns=self.start)

    @property
    def end(self) -> AttemptEnded | None:
        found = [record for record in self.records if isinstance(record, AttemptEnded)]
        return found[0] if found else None


@dataclass
class Executed:
    """One execution of ``count`` steps from ``number`` on, where it did not overlap another."""

    number: int
    count: int
    wait: range
    run: range
    own: list[int] = field(default_factory=list)
    redone_from: int | None = None

    @property
    def steps_kept(self) -> int:
        if self.redone_from is None:
            return self.count
        return sorted((0, self.redone_from - self.number, self.count))[1]


@dataclass
class Node:
    """A machine that took part: since when, until when, with how much of the run."""

    name: str
    start: int
    end: int
    ended: bool
    processes: int
    gpus: Fraction


@dataclass
class Try:
    """One attempt: a leader whose records count, and others who only show that it was alive."""

    leader: Process
    others: list[Process]
    start: int
    last_sign: int
    supervised: bool = False
    supervisors: list[Process] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    steps: list[Executed] = field(default_factory=list)
    held: dict[int, str] = field(default_factory=dict)

    @property
    def end(self) -> AttemptEnded | None:
        witnessed = [other.end for other in self.others if other.rank == -1]
        return next((end for end in [self.leader.end, *witnessed] if end is not None), None)

    @property
    def header(self) -> AttemptStarted:
        """What the leader said at its start; a price that it did not know, its supervisor's."""
        header = self.leader.header
        for said in (supervisor.header for supervisor in self.supervisors):
            if header.price is None and said.price is not None:
                header = msgspec.structs.replace(
                    header, price=said.price, gpus=said.gpus, gpus_source=said.gpus_source
                )
            if header.stopped_machine_price is None:
                stopped = said.stopped_machine_price
                header = msgspec.structs.replace(header, stopped_machine_price=stopped)
        return header

    @property
    def completed(self) -> bool:
        return self.end is not None and self.end.status == "completed"


@dataclass
class Truth:
    """The phase and the micro-dollars per hour of every instant of a run that is known."""

    tries: list[Try]
    phase_at: dict[int, str]
    rate_at: dict[int, int]
    start: int
    end: int
    typical: int | None

    def phases(self, *windows: range) -> dict[str, int]:
        """Return the nanoseconds of each phase in disjoint windows, idle time left out."""
        found: dict[str, int] = {}
        for t in _instants(windows):
            phase = self.phase_at.get(t, IDLE)
            if phase != IDLE:
                found[phase] = found.get(phase, 0) + 1
        return found

    def idle(self, *windows: range) -> int:
        """Return the nanoseconds of rest after completed attempts."""
        return sum(self.phase_at.get(t) == IDLE for t in _instants(windows))

    def micros(self, *windows: range) -> dict[str, Fraction]:
        """Return the exact micro-dollars of each phase in disjoint windows."""
        found: dict[str, Fraction] = {}
        for t in _instants(windows):
            if t in self.phase_at:
                amount = Fraction(self.rate_at.get(t, 0), NS_PER_HOUR)
                phase = self.phase_at[t]
                found[phase] = found.get(phase, Fraction(0)) + amount
        return found


def tell_the_truth(segments: Segments, now: int, *, alive: bool | None, dead_after: int) -> Truth:
    """Return the phase and the price of every instant from the first start to ``now``."""
    tries = _tries(segments)
    last = tries[-1]
    if alive is None:
        alive = now - last.last_sign <= dead_after
    if alive and last.end is None:
        # The clock may have been read before the log: what was recorded has happened.
        last.last_sign = max(now, last.last_sign)
        for node in last.nodes:
            node.end = node.end if node.ended else last.last_sign
    for one in tries:
        one.held = _held_by_spans(one)
        one.steps = _executed(one)
    _undo([step for one in tries for step in one.steps])
    typical = _typical(tries)
    until = max(now, last.last_sign)
    phase_at: dict[int, str] = {}
    for one, following in zip(tries, [*tries[1:], None], strict=True):
        gap_end = until if following is None else following.start
        for t in range(one.last_sign, gap_end):
            phase_at[t] = IDLE if one.completed else "recovery"
        phase_at |= _phases_of(one, typical)
    rate_at = _rates(tries, until)
    usual = None if typical is None else typical[0]
    return Truth(tries, phase_at, rate_at, tries[0].start, last.last_sign, usual)


# Attempts ---------------------------------------------------------------------------------------


def _tries(segments: Segments) -> list[Try]:
    processes = [Process(segment, segments[segment]) for segment in sorted(segments)]
    ranks = {process.rank for process in processes}
    timeline_rank = min(ranks - {-1} or ranks)
    leaders = [process for process in processes if process.rank == timeline_rank]
    watched: dict[int, list[Process]] = {}
    opened: dict[int, int] = {}
    paid_by: dict[int, list[Process]] = {}
    if timeline_rank != -1:
        watchers = [process for process in processes if process.rank == -1]
        for watcher, later in zip_longest(watchers, watchers[1:]):
            until = _watching_until(watcher, later)
            seen = [n for n, p in enumerate(leaders) if watcher.start <= p.start <= until]
            seen = [n for n in seen if leaders[n].rank != -1]
            for n in seen:
                paid_by.setdefault(n, []).append(watcher)
            if seen:
                # The first that it saw begins with it; the last shows its signs of life and end.
                opened[seen[0]] = min(opened.get(seen[0], watcher.start), watcher.start)
                watched.setdefault(seen[-1], []).append(watcher)
            else:
                leaders.append(watcher)
    for process in [process for process in processes if process.rank not in (-1, timeline_rank)]:
        launch = process.header.launch
        together = [
            n for n, p in enumerate(leaders) if launch and p.header.launch == launch
        ] or range(len(leaders))
        # The nearest start; of two that are as near, the leader that is named first.
        nearest = sorted((abs(leaders[n].start - process.start), n) for n in together)[0][1]
        watched.setdefault(nearest, []).append(process)
    tries = [
        _try(leader, watched.get(n, []), opened.get(n, leader.start))
        for n, leader in enumerate(leaders)
    ]
    for n, one in enumerate(tries):
        one.supervised = n in opened or one.leader.rank == -1
        one.supervisors = paid_by.get(n, [])
    tries.sort(key=lambda one: one.start)
    for earlier, one in zip([None, *tries], tries, strict=False):
        _place_on_nodes(one, earlier)
    for one, following in pairwise(tries):
        one.last_sign = min(one.last_sign, following.start)
        for node in one.nodes:
            node.end = min(node.end, one.last_sign)
    return tries


def _place_on_nodes(one: Try, earlier: Try | None) -> None:
    """Find the machines of an attempt that says so, and begin it with the first process of all."""
    if not one.leader.header.nodes:
        return
    training = [one.leader, *(other for other in one.others if other.rank != -1)]
    watchers = [other for other in one.others if other.rank == -1]
    where = {id(p): p.header.host or f"node {p.header.node}" for p in training}
    for name in dict.fromkeys(where.values()):
        here = [process for process in training if where[id(process)] == name]
        first = one.leader in here
        start = min(_began(process, earlier) for process in here)
        if earlier is not None:
            start = max(start, min(earlier.last_sign, one.leader.start))
        signs = [process.last_sign for process in [*here, *(watchers if first else [])]]
        reaped = first and any(watcher.end for watcher in watchers)
        one.nodes.append(
            Node(
                name,
                one.start if first and one.supervised else start,
                max([start, *signs]),
                reaped or all(process.end for process in here),
                len(here),
                max(Fraction(process.header.node_gpus) for process in here),
            )
        )
    one.start = min(node.start for node in one.nodes)


def _began(process: Process, earlier: Try | None) -> int:
    said = process.header
    began = said.process_start_ns or process.start
    if said.agent_start_ns and (earlier is None or earlier.leader.start <= said.agent_start_ns):
        began = said.agent_start_ns
    return min(began, process.start)


def _watching_until(watcher: Process, later: Process | None) -> int:
    """Return the last instant at which a supervisor still watches, as far as anybody can tell."""
    if watcher.end is not None:
        return watcher.last_sign
    dead = watcher.last_sign + TEN_MINUTES
    replaced = dead if later is None else later.start - 1
    return max(watcher.last_sign, min(dead, replaced))


def _try(leader: Process, others: list[Process], start: int) -> Try:
    others = sorted(others, key=lambda other: other.id)
    return Try(leader, others, start, max(p.last_sign for p in [leader, *others]))


# Inside an attempt ------------------------------------------------------------------------------


def _held_by_spans(one: Try) -> dict[int, str]:
    """Return the phase of each instant that a span holds: of those open, the last begun."""
    ends = {r.begun: r.t_ns for r in one.leader.records if isinstance(r, SpanEnded)}
    begun = [r for r in one.leader.records if isinstance(r, SpanBegun) and not r.overlapped]
    held: dict[int, str] = {}
    for span in sorted(begun, key=lambda record: (record.t_ns, record.seq)):
        named = span.name in SPANS_WITH_A_NAME or span.name.startswith("custom:")
        for t in range(span.t_ns, ends.get(span.seq, one.last_sign)):
            held[t] = span.name if named else f"custom:{span.name}"
    return held


def _executed(one: Try) -> list[Executed]:
    """Return the steps in order of their ends; each begins when the one before it is over."""
    records = [record for record in one.leader.records if isinstance(record, Step)]
    records.sort(key=lambda r: (r.t_ns, r.step, r.t_ns - r.dur_ns, r.wait_ns, r.count))
    steps: list[Executed] = []
    free_from = one.leader.start
    for record in records:
        start = max(record.t_ns - record.dur_ns, free_from)
        wait_start = max(record.t_ns - record.dur_ns - record.wait_ns, free_from)
        if one.last_sign < one.leader.last_sign and start >= one.last_sign:
            break  # Another attempt had begun before this step did.
        end = min(record.t_ns, one.last_sign)
        steps.append(
            Executed(record.step, record.count, range(wait_start, start), range(start, end))
        )
        steps[-1].own = [t for t in steps[-1].run if t not in one.held]
        free_from = max(free_from, end)
    return steps


def _undo(in_order: Sequence[Executed]) -> None:
    for place, step in enumerate(in_order):
        step.redone_from = min((later.number for later in in_order[place + 1 :]), default=None)


def _typical(tries: Iterable[Try]) -> tuple[int, int] | None:
    """Return the usual own time of one step, and how much of it is too much."""
    times = sorted(len(step.own) // step.count for one in tries for step in one.steps[1:])
    if len(times) < 3:
        return None
    half = len(times) // 2
    median = times[half] if len(times) % 2 else (times[half - 1] + times[half]) // 2
    distances = sorted(abs(time - median) for time in times)
    spread = distances[(len(distances) - 1) // 2]
    return median, max(median + 10 * spread, 2 * median)


def _phases_of(one: Try, typical: tuple[int, int] | None) -> dict[int, str]:
    phases = dict.fromkeys(range(one.start, one.last_sign), "other")
    if one.leader.header.nodes:
        phases |= dict.fromkeys(range(one.start, one.leader.start), "program_startup")
    for place, step in enumerate(one.steps):
        phases |= dict.fromkeys(step.wait, "data_loading")
        phases |= zip(step.own, _own_phases(step, typical, is_first=place == 0), strict=True)
    phases |= one.held
    return {t: phase for t, phase in phases.items() if one.start <= t < one.last_sign}


def _own_phases(step: Executed, typical: tuple[int, int] | None, *, is_first: bool) -> list[str]:
    startup = stall = 0
    if typical is not None:
        usual, too_long = step.count * typical[0], step.count * typical[1]
        if is_first:
            startup = max(len(step.own) - usual, 0)
        elif len(step.own) > too_long:
            stall = len(step.own) - usual
    progress = len(step.own) - startup - stall
    kept = progress * step.steps_kept // step.count
    return (
        ["program_startup"] * startup
        + ["step"] * kept
        + ["wasted_progress"] * (progress - kept)
        + ["stall"] * stall
    )


# Money ------------------------------------------------------------------------------------------


def _rates(tries: Sequence[Try], until: int) -> dict[int, int]:
    prices = [_prices_of(one) for one in tries]
    currency = next((price.currency for of_try in prices for _, price, _ in of_try), None)
    rate_at: dict[int, int] = {}
    for one, of_try, following in zip(tries, prices, [*tries[1:], None], strict=True):
        in_force = [entry for entry in of_try if entry[1].currency == currency]
        for since, price, gpus in in_force:
            for t in range(since, one.last_sign):
                rate_at[t] = round(price.micros_per_hour * _gpus_at(one, gpus, t))
        if in_force and not one.completed:
            rate = _rate_between(one, following, in_force[-1][1], in_force[-1][2])
            for t in range(one.last_sign, until if following is None else following.start):
                rate_at[t] = rate
    return rate_at


def _weights(one: Try) -> list[Fraction]:
    """Return how the run's GPUs are spread: as they were found everywhere, else by processes."""
    found = [node.gpus for node in one.nodes]
    if one.header.gpus_source not in ("visible", "slurm", "driver"):
        return [Fraction(node.processes) for node in one.nodes]
    if min(found) == 0:
        return [Fraction(node.processes) for node in one.nodes]
    missing = max(one.header.nodes - len(one.nodes), 0)
    return [found[0] * (1 + missing), *found[1:]]


def _all_gpus(one: Try, gpus: int | str) -> Fraction:
    header = one.header
    if one.nodes and header.gpus_source in ("visible", "slurm") and gpus == header.gpus:
        return sum(_weights(one), Fraction(0))
    return Fraction(gpus)


def _slices_left(one: Try, t: int) -> Fraction:
    changes = [record for record in one.leader.records if isinstance(record, SlicesChanged)]
    seen = [change for change in changes if change.t_ns <= t and one.nodes]
    seen.sort(key=lambda change: (change.t_ns, change.seq))
    return Fraction(seen[-1].available, seen[-1].total) if seen else Fraction(1)


def _gpus_at(one: Try, gpus: int | str, t: int) -> Fraction:
    if not one.nodes:
        return Fraction(gpus)
    weights = _weights(one)
    pairs = zip(one.nodes, weights, strict=True)
    there = sum((w for node, w in pairs if node.start <= t < node.end), Fraction(0))
    return _all_gpus(one, gpus) * there / sum(weights) * _slices_left(one, t)


def _prices_of(one: Try) -> list[tuple[int, Price, int | str]]:
    header = one.header
    first: list[tuple[int, Price, int | str]] = []
    if header.price is not None:
        first = [(one.start, header.price, header.gpus)]
    changes = [record for record in one.leader.records if isinstance(record, PriceChanged)]
    changes.sort(key=lambda change: (change.t_ns, change.seq))
    return first + [(change.t_ns, change.price, change.gpus) for change in changes]


def _rate_between(one: Try, following: Try | None, price: Price, gpus: int | str) -> int:
    before = one.header
    after = None if following is None else following.leader.header
    whole = round(price.micros_per_hour * _all_gpus(one, gpus) * _slices_left(one, one.last_sign))
    if one.nodes:
        stopped = before.stopped_machine_price
        if stopped is not None and stopped.currency == price.currency:
            return stopped.micros_per_hour
    if one.end is not None and one.end.status == "preempted":
        return 0
    if after and _requeued(before, after):
        return 0
    if one.nodes:
        if following is None or not following.nodes:
            return whole  # Measured or assumed: only the same boot could tell, and either is paid.
        return 0 if _elsewhere(before, following.leader.header) else whole
    if after and before.boot_id and before.boot_id == after.boot_id:
        return whole
    if before.stopped_price is not None and before.stopped_price.currency == price.currency:
        return round(before.stopped_price.micros_per_hour * Fraction(gpus))
    return whole


def _elsewhere(before: AttemptStarted, after: AttemptStarted) -> bool:
    """The next attempt was on another machine, as far as both say."""
    if "" not in (before.instance_id, after.instance_id):
        return before.instance_id != after.instance_id
    if (before.slurm_job, after.slurm_job) != ("", ""):
        return before.slurm_job != after.slurm_job
    if "" in (before.boot_id, after.boot_id):
        return False
    if before.boot_id != after.boot_id:
        return True
    return "" not in (before.init_start, after.init_start) and before.init_start != after.init_start


def _requeued(before: AttemptStarted, after: AttemptStarted) -> bool:
    """Slurm started the job again, which is not what torchrun does when it restarts workers."""
    if not before.slurm_job or before.slurm_job != after.slurm_job:
        return False
    if before.slurm_restart and after.slurm_restart:
        return before.slurm_restart != after.slurm_restart
    if before.launch.startswith("torchelastic-") and after.launch.startswith("torchelastic-"):
        return int(after.launch[-1]) < int(before.launch[-1])
    return before.launch != after.launch


def _instants(windows: Iterable[range]) -> Iterable[int]:
    return (t for window in windows for t in window)
