"""Half, three quarters, nine tenths, all of a limit: each is worth saying once.

Pure state over totals; whom to tell is the tracker's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from outlay.budget.limits import Bound
from outlay.budget.usage import Usage

PERCENTS: Final = (50, 75, 90, 100)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit of which at least ``percent`` % is used, for the first time."""

    bound: Bound
    percent: int
    used: int

    def __str__(self) -> str:
        text = self.bound.dimension.text
        return (
            f"{self.percent}% of {self.bound.dimension.key} is used: "
            f"{text(self.used)} of {text(self.bound.limit)}"
        )


@dataclass(frozen=True, slots=True)
class _Mark:
    bound: Bound
    percent: int

    @property
    def amount(self) -> int:
        """The least amount that is at least ``percent`` % of the limit."""
        return -(-self.bound.limit * self.percent // 100)


class Thresholds:
    """What lies ahead of a total.

    Attributes:
        nearest: For each limit, the field of ``Usage`` and the amount at which to look again.
    """

    def __init__(self, bounds: Iterable[Bound], total: Usage) -> None:
        marks = [_Mark(bound, percent) for bound in bounds for percent in PERCENTS]
        self._ahead = [mark for mark in marks if mark.bound.used(total) < mark.amount]
        self.nearest = self._nearest()

    def _nearest(self) -> list[tuple[str, int]]:
        least: dict[str, int] = {}
        for mark in self._ahead:
            least.setdefault(mark.bound.dimension.name, mark.amount)
        return list(least.items())

    def cross(self, total: Usage) -> list[Threshold]:
        """Return every threshold that this total has crossed since the last call."""
        crossed = [mark for mark in self._ahead if mark.bound.used(total) >= mark.amount]
        if crossed:
            self._ahead = [mark for mark in self._ahead if mark.bound.used(total) < mark.amount]
            self.nearest = self._nearest()
        return [Threshold(mark.bound, mark.percent, mark.bound.used(total)) for mark in crossed]
