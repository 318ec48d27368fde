"""Folds a run's log into what the run has used, with rollback. Pure.

Progress counts surviving work: an attempt that starts at step m undoes every earlier execution
numbered m or higher, of any rank. Resources count everything that was consumed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from msgspec.structs import replace

from outlay.budget.limits import CURRENCY
from outlay.budget.usage import (
    CLOCKS,
    NO_COST,
    TRAINING,
    ZERO,
    Charges,
    ClockCharge,
    CostedRun,
    CostParts,
    Period,
    ProcessSpend,
    Usage,
    clocks_of,
    joined,
    resources_of,
)
from outlay.errors import Finding
from outlay.ledger import (
    SUPERVISOR,
    Attempt,
    BudgetEvent,
    CheckpointCommitted,
    PriceChanged,
    Record,
    SegmentId,
    SlicesChanged,
    Step,
    derive_attempts,
    training_ranks,
)
from outlay.rates import run_rates
from outlay.units import Money

# Progress by step number, so that a rollback can take back exactly what it undid
#
# A run of equal steps is one entry of four 64-bit integers: a million unequal steps take 32 MB, a
# million equal ones next to nothing. FLOPs beyond 64 bits take more.

PER_STEP_MAX: Final = 2**63 - 1
"""The largest amount that a caller may state for a step; measured amounts have no limit."""

Run = tuple[int, int, int, int]
"""First step number, how many consecutive steps, and the tokens and FLOPs of each."""


class Surviving:
    """The surviving work of one rank in one attempt: step numbers, their tokens and FLOPs.

    Attributes:
        next_step: The number that follows the last execution's.
        lowest: The lowest number that was ever executed, undone or not; None before the first.
    """

    def __init__(self) -> None:
        # Entry i: counts[i] steps from number firsts[i] on, each of tokens[i] and flops[i].
        self._firsts = array("q")
        self._counts = array("q")
        self._tokens: array[int] | list[int] = array("q")
        self._flops: array[int] | list[int] = array("q")
        self.next_step = 0
        self.lowest: int | None = None

    def execute(self, step: int, tokens: int, flops: int, count: int = 1) -> Usage:
        """Add ``count`` consecutive steps from number ``step``; return what this undid.

        Every earlier execution numbered ``step`` or higher is undone. ``tokens`` and ``flops`` are
        divided among the steps; the first steps get the remainder.
        """
        undone = self.rewind(step) if step < self.next_step else ZERO
        if count == 1:
            self._append(step, 1, tokens, flops)
            return undone
        while count:
            tokens_each, odd_tokens = -(-tokens // count), tokens % count
            flops_each, odd_flops = -(-flops // count), flops % count
            equal = min(filter(None, (odd_tokens, odd_flops)), default=count)
            self._append(step, equal, tokens_each, flops_each)
            step, count = step + equal, count - equal
            tokens, flops = tokens - equal * tokens_each, flops - equal * flops_each
        return undone

    def _append(self, step: int, count: int, tokens: int, flops: int) -> None:
        counts = self._counts
        if (
            counts
            and step == self._firsts[-1] + counts[-1]
            and tokens == self._tokens[-1]
            and flops == self._flops[-1]
        ):
            counts[-1] += count
        else:
            if self.lowest is None or step < self.lowest:
                self.lowest = step
            self._firsts.append(step)
            counts.append(count)
            self._tokens = _appended(self._tokens, tokens)
            self._flops = _appended(self._flops, flops)
        self.next_step = step + count

    def rewind(self, step: int) -> Usage:
        """Undo every execution numbered ``step`` or higher; return what was undone."""
        undone = ZERO
        while self._firsts and self._firsts[-1] + self._counts[-1] > step:
            undone += self._undo_in_last(self._firsts[-1] + self._counts[-1] - step)
        self.next_step = step
        return undone

    def _undo_in_last(self, count: int) -> Usage:
        """Undo the last ``count`` steps of the last entry, at most all of it."""
        count = min(count, self._counts[-1])
        undone = Usage(count * self._tokens[-1], count, count * self._flops[-1])
        self._counts[-1] -= count
        if not self._counts[-1]:
            for column in (self._firsts, self._counts, self._tokens, self._flops):
                column.pop()
        return undone

    def below(self, step: int | None = None) -> Usage:
        """Return the surviving progress of the steps numbered below ``step`` (None: of all)."""
        total = ZERO
        for first, count, tokens, flops in zip(
            self._firsts, self._counts, self._tokens, self._flops, strict=True
        ):
            keep = count if step is None else min(count, max(0, step - first))
            total += Usage(keep * tokens, keep, keep * flops)
        return total

    def __len__(self) -> int:
        """Return how many runs of equal steps there are."""
        return len(self._firsts)

    def runs(self) -> list[Run]:
        """Return what survives as runs of equal steps, in order."""
        columns = (self._firsts, self._counts, self._tokens, self._flops)
        return list(zip(*columns, strict=True))

    def outline(self, most: int, marks: Sequence[int]) -> list[Run]:
        """Return the surviving work as about ``most`` runs at most.

        If there are more, neighbours are merged: a group's amounts are all put on its first step.
        So a rollback to the first step of a group takes back exactly what it undoes, and one into
        the middle of a group takes back too little, never too much. ``marks`` are the likely
        targets of rollbacks, ascending: a group begins at each of the last ones, and at even
        distances after them.
        """
        if len(self._firsts) <= most:
            return self.runs()
        groups = max(1, most // 8)  # Each becomes up to three runs, before the last mark and after.
        kept = list(marks[-groups:]) or [0]
        kept += _even_marks(kept[-1], self.next_step, groups)
        runs = _split(self.runs(), kept)
        merged = Surviving()
        for group in _groups(runs, kept):
            _merge(group, merged)
        return merged.runs()

    @classmethod
    def of(cls, runs: Sequence[Run], *, next_step: int, lowest: int | None) -> Surviving:
        """Return the work that ``runs`` lists, with the next number and the lowest ever."""
        surviving = cls()
        for first, count, tokens, flops in runs:
            surviving._append(first, count, tokens, flops)
        surviving.next_step, surviving.lowest = next_step, lowest
        return surviving


def _appended(column: array[int] | list[int], value: int) -> array[int] | list[int]:
    """Append to a column and return it; it becomes a list with the first value beyond 64 bits."""
    if value > PER_STEP_MAX and not isinstance(column, list):
        column = list(column)
    column.append(value)
    return column


def _even_marks(first: int, end: int, most: int) -> range:
    """Return at most ``most`` numbers between ``first`` and ``end``, a power of two apart.

    A power of two, so that smaller groups of an earlier outline never span two of the marks.
    """
    width = 1 << max(0, -(-(end - first) // most) - 1).bit_length()
    return range((first // width + 1) * width, end, width)


def _split(runs: Sequence[Run], marks: Sequence[int]) -> list[Run]:
    """Split the runs at the marks inside them."""
    cut: list[Run] = []
    for first, count, tokens, flops in runs:
        inside = [mark for mark in marks if first < mark < first + count]
        for begin, end in pairwise((first, *inside, first + count)):
            cut.append((begin, end - begin, tokens, flops))
    return cut


def _groups(runs: Sequence[Run], marks: Sequence[int]) -> Iterator[Sequence[Run]]:
    """Yield the runs between one mark and the next."""
    firsts = [run[0] for run in runs]
    places = [0, *(bisect_left(firsts, mark) for mark in sorted(set(marks))), len(runs)]
    for begin, end in pairwise(places):
        if begin < end:
            yield runs[begin:end]


def _merge(runs: Sequence[Run], into: Surviving) -> None:
    """Add runs as one, with all their amounts on the first step."""
    first, count = runs[0][0], sum(run[1] for run in runs)
    tokens = sum(run[1] * run[2] for run in runs)
    flops = sum(run[1] * run[3] for run in runs)
    into.execute(first, tokens, flops)
    if count > 1:
        into.execute(first + 1, 0, 0, count - 1)


MARKS_MAX: Final = 32
"""To how many past checkpoints a rollback is exact after a restore from a statement."""


@dataclass(slots=True)
class SegmentSpend(ProcessSpend):
    """What one process used, folded from its records in order.

    Attributes:
        marks: The steps at which its last checkpoints resume, ascending.
    """

    surviving: Surviving = field(default_factory=Surviving)
    last_step: Step | None = None
    marks: list[int] = field(default_factory=list)
    charges: Charges = field(default_factory=Charges)

    def fold(self, records: Sequence[Record]) -> None:
        """Add more records."""
        self.life.fold(records)
        for record in records:
            if type(record) is Step:
                self._step(record)
            else:
                self._other(record)

    def finish(self) -> None:
        """Charge a span that is still open, up to the last sign of life."""
        self._charge(self.charges.end())

    def _step(self, step: Step) -> None:
        usage = self.charges.step(step)
        if self.first_step_ns is None:
            self.first_step_ns = step.t_ns - step.dur_ns - step.wait_ns
            self.before_steps_ns = sum(period.all_ns for period in self.periods)
        self.last_step = step
        self.surviving.execute(step.step, usage.tokens, usage.flops, usage.steps)
        self.executed += usage
        self._spend(TRAINING, step.t_ns, usage.time_ns)

    def _other(self, record: Record) -> None:
        match record:
            case BudgetEvent():
                self.events.append(record)
            case PriceChanged() | SlicesChanged():
                self.periods.append(Period(record.t_ns))
            case CheckpointCommitted():
                mark = record.step + 1
                earlier = (one for one in self.marks if one < mark)
                self.marks = [*earlier, mark][-MARKS_MAX:]
            case _:
                pass
        self._charge(self.charges.of(record, record.seq))

    def _charge(self, charge: ClockCharge | Usage | None) -> None:
        match charge:
            case ClockCharge():
                self._spend(charge.clock, charge.end_ns, charge.time_ns)
            case Usage():
                self.executed += charge
            case None:
                pass

    def _spend(self, clock: str, end_ns: int, time_ns: int) -> None:
        """Add the ``time_ns`` before ``end_ns`` to a clock, each part in its price's period."""
        for period in reversed(self.periods):
            part_ns = min(time_ns, max(0, end_ns - period.since_ns))
            period.spent_ns[clock] = period.spent(clock) + part_ns
            time_ns -= part_ns
            end_ns = min(end_ns, period.since_ns)
            if not time_ns:
                break


