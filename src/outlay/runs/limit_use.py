"""What is used of every limit: budgets of models, ceilings of spend logs, and which are exceeded.

A budget of a run is not among them: its run stops at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from outlay.cost.cost_book import CostBook, budgeted
from outlay.errors import Finding
from outlay.guard.scopes import HOUR, WHOLE, Scope
from outlay.units import Money
from outlay.units.shown import money_text

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from outlay.guard.away.polled_log import PolledLog
    from outlay.guard.ceilings import ScopeStanding

LimitState = Literal["below", "near", "over"]
NEAR: Final = 0.8
"""The used share from which a limit is nearly used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """A limit, what is spent of it, and what is held for later.

    Attributes:
        name: Such as ``budget of bert`` or ``project 02 day 2026-11-18``.
        source: The spend log whose ceiling it is; empty for the budget of a model.
        scope: Of a ceiling, what it is of; of an hourly one, the amounts are per hour.
        model: Of a budget.
        refuses: Whether what exceeds it is refused; else it is only reported.
    """

    name: str
    limit: Money
    spent: Money
    held: Money
    source: str = ""
    scope: Scope = WHOLE
    model: str = ""
    refuses: bool = True

    @property
    def used(self) -> Money:
        """What is spent and held."""
        return self.spent + self.held

    @property
    def remaining(self) -> Money:
        """What is left; negative once the limit is exceeded."""
        return self.limit - self.used

    @property
    def share(self) -> float:
        """The used share; infinite if something is used of a limit of 0."""
        if not self.limit:
            return float("inf") if self.used else 0.0
        return self.used.micros / self.limit.micros

    @property
    def state(self) -> LimitState:
        """Whether it is exceeded, or nearly used up."""
        if self.remaining.micros < 0:
            return "over"
        return "near" if self.share >= NEAR else "below"

    @property
    def share_text(self) -> str:
        """The used share in words that tell the three states apart."""
        if not self.limit:
            return "over" if self.used else "closed"
        words = {"below": "", "near": ", nearly used up", "over": " over"}
        shown = f"{self.share:.0%}" if self.state != "over" else f"{self.share - 1:.1%}"
        return f"{shown}{words[self.state]}"

    @property
    def finding(self) -> Finding:
        """That it is exceeded."""
        hourly = "/h" if self.scope.period == HOUR else ""
        held = f", {money_text(self.held)}{hourly} of it held" if self.held else ""
        message = (
            f"{self.name} is over its limit by {money_text(-self.remaining)}{hourly}: "
            f"{money_text(self.used)}{hourly} of {money_text(self.limit)}{hourly}{held}"
        )
        return Finding(source=self.source or f"model {self.model}", message=message)


def use_of_standing(log: str, found: ScopeStanding) -> LimitUse:
    """Return what is used of one ceiling of a spend log."""
    return LimitUse(
        name=str(found.scope), source=log, scope=found.scope, limit=found.limit,
        spent=found.captured, held=found.held, refuses=found.refuses,
    )  # fmt: skip


def exceeded(uses: Iterable[LimitUse]) -> list[LimitUse]:
    """Return the limits that are exceeded, those that are the most first."""
    return sorted((use for use in uses if use.state == "over"), key=lambda use: -use.share)


def over_limit(uses: Iterable[LimitUse]) -> list[Finding]:
    """Return an error for each limit that is exceeded, those that are the most first."""
    return [use.finding for use in exceeded(uses)]


def read_limits(
    store: Engine, logs: Sequence[PolledLog], findings: list[Finding]
) -> list[LimitUse]:
    """Return what is used of the budgets of models and of the ceilings of spend logs.

    Logs that cannot be read are added to ``findings``.
    """
    uses = list(model_budgets(store))
    for log in logs:
        polled = log.ask("ceilings", lambda log=log: log.open().standings())  # type: ignore[misc]
        uses += (use_of_standing(log.shown, each) for each in polled.value or ())
        findings += polled.findings(log.shown)
    return uses


def model_budgets(store: Engine) -> Iterator[LimitUse]:
    """Yield what the runs of each model with a budget have spent of it."""
    book = CostBook(store)
    for model, budget in book.budgets().items():
        found = budgeted(book.reports(model), budget.limit)
        yield LimitUse(
            name=f"budget of {model}", model=model, limit=found.limit, spent=found.spent,
            held=found.limit * 0,
        )  # fmt: skip
