"""The expected phase and price of every instant of a run, by brute force from the rules.

Every nanosecond is decided by itself, so histories must be a few hundred nanoseconds long. No code
is shared with outlay: records are read as plain values, and money is a ``Fraction``.
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

SPAN_PHASES = {
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
    """One segment; its times are ``later`` than recorded, on the clock of a later attempt."""

    id: SegmentId
    records: Sequence[Record]
    later: int = 0

    @property
    def rank(self) -> int:
        return self.id.rank

    @property
    def start(self) -> int:
        return self.id.start_ns + self.later

    def moved(self, by: int) -> Process:
        """Return the same process with every recorded time ``by`` later."""
        times = ("t_ns", "process_start_ns", "agent_start_ns")
        records = [
            msgspec.structs.replace(
                record,
                **{name: value + by for name in times if (value := getattr(record, name, 0))},
            )
            for record in self.records
        ]
        return Process(self.id, records, self.later + by)

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
    """A machine of an attempt: its first and last instant, its processes and GPUs."""

    name: str
    start: int
    end: int
    ended: bool
    processes: int
    gpus: Fraction


@dataclass
class ExpectedAttempt:
    """One attempt: the process whose records count, and others that only show signs of life."""

    leader: Process
    others: list[Process]
    start: int
    last_sign: int
    supervised: bool = False
    supervisors: list[Process] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    steps: list[Executed] = field(default_factory=list)
    span_phase: dict[int, str] = field(default_factory=dict)

    @property
    def paused_by(self) -> Process | None:
        """The supervisor that paused it."""
        watching = [each for each in [self.leader, *self.others] if each.rank == -1]
        return next((s for s in watching if s.end and s.end.status == "paused"), None)

    @property
    def end(self) -> AttemptEnded | None:
        own, pause = self.leader.end, self.paused_by
        if pause is not None and (own is None or own.status != "completed"):
            return pause.end
        witnessed = [other.end for other in self.others if other.rank == -1]
        return next((end for end in [self.leader.end, *witnessed] if end is not None), None)

    @property
    def header(self) -> AttemptStarted:
        """The leader's header; a price that it lacks is its supervisor's."""
        header = self.leader.header
        for other in (supervisor.header for supervisor in self.supervisors):
            if header.price is None and other.price is not None:
                header = msgspec.structs.replace(
                    header, price=other.price, gpus=other.gpus, gpus_source=other.gpus_source
                )
            if header.stopped_machine_price is None:
                stopped = other.stopped_machine_price
                header = msgspec.structs.replace(header, stopped_machine_price=stopped)
        return header

    @property
    def completed(self) -> bool:
        return self.end is not None and self.end.status == "completed"

    @property
    def paused(self) -> bool:
        return self.end is not None and self.end.status == "paused"


@dataclass
class ExpectedTimeline:
    """The phase, and the micro-units per hour, of every instant of a run.

    ``rate_at`` is in the first currency in which the run paid, ``beside`` in the others.
    """

    attempts: list[ExpectedAttempt]
    phase_at: dict[int, str]
    rate_at: dict[int, int]
    beside: dict[str, dict[int, int]]
    start: int
    end: int
    typical: int | None

    def phases(self, *windows: range) -> dict[str, int]:
        """Return the nanoseconds of each phase in disjoint windows, without idle time."""
        found: dict[str, int] = {}
        for t in _instants(windows):
            phase = self.phase_at.get(t, IDLE)
            if phase != IDLE:
                found[phase] = found.get(phase, 0) + 1
        return found

    def idle(self, *windows: range) -> int:
        """Return the idle nanoseconds after completed attempts."""
        return sum(self.phase_at.get(t) == IDLE for t in _instants(windows))

    def micros(self, *windows: range, currency: str = "") -> dict[str, Fraction]:
        """Return the exact micro-units of each phase in disjoint windows."""
        rate_at = self.beside[currency] if currency else self.rate_at
        rates: dict[str, int] = {}
        for t in _instants(windows):
            if t in self.phase_at:
                phase = self.phase_at[t]
                rates[phase] = rates.get(phase, 0) + rate_at.get(t, 0)
        return {phase: Fraction(rate, NS_PER_HOUR) for phase, rate in rates.items()}


def expected_timeline(
    segments: Segments, now: int, *, alive: bool | None, dead_after: int
) -> ExpectedTimeline:
    """Return the phase and the price of every instant from the first start to ``now``."""
    attempts = _attempts(segments)
    last = attempts[-1]
    if alive is None:
        alive = now - last.last_sign <= dead_after
    if alive and last.end is None:
        # The clock may have been read before the log; later records still count.
        last.last_sign = max(now, last.last_sign)
        for node in last.nodes:
            node.end = node.end if node.ended else last.last_sign
    for attempt in attempts:
        attempt.span_phase = _span_phases(attempt)
        attempt.steps = _executed(attempt)
    _mark_redone([step for attempt in attempts for step in attempt.steps])
    typical = _typical(attempts)
    until = max(now, last.last_sign)
    phase_at: dict[int, str] = {}
    for attempt, following in zip(attempts, [*attempts[1:], None], strict=True):
        gap_end = until if following is None else following.start
        gap = IDLE if attempt.completed else "paused" if attempt.paused else "recovery"
        for t in range(attempt.last_sign, gap_end):
            phase_at[t] = gap
        phase_at |= _phases_of(attempt, typical)
    rates = _rates(attempts, until)
    usual = None if typical is None else typical[0]
    first, beside = next(iter(rates.values()), {}), dict(list(rates.items())[1:])
    start, end = attempts[0].start, last.last_sign
    return ExpectedTimeline(attempts, phase_at, first, beside, start, end, usual)


# Attempts ---------------------------------------------------------------------------------------


def _attempts(segments: Segments) -> list[ExpectedAttempt]:
    processes = [Process(segment, segments[segment]) for segment in sorted(segments)]
    ranks = {process.rank for process in processes}
    timeline_rank = min(ranks - {-1} or ranks)
    leaders = [process for process in processes if process.rank == timeline_rank]
    companions: dict[int, list[Process]] = {}
    opened: dict[int, int] = {}
    priced_by: dict[int, list[Process]] = {}
    if timeline_rank != -1:
        supervisors = [process for process in processes if process.rank == -1]
        for supervisor, later in zip_longest(supervisors, supervisors[1:]):
            until = _supervised_until(supervisor, later)
            seen = [n for n, p in enumerate(leaders) if supervisor.start <= p.start <= until]
            seen = [n for n in seen if leaders[n].rank != -1]
            for n in seen:
                priced_by.setdefault(n, []).append(supervisor)
            if seen:
                # Its first attempt begins with it; its signs of life and end count for its last.
                opened[seen[0]] = min(opened.get(seen[0], supervisor.start), supervisor.start)
                companions.setdefault(seen[-1], []).append(supervisor)
            else:
                leaders.append(supervisor)
    for process in [process for process in processes if process.rank not in (-1, timeline_rank)]:
        launch = process.header.launch
        together = [
            n for n, p in enumerate(leaders) if launch and p.header.launch == launch
        ] or range(len(leaders))
        # The nearest start; of two equally near, the first leader.
        nearest = sorted((abs(leaders[n].start - process.start), n) for n in together)[0][1]
        companions.setdefault(nearest, []).append(process)
    attempts = [
        _attempt(leader, companions.get(n, []), opened.get(n, leader.start))
        for n, leader in enumerate(leaders)
    ]
    for n, attempt in enumerate(attempts):
        attempt.supervised = n in opened or attempt.leader.rank == -1
        attempt.supervisors = priced_by.get(n, [])
    attempts.sort(key=lambda attempt: attempt.start)
    by = 0
    for attempt, following in reversed(list(zip_longest(attempts, attempts[1:]))):
        if following is not None:
            by += _overlap_of_one_machine(attempt, following, by)
        _move(attempt, by)
    for earlier, attempt in zip([None, *attempts], attempts, strict=False):
        _set_nodes(attempt, earlier)
    for attempt, following in pairwise(attempts):
        attempt.last_sign = min(attempt.last_sign, following.start)
        for node in attempt.nodes:
            node.end = min(node.end, attempt.last_sign)
    return attempts


def _overlap_of_one_machine(earlier: ExpectedAttempt, later: ExpectedAttempt, by: int) -> int:
    """Return how far an attempt must move to end where the next of its machine begins.

    ``later`` is moved ``by`` already.
    """
    supervisors = [process for process in earlier.others if process.rank == -1]
    last = max(process.last_sign for process in [earlier.leader, *supervisors])
    before, after = earlier.leader.header, later.leader.header
    if last <= later.leader.start - by or before.host != after.host:
        return 0
    if not _on_one_machine(before, after):
        return 0
    began = min(later.start, after.process_start_ns or later.start)
    return began - by - last


def _on_one_machine(before: AttemptStarted, after: AttemptStarted) -> bool:
    """Return whether both headers show that the next attempt ran on the same machine."""
    one_boot = before.boot_id == after.boot_id != ""
    if 0 in (before.nodes, after.nodes):
        return one_boot
    if "" not in (before.instance_id, after.instance_id):
        return before.instance_id == after.instance_id
    if (before.slurm_job, after.slurm_job) != ("", ""):
        return before.slurm_job == after.slurm_job
    return one_boot and before.init_start == after.init_start != ""


def _move(attempt: ExpectedAttempt, by: int) -> None:
    attempt.leader = attempt.leader.moved(by)
    attempt.others = [process.moved(by) for process in attempt.others]
    attempt.start += by
    attempt.last_sign += by


def _set_nodes(attempt: ExpectedAttempt, earlier: ExpectedAttempt | None) -> None:
    """Set the nodes of an attempt that recorded them, and its start: that of its first process."""
    if not attempt.leader.header.nodes:
        return
    training = [attempt.leader, *(other for other in attempt.others if other.rank != -1)]
    supervisors = [other for other in attempt.others if other.rank == -1]
    where = {id(p): p.header.host or f"node {p.header.node}" for p in training}
    for name in dict.fromkeys(where.values()):
        here = [process for process in training if where[id(process)] == name]
        first = attempt.leader in here
        start = min(_process_start(process, earlier) for process in here)
        if earlier is not None:
            start = max(start, min(earlier.last_sign, attempt.leader.start))
        signs = [process.last_sign for process in [*here, *(supervisors if first else [])]]
        reaped = first and any(supervisor.end for supervisor in supervisors)
        attempt.nodes.append(
            Node(
                name,
                attempt.start if first and attempt.supervised else start,
                max([start, *signs]),
                reaped or all(process.end for process in here),
                len(here),
                max(Fraction(process.header.node_gpus) for process in here),
            )
        )
    attempt.start = min(node.start for node in attempt.nodes)


def _process_start(process: Process, earlier: ExpectedAttempt | None) -> int:
    header = process.header
    began = header.process_start_ns or process.start
    if header.agent_start_ns and (earlier is None or earlier.leader.start <= header.agent_start_ns):
        began = header.agent_start_ns
    return min(began, process.start)


def _supervised_until(supervisor: Process, later: Process | None) -> int:
    """Return the last instant at which a supervisor is not known to be dead or replaced."""
    if supervisor.end is not None:
        return supervisor.last_sign
    dead = supervisor.last_sign + TEN_MINUTES
    replaced = dead if later is None else later.start - 1
    return max(supervisor.last_sign, min(dead, replaced))


def _attempt(leader: Process, others: list[Process], start: int) -> ExpectedAttempt:
    others = sorted(others, key=lambda other: other.id)
    return ExpectedAttempt(leader, others, start, max(p.last_sign for p in [leader, *others]))


# Inside an attempt ------------------------------------------------------------------------------


def _span_phases(attempt: ExpectedAttempt) -> dict[int, str]:
    """Return the phase of each instant in a span: that of the open span that began last."""
    ends = {r.begun: r.t_ns for r in attempt.leader.records if isinstance(r, SpanEnded)}
    begun = [r for r in attempt.leader.records if isinstance(r, SpanBegun) and not r.overlapped]
    span_phase: dict[int, str] = {}
    for span in sorted(begun, key=lambda record: (record.t_ns, record.seq)):
        named = span.name in SPAN_PHASES or span.name.startswith("custom:")
        for t in range(span.t_ns, ends.get(span.seq, attempt.last_sign)):
            span_phase[t] = span.name if named else f"custom:{span.name}"
    return span_phase


def _executed(attempt: ExpectedAttempt) -> list[Executed]:
    """Return the steps in order of their ends; each begins when the previous one has ended."""
    records = [record for record in attempt.leader.records if isinstance(record, Step)]
    records.sort(key=lambda r: (r.t_ns, r.step, r.t_ns - r.dur_ns, r.wait_ns, r.count))
    steps: list[Executed] = []
    free_from = attempt.leader.start
    for record in records:
        start = max(record.t_ns - record.dur_ns, free_from)
        wait_start = max(record.t_ns - record.dur_ns - record.wait_ns, free_from)
        if attempt.last_sign < attempt.leader.last_sign and start >= attempt.last_sign:
            break  # Another attempt began before this step.
        end = min(record.t_ns, attempt.last_sign)
        steps.append(
            Executed(record.step, record.count, range(wait_start, start), range(start, end))
        )
        steps[-1].own = [t for t in steps[-1].run if t not in attempt.span_phase]
        free_from = max(free_from, end)
    return steps


def _mark_redone(in_order: Sequence[Executed]) -> None:
    for place, step in enumerate(in_order):
        step.redone_from = min((later.number for later in in_order[place + 1 :]), default=None)


def _typical(attempts: Iterable[ExpectedAttempt]) -> tuple[int, int] | None:
    """Return the typical own time of a step, and the time beyond which a step stalls."""
    times = sorted(
        len(step.own) // step.count for attempt in attempts for step in attempt.steps[1:]
    )
    if len(times) < 3:
        return None
    half = len(times) // 2
    median = times[half] if len(times) % 2 else (times[half - 1] + times[half]) // 2
    distances = sorted(abs(time - median) for time in times)
    spread = distances[(len(distances) - 1) // 2]
    return median, max(median + 10 * spread, 2 * median)


def _phases_of(attempt: ExpectedAttempt, typical: tuple[int, int] | None) -> dict[int, str]:
    phases = dict.fromkeys(range(attempt.start, attempt.last_sign), "other")
    if attempt.leader.header.nodes:
        phases |= dict.fromkeys(range(attempt.start, attempt.leader.start), "program_startup")
    for place, step in enumerate(attempt.steps):
        phases |= dict.fromkeys(step.wait, "data_loading")
        phases |= zip(step.own, _own_phases(step, typical, is_first=place == 0), strict=True)
    phases |= attempt.span_phase
    return {t: phase for t, phase in phases.items() if attempt.start <= t < attempt.last_sign}


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


def _rates(attempts: Sequence[ExpectedAttempt], until: int) -> dict[str, dict[int, int]]:
    """Return the rate of each instant by currency, the run's first currency first."""
    at: dict[int, tuple[str, int]] = {}
    currencies: list[str] = []
    for attempt, following in zip(attempts, [*attempts[1:], None], strict=True):
        in_force = _prices_of(attempt)
        currencies += [price.currency for _, price, _ in in_force]
        for since, price, gpus in in_force:
            for t in range(since, attempt.last_sign):
                rate = round(price.micros_per_hour * _gpus_at(attempt, gpus, t))
                at[t] = (price.currency, rate)
        if in_force and not attempt.completed:
            between = (
                _rate_of_pause(attempt)
                if attempt.paused
                else _rate_between(attempt, following, in_force[-1][1], in_force[-1][2])
            )
            if between is None:
                continue
            for t in range(attempt.last_sign, until if following is None else following.start):
                at[t] = between
    currencies += [currency for currency, _ in at.values()]
    return {
        one: {t: rate for t, (currency, rate) in at.items() if currency == one}
        for one in dict.fromkeys(currencies)
    }


