"""When a model's budget is worth a word: at half, three quarters, nine tenths, all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args

from outlay.clock import utc_now
from outlay.errors import InvalidValue, choices
from outlay.units import Money

AlertType = Literal["warning_50", "warning_75", "warning_90", "exceeded"]
PERCENTS: Final[dict[int, AlertType]] = {
    50: "warning_50",
    75: "warning_75",
    90: "warning_90",
    100: "exceeded",
}


def reached(spent: Money, limit: Money) -> list[int]:
    """Return the thresholds that were reached, compared exactly; of nothing spent, none."""
    if not spent:
        return []
    return [percent for percent in PERCENTS if spent * 100 >= limit * percent]


def percent_used(spent: Money, limit: Money) -> float:
    """Return how much of the limit was spent, in percent; infinite where the limit is 0."""
    if not limit:
        return float("inf") if spent else 0.0
    return spent.micros * 100 / limit.micros


def standing(spent: Money, limit: Money) -> AlertType | None:
    """Return the highest threshold reached, as it is documented; None below half."""
    crossed = reached(spent, limit)
    return PERCENTS[crossed[-1]] if crossed else None


@dataclass
class BudgetAlert:
    """A model's budget of which a threshold was reached."""

    model_name: str
    alert_type: AlertType
    current_cost: float
    budget_limit: float
    percent_used: float
    timestamp: datetime = field(default_factory=utc_now)
    message: str = ""
    currency: str = field(default="USD", kw_only=True)

    def __post_init__(self) -> None:
        if self.alert_type not in get_args(AlertType):
            raise InvalidValue("alert_type", self.alert_type, choices(get_args(AlertType)))
        if not self.message:
            used = f"{self._shown(self.current_cost)} of {self._shown(self.budget_limit)}"
            stands = "is used up" if self.alert_type == "exceeded" else "is being used up"
            percent = "" if self.budget_limit == 0 else f" ({self.percent_used:.1f} %)"
            self.message = f"The budget of {self.model_name} {stands}: {used}{percent}"

    def _shown(self, amount: float) -> str:
        return f"${amount:.2f}" if self.currency == "USD" else f"{amount:.2f} {self.currency}"
