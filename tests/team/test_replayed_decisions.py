"""``verify`` replays every decision under the limits in force then: in a book and in its export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from outlay import BudgetGuard
from outlay.guard.ceilings import LimitChange
from outlay.guard.chain import chained_lines
from outlay.guard.scopes import ScopePattern
from outlay.guard.spend_log import FileSpendLog
from outlay.team.transfer import export_book
from outlay.units import Money, Rate
from postgres import TeamDatabase

pytestmark = pytest.mark.xdist_group("postgres")
Forge = Callable[[BudgetGuard], object]

OF_ALL = ScopePattern()
PATTERNS = {
    "whole": OF_ALL,
    "day": ScopePattern(period="day"),
    "user ana month": ScopePattern("user", "ana", "month"),
    "user ana": ScopePattern("user", "*"),
    "team vision day": ScopePattern("team", "vision", "day"),
    "project 02": ScopePattern("lab", "02"),
}


@pytest.fixture
def guard(tmp_path: Path) -> BudgetGuard:
    path = tmp_path / "spend.jsonl"
    return BudgetGuard(None, path, user="ana", team="vision", environ={})


def limit(guard: BudgetGuard, pattern: ScopePattern, amount: str) -> None:
    guard.set_limit(LimitChange(pattern=pattern, amount=Money.parse(amount)), "so")


def forge(guard: BudgetGuard, act: Forge) -> None:
    """Write what a client writes that checks no limit, and states none in its line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outlay.guard.decisions.shortfalls", lambda *_, **__: ())
        patch.setattr("outlay.guard.decisions._is_limited", lambda *_: True)
        patch.setattr("outlay.guard.decisions._caps", lambda *_: {})
        act(guard)


def found(team: TeamDatabase, guard: BudgetGuard, tmp_path: Path) -> list[tuple[int, str]]:
    """Return what ``verify`` finds in the log, which is what it finds in a book and its export."""
    book, exported = team.log(team.new_book(owner=True)), tmp_path / "exported.jsonl"
    book.fill(iter([list(chained_lines(guard.log_path.read_bytes()))]))
    export_book(book, exported)
    logs = (guard.log, book, FileSpendLog(exported))
    findings = [[(each.line, each.message) for each in log.verify().findings] for log in logs]
    assert findings[1:] == findings[:1] * 2
    return findings[0]


@pytest.mark.parametrize("scope", PATTERNS)
def test_a_hold_above_a_limit_in_force_then_is_found(
    team: TeamDatabase, guard: BudgetGuard, tmp_path: Path, scope: str
) -> None:
    """Neither a limit lowered later, nor one raised later, makes a difference."""
    limit(guard, PATTERNS[scope], "5 USD")
    guard.authorize("lab02-a", 4)
    forge(guard, lambda guard: guard.authorize("lab02-b", 2))
    limit(guard, PATTERNS[scope], "9 USD")
    guard.authorize("lab02-c", 3)
    limit(guard, PATTERNS[scope], "1 USD")
    ((number, message),) = found(team, guard, tmp_path)
    assert number == 3
    assert message.startswith(f"it should have been refused: {scope}")
    assert message.endswith("came to 6.00 USD of 5.00")


@pytest.mark.parametrize(
    ("pattern", "act", "says"),
    [
        (OF_ALL, lambda guard: guard.extend(guard.holds()[0], 2), "whole came to 6.00 USD of 5.00"),
        (
            ScopePattern(period="hour"),
            lambda guard: guard.authorize("b", 1, rate=Rate.parse("6 USD/h")),
            "hour came to 6.00 USD of 5.00",
        ),
    ],
)
def test_extensions_and_hourly_costs_are_replayed(
    team: TeamDatabase,
    guard: BudgetGuard,
    tmp_path: Path,
    pattern: ScopePattern,
    act: Forge,
    says: str,
) -> None:
    limit(guard, pattern, "5 USD")
    guard.authorize("a", 4)
    forge(guard, act)
    assert found(team, guard, tmp_path) == [(3, f"it should have been refused: {says}")]


def test_a_hold_without_a_limit_is_found(
    team: TeamDatabase, guard: BudgetGuard, tmp_path: Path
) -> None:
    limit(guard, ScopePattern("user", "bob"), "5 USD")
    forge(guard, lambda guard: guard.authorize("lab02-a", 1))
    says = "no limit applied to user ana, team vision, project 02"
    assert found(team, guard, tmp_path) == [(2, f"it should have been refused: {says}")]
