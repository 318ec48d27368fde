"""What a launcher's login may not do to a book, whatever client it uses."""

from __future__ import annotations

import hashlib
from decimal import Decimal

import psycopg
import pytest

from outlay import BudgetGuard
from outlay.guard.entries import SCHEMA, AnyEntry, Captured, Decision, Held, Noted, encode
from outlay.team import PostgresSpendLog
from postgres import TeamDatabase

STATEMENTS = {
    "change a line": "UPDATE outlay.entry SET line = 'x'",
    "remove a line": "DELETE FROM outlay.entry",
    "empty a table": "TRUNCATE outlay.entry",
    "empty all tables": "TRUNCATE outlay.book CASCADE",
    "insert a line": "INSERT INTO outlay.entry (book, seq, before, line, hash, kind, hold, key)"
    " VALUES (1, 9, '', 'x', 'x', 'note', '', '')",
    "make a book": "INSERT INTO outlay.book (name) VALUES ('mine')",
    "move a head": "UPDATE outlay.book SET seq = 0",
    "remove a book": "DELETE FROM outlay.book",
    "change a kept row": "UPDATE outlay.fold SET value = NULL",
    "insert a kept row": "INSERT INTO outlay.fold VALUES (1, 's', 'totals', 'x', 1, 'x')",
    "change a snapshot": "UPDATE outlay.snapshot SET root = ''",
    "insert a snapshot": "INSERT INTO outlay.snapshot (book, shape, seq, root) VALUES (1,'s',1,'')",
    "prune snapshots": "SELECT outlay.prune('mine', 0)",
    "remove kept rows": "SET outlay.pruning = 'on'; DELETE FROM outlay.fold",
    "remove snapshots": "SET outlay.pruning = 'on'; DELETE FROM outlay.snapshot",
    "merge into the lines": "MERGE INTO outlay.entry e USING outlay.entry s ON e.seq = s.seq"
    " WHEN MATCHED THEN DELETE",
    "lock a table": "BEGIN; LOCK TABLE outlay.entry IN ACCESS EXCLUSIVE MODE",
    "lock a head": "SELECT 1 FROM outlay.book FOR UPDATE",
    "disable a trigger": "ALTER TABLE outlay.entry DISABLE TRIGGER ALL",
    "drop a trigger": "DROP TRIGGER append_only ON outlay.entry",
    "add a trigger": "CREATE TRIGGER mine BEFORE INSERT ON outlay.entry FOR EACH ROW"
    " EXECUTE FUNCTION outlay.refuse()",
    "add a column": "ALTER TABLE outlay.entry ADD COLUMN mine text",
    "add a rule": "CREATE RULE mine AS ON INSERT TO outlay.entry DO INSTEAD NOTHING",
    "drop an index": "DROP INDEX outlay.entry_settles",
    "add an index": "CREATE INDEX mine ON outlay.entry (seq)",
    "drop a table": "DROP TABLE outlay.entry CASCADE",
    "drop the schema": "DROP SCHEMA outlay CASCADE",
    "add a table": "CREATE TABLE outlay.mine (n int)",
    "add a function": "CREATE FUNCTION outlay.sha256(bytea) RETURNS bytea"
    " LANGUAGE sql AS 'SELECT $1'",
    "replace a function": "CREATE OR REPLACE FUNCTION outlay.version() RETURNS integer"
    " LANGUAGE sql AS 'SELECT 2'",
    "alter a function": "ALTER FUNCTION outlay.append(text, bigint, bytea[], bytea[])"
    " SECURITY INVOKER",
    "call a check": "SELECT outlay.check_entry(NULL, '{}')",
    "become the owner": "SET ROLE outlay_owner",
    "act as the owner": "SET SESSION AUTHORIZATION outlay_owner",
    "join the owner": "GRANT outlay_owner TO CURRENT_USER",
    "own a table": "ALTER TABLE outlay.entry OWNER TO CURRENT_USER",
    "skip triggers": "SET session_replication_role = replica",
    "write a file": "COPY outlay.entry TO '/tmp/entries'",
    "copy lines in": "COPY outlay.entry FROM '/dev/null'",
    "set a server's default": "ALTER SYSTEM SET fsync = off",
    "read passwords": "SELECT * FROM pg_authid",
}  # fmt: skip


