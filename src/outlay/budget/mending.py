"""Steps that a damaged log hides, counted on the safe side: doubt never gives budget back.

Pure: records in, records out. What a run said it had used is the subject of
``outlay.budget.history``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from outlay.ledger import BudgetEvent, Record, Step

_AMOUNTS: Final = (
    "dur_ns", "wait_ns", "tokens", "samples", "comm_bytes", "energy_mj", "flops",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mended:
    """A segment's records with stand-ins for the steps it lost, and how many steps these are."""

    records: list[Record]
    assumed_steps: int = 0


def mend(records: Sequence[Record], unplaced: int = 0) -> Mended:
    """Put stand-ins where steps are missing.

    Each counts as the larger of its neighbours, amount by amount.

    Args:
        records: One segment's, in sequence.
        unplaced: How many lines could not be read and are missing nowhere in the sequence: they
            may have stood at its end.
    """
    mended: list[Record] = []
    last: Step | None = None
    next_seq, missing, hole, assumed = 1, 0, 0, 0  # The first record is a header, never a step.
    for record in records:
        if record.seq > next_seq:
            hole = hole if missing else len(mended)
            missing += record.seq - next_seq
        next_seq = record.seq + 1
        if isinstance(record, Step):
            count = _hidden_steps(last, record, missing)
            if count:
                before = mended[hole - 1] if hole else None
                stand_in = _like([last or record, record], record.step - count, count, before)
                mended.insert(hole, stand_in)
                assumed += count
            last, missing = record, 0
        mended.append(record)
    at_end = missing + unplaced
    if at_end and last is not None and not _said_what_it_used(mended):
        mended.append(_like([last], last.step + last.count, at_end, mended[-1]))
        assumed += at_end
    return Mended(mended, assumed)


def _hidden_steps(last: Step | None, following: Step, missing: int) -> int:
    """Return how many steps the missing records before a step can have been."""
    if last is None:
        return min(missing, following.step)
    skipped = following.step - last.step - last.count
    return min(max(0, skipped), missing * max(last.count, following.count))


def _like(neighbours: Sequence[Step], step: int, count: int, before: Record | None) -> Step:
    """Return ``count`` steps as large as the largest of the neighbours, in the first free place."""
    each = {
        name: max(-(-getattr(one, name) // one.count) for one in neighbours) for name in _AMOUNTS
    }
    amounts = {name: amount * count for name, amount in each.items()}
    seq, t_ns = (0, neighbours[0].t_ns) if before is None else (before.seq + 1, before.t_ns)
    return Step(seq=seq, t_ns=t_ns, step=step, count=count, **amounts)


def _said_what_it_used(records: Sequence[Record]) -> bool:
    """Say whether the attempt's last word holds its totals, so that nothing has to be assumed."""
    return any(isinstance(one, BudgetEvent) and one.event == "ended" for one in records)
