"""How the scopes of a log stand, and what a reader should know beside the figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.errors import Finding
from outlay.guard.books import Books
from outlay.guard.policy import Ceilings
from outlay.guard.scopes import WHOLE, Scope
from outlay.units import Money


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one scope stands: its limit, what was spent and what is set aside."""

    scope: Scope
    limit: Money
    captured: Money
    held: Money

    @property
    def remaining(self) -> Money:
        """What is left; negative once more was spent than the limit allows."""
        return self.limit - self.captured - self.held


def standings(books: Books, ceilings: Ceilings, *, day: str) -> tuple[Standing, ...]:
    """Return every scope that has a limit, the whole first."""
    spent_in = {scope.name for scope in books.balances if scope.kind == "lab"}
    labs = sorted({*ceilings.labs, *spent_in})
    scopes = (
        WHOLE,
        *(Scope("lab", lab) for lab in labs),
        Scope("day", day),
        Scope("month", day[:7]),
    )
    return tuple(
        Standing(
            scope=scope,
            limit=limit,
            captured=Money(books.captured(scope), limit.currency),
            held=Money(books.held(scope), limit.currency),
        )
        for scope in scopes
        if (limit := ceilings.of(scope)) is not None
    )


def doubts(books: Books, source: str) -> tuple[Finding, ...]:
    """Return what is in doubt: ceilings that were raised, things rented that can't be found."""
    raised = [
        "the ceiling was raised from {from} to {to} by {by}".format(**noted.detail)
        + f" at {noted.ts}"
        for noted in books.raised
    ]
    lost = [
        f"hold {hold.id} ({hold.op_label}) pays for something whose id is unknown; "
        "find it with `outlay guard reap`"
        for hold in books.open.values()
        if hold.state == "unknown"
    ]
    return (
        *(Finding(source=source, message=text, severity="warning") for text in raised),
        *(Finding(source=source, message=text) for text in lost),
    )
