"""Whether more may be set aside: in every scope, captured + held + new <= limit. Pure.

Where ceilings come from is the subject of ``ceilings``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from outlay.guard.books import Books
from outlay.guard.scopes import BUFFER, Scope, scopes_of
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

    def tightened_by(self, other: Ceilings) -> Ceilings:
        """Return the tighter of each limit; where both cap labs, a lab needs a cap in both."""

        def tighter(a: Money | None, b: Money | None) -> Money | None:
            return min((x for x in (a, b) if x is not None), default=None)

        shared = {
            lab: min(self.labs[lab], other.labs[lab]) for lab in self.labs.keys() & other.labs
        }
        if self.labs and other.labs and not shared:
            shared = {BUFFER: Money(0, self.whole.currency)}  # no lab has any of the money
        return Ceilings(
            whole=min(self.whole, other.whole),
            labs=shared or self.labs or other.labs,
            day=tighter(self.day, other.day),
            month=tighter(self.month, other.month),
        )

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
class Settled:
    """The ceilings in force, what set the whole's, and the caller's own where a variable did."""

    ceilings: Ceilings
    by: str
    over: Money | None


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


def standings_of(
    books: Books, ceilings: Ceilings, scopes: Iterable[Scope], *, at_ns: int
) -> tuple[Standing, ...]:
    """Return how those scopes stand that have a limit, rentals at what they have cost by then."""
    return tuple(
        Standing(
            scope=scope,
            limit=limit,
            captured=Money(books.captured(scope), limit.currency),
            held=Money(books.held(scope, at_ns=at_ns), limit.currency),
        )
        for scope in scopes
        if (limit := ceilings.of(scope)) is not None
    )


def shortfalls(
    books: Books, ceilings: Ceilings, *, lab: str, day: str, asked: Money, at_ns: int
) -> tuple[Standing, ...]:
    """Return every scope in which ``asked`` more does not fit; empty means allowed."""
    tight = [
        scope
        for scope in scopes_of(lab, day)
        if (limit := ceilings.of(scope)) is not None
        and Money(books.committed(scope, at_ns=at_ns), limit.currency) + asked > limit
    ]
    return standings_of(books, ceilings, tight, at_ns=at_ns) if tight else ()


def room(books: Books, ceilings: Ceilings, *, lab: str, day: str, at_ns: int) -> Money:
    """Return what more can be set aside: what the tightest scope has left."""
    rows = standings_of(books, ceilings, scopes_of(lab, day), at_ns=at_ns)
    return min(row.remaining for row in rows)
