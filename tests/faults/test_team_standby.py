"""A standby that was promoted without the last lines: refused until a person accepts it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import in_process, python
from outlay import BudgetGuard
from outlay.guard.entries import Held, Noted
from outlay.guard.errors import SpendLogRolledBack
from outlay.team.transfer import export_book
from postgres import USER, PostgresServer, TeamDatabase
from waiting import until

LOST = 3


@pytest.fixture
def standby(team: TeamDatabase) -> Iterator[PostgresServer]:
    """A standby of the server of the tests, which is running again afterwards."""
    standby = PostgresServer()
    try:
        standby.copy(team.server)
        standby.start()
        yield standby
    finally:
        standby.remove()
        if team.server.process is None:
            team.server.start()


def either(url: str, primary: PostgresServer, standby: PostgresServer) -> str:
    """Return the URL of whichever of two servers takes writes."""
    both = f"@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/"
    return url.replace(f"@127.0.0.1:{primary.port}/", both) + "&target_session_attrs=read-write"


def guard_of(url: str) -> BudgetGuard:
    return BudgetGuard(100, url, environ={})


def fail_over(primary: PostgresServer, standby: PostgresServer) -> None:
    primary.stop_at_once()
    standby.promote()


FRESH = """
import sys
from outlay import BudgetGuard

BudgetGuard(100, sys.argv[1], environ={}).authorize("lab02-fresh", 1)
"""


def test_a_promoted_standby_that_lacks_lines_is_refused_until_accepted(
    team: TeamDatabase, standby: PostgresServer, tmp_path: Path
) -> None:
    primary = team.server
    url = either(team.new_book(), primary, standby)
    writer, reader = guard_of(url), guard_of(url)
    kept = [writer.authorize(f"lab02-kept-{number}", 1).id for number in range(2)]
    until(lambda: standby.has(primary), standby.explain)
    standby.stop_following()
    lost = [writer.authorize(f"lab02-lost-{number}", 1).id for number in range(LOST)]
    assert [hold.id for hold in reader.holds()] == [*kept, *lost]
    fail_over(primary, standby)

    for guard in (writer, reader, guard_of(url)):
        for _ in range(2):
            with pytest.raises(SpendLogRolledBack, match=r"lines up to byte .* were seen"):
                guard.authorize("lab02-over-the-hole", 1)
    fresh = python(FRESH, url)
    assert (fresh.code, "lines up to byte" in fresh.err) == (1, True)
    counted = f"SELECT seq, lines FROM outlay.book WHERE name = '{team.log(url).name.book}'"
    assert standby.execute(counted, database=team.name) == [(2, 2)]

    said = in_process("guard", "verify", "--log", url, "--json")
    (finding,) = said.json["findings"]
    assert (said.code, finding["line"]) == (3, 2)
    assert "lines up to byte" in finding["message"]

    reason = "the primary burned; lost-0 to lost-2 are cancelled"
    owner = url.replace(f"{team.login}:{team.password}@", f"{USER}:{primary.password}@")
    assert in_process("guard", "accept", "--log", owner, "--reason", reason).code == 0
    for number, guard in enumerate((writer, reader, guard_of(url))):
        guard.authorize(f"lab02-after-{number}", 1)
    *held, accepted, _, _, _ = writer.log.lines()
    assert [line.hold for line in held if isinstance(line, Held)] == kept
    assert isinstance(accepted, Noted)
    assert reason in str(accepted)
    assert writer.verify().findings == ()
    export_book(team.log(url), tmp_path / "spend.jsonl")
    exported = in_process("guard", "verify", "--log", tmp_path / "spend.jsonl", columns=200)
    assert "sound, 6 of 6 lines chained" in exported.out


def test_a_promoted_standby_that_has_every_line_is_used_at_once(
    team: TeamDatabase, standby: PostgresServer
) -> None:
    primary = team.server
    url = either(team.new_book(), primary, standby)
    guard = guard_of(url)
    first = guard.authorize("lab02-first", 1).id
    until(lambda: standby.has(primary), standby.explain)
    fail_over(primary, standby)
    second = guard.authorize("lab02-second", 1).id
    assert [hold.id for hold in guard.holds()] == [first, second]
    assert guard.verify().findings == ()
