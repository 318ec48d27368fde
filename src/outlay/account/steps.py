"""Steps by column, and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np

from outlay.account.columns import Ints, integers, total, uniform
from outlay.ledger import Step


@dataclass(frozen=True, slots=True)
class Work:
    """What some steps were and used, in all; repeated work counts each time."""

    steps: int = 0
    tokens: int = 0
    samples: int = 0
    energy_mj: int = 0
    comm_bytes: int = 0
    flops: int = 0
    step_ns: int = 0
    wait_ns: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.samples + other.samples,
            self.energy_mj + other.energy_mj,
            self.comm_bytes + other.comm_bytes,
            self.flops + other.flops,
            self.step_ns + other.step_ns,
            self.wait_ns + other.wait_ns,
        )


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Steps by column: numbers, begin and end instants, waits before, how many each, their use."""

    number: Ints
    start: Ints
    end: Ints
    wait: Ints
    count: Ints
    tokens: Ints
    samples: Ints
    energy_mj: Ints
    comm_bytes: Ints
    flops: Ints

    @classmethod
    def of(cls, steps: Sequence[Step]) -> StepColumns:
        """Return the columns of step records."""
        end = integers([step.t_ns for step in steps])
        return cls(
            number=integers([step.step for step in steps]),
            start=end - integers([step.dur_ns for step in steps]),
            end=end,
            wait=integers([step.wait_ns for step in steps]),
            count=integers([step.count for step in steps]),
            tokens=integers([step.tokens for step in steps]),
            samples=integers([step.samples for step in steps]),
            energy_mj=integers([step.energy_mj for step in steps]),
            comm_bytes=integers([step.comm_bytes for step in steps]),
            flops=integers([step.flops for step in steps]),
        )

    @classmethod
    def timed(cls, number: Ints, start: Ints, end: Ints, count: Ints) -> StepColumns:
        """Return steps of which nothing but number and time is known."""
        none = uniform(0, len(number))
        return cls(number, start, end, none, count, none, none, none, none, none)

    @classmethod
    def joined(cls, parts: Sequence[StepColumns]) -> StepColumns:
        """Return the steps of all parts, one part after another."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part.all() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    @property
    def work(self) -> Work:
        """What the steps add up to."""
        return Work(
            steps=total(self.count),
            tokens=total(self.tokens),
            samples=total(self.samples),
            energy_mj=total(self.energy_mj),
            comm_bytes=total(self.comm_bytes),
            flops=total(self.flops),
            step_ns=total(self.end - self.start),
            wait_ns=total(self.wait),
        )

    def in_order(self) -> StepColumns:
        """Return the same steps in order of their ends.

        Of those that end together the lower number comes first: an order that does not depend on
        how the records arrived.
        """
        if (np.diff(self.end) > 0).all():
            return self
        decides = (self.number, self.start, self.wait, self.count, self.tokens, self.samples)
        keys = [column for column in reversed(decides) if column.dtype != object]
        return self.at(np.lexsort((*keys, self.end)))

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
        return _all(self)


STEP_FIELDS = tuple(field.name for field in fields(StepColumns))
_all = attrgetter(*STEP_FIELDS)
