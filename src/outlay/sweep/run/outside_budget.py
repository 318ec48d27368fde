"""A budget that the harness enforces on a program which records nothing: its time and its cost.

A program that records stops itself between two steps, and is left alone. Starts no process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from outlay.ledger.segments import own_segments
from outlay.sweep.plan.plan import PlannedRun
from outlay.sweep.state.outcomes import RunVerdict


@dataclass(slots=True, kw_only=True)
class OutsideBudget:
    """When an attempt has used up its budget.

    Attributes:
        limit_ns: The elapsed time of this attempt at which the budget is used up.
        reached: The limit, in words.
        since_ns: When the attempt began, UTC nanoseconds.
    """

    limit_ns: int
    reached: str
    directory: Path
    since_ns: int
    _records: bool = field(default=False, init=False)

    @classmethod
    def of(cls, run: PlannedRun, directory: Path, *, spent_ns: int, since_ns: int) -> Self | None:
        """Return the budget of a run whose earlier attempts took ``spent_ns``; None if not so."""
        limit = run.outside_limit
        if limit is None:
            return None
        return cls(
            limit_ns=limit.ns - spent_ns, reached=limit.text, directory=directory,
            since_ns=since_ns,
        )  # fmt: skip

    def verdict(self, elapsed_ns: int) -> RunVerdict | None:
        """Return the verdict once the budget is used up, unless the program records."""
        if elapsed_ns < self.limit_ns or self._is_recorded():
            return None
        return RunVerdict("completed", f"reached its budget of {self.reached}")

    def _is_recorded(self) -> bool:
        self._records = self._records or any(
            segment.start_ns >= self.since_ns for segment in own_segments(self.directory)
        )
        return self._records