@dataclass(frozen=True, slots=True)
class AttemptSpend:
    """What the ranks of one attempt used.

    Attributes:
        unrecorded_ns: Its wall time, if only a supervisor with a budget recorded it.
    """

    ranks: tuple[ProcessSpend, ...]
    unrecorded_ns: int = 0

    @property
    def lowest(self) -> int | None:
        """The lowest step number that any rank executed."""
        return min(
            (rank.surviving.lowest for rank in self.ranks if rank.surviving.lowest is not None),
            default=None,
        )

    def progress_below(self, step: int | None) -> Usage:
        """Return surviving work over all ranks; ``steps`` is the maximum over ranks."""
        return joined(rank.surviving.below(step) for rank in self.ranks)

    @property
    def executed(self) -> Usage:
        """What all ranks did, undone or not; time is the slowest rank's."""
        done = joined(rank.executed for rank in self.ranks)
        return replace(done, time_ns=done.time_ns + self.unrecorded_ns)

    @property
    def clocks_ns(self) -> dict[str, int]:
        """Nanoseconds by clock: for each, the slowest rank's."""
        clocks = [clocks_of(rank.periods) for rank in self.ranks]
        return {name: max(spent_ns[name] for spent_ns in clocks) for name in CLOCKS}


@dataclass(frozen=True, slots=True)
class RunSpend:
    """What a whole run used, attempt by attempt.

    Attributes:
        parts: Its cost, in the counted currency.
        start_ups_ns: The time from begin to first step of each attempt that made a step.
        at_least: Totals that the run recorded, a lower bound where its log has lost records.
        beside: Its cost in other currencies, which is not in ``parts``.
        clocks_disagree: Two attempts overlap, or a clock was set between two of them.
    """

    attempts: tuple[AttemptSpend, ...]
    parts: CostParts = NO_COST
    at_least: Usage = ZERO
    start_ups_ns: tuple[int, ...] = ()
    clocks_disagree: bool = False
    beside: tuple[Money, ...] = ()

    def beside_findings(self, currency: str) -> list[Finding]:
        """Return a finding on money that a budget in ``currency`` does not count, if any."""
        if not self.beside:
            return []
        amounts = " and ".join(map(str, self.beside))
        message = f"the run has also paid {amounts}: not in this budget, which is in {currency}"
        return [Finding(source="budget", message=message, severity="warning")]

    def progress_below(self, step: int | None = None) -> Usage:
        """Return what survives if the next attempt starts at ``step`` (None: there is none)."""
        total = ZERO
        for attempt in reversed(self.attempts):
            total += attempt.progress_below(step)
            lowest = attempt.lowest
            if lowest is not None:
                step = lowest if step is None else min(step, lowest)
        return total

    def total(self, *, charge: str, charge_cost: str = "all", below: int | None = None) -> Usage:
        """Return what a budget is charged; of progress, only the steps numbered ``below``."""
        done = self.charged(charge=charge, charge_cost=charge_cost)
        total = self.progress_below(below) + resources_of(done)
        return total.largest(self._least(below))

    def charged(self, *, charge: str, charge_cost: str) -> Usage:
        """Return everything that was done, with the time and cost that a budget is charged."""
        done = self.executed
        other_ns = sum(ns for name, ns in self.clocks_ns.items() if name != TRAINING)
        time_ns = done.time_ns + (other_ns if charge == "all" else 0)
        return replace(done, time_ns=time_ns, cost_units=self.parts.charged(charge_cost))

    def _least(self, below: int | None) -> Usage:
        """Return the lower bound of what was used; without progress if some of it is undone."""
        if self.at_least == ZERO:
            return ZERO
        if below is not None and (
            below < self.at_least.steps or self.progress_below(below) != self.progress_below()
        ):
            return resources_of(self.at_least)
        return self.at_least

    @property
    def executed(self) -> Usage:
        """Everything that was done, undone or not, and its cost without the assumed part."""
        done = sum((each.executed for each in self.attempts), ZERO)
        return replace(done, cost_units=self.parts.charged("all"))

    @property
    def clocks_ns(self) -> dict[str, int]:
        """Nanoseconds by clock, over all attempts."""
        return {name: sum(each.clocks_ns[name] for each in self.attempts) for name in CLOCKS}


