"""Thresholds of a budget: how much of it is used, and the alert for a threshold. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args

from outlay.clock import as_utc, utc_now
from outlay.errors import InvalidValue, choices
from outlay.units import Money
from outlay.units.money import percents_reached
from outlay.units.shown import dollar_text, money_of

AlertType = Literal["warning_50", "warning_75", "warning_90", "exceeded"]
PERCENTS: Final[dict[int, AlertType]] = {
    50: "warning_50",
    75: "warning_75",
    90: "warning_90",
    100: "exceeded",
}


def reached(spent: Money, limit: Money) -> list[int]:
    """Return the reached thresholds in percent, compared exactly; none if nothing was spent."""
    if not spent:
        return []
    return percents_reached(spent, limit)


def percent_used(spent: Money, limit: Money) -> float:
    """Return the spent part of the limit in percent; infinite if the limit is 0."""
    if not limit:
        return float("inf") if spent else 0.0
    return spent.micros * 100 / limit.micros


def highest_reached(spent: Money, limit: Money) -> AlertType | None:
    """Return the highest reached threshold by its documented name; None below 50 %."""
    crossed = reached(spent, limit)
    return PERCENTS[crossed[-1]] if crossed else None


@dataclass
class BudgetAlert:
    """An alert for a reached threshold of a model's budget."""

    model_name: str
    alert_type: AlertType
    current_cost: float
    budget_limit: float
    percent_used: float
    timestamp: datetime = field(default_factory=utc_now)
    message: str = ""
    currency: str = field(default="USD", kw_only=True)

    def __post_init__(self) -> None:
        self.timestamp = as_utc(self.timestamp)
        if self.alert_type not in get_args(AlertType):
            raise InvalidValue("alert_type", self.alert_type, choices(get_args(AlertType)))
        if not self.message:
            used = f"{self._shown(self.current_cost)} of {self._shown(self.budget_limit)}"
            state = "is used up" if self.alert_type == "exceeded" else "is being used up"
            percent = "" if self.budget_limit == 0 else f" ({self.percent_used:.1f} %)"
            self.message = f"The budget of {self.model_name} {state}: {used}{percent}"

    def _shown(self, amount: float) -> str:
        return dollar_text(money_of(amount, self.currency), 2)
