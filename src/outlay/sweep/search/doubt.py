"""How far a halving can be trusted: whether what a rung measured lasted to the next.

Pure. Only configurations that went on were measured at two rungs; what the pruned ones would have
done is not known. So a change is a reason to doubt, and its absence is no proof: an order that
changes only long after most are pruned is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Final

from outlay.sweep.search.halving import Contest, report_at
from outlay.sweep.state.outcomes import RunState

_LEAST: Final = 4
"""How many configurations it takes: of fewer, chance alone turns the order too often."""
_LASTING: Final = 0.45
"""The least share of a gap that is left at the next rung where the early order can be trusted.

In two simulated worlds whose order stays, 98 and 100 % of 200 sweeps with nine that went on had
more; where curves cross, all had less, and where they cross late, 96 %.
"""
_SAME: Final = 0.3
"""The least rank correlation that is called the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChange:
    """The same configurations at one rung and at the next, over all rungs.

    Attributes:
        configurations: How many were measured at two rungs.
        correlation: Kendall's rank correlation: 1 for the same order, -1 for the opposite one;
            None without two that differ.
        gap_left: What is left at the next rung of the gap between two, as a share: the slope of a
            line through the measurements. It is negative where those behind overtake.
    """

    configurations: int
    correlation: float | None = None
    gap_left: float | None = None

    @property
    def is_doubtful(self) -> bool:
        """Whether those that were pruned might have become better than the winner."""
        enough = self.configurations >= _LEAST and self.gap_left is not None
        return enough and (self.gap_left or 0.0) < _LASTING

    def __str__(self) -> str:
        over = f"{self.configurations} configuration{'s' * (self.configurations != 1)}"
        if self.configurations < _LEAST or self.correlation is None or self.gap_left is None:
            return f"too few configurations went on to tell whether their order changes ({over})"
        figures = f"rank correlation {self.correlation:.1f} over {over}"
        changed = self.correlation < _SAME
        if self.is_doubtful:
            what = "the order changed between rungs"
            if not changed:
                what = f"gaps between configurations shrank to {self.gap_left:.0%} a rung"
            return f"{what} ({figures}): configurations that start slowly may have been pruned"
        if changed:
            return f"only configurations that are close changed their order ({figures})"
        return f"the order hardly changed between rungs ({figures})"


def rank_change(contest: Contest, states: Mapping[str, RunState]) -> RankChange:
    """Return how far the order changed, by the reports of all rungs."""
    return order_change(contest.runs, len(contest.halving.rungs), states)


def order_change(
    runs: Mapping[str, Sequence[str]], count: int, states: Mapping[str, RunState]
) -> RankChange:
    """Return the same for the runs of each configuration, over ``count`` rungs."""
    rungs = [
        [
            values
            for members in runs.values()
            if (values := _at_both(members, rung, states)) is not None
        ]
        for rung in range(count - 1)
    ]
    return RankChange(
        configurations=max(map(len, rungs), default=0),
        correlation=_correlation(rungs),
        gap_left=_slope(rungs),
    )


Both = tuple[float, float]
"""A configuration's metric at a rung and at the next."""


def _correlation(rungs: Sequence[Sequence[Both]]) -> float | None:
    """Return Kendall's rank correlation over the pairs of all rungs; equal ones do not count."""
    turns = [
        (one[0] - other[0]) * (one[1] - other[1])
        for both in rungs
        for one, other in combinations(both, 2)
    ]
    pairs = sum(turn != 0 for turn in turns)
    return None if not pairs else 1 - 2 * sum(turn < 0 for turn in turns) / pairs


def _slope(rungs: Sequence[Sequence[Both]]) -> float | None:
    """Return the slope of the later metric over the earlier one, the same at all rungs."""
    along = across = 0.0
    for both in rungs:
        early = [one for one, _ in both]
        mean = fmean(early) if early else 0.0
        along += sum((one - mean) ** 2 for one in early)
        across += sum((one - mean) * other for one, other in both)
    return across / along if along else None


def _at_both(members: Sequence[str], rung: int, states: Mapping[str, RunState]) -> Both | None:
    """Return a configuration's metric at a rung and at the next: the mean of the same seeds."""
    found = [
        (before.metric, after.metric)
        for state in (states[run] for run in members if run in states)
        if (before := report_at(state, rung)) is not None
        and (after := state.reports.get(rung + 1)) is not None
        and before.metric is not None
        and after.metric is not None
        and math.isfinite(before.metric)
        and math.isfinite(after.metric)
    ]
    if not found:
        return None
    return fmean(one for one, _ in found), fmean(other for _, other in found)
