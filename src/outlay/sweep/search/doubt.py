"""How far the order of configurations changed between rungs, and so how far to trust a halving.

Pure. Only those that went on were measured at two rungs; what the pruned ones would have done is
not known. So a changed order is a reason to doubt, and an unchanged one is no proof: an order that
changes only after most are pruned is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Final

from outlay.sweep.search.halving import Contest, report_at
from outlay.sweep.state.outcomes import RunState

_LEAST_PAIRS: Final = 6
"""Four configurations: of fewer, chance alone turns the order too often."""
_TRUSTED: Final = 0.3
"""The least rank correlation of an order that hardly changed.

Of nine that went on, those of simulated worlds whose order stays had 0.3 or more in 96 % of 250
sweeps, those of a world whose curves cross less in all.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChange:
    """The order of the same configurations at one rung and at the next, over all rungs.

    Attributes:
        configurations: How many were measured at two rungs.
        pairs: Of two configurations at two rungs; without those that are equal at one.
        swapped: The pairs of which the other one was better at the later rung.
    """

    configurations: int
    pairs: int
    swapped: int

    @property
    def correlation(self) -> float | None:
        """Kendall's rank correlation: 1 for the same order, -1 for the opposite one."""
        return 1 - 2 * self.swapped / self.pairs if self.pairs else None

    @property
    def is_known(self) -> bool:
        """Whether there are enough pairs to judge by."""
        return self.pairs >= _LEAST_PAIRS

    @property
    def is_doubtful(self) -> bool:
        """Whether those that were pruned might have become better than the winner."""
        return self.is_known and self.correlation is not None and self.correlation < _TRUSTED

    def __str__(self) -> str:
        over = f"{self.configurations} configuration{'s' * (self.configurations != 1)}"
        if not self.is_known:
            return f"too few configurations went on to tell whether their order changes ({over})"
        figures = f"rank correlation {self.correlation:.1f} over {over}"
        if self.is_doubtful:
            return (
                f"the order changed between rungs ({figures}): configurations that start slowly "
                "may have been pruned"
            )
        return f"the order hardly changed between rungs ({figures})"


def rank_change(contest: Contest, states: Mapping[str, RunState]) -> RankChange:
    """Return how far the order changed, by the reports of all rungs."""
    pairs = swapped = configurations = 0
    for rung in range(len(contest.halving.rungs) - 1):
        both = [
            values
            for members in contest.runs.values()
            if (values := _at_both(members, rung, states)) is not None
        ]
        configurations = max(configurations, len(both))
        for one, other in combinations(both, 2):
            turns = (one[0] - other[0]) * (one[1] - other[1])
            pairs, swapped = pairs + (turns != 0), swapped + (turns < 0)
    return RankChange(configurations=configurations, pairs=pairs, swapped=swapped)


def _at_both(
    members: Sequence[str], rung: int, states: Mapping[str, RunState]
) -> tuple[float, float] | None:
    """Return a configuration's metric at a rung and at the next: the mean of the same seeds."""
    found = []
    for run in members:
        state = states.get(run)
        if state is None or rung + 1 not in state.reports:
            continue
        before, after = report_at(state, rung), state.reports[rung + 1]
        if before is not None and before.metric is not None and after.metric is not None:
            found.append((before.metric, after.metric))
    if not found:
        return None
    return fmean(one for one, _ in found), fmean(other for _, other in found)
