"""Progress by step number, so that a rollback can take back exactly what it undid. Pure.

A run of equal steps is one entry of four 64-bit integers: a million unequal steps take 32 MB, a
million equal ones next to nothing. FLOPs beyond 64 bits take more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from outlay.budget.usage import ZERO, Usage

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