@pytest.mark.parametrize("act", STATEMENTS)
def test_a_statement_is_refused(team: TeamDatabase, act: str) -> None:
    before = team.execute("SELECT count(*), sum(seq) FROM outlay.book")
    with (
        psycopg.connect(team.url(), autocommit=True) as connection,
        pytest.raises(psycopg.Error) as caught,
    ):
        connection.execute(STATEMENTS[act])
    assert caught.value.sqlstate in ("42501", "42809", "25001", "0LP01"), caught.value
    assert team.execute("SELECT count(*), sum(seq) FROM outlay.book") == before


def test_a_launcher_grants_nothing(team: TeamDatabase) -> None:
    """PostgreSQL only warns about it."""
    asked = "SELECT has_table_privilege('outlay_launcher', 'outlay.entry', 'INSERT, UPDATE')"
    with psycopg.connect(team.url(), autocommit=True) as connection:
        connection.execute("GRANT INSERT, UPDATE ON outlay.entry TO outlay_launcher, PUBLIC")
        assert connection.execute(asked).fetchone() == (False,)


def held(hold: str, **more: object) -> Held:
    about = {"v": SCHEMA, "ts": "2026-11-15T10:00:00Z", "op_label": "op", "currency": "USD"}
    about |= {"estimated": Decimal(1), "hold": hold, "lab": "02", "day": "2026-11-15"}
    return Held(**(about | more))  # type: ignore[arg-type]


def captured(hold: str, **more: object) -> Captured:
    about = {"v": SCHEMA, "ts": "2026-11-15T10:00:00Z", "op_label": "op", "currency": "USD"}
    about |= {"actual": Decimal(1), "hold": hold, "lab": "02", "day": "2026-11-15"}
    return Captured(**(about | more))  # type: ignore[arg-type]


def chained(log: PostgresSpendLog, entry: AnyEntry | bytes, after: str = "") -> bytes:
    """Return an entry as the line that follows the book's last one, or another hash."""
    body = (entry if isinstance(entry, bytes) else encode(entry))[:-1]
    last = after or log.head()
    digest = hashlib.sha256(f"{last}\n".encode() + body).hexdigest()
    return body + f',"hash":"{digest}"}}\n'.encode()


