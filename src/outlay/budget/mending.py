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


def mend(
    records: Sequence[Record],
    unplaced: int = 0,
    *,
    first_seq: int = 1,
    last: Step | None = None,
    said: bool = False,
) -> Mended:
    """Put stand-ins where steps are missing.

    Each counts as the larger of its neighbours, amount by amount.

    Args:
        records: One segment's, in sequence.
        unplaced: How many lines could not be read and are missing nowhere in the sequence: they
            may have stood at its end.
        first_seq: The number of the first that can be missing; the header is never a step.
        last: The last step before them.
        said: Whether the attempt's last word, with its totals, stands before them.
    """
    mended: list[Record] = []
    next_seq, missing, hole, assumed = first_seq, 0, 0, 0
    for record in records:
        if record.seq > next_seq:
            hole = hole if missing else len(mended)
            missing += record.seq - next_seq
        next_seq = record.seq + 1
        if isinstance(record, Step):
            count = _hidden_steps(last, record, missing)
            if count:
                before = mended[hole - 1] if hole else None
                place = (before.seq, before.t_ns) if before else (first_seq - 1, record.t_ns)
                stand_in = _like([last or record, record], record.step - count, count, place)
                mended.insert(hole, stand_in)
                assumed += count
            last, missing = record, 0
        mended.append(record)
    at_end = missing + unplaced
    if at_end and last is not None and not said and not _said_what_it_used(mended):
        place = (mended[-1].seq, mended[-1].t_ns) if mended else (first_seq - 1, last.t_ns)
        mended.append(_like([last], last.step + last.count, at_end, place))
        assumed += at_end
    return Mended(mended, assumed)


def _hidden_steps(last: Step | None, following: Step, missing: int) -> int:
    """Return how many steps the missing records before a step can have been."""
    if last is None:
        return min(missing, following.step)
    skipped = following.step - last.step - last.count
    return min(max(0, skipped), missing * max(last.count, following.count))


def _like(neighbours: Sequence[Step], step: int, count: int, after: tuple[int, int]) -> Step:
    """Return steps as large as the largest neighbour, numbered and timed ``after`` a record."""
    each = {
        name: max(-(-getattr(one, name) // one.count) for one in neighbours) for name in _AMOUNTS
    }
    amounts = {name: amount * count for name, amount in each.items()}
    seq, t_ns = after
    return Step(seq=seq + 1, t_ns=t_ns, step=step, count=count, **amounts)


def _said_what_it_used(records: Sequence[Record]) -> bool:
    """Say whether the attempt's last word holds its totals, so that nothing has to be assumed."""
    return any(isinstance(one, BudgetEvent) and one.event == "ended" for one in records)
