"""Statements: what a process's records amount to, as its own segment holds it now and then.

A statement is a fact like any other record: "replayed up to here, this segment gives that". A start
takes the last one and replays what follows, in place of the whole segment. It is never taken for
more than the records: a reader of the whole log replays them, and the two must agree. Pure; when
statements are written is the subject of ``outlay.budget.statement_writer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import asdict

from outlay.budget.charges import Charges, Ongoing
from outlay.budget.cost_parts import Period
from outlay.budget.fold import SegmentSpend
from outlay.budget.surviving import Run, Surviving
from outlay.budget.usage import Usage
from outlay.decoding import BadDocument, convert
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    BudgetEvent,
    BudgetStatement,
    PriceChanged,
    Record,
    SegmentId,
    SegmentLife,
    SlicesChanged,
    Step,
)

FORM: Final = 1
"""The version of what a statement holds."""

RUNS_MAX: Final = 256
"""How many runs of equal steps a statement lists; beyond them neighbours are lumped."""

_LISTED_MAX: Final = 128
"""How many prices, budget events or spans a statement repeats; with more there is none."""

_TERMS: Final = ("set", "changed", "epoch", "ended")
Kept = PriceChanged | SlicesChanged | BudgetEvent | AttemptEnded
"""What a statement repeats as it was written; of budget events the terms and the last word."""


class LastStep(msgspec.Struct, frozen=True, array_like=True):
    """A process's last step before a statement, which steps that are lost after it are like."""

    step: int
    count: int
    t_ns: int
    dur_ns: int
    wait_ns: int
    tokens: int
    samples: int
    comm_bytes: int
    energy_mj: int
    flops: int

    @classmethod
    def of(cls, step: Step) -> LastStep:
        """Return the amounts of a step."""
        return cls(*(getattr(step, name) for name in cls.__struct_fields__))

    def record(self) -> Step:
        """Return the step, its place in the segment aside."""
        return Step(**asdict(self))


class StatedState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a statement holds: a ``SegmentSpend`` as plain values.

    Attributes:
        executed: Everything that was done, in the order of ``Usage``.
        runs: The surviving work.
        next_step, lowest: As in ``Surviving``.
        periods: Time by clock and price.
        ongoing: The span that is open, and those since the last step.
        kept: Records that are needed again: prices, slices, the terms of the budget, the end.
        last_step, first_step_ns, before_steps_ns: As in ``SegmentSpend``.
        last_sign_ns: The last sign of life.
    """

    executed: Usage
    runs: list[Run]
    next_step: int
    lowest: int | None = None
    periods: list[Period]
    ongoing: Ongoing
    kept: list[Kept] = []
    last_step: LastStep | None = None
    first_step_ns: int | None = None
    before_steps_ns: int = 0
    last_sign_ns: int


def state_of(spend: SegmentSpend, kept: Sequence[Kept]) -> StatedState | None:
    """Return the state of a fold, or None where it is too large to be written again and again."""
    ongoing = spend.charges.ongoing
    if max(len(kept), len(spend.periods), len(ongoing.since_step)) > _LISTED_MAX:
        return None
    return StatedState(
        executed=spend.executed,
        runs=spend.surviving.outline(RUNS_MAX, spend.marks),
        next_step=spend.surviving.next_step,
        lowest=spend.surviving.lowest,
        periods=spend.periods,
        ongoing=ongoing,
        kept=list(kept),
        last_step=None if spend.last_step is None else LastStep.of(spend.last_step),
        first_step_ns=spend.first_step_ns,
        before_steps_ns=spend.before_steps_ns,
        last_sign_ns=spend.life.last_sign_ns,
    )


def read_state(statement: BudgetStatement) -> StatedState | None:
    """Return what a statement holds, or None where it cannot be believed."""
    if statement.form != FORM or not 0 < statement.covers <= statement.seq:
        return None
    try:
        state = convert(statement.state, StatedState)
        Surviving.of(state.runs, next_step=state.next_step, lowest=state.lowest)
    except (BadDocument, OverflowError):
        return None
    return state if state.periods else None


def is_believable(statement: BudgetStatement) -> bool:
    """Say whether a statement can stand for the records that it covers."""
    return read_state(statement) is not None


def restored(
    segment: SegmentId, header: AttemptStarted | None, statement: BudgetStatement
) -> SegmentSpend:
    """Return the fold of everything that a believable statement covers."""
    state = read_state(statement)
    assert state is not None
    life = SegmentLife(segment)
    life.fold([*([header] if header else []), *state.kept])
    life.last_sign_ns = state.last_sign_ns
    return SegmentSpend(
        life,
        surviving=Surviving.of(state.runs, next_step=state.next_step, lowest=state.lowest),
        executed=state.executed,
        periods=state.periods,
        events=[record for record in state.kept if isinstance(record, BudgetEvent)],
        last_step=None if state.last_step is None else state.last_step.record(),
        first_step_ns=state.first_step_ns,
        before_steps_ns=state.before_steps_ns,
        charges=Charges(state.ongoing),
    )


def is_kept(record: Kept) -> bool:
    """Say whether a statement repeats a record of these kinds."""
    return not isinstance(record, BudgetEvent) or record.event in _TERMS


def last_believable(records: Sequence[Record]) -> BudgetStatement | None:
    """Return the last statement among a segment's records that can be believed."""
    statements = (one for one in reversed(records) if isinstance(one, BudgetStatement))
    return next(filter(is_believable, statements), None)
