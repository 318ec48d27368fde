"""Whether more may be set aside: in every scope, captured + held + new <= limit. Pure.

Where ceilings come from is the subject of ``ceilings``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outlay.guard.books import Books
from outlay.guard.scopes import Scope, scopes_of
from outlay.units import Money


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The limits in force; ``None`` means no limit of that kind.

    Attributes:
        whole: The hard ceiling.
        labs: A cap per lab. Once there is one, a lab without a cap has none of the money.
        day: A cap for each UTC day.
        month: A cap for each UTC month.
    """

    whole: Money
    labs: Mapping[str, Money] = field(default_factory=dict)
    day: Money | None = None
    month: Money | None = None

    def of(self, scope: Scope) -> Money | None:
        """Return the scope's limit."""
        match scope.kind:
            case "whole":
                return self.whole
            case "day":
                return self.day
            case "month":
                return self.month
            case "lab":
                nothing = Money(0, self.whole.currency)
                return self.labs.get(scope.name, nothing) if self.labs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A ceiling set in the environment: by which variable, and over what."""

    variable: str
    over: Money
    loosens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The ceilings in force, and the override that set them, if one did."""

    ceilings: Ceilings
    override: Override | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A scope that has no room for what was asked."""

    scope: Scope
    limit: Money
    captured: Money
    held: Money
    asked: Money

    def __str__(self) -> str:
        free = self.limit - self.captured - self.held
        return (
            f"{self.scope}: {self.captured} spent + {self.held} held + {self.asked} asked "
            f"> {self.limit} ({free} free)"
        )


def shortfalls(
    books: Books, ceilings: Ceilings, *, lab: str, day: str, asked: Money
) -> tuple[Shortfall, ...]:
    """Return every scope in which ``asked`` more does not fit; empty means allowed."""
    short = []
    for scope in scopes_of(lab, day):
        limit = ceilings.of(scope)
        if (
            limit is None
            or books.captured(scope) + books.held(scope) + asked.micros <= limit.micros
        ):
            continue
        captured = Money(books.captured(scope), asked.currency)
        held = Money(books.held(scope), asked.currency)
        short.append(Shortfall(scope=scope, limit=limit, captured=captured, held=held, asked=asked))
    return tuple(short)
