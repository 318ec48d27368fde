"""What became of advice: what it was about, in the next run of the same model. Pure.

That is the phases of a saving, or the number of evaluations; says nothing on another GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from outlay.advise.recommendation import OptimizationRecommendation, of_kind
from outlay.advise.run_advice import advise_run, evaluations_of
from outlay.cost.run_cost import RunCost, cost_of
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView
from outlay.units.shown import counted

_OF_CHECKPOINTS = (ph.CHECKPOINT_SAVE, ph.WASTED_PROGRESS)
_FOLLOWED = 0.3  # Of what was promised: below it the change was not made, or did nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceOutcome:
    """Advice on a run, and what the next one paid for the same; shares of a run's cost.

    Attributes:
        promised: The share that the change was expected to save; ``low`` and ``high`` its interval.
        before: The share of the phases in the run, and ``after`` in the next one; of evaluations
            1, and how many times as many the next run had.
        brought: The share of the cost that the next run saved, at the first run's other costs.
    """

    run_id: str
    next_run_id: str
    title: str
    promised: float
    low: float
    high: float
    before: float
    after: float
    brought: float

    @property
    def is_followed(self) -> bool:
        """Whether what it was about became clearly cheaper."""
        return self.brought >= _FOLLOWED * self.promised

    @property
    def held(self) -> bool:
        """Whether it brought what its interval says."""
        return self.low <= self.brought <= self.high

    @property
    def text(self) -> str:
        """The outcome in one line."""
        promised = f"{self.title}; promised {self.promised:.0%} of the cost"
        if not self.is_followed:
            return f"{promised}; the next run shows no such change"
        held = "within" if self.held else "outside"
        return f"{promised}, brought {self.brought:.0%}, {held} {self.low:.0%} to {self.high:.0%}"


def advice_followed(views: Sequence[RunView]) -> list[AdviceOutcome]:
    """Return what became of the first saving that was advised on each run, oldest run first."""
    found = (_outcome(before, after) for before, after in pairwise(views))
    return [each for each in found if each is not None]


def followed_text(outcomes: Sequence[AdviceOutcome]) -> str:
    """Return in one line how often advice was followed, and what it brought beside its promise."""
    followed = [each for each in outcomes if each.is_followed]
    text = f"{len(followed)} of {counted(len(outcomes), 'piece')} of advice followed"
    if not followed:
        return text
    held = sum(each.held for each in followed)
    error = median(abs(each.brought - each.promised) for each in followed)
    inside = f"{held} of {len(followed)} brought what their intervals say"
    return f"{text}; {inside}, the median error is {error:.1%} of the cost"


def _outcome(before: RunView, after: RunView) -> AdviceOutcome | None:
    savings = of_kind(advise_run(before), "saving")
    about = next((each for each in savings if _phases(each) or each.category == "epochs"), None)
    costs = cost_of(before), cost_of(after)
    if about is None or costs[0].cost is None or costs[1].cost is None:
        return None
    if about.category == "epochs":
        counts = [0 if each is None else len(each.values) * each.each
                  for each in (evaluations_of(before), evaluations_of(after))]  # fmt: skip
        was, now = 1.0, counts[1] / counts[0]
        brought = 1 - now
    else:
        was, now = (_share(each, _phases(about)) for each in costs)
        brought = was - now * (1 - was) / (1 - now or 1.0)
    whole = float(costs[0].cost.amount)
    return AdviceOutcome(
        run_id=before.identity.run_id,
        next_run_id=after.identity.run_id,
        title=about.title,
        promised=about.estimated_savings / whole,
        low=(about.savings_low or 0.0) / whole,
        high=(about.savings_high or 0.0) / whole,
        before=was,
        after=now,
        brought=brought,
    )


def _phases(advice: OptimizationRecommendation) -> tuple[str, ...]:
    """Return the phases that advice is about."""
    if advice.category == "checkpoint":
        return _OF_CHECKPOINTS
    return (advice.cause,) if advice.category == "badput" else ()


def _share(cost: RunCost, phases: Sequence[str]) -> float:
    assert cost.cost is not None
    spent = sum(money.micros for name, money in cost.by_phase.items() if name in phases)
    return spent / cost.cost.micros
