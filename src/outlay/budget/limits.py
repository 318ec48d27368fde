"""What a limit is, and what "reached" and "would pass" mean.

Pure values and functions. What has been used so far is the subject of ``outlay.budget.tracker``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from outlay.budget.dimensions import COST, TIME, Dimension
from outlay.budget.usage import Usage
from outlay.errors import Finding

TENTH: Final = 10
"""A start-up of more than one such part of a budget is warned of."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """What a start takes before its first step, as measured on earlier ones.

    Attributes:
        ns: How long, the median.
        units: What that costs, exact; 0 where the run had no price.
        attempts: How many attempts that rests on.
    """

    ns: int
    units: int = 0
    attempts: int

    def too_long_for(self, bounds: Iterable[Bound]) -> list[Finding]:
        """Return a warning for each limit of which this is more than a tenth."""
        findings = []
        for bound in bounds:
            amount = {TIME: self.ns, COST: self.units}.get(bound.dimension, 0)
            if amount > bound.limit // TENTH:
                text = bound.dimension.text
                message = (
                    f"start-up takes {text(amount)}, {amount / bound.limit:.0%} of "
                    f"{bound.dimension.key} {text(bound.limit)}"
                )
                findings.append(Finding(source="plan", message=message, severity="warning"))
        return findings
