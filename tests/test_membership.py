"""Who is in which team on a day, and which team pays."""

from __future__ import annotations

import pytest

from outlay.membership import Membership, paying_team, teams_on

PEOPLE = (
    Membership(user="ada", team="vision", since="2026-01-01", until="2026-03-01"),
    Membership(user="ada", team="speech", since="2026-02-15"),
    Membership(user="ada", team="speech", since="2026-01-15", until="2026-02-01"),
    Membership(user="bob", team="audio", since="2026-01-01"),
)


@pytest.mark.parametrize(
    ("day", "teams"),
    [
        ("2025-12-31", ()),
        ("2026-01-01", ("vision",)),
        ("2026-01-20", ("speech", "vision")),
        ("2026-02-01", ("vision",)),
        ("2026-02-28", ("speech", "vision")),
        ("2026-03-01", ("speech",)),
    ],
)
def test_a_membership_goes_from_its_first_day_to_before_its_end(
    day: str, teams: tuple[str, ...]
) -> None:
    assert teams_on(PEOPLE, "ada", day) == teams


@pytest.mark.parametrize(
    ("stated", "teams", "team"),
    [
        ("nlp", ("vision",), "nlp"),
        ("", ("vision",), "vision"),
        ("", ("speech", "vision"), ""),
        ("", (), ""),
    ],
)
def test_a_stated_team_pays_else_the_only_one(
    stated: str, teams: tuple[str, ...], team: str
) -> None:
    assert paying_team(stated, teams) == team
