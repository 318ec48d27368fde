"""Steps by column, and what they used: the form in which a fold takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlay.goodput.columns import Ints
from outlay.ledger import Step


@dataclass(frozen=True, slots=True)
class Usage:
    """What some steps used, in all."""

    steps: int = 0
    tokens: int = 0
    samples: int = 0
    flops: int = 0

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Usage:
        """Return what step records used."""
        # Lists, not generators: a third of the time, and this may run for every step there is.
        return cls(
            steps=sum([step.count for step in steps]),
            tokens=sum([step.tokens for step in steps]),
            samples=sum([step.samples for step in steps]),
            flops=sum([step.flops for step in steps]),
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.samples + other.samples,
            self.flops + other.flops,
        )


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Steps by column: numbers, begin and end instants, waits before, how many each, tokens."""

    number: Ints
    start: Ints
    end: Ints
    wait: Ints
    count: Ints
    tokens: Ints

    @classmethod
    def of(cls, steps: Sequence[Step]) -> StepColumns:
        """Return the columns of step records."""
        end = np.array([step.t_ns for step in steps], dtype=np.int64)
        return cls(
            number=np.array([step.step for step in steps], dtype=np.int64),
            start=end - np.array([step.dur_ns for step in steps], dtype=np.int64),
            end=end,
            wait=np.array([step.wait_ns for step in steps], dtype=np.int64),
            count=np.array([step.count for step in steps], dtype=np.int64),
            tokens=np.array([step.tokens for step in steps], dtype=np.int64),
        )

    @classmethod
    def joined(cls, parts: Sequence[StepColumns]) -> StepColumns:
        """Return the steps of all parts, one part after another."""
        columns = zip(*(part.all() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def in_order(self) -> StepColumns:
        """Return the same steps in order of their ends.

        Of those that end together the lower number comes first: an order that does not depend on
        how the records arrived.
        """
        if (np.diff(self.end) > 0).all():
            return self
        order = np.lexsort((self.tokens, self.count, self.wait, self.start, self.number, self.end))
        return self.at(order)

    def first_ones(self, length: int) -> StepColumns:
        """Return the first steps."""
        return StepColumns(*(column[:length] for column in self.all()))

    def bounds(self, begin_ns: int, first: int, beyond: int) -> tuple[Ints, Ints, Ints]:
        """Return wait starts, starts and ends of some steps of a process begun at ``begin_ns``.

        Steps of one thread do not overlap; where a log says they do, the earlier keeps its time.
        """
        ends = np.maximum(self.end[first:beyond], begin_ns)
        before_first = self.end[first - 1] if first else begin_ns
        previous = np.concatenate([[max(before_first, begin_ns)], ends[:-1]])
        starts = np.minimum(np.maximum(self.start[first:beyond], previous), ends)
        waits = self.start[first:beyond] - self.wait[first:beyond]
        return np.minimum(np.maximum(waits, previous), starts), starts, ends

    def at(self, places: Ints) -> StepColumns:
        """Return the steps at some places, in that order."""
        return StepColumns(*(column[places] for column in self.all()))

    def all(self) -> tuple[Ints, ...]:
        """Return every column, as they are given to the constructor."""
        return self.number, self.start, self.end, self.wait, self.count, self.tokens
