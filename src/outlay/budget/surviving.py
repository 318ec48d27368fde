"""Progress by step number, so that a rollback can take back exactly what it undid.

Pure state: no file, no clock. Runs of equal steps are one entry of four machine integers, so that a
million uneven steps take 32 MB and a million even ones next to nothing.
"""

from __future__ import annotations

from array import array
from typing import Final

from outlay.budget.usage import ZERO, Usage

PER_STEP_MAX: Final = 2**63 - 1
"""What one step may count: entries are 64-bit integers."""


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
        self._tokens = array("q")
        self._flops = array("q")
        self.next_step = 0
        self.lowest: int | None = None

    def execute(self, step: int, tokens: int, flops: int, count: int = 1) -> Usage:
        """Add ``count`` consecutive steps from number ``step``; return what this undid.

        Every earlier execution numbered ``step`` or higher is undone. Where several steps share
        ``tokens`` and ``flops``, the earlier ones get what does not divide.
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
            self._tokens.append(tokens)
            self._flops.append(flops)
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