def _rate_of_pause(attempt: ExpectedAttempt) -> tuple[str, int] | None:
    """Return what the supervisor that paused it states for the machine; else it costs nothing."""
    by = attempt.paused_by
    stated = None if by is None else by.header.stopped_machine_price
    return None if stated is None else (stated.currency, stated.micros_per_hour)


def _weights(attempt: ExpectedAttempt) -> list[Fraction]:
    """Return the GPUs of each node: as detected on every node, else by number of processes."""
    found = [node.gpus for node in attempt.nodes]
    if attempt.header.gpus_source not in ("visible", "slurm", "driver"):
        return [Fraction(node.processes) for node in attempt.nodes]
    if min(found) == 0:
        return [Fraction(node.processes) for node in attempt.nodes]
    missing = max(attempt.header.nodes - len(attempt.nodes), 0)
    return [found[0] * (1 + missing), *found[1:]]


def _all_gpus(attempt: ExpectedAttempt, gpus: int | str) -> Fraction:
    header = attempt.header
    if attempt.nodes and header.gpus_source in ("visible", "slurm") and gpus == header.gpus:
        return sum(_weights(attempt), Fraction(0))
    return Fraction(gpus)


def _slices_left(attempt: ExpectedAttempt, t: int) -> Fraction:
    changes = [record for record in attempt.leader.records if isinstance(record, SlicesChanged)]
    seen = [change for change in changes if change.t_ns <= t and attempt.nodes]
    seen.sort(key=lambda change: (change.t_ns, change.seq))
    return Fraction(seen[-1].available, seen[-1].total) if seen else Fraction(1)


