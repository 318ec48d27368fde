"""Books behind a real PgBouncer in transaction mode."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import start_python
from outlay import BudgetGuard
from outlay.clock import SYSTEM
from outlay.guard.entries import SCHEMA, Decision, Noted, timestamp
from outlay.guard.errors import SpendLogUnusable
from outlay.guard.spend_log import FileSpendLog
from outlay.team.session import Patience
from outlay.team.transfer import export_book
from pooler import Pooler
from postgres import TeamDatabase
from waiting import until

RACERS, ASKS = 32, 1000
RACER = """
import sys
from outlay import BudgetGuard, BudgetGuardExceeded

guard, won = BudgetGuard(5, sys.argv[1], environ={}), 0
for number in range(int(sys.argv[2])):
    try:
        guard.authorize("lab02-race", "0.10 USD")
        won += 1
    except BudgetGuardExceeded:
        pass
sys.exit(won)
"""


def sessions(pooler: Pooler, which: str = "true") -> int:
    """Return how many connections the pooler has to the server, or some of them."""
    of_login = f"FROM pg_stat_activity WHERE usename = '{pooler.login}' AND {which}"
    return len(pooler.team.execute(f"SELECT pid {of_login}"))


def test_many_that_race_through_few_connections_never_exceed_the_ceiling(pooler: Pooler) -> None:
    url = pooler.url(pooler.team.new_book())
    shares = [ASKS // RACERS + (number < ASKS % RACERS) for number in range(RACERS)]
    children = [start_python(RACER, url, str(share)) for share in shares]
    assert sum(child.wait() for child in children) == 50
    assert 0 < sessions(pooler) <= pooler.connections < RACERS
    guard = BudgetGuard(5, url, environ={})
    assert (guard.held, len(guard.holds())) == (5.0, 50)
    assert guard.verify().findings == ()


def test_snapshots_and_exports_go_through_a_pooler(pooler: Pooler, tmp_path: Path) -> None:
    log = pooler.log()
    guard = BudgetGuard(500, log.name.url, environ={}, log=log)
    for number in range(70):
        guard.authorize(f"lab02-{number}", 1)
    other = pooler.team.log(log.name.url)
    assert BudgetGuard(500, log.name.url, environ={}, log=other).held == 70
    assert other._began == 64
    export_book(other, tmp_path / "spend.jsonl")
    assert FileSpendLog(tmp_path / "spend.jsonl").verify().findings == ()


def test_who_idles_with_the_lock_behind_a_pooler_is_ended_by_the_server(pooler: Pooler) -> None:
    log, calls = pooler.log(patience=Patience(idle=0.2)), list[int]()
    in_use = "xact_start IS NOT NULL"

    def decide(_: object) -> Decision[None]:
        calls.append(sessions(pooler, in_use))
        if len(calls) == 1:
            until(lambda: not sessions(pooler, in_use), "the server did not end the session")
        ts = timestamp(log.wall_ns(SYSTEM))
        noted = Noted(v=SCHEMA, ts=ts, op_label="op", currency="USD", event="seen")
        return Decision((noted,), None)

    log.transact(decide)
    assert calls == [1, 1]
    assert len(log.lines()) == 1


def test_a_server_that_restarts_behind_a_pooler_loses_nothing(pooler: Pooler) -> None:
    url = pooler.url(pooler.team.new_book())
    guard = BudgetGuard(500, url, environ={})
    guard.authorize("lab02-a", 1, key="a")
    pooler.server.stop_at_once()
    pooler.server.start()

    def is_answered() -> bool:
        try:
            return bool(guard.authorize("lab02-b", 1, key="b"))
        except SpendLogUnusable:
            return False  # The pooler waits before it logs in again.

    until(is_answered, "the pooler does not come back")
    assert [hold.op_label for hold in guard.holds()] == ["lab02-a", "lab02-b"]
    assert guard.verify().findings == ()


@pytest.fixture
def forced(team: TeamDatabase) -> Iterator[Pooler]:
    """A pooler that logs in as somebody else, for everybody."""
    other = f"shared_{secrets.token_hex(4)}"
    team.add_login(other, team.password)
    pooler = Pooler(team, forced=other)
    try:
        pooler.start()
        yield pooler
    finally:
        pooler.remove()
        team.execute(f"DROP ROLE {other}")


def test_a_pooler_that_hides_who_spends_is_refused(forced: Pooler) -> None:
    log = forced.log()
    guard = BudgetGuard(5, log.name.url, environ={}, log=log)
    said = f"has {forced.forced} as its login, and not {forced.login}.*remove user="
    for ask in (lambda: guard.authorize("lab02-a", 1), guard.holds):
        with pytest.raises(SpendLogUnusable, match=said):
            ask()
    rows = f"SELECT seq FROM outlay.book WHERE name = '{log.name.book}'"
    assert forced.team.execute(rows) == [(0,)]


def test_a_link_that_is_cut_is_noticed_in_twelve_seconds(team: TeamDatabase) -> None:
    """The first probe is sent after some idle time, and the next one finds the limit exceeded."""
    log = team.log()
    log.books()
    connected = log._session._connected
    assert connected is not None
    with socket.fromfd(connected.connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as used:
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
        idle_s, interval_s, limit_ms = (used.getsockopt(socket.IPPROTO_TCP, name) for name in names)
    assert idle_s + interval_s <= 12
    assert idle_s * 1000 <= limit_ms <= 10_000
