"""Who is in which team on which day, and so which team pays. Pure; a book has the memberships."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A user in a team, on UTC days.

    Attributes:
        since: The first day, such as ``2026-11-15``.
        until: The first day on which the user is no longer in it; empty if there is none yet.
    """

    user: str
    team: str
    since: str
    until: str = ""

    def is_on(self, day: str) -> bool:
        """Return whether the user is in the team on a day."""
        return self.since <= day and (not self.until or day < self.until)


def teams_on(memberships: Iterable[Membership], user: str, day: str) -> tuple[str, ...]:
    """Return the teams of a user on a day."""
    own = (each for each in memberships if each.user == user)
    return tuple(sorted({each.team for each in own if each.is_on(day)}))


def paying_team(stated: str, teams: Sequence[str]) -> str:
    """Return the team that pays for a user: the stated one, else the only one; "" if unknown."""
    return stated or (teams[0] if len(teams) == 1 else "")
