"""Runs whose learning curve is unlikely to pass the best one at equal money. Pure.

It suggests to stop them, and stops nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from outlay.advise.curves import DRAWS, probability_of_passing
from outlay.advise.stopping import STATED_PROBABILITY
from outlay.sweep.aggregate.comparison import shares_used
from outlay.sweep.aggregate.rows import Seen, SweepRow, in_time, unit_of
from outlay.units import Money
from outlay.units.shown import money_of, money_text

_LEAST_VALUES: Final = 8
_LEAST_SHARE: Final = 0.1
"""Of the budget: below, a curve says little about its end."""
_MOST: Final = 20
"""How many runs are judged, the worst first; each takes a tenth of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LosingRun:
    """A run that is unlikely to pass the best.

    Attributes:
        value: The last of its metric.
        best: The last of the best run.
        chance: The probability that it passes ``best`` before its budget is used up.
        saves: What the rest of its budget would cost; None if unknown.
    """

    run: str
    configuration: str
    metric: str
    value: float
    best: float
    best_run: str
    chance: float
    saves: Money | None

    @property
    def chance_text(self) -> str:
        """The chance; a thousand draws show nothing below 0.1 %."""
        return "below 0.1%" if self.chance < 1 / DRAWS else f"{self.chance:.1%}"

    def suggestion(self, directory: str) -> str:
        """Return what to do, with the command for a sweep in a directory."""
        saved = "" if self.saves is None else f" and saves about {money_text(self.saves)}"
        return (
            f"{self.run}: the chance that its {self.metric} ({self.value:.4g}) passes "
            f"{self.best:.4g} of {self.best_run} within its budget is {self.chance_text}. "
            f"This stops it{saved}: outlay sweep stop {shlex.quote(directory)} {self.run}"
        )


def losing_runs(rows: Sequence[SweepRow]) -> list[LosingRun]:
    """Return the running and paused runs that are unlikely to pass the best one.

    Runs are compared if they have the same metric and the same budget.
    """
    known = [row for row in rows if row.get("accuracy_value") is not None]
    open_ = [row for row in known if row.state.status in ("running", "paused") and row.run.limits]
    open_.sort(key=lambda row: _signed(row, row["accuracy_value"]))
    found = (_judged(row, known) for row in open_[:_MOST])
    return [one for one in found if one is not None and one.chance < STATED_PROBABILITY]


def _signed(row: SweepRow, value: float) -> float:
    """Return a value of which higher is better."""
    return value if row.target.more_is_better else -value


def _judged(row: SweepRow, known: Sequence[SweepRow]) -> LosingRun | None:
    """Return a run with its chance; None if nothing is better, or too little is known."""
    alike = [
        other
        for other in known
        if other is not row
        and other.target.metric == row.target.metric
        and other.run.limits == row.run.limits
    ]
    values = [_signed(row, one.value) for one in _seen(row)]
    used = max(shares_used(row).values(), default=0.0)
    if not alike or len(values) < _LEAST_VALUES or not _LEAST_SHARE <= used < 1:
        return None
    best = max(alike, key=lambda other: _signed(other, other["accuracy_value"]))
    level = _signed(best, best["accuracy_value"])
    if max(values) >= level:
        return None
    more = max(1, round(len(values) * (1 - used) / used))
    return LosingRun(
        run=row.run.id, configuration=row.label, metric=row.target.metric,
        value=row["accuracy_value"], best=best["accuracy_value"], best_run=best.run.id,
        chance=probability_of_passing(values, more, level), saves=_left(row, used),
    )  # fmt: skip


def _seen(row: SweepRow) -> list[Seen]:
    return [] if row.facts is None else in_time(row.facts.metrics.get(row.target.metric, ()))


def _left(row: SweepRow, used: float) -> Money | None:
    """Return what the rest of a run's budget costs, as the part that is used did."""
    if row.get("cost") is None:
        return None
    unit = unit_of(row.get("currency"), row.get("cost_kind"))
    return money_of(row["cost"] * (1 - used) / used, unit)
