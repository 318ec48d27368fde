"""How the scopes of a log stand, and what a reader should know beside the figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from outlay.errors import Finding
from outlay.guard.books import Books
from outlay.guard.entries import Noted
from outlay.guard.policy import Ceilings, Standing, standings_of
from outlay.guard.scopes import WHOLE, Scope


def standings(
    books: Books, ceilings: Ceilings, *, day: str, at_ns: int, lab: str | None = None
) -> tuple[Standing, ...]:
    """Return every scope that has a limit, the whole first; ``lab`` is one even if unheard of."""
    asked = () if lab is None else (lab,)
    spent_in = {scope.name for scope in books.balances if scope.kind == "lab"}
    labs = sorted({*ceilings.labs, *spent_in, *asked})
    scopes = (
        WHOLE,
        *(Scope("lab", lab) for lab in labs),
        Scope("day", day),
        Scope("month", day[:7]),
    )
    return standings_of(books, ceilings, scopes, at_ns=at_ns)


def doubts(
    books: Books, source: str, *, today: str, unattended: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Return what is in doubt: ceilings raised, logs accepted, dates ahead, lost rentals.

    Args:
        books: The fold of the log.
        source: What to call the log.
        today: The UTC day.
        unattended: Why a rental is an error, by its hold: overdue, or without a watcher.
    """
    raised = [
        "the ceiling was raised from {from} to {to} by {by}".format(**noted.detail)
        + f" at {noted.ts}{_why(noted)}"
        for noted in books.raised
    ]
    accepted = [
        f"{noted.detail['by']} accepted the log at {noted.ts} although "
        f"{noted.detail['found'] or 'its last day lay ahead'}{_why(noted)}"
        for noted in books.accepted
    ]
    ahead = []
    if books.last_dated.day > today:
        line = books.last_dated
        ahead = [f"a line of {line.op_label!r} is dated {line.day}, which lies ahead of {today}"]
    lost = [
        f"hold {hold.id} ({hold.op_label}) pays for something whose id is unknown; "
        "find it with `outlay guard reap`"
        for hold in books.open.values()
        if hold.state == "unknown"
    ]
    return (
        *(
            Finding(source=source, message=text, severity="warning")
            for text in (*accepted, *ahead, *raised)
        ),
        *(Finding(source=source, message=text) for text in (*lost, *_untended(books, unattended))),
    )


def _untended(books: Books, unattended: Mapping[str, str]) -> list[str]:
    holds = (books.open[hold_id] for hold_id in unattended)
    return [
        f"hold {hold.id} ({hold.op_label}) pays for {hold.resource or 'something'} rented, and "
        f"{unattended[hold.id]}: it bills on. `outlay guard down {hold.op_label}` ends it, "
        f"`outlay guard adopt {hold.id}` watches it again"
        for hold in holds
    ]


def _why(noted: Noted) -> str:
    return f": {noted.detail['reason']}" if "reason" in noted.detail else ""