def budget_events(spends: Iterable[ProcessSpend]) -> list[BudgetEvent]:
    """Return all budget events of a run, oldest first, also if a clock was set back since."""
    by_segment = {spend.life.segment: spend for spend in spends}
    attempts = derive_attempts(spend.life for spend in by_segment.values())
    dated = [
        (event.t_ns + attempt.moved_ns, event)
        for attempt in attempts
        for segment in dict.fromkeys(attempt.ranks)
        for event in by_segment[segment].events
    ]
    return [event for _, event in sorted(dated, key=lambda each: each[0])]


DROPPED: Final = "dropped"
"""The event of a start that drops the run's budget."""


def last_stated(spends: Iterable[ProcessSpend]) -> Mapping[str, Any] | None:
    """Return the budget that the run was last started with, as recorded.

    That of the program comes before that of its supervisor: a program may state its own.
    """
    spends = list(spends)
    return _last_of(stated_by(spends, supervisor=False)) or _last_of(spends)


def stated_by(spends: Iterable[ProcessSpend], *, supervisor: bool) -> list[ProcessSpend]:
    """Return the use of supervisors, or of the processes that are not."""
    return [each for each in spends if (each.life.segment.rank == SUPERVISOR) == supervisor]


def _last_of(spends: Iterable[ProcessSpend]) -> Mapping[str, Any] | None:
    stated: dict[str, Any] | None = None
    for event in budget_events(spends):
        if event.event in ("set", "changed"):
            stated = dict(event.data)
        elif event.event == DROPPED:
            stated = None
        elif event.event == "epoch" and stated is not None:
            stated |= event.data
    return stated


