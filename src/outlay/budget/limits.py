"""What a limit is, and what "reached" and "would pass" mean.

Pure values and functions. What has been used so far is the subject of ``outlay.budget.tracker``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outlay.budget.dimensions import Dimension
from outlay.budget.usage import Usage


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit, in the unit in which its dimension is counted."""

    dimension: Dimension
    limit: int

    def used(self, usage: Usage) -> int:
        """Return how much of this limit's dimension was used."""
        amount: int = getattr(usage, self.dimension.name)
        return amount

    def left(self, usage: Usage) -> int:
        """Return what is left; negative once the limit was passed."""
        return self.limit - self.used(usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """Which limit stops the run, and by how much it was, or would have been, passed.

    Attributes:
        bound: The limit.
        used: What was used when the run stopped.
        asked: What the next step would have used on top; 0 when the limit was simply reached.
        before_start: Whether it was reached before this attempt took a step.
        down: How much of a cost was due to the time between attempts.
    """

    bound: Bound
    used: int
    asked: int = 0
    before_start: bool = False
    down: int = 0

    @property
    def over(self) -> int:
        """How far past the limit: what was used, or would have been after the refused step."""
        return self.used + self.asked - self.bound.limit

    @property
    def key(self) -> str:
        """The configuration key of the limit."""
        return self.bound.dimension.key

    def __str__(self) -> str:
        text = self.bound.dimension.text
        used, limit = text(self.used), text(self.bound.limit)
        if self.before_start:
            down = f", of which {text(self.down)} while down between attempts" if self.down else ""
            return (
                f"budget was exhausted before this start: {self.key}: {used} of {limit} used{down}"
            )
        if self.asked:
            return f"{self.key}: {used} of {limit} used, the next step would pass it by " + text(
                self.over
            )
        return f"{self.key}: {used} of {limit} used" + (
            f", {text(self.over)} over" if self.over else ""
        )


def reached(total: Usage, bounds: Iterable[Bound]) -> StopReason | None:
    """Return why a run with this total must stop: the first limit with total ≥ limit."""
    for bound in bounds:
        used = bound.used(total)
        if used >= bound.limit:
            return StopReason(bound=bound, used=used)
    return None


def would_pass(total: Usage, step: Usage, bounds: Iterable[Bound]) -> StopReason | None:
    """Return why a step of this size may not run: the first limit with total + step > limit."""
    for bound in bounds:
        used, asked = bound.used(total), bound.used(step)
        if used + asked > bound.limit:
            return StopReason(bound=bound, used=used, asked=asked)
    return None