def _gpus_at(attempt: ExpectedAttempt, gpus: int | str, t: int) -> Fraction:
    if not attempt.nodes:
        return Fraction(gpus)
    weights = _weights(attempt)
    pairs = zip(attempt.nodes, weights, strict=True)
    there = sum((w for node, w in pairs if node.start <= t < node.end), Fraction(0))
    return _all_gpus(attempt, gpus) * there / sum(weights) * _slices_left(attempt, t)


def _prices_of(attempt: ExpectedAttempt) -> list[tuple[int, Price, int | str]]:
    header = attempt.header
    first: list[tuple[int, Price, int | str]] = []
    if header.price is not None:
        first = [(attempt.start, header.price, header.gpus)]
    changes = [record for record in attempt.leader.records if isinstance(record, PriceChanged)]
    changes.sort(key=lambda change: (change.t_ns, change.seq))
    return first + [(change.t_ns, change.price, change.gpus) for change in changes]


def _rate_between(
    attempt: ExpectedAttempt, following: ExpectedAttempt | None, price: Price, gpus: int | str
) -> tuple[str, int]:
    before, paid_in = attempt.header, price.currency
    after = None if following is None else following.leader.header
    whole = round(
        price.micros_per_hour * _all_gpus(attempt, gpus) * _slices_left(attempt, attempt.last_sign)
    )
    if attempt.nodes:
        stopped = before.stopped_machine_price
        if stopped is not None:
            return stopped.currency, stopped.micros_per_hour
    if attempt.end is not None and attempt.end.status == "preempted":
        return paid_in, 0
    if after and _requeued(before, after):
        return paid_in, 0
    if attempt.nodes:
        if following is None or not following.nodes:
            return paid_in, whole  # Measured or assumed: charged in either case.
        return paid_in, 0 if _on_another_machine(before, following.leader.header) else whole
    if after and before.boot_id and before.boot_id == after.boot_id:
        return paid_in, whole
    if (stopped := before.stopped_price) is not None:
        return stopped.currency, round(stopped.micros_per_hour * Fraction(gpus))
    return paid_in, whole


def _on_another_machine(before: AttemptStarted, after: AttemptStarted) -> bool:
    """Return whether both headers show that the next attempt ran on another machine."""
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
    """Return whether Slurm started the job again, as opposed to torchrun restarting workers."""
    if not before.slurm_job or before.slurm_job != after.slurm_job:
        return False
    if before.slurm_restart and after.slurm_restart:
        return before.slurm_restart != after.slurm_restart
    if before.launch.startswith("torchelastic-") and after.launch.startswith("torchelastic-"):
        return int(after.launch[-1]) < int(before.launch[-1])
    return before.launch != after.launch


def _instants(windows: Iterable[range]) -> Iterable[int]:
    return (t for window in windows for t in window)
