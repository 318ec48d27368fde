"""What became of advice: the phases that it was about, in the next run of the same model. Pure.

Says nothing on advice that is not about phases, such as fewer evaluations or another GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from outlay.advise.recommendation import OptimizationRecommendation, of_kind
from outlay.advise.run_advice import advise_run
from outlay.cost.run_cost import RunCost, cost_of
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView

_OF_CHECKPOINTS = (ph.CHECKPOINT_SAVE, ph.WASTED_PROGRESS)
_FOLLOWED = 0.3  # Of what was promised: below it the change was not made, or did nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceOutcome:
    """Advice on a run, and what the next one paid for the same; shares of a run's cost.

    Attributes:
        promised: The share that the change was expected to save; ``low`` and ``high`` its interval.
        before: The share of the phases in the run; ``after`` in the next one.
    """

    run_id: str
    next_run_id: str
    title: str
    promised: float
    low: float
    high: float
    before: float
    after: float

    @property
    def brought(self) -> float:
        """The share of the cost that the next run saved, at the first run's other costs."""
        return self.before - self.after * (1 - self.before) / (1 - self.after or 1.0)

    @property
    def is_followed(self) -> bool:
        """Whether the phases became clearly cheaper."""
        return self.brought >= _FOLLOWED * self.promised

    @property
    def text(self) -> str:
        """The outcome in one line."""
        promised = f"{self.title}; promised {self.promised:.0%} of the cost"
        if not self.is_followed:
            return f"{promised}; the next run shows no such change"
        held = "within" if self.low <= self.brought <= self.high else "outside"
        return f"{promised}, brought {self.brought:.0%}, {held} {self.low:.0%} to {self.high:.0%}"


def advice_followed(views: Sequence[RunView]) -> list[AdviceOutcome]:
    """Return what became of the first saving that was advised on each run, oldest run first."""
    found = (_outcome(before, after) for before, after in pairwise(views))
    return [each for each in found if each is not None]


def _outcome(before: RunView, after: RunView) -> AdviceOutcome | None:
    costs = cost_of(before), cost_of(after)
    savings = of_kind(advise_run(before), "saving")
    about = next((each for each in savings if _phases(each)), None)
    if about is None or not all(each.cost for each in costs):
        return None
    shares = [_share(each, _phases(about)) for each in costs]
    whole = float(costs[0].cost.amount) if costs[0].cost else 1.0
    return AdviceOutcome(
        run_id=before.identity.run_id,
        next_run_id=after.identity.run_id,
        title=about.title,
        promised=about.estimated_savings / whole,
        low=(about.savings_low or 0.0) / whole,
        high=(about.savings_high or 0.0) / whole,
        before=shares[0],
        after=shares[1],
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