def note(**more: object) -> Noted:
    return Noted(
        v=SCHEMA, ts="2026-11-15T10:00:00Z", op_label="op", currency="USD", event="seen",
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


LINES: dict[str, AnyEntry | bytes] = {
    "settle twice": captured("settled"),
    "settle what was never held": captured("unknown"),
    "open a hold twice": held("open"),
    "use a key twice": held("new", key="used"),
    "hold a negative amount": held("new", estimated=Decimal(-1)),
    "capture a negative amount": captured("open", actual=Decimal(-1)),
    "hold in another currency": held("new", currency="EUR"),
    "a kind that is unknown": b'{"kind":"grant","v":1,"currency":"USD"}',
    "a version that is unknown": b'{"kind":"note","v":2,"currency":"USD"}',
    "no kind": b'{"v":1,"currency":"USD"}',
    "no JSON": b"{nonsense}",
    "two lines in one": b'{"kind":"note","v":1,\n"currency":"USD"}',
    "a hold without an id": b'{"kind":"hold","v":1,"currency":"USD","hold":""}',
    "a NUL in a hold": b'{"kind":"hold","v":1,"currency":"USD","hold":"\\u0000"}',
}


@pytest.fixture(scope="module")
def settled(team: TeamDatabase) -> PostgresSpendLog:
    """A book with an open hold, a settled one, and a key."""
    log = team.log()
    log.transact(lambda _: Decision((held("first"),), None))
    for entry in (held("open"), held("settled", key="used"), captured("settled")):
        append(log, chained(log, entry))
    assert log.verify().findings == ()
    return log


def append(log: PostgresSpendLog, line: bytes, after: int = 0, before: bytes | None = b"") -> None:
    """Append a line as any client can."""
    with psycopg.connect(log.name.server, autocommit=True) as connection:
        (seq,) = connection.execute(
            "SELECT seq FROM outlay.book WHERE name = %s", [log.name.book]
        ).fetchone() or (0,)
        connection.execute(
            "SELECT outlay.append(%s, %s, %s::bytea[], %s::bytea[])",
            [log.name.book, after or seq, [before], [line]],
        )


@pytest.mark.parametrize("what", LINES)
def test_a_line_that_contradicts_the_book_is_refused(settled: PostgresSpendLog, what: str) -> None:
    lines = settled.lines()
    with pytest.raises(psycopg.Error):
        append(settled, chained(settled, LINES[what]))
    assert settled.lines() == lines


def test_a_line_outside_the_chain_is_refused(settled: PostgresSpendLog) -> None:
    good, head = chained(settled, note()), settled.head()
    wrong = {
        "another hash": chained(settled, note(), after="0" * 64),
        "an edited line": good.replace(b'"op"', b'"no"'),
        "no newline": good[:-1],
        "no hash": encode(note()) + b"\n",
        "nothing": b"",
    }
    for line in wrong.values():
        with pytest.raises(psycopg.Error, match="outside the chain"):
            append(settled, line)
    for before in (None, b"x", b"{}\n"):
        with pytest.raises(psycopg.Error, match="outside the chain"):
            append(settled, good, before=before)
    with pytest.raises(psycopg.Error, match="entries, not"):
        append(settled, good, after=1)
    assert settled.head() == head


def test_the_owner_can_not_change_a_line_by_accident(team: TeamDatabase) -> None:
    BudgetGuard(5, team.new_book(), environ={}).authorize("lab02-a", 1)
    for statement in (
        "UPDATE outlay.entry SET line = ''", "DELETE FROM outlay.entry", "TRUNCATE outlay.entry",
        "UPDATE outlay.book SET seq = 0 WHERE seq > 0", "DELETE FROM outlay.fold",
        "DELETE FROM outlay.snapshot", "TRUNCATE outlay.fold",
    ):  # fmt: skip
        with pytest.raises(psycopg.Error) as caught:
            team.execute(statement)
        assert caught.value.sqlstate == "OUT03"


def test_a_line_that_the_owner_did_change_is_found(team: TeamDatabase) -> None:
    url = team.new_book()
    guard = BudgetGuard(5, url, environ={})
    for label in ("lab02-a", "lab02-b"):
        guard.authorize(label, 1)
    book = url.partition("book=")[2]
    rows = f"book = (SELECT id FROM outlay.book WHERE name = '{book}')"
    team.execute(
        "ALTER TABLE outlay.entry DISABLE TRIGGER append_only;"
        f"UPDATE outlay.entry SET hold = 'x' WHERE {rows} AND seq = 1;"
        "ALTER TABLE outlay.entry ENABLE TRIGGER append_only;"
    )
    (finding,) = team.log(url).verify().findings
    assert "entry 1: its columns differ" in finding.message


def test_a_snapshot_that_lies_is_found(team: TeamDatabase) -> None:
    """The login may keep rows: what they say is checked by ``verify``."""
    log = team.log()
    guard = BudgetGuard(500, log.name.url, environ={}, log=log)
    for number in range(64):
        guard.authorize(f"lab02-{number}", 1)
    rows = f"book = (SELECT id FROM outlay.book WHERE name = '{log.name.book}')"
    team.execute(
        "ALTER TABLE outlay.fold DISABLE TRIGGER append_only;"
        f"UPDATE outlay.fold SET value = '[0,1]' WHERE {rows} AND name = 'totals';"
        "ALTER TABLE outlay.fold ENABLE TRIGGER append_only;"
    )
    findings = log.verify().findings
    assert findings
    assert all("its snapshot at entry 64 does not agree" in each.message for each in findings)


def test_a_snapshot_that_names_another_line_is_not_used(team: TeamDatabase) -> None:
    """Everything is then read once by each process, and not again and again."""
    log = team.log()
    guard = BudgetGuard(500, log.name.url, environ={}, log=log)
    for number in range(64):
        guard.authorize(f"lab02-{number}", 1)
    rows = f"book = (SELECT id FROM outlay.book WHERE name = '{log.name.book}')"
    team.execute(
        "ALTER TABLE outlay.snapshot DISABLE TRIGGER append_only;"
        f"UPDATE outlay.snapshot SET root = '{{}}' WHERE {rows};"
        "ALTER TABLE outlay.snapshot ENABLE TRIGGER append_only;"
    )
    other = BudgetGuard(500, log.name.url, environ={})
    for number in range(70):
        other.authorize(f"lab03-{number}", 1)
    books = other.log._books  # type: ignore[attr-defined]
    other.authorize("lab03-last", 1)
    assert other.log._books is books  # type: ignore[attr-defined]
    assert other.held == guard.held == 135
