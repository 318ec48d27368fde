"""Writes statements: a segment is replayed while it is written, and the result stated in it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

import msgspec
from msgspec.structs import replace

from outlay.budget.fold import SegmentSpend
from outlay.budget.statements import FORM, RUNS_MAX, Kept, is_kept, state_of
from outlay.budget.surviving import Surviving
from outlay.ledger import (
    AttemptStarted,
    BudgetStatement,
    CheckpointCommitted,
    KnownRecord,
    SegmentId,
    SegmentLife,
    Step,
)
from outlay.record.writers import Writer

EVERY: Final = 4_096
"""After how many records of a segment there is a statement at the latest."""

FOLD_EVERY: Final = 256
"""How many records are folded at once: one by one would cost every step a little more."""


class StatementWriter:
    """Replays one segment while it is written, and states the result in it.

    Observing is safe in any thread and in signal handlers: records are queued, and folded by
    whoever finds the fold free. What is stated covers whole prefixes of the segment only.

    Args:
        segment: Who writes it.
        header: Its first record.
        writer: What it is written with; takes the statements.
    """

    def __init__(self, segment: SegmentId, header: AttemptStarted, writer: Writer) -> None:
        self._writer = writer
        self._spend = SegmentSpend(SegmentLife(segment))
        self._spend.fold([header])
        self._kept: list[Kept] = []
        self._queue: deque[tuple[int, KnownRecord]] = deque()
        self._early: dict[int, KnownRecord] = {}
        self._next_seq = 1
        self._stated_seq = 0
        self._folding = threading.Lock()

    def observe(self, record: KnownRecord, seq: int) -> None:
        """Take note of a record that was just written."""
        self._queue.append((seq, record))
        if len(self._queue) >= FOLD_EVERY or type(record) is CheckpointCommitted:
            self.catch_up(state=type(record) is CheckpointCommitted)

    def catch_up(self, *, state: bool) -> None:
        """Fold what was observed; write a statement if asked to, or if one is due."""
        if not self._folding.acquire(blocking=False):
            return  # Another thread is at it, or the code that a signal interrupted.
        try:
            self._fold()
            if state or self._next_seq - self._stated_seq >= EVERY:
                self._state()
        finally:
            self._folding.release()

    def _fold(self) -> None:
        queue, early = self._queue, self._early
        while queue:
            seq, record = queue.popleft()
            early[seq] = record if type(record) is Step else replace(record, seq=seq)
        records: list[KnownRecord] = []
        while self._next_seq in early or self._next_seq in self._writer.gap_numbers:
            if self._next_seq in early:
                records.append(early.pop(self._next_seq))
            self._next_seq += 1
        self._spend.fold(records)
        self._kept += [one for one in records if isinstance(one, Kept) and is_kept(one)]

    def _state(self) -> None:
        if len(self._early) > FOLD_EVERY:
            return  # A record before them was written and never seen: what is known ends there.
        state = state_of(self._spend, self._kept)
        if state is None:
            return
        if len(self._spend.surviving) > RUNS_MAX:
            # Go on from what was stated: the next statement need not lump it all again.
            self._spend.surviving = Surviving.of(
                state.runs, next_step=state.next_step, lowest=state.lowest
            )
        statement = BudgetStatement(
            t_ns=self._spend.life.last_sign_ns,
            form=FORM,
            covers=self._next_seq,
            state=msgspec.to_builtins(state),
        )
        self._stated_seq = self._writer.append(statement)
        self._queue.append((self._stated_seq, statement))
