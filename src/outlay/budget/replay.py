"""The replay of a budget from a run's account: what ``SegmentSpend`` folds, by column.

Pure. A start replays the few records after a statement one by one and loads no NumPy; a question
about a whole log goes through here. A law holds the two to the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from outlay.account.columns import Ints, total
from outlay.account.run import RunAccount
from outlay.account.segment import SegmentAccount
from outlay.account.spans import SpanInterval
from outlay.budget.charges import ClockCharge
from outlay.budget.clocks import CLOCK_OF_SPAN, TRAINING
from outlay.budget.cost_parts import Period
from outlay.budget.fold import last_stated
from outlay.budget.history import History
from outlay.budget.usage import Usage
from outlay.goodput.rollback import undone_steps
from outlay.ledger import BudgetEvent, SegmentLife

_FOREVER_NS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SurvivingColumns:
    """The surviving work of one process, as ``Surviving`` keeps it, by column.

    Attributes:
        number: The first step of each record.
        kept: How many of the record's ``count`` steps no later one undid.
        lowest: The lowest number that was ever executed, undone or not; None without steps.
    """

    number: Ints
    count: Ints
    kept: Ints
    tokens: Ints
    flops: Ints
    lowest: int | None

    def below(self, step: int | None = None) -> Usage:
        """Return the surviving progress of the steps numbered below ``step`` (None: of all)."""
        kept = self.kept
        if step is not None:
            kept = np.minimum(kept, np.maximum(step - self.number, 0))
        tokens, flops = self._share(self.tokens, kept), self._share(self.flops, kept)
        return Usage(tokens=tokens, steps=total(kept), flops=flops)

    def _share(self, amounts: Ints, kept: Ints) -> int:
        """Return what the first ``kept`` steps of each record have of its amount.

        Where several steps share an amount, the earlier ones get what does not divide.
        """
        if (kept == self.count).all():
            return total(amounts)
        return total(kept * (amounts // self.count) + np.minimum(kept, amounts % self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpend:
    """What one process used; the names are those of ``SegmentSpend``."""

    life: SegmentLife
    surviving: SurvivingColumns
    executed: Usage
    periods: list[Period]
    events: list[BudgetEvent]
    first_step_ns: int | None
    before_steps_ns: int


def replay(account: RunAccount) -> History:
    """Return what a log in which nothing is wrong says about its budget."""
    spends = [spend_of(segment) for segment in account.shown()]
    return History(spends=spends, stated=last_stated(spends))


def spend_of(segment: SegmentAccount) -> ColumnSpend:
    """Return what one process used."""
    steps, work = segment.steps, segment.work
    closed, still_open = _clock_charges(segment)
    charged = _charged_ns(segment, closed)
    beside = [*closed, *still_open]
    first_end_ns = int(steps.end[0]) if segment.step_count else 0
    return ColumnSpend(
        life=segment.life,
        surviving=_surviving(segment),
        executed=Usage(
            tokens=work.tokens,
            steps=work.steps,
            flops=work.flops,
            time_ns=total(charged),
            energy_mj=segment.energy_mj,
            comm_bytes=work.comm_bytes,
        ),
        periods=_periods(segment, charged, beside),
        events=segment.budget_events,
        first_step_ns=int(steps.start[0] - steps.wait[0]) if segment.step_count else None,
        before_steps_ns=sum(each.time_ns for each in closed if _end_ns(each) <= first_end_ns),
    )


def _clock_charges(segment: SegmentAccount) -> tuple[list[ClockCharge], list[ClockCharge]]:
    """Return the spans that have a clock of their own: those that are over, and an open one.

    Of spans within each other the outermost counts. An open one lasts to the last sign of life.
    """
    last_ns = segment.life.last_sign_ns
    still_open = [
        SpanInterval(span.begin_ns, order, last_ns, span.name)
        for order, span in segment.open.items()
        if not span.overlapped
    ]
    found: tuple[list[ClockCharge], list[ClockCharge]] = ([], [])
    until_ns = 0
    for span in sorted([*segment.spans, *still_open], key=lambda span: span.order):
        clock = CLOCK_OF_SPAN.get(span.name)
        if clock is not None and span.begin_ns >= until_ns:
            charge = ClockCharge(clock, span.begin_ns, span.end_ns - span.begin_ns)
            found[span.order in segment.open].append(charge)
            until_ns = _FOREVER_NS if span.order in segment.open else span.end_ns
    return found


def _end_ns(charge: ClockCharge) -> int:
    return charge.start_ns + charge.time_ns


def _charged_ns(segment: SegmentAccount, closed: list[ClockCharge]) -> Ints:
    """Return the time that each step charges: without what has a clock of its own inside it."""
    steps = segment.steps
    whole = steps.end - steps.start + steps.wait
    charged = whole.copy()
    for charge in closed:
        end_ns = _end_ns(charge)
        place = int(np.searchsorted(steps.end, end_ns))
        if place < len(whole) and steps.end[place] == end_ns:
            # A span around the step is closed after it; one inside it, before.
            place += charge.start_ns < steps.end[place] - whole[place]
        if place < len(whole):
            begun_ns = int(steps.end[place] - whole[place])
            overlap_ns = min(end_ns, int(steps.end[place])) - max(charge.start_ns, begun_ns)
            charged[place] -= max(overlap_ns, 0)
    return charged


def _periods(segment: SegmentAccount, charged: Ints, beside: list[ClockCharge]) -> list[Period]:
    """Return the nanoseconds by clock of each stretch of time with one price."""
    end = segment.steps.end
    changes = [change.t_ns for change in (*segment.life.prices, *segment.life.slices)]
    periods = []
    for since_ns, until_ns in pairwise([0, *sorted(changes), _FOREVER_NS]):
        inside = np.minimum(end, until_ns) - np.maximum(end - charged, since_ns)
        period = Period(since_ns, {TRAINING: total(np.maximum(inside, 0))})
        for charge in beside:
            part_ns = min(_end_ns(charge), until_ns) - max(charge.start_ns, since_ns)
            if part_ns > 0:
                period.spent_ns[charge.clock] = period.spent(charge.clock) + part_ns
        periods.append(period)
    return periods


def _surviving(segment: SegmentAccount) -> SurvivingColumns:
    steps = segment.steps
    kept = steps.count
    if not segment.only_grows:
        undone = undone_steps(steps.number, steps.count, None, only_grows=False)
        kept = np.where(undone.contains(np.arange(len(kept))), 0, kept)
        for index, (survived, _) in undone.partly.items():
            kept[index] = survived
    return SurvivingColumns(
        steps.number, steps.count, kept, steps.tokens, steps.flops, segment.least_number
    )