def join_attempts(
    spends: Iterable[ProcessSpend],
    until_ns: int | None,
    *,
    currency: str = CURRENCY,
    without: SegmentId | None = None,
) -> RunSpend:
    """Return what a run used up to ``until_ns`` (None: to its last sign of life).

    Money in another currency is beside.

    ``without`` is the segment of an attempt that has just begun: it ends the billed time since the
    last attempt, and its own use is left out.
    """
    by_segment = {spend.life.segment: spend for spend in spends}
    attempts = derive_attempts(spend.life for spend in by_segment.values())
    if until_ns is None:
        until_ns = attempts[-1].last_sign_ns if attempts else 0
    is_last = without is None or without in attempts[-1].ranks
    paid = run_rates(attempts, until_ns)
    every = () if paid.function is None else (paid.function, *paid.beside)
    rates = next((function for function in every if function.currency == currency), None)
    kept = [attempt for attempt in attempts if without not in attempt.ranks]
    parts = NO_COST
    if rates is not None:
        parts = CostedRun(attempts, by_segment, rates, until_ns).parts()
    return RunSpend(
        attempts=tuple(
            AttemptSpend(
                tuple(by_segment[rank] for rank in training_ranks(attempt.ranks)),
                _unrecorded_ns(attempt, by_segment, attempts[-1], until_ns),
            )
            for attempt in kept
        ),
        parts=parts,
        start_ups_ns=tuple(
            first_ns + attempt.moved_ns - attempt.start_ns
            for attempt in kept
            if (first_ns := by_segment[attempt.segment].first_step_ns) is not None
        ),
        clocks_disagree=not is_last
        or any(attempt.overlaps or attempt.clock_set_ns for attempt in attempts),
        beside=tuple(
            cost
            for function in every
            if function is not rates
            and (cost := function.cost_between(attempts[0].start_ns, until_ns))
        ),
    )


def _unrecorded_ns(
    attempt: Attempt, spends: Mapping[SegmentId, ProcessSpend], last: Attempt, until_ns: int
) -> int:
    """Return the wall time of an attempt that only a supervisor with a budget recorded, else 0."""
    stated = last_stated(spends[rank] for rank in attempt.ranks)
    if stated is None or stated.get("records") or any(r.rank != SUPERVISOR for r in attempt.ranks):
        return 0
    runs = attempt is last and attempt.end is None
    return (until_ns if runs else min(attempt.last_sign_ns, until_ns)) - attempt.start_ns
