"""What a launcher's login may not do to a book, whatever client it uses."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from outlay import BudgetGuard
from outlay.clock import SYSTEM
from outlay.guard.entries import (
    SCHEMA,
    AnyEntry,
    Captured,
    Corrected,
    Extended,
    Held,
    Limited,
    Noted,
    Sealed,
    Voided,
    encode,
    timestamp,
)
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
    "call a check": "SELECT outlay.check_form(NULL, '{}', '{}')",
    "count": "SELECT outlay.count(1, NULL, 0, -5, 0)",
    "append without checks": "SELECT outlay.append_lines(NULL, '{}', '{}', true)",
    "set a limit by a function": "SELECT outlay.set_ceiling(1, '{}')",
    "copy a log": "SELECT outlay.copy('b', 0, '{}', '{}')",
    "state what it amounts to": "SELECT outlay.seed('b', '[]', '[]', '[]', '')",
    "change a counter": "UPDATE outlay.counter SET held = 0",
    "remove a hold": "DELETE FROM outlay.open_hold",
    "change a limit": "UPDATE outlay.ceiling SET lasting = NULL",
    "join a team": "INSERT INTO outlay.member (login, team) VALUES (session_user, 'vision')",
    "leave a team": "DELETE FROM outlay.member",
    "become a service": "INSERT INTO outlay.service VALUES (session_user, 'bob')",
    "change the time": "CREATE OR REPLACE FUNCTION outlay.now() RETURNS timestamptz"
    " LANGUAGE sql AS 'SELECT now()'",
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


def test_whoever_may_call_a_function_does_not_choose_its_search_path(team: TeamDatabase) -> None:
    """Functions that look up names, in no search_path of their own, are for others to call."""
    found = team.execute(
        "SELECT DISTINCT proname FROM pg_proc CROSS JOIN unnest(ARRAY['outlay_launcher',"
        " 'outlay_reader', 'public']) AS r (role) WHERE pronamespace = 'outlay'::regnamespace"
        " AND proconfig IS NULL AND prosqlbody IS NULL"
        " AND has_function_privilege(r.role, pg_proc.oid, 'EXECUTE')"
    )
    assert found == [("version",)]  # It names nothing.


def held(hold: str, **more: object) -> Held:
    about = {"v": SCHEMA, "ts": "NOW", "op_label": "op", "currency": "USD", "user": "ME"}
    about |= {"estimated": Decimal(1), "hold": hold, "lab": "02", "day": "TODAY"}
    return Held(**(about | more))  # type: ignore[arg-type]


def captured(hold: str, **more: object) -> Captured:
    about = {"v": SCHEMA, "ts": "NOW", "op_label": "op", "currency": "USD"}
    about |= {"actual": Decimal(1), "hold": hold, "lab": "02", "day": "TODAY"}
    return Captured(**(about | more))  # type: ignore[arg-type]


def chained(log: PostgresSpendLog, entry: AnyEntry | bytes, after: str = "") -> bytes:
    """Return an entry as the line that follows the book's last one, or another hash.

    In it, ME is the login, NOW the time and TODAY the day.
    """
    ts = timestamp(SYSTEM.wall_ns()).encode()
    words = {b'"ME"': f'"{log.login("").user}"'.encode(), b"NOW": ts, b"TODAY": ts[:10]}
    body = (entry if isinstance(entry, bytes) else encode(entry))[:-1]
    for word, meaning in words.items():
        body = body.replace(word, meaning)
    last = after or log.head()
    digest = hashlib.sha256(f"{last}\n".encode() + body).hexdigest()
    return body + f',"hash":"{digest}"}}\n'.encode()


def note(**more: object) -> Noted:
    about = {"v": SCHEMA, "ts": "NOW", "op_label": "op", "currency": "USD", "event": "seen"}
    return Noted(**(about | more))  # type: ignore[arg-type]


LINE: Any = {"v": SCHEMA, "ts": "NOW", "op_label": "op", "currency": "USD"}
LINES: dict[str, AnyEntry | bytes] = {
    "settle twice": captured("settled"),
    "settle what was never held": captured("unknown"),
    "open a hold twice": held("open"),
    "use a key twice": held("new", key="used"),
    "hold a negative amount": held("new", estimated=Decimal(-1)),
    "capture a negative amount": captured("open", actual=Decimal(-1)),
    "hold in another currency": held("new", currency="EUR"),
    "a kind that is unknown": b'{"kind":"grant","v":1,"currency":"USD"}',
    "a version that is unknown": b'{"kind":"note","v":3,"currency":"USD"}',
    "no kind": b'{"v":1,"currency":"USD"}',
    "no JSON": b"{nonsense}",
    "two lines in one": b'{"kind":"note","v":1,\n"currency":"USD"}',
    "a hold without an id": b'{"kind":"hold","v":1,"currency":"USD","hold":""}',
    "hold for another user": held("new", user="bob"),
    "hold for another user as a service": held("new", user="bob", via="ME"),
    "hold without a user": held("new", user=""),
    "state a service": held("new", via="ME"),
    "hold for a team": held("new", team="vision"),
    "hold on another day": held("new", day="2026-01-01"),
    "hold at another time": held("new", ts="2026-01-01T00:00:00Z", day="2026-01-01"),
    "settle another's hold": captured("another"),
    "void another's hold": Voided(**LINE, hold="another", reason="mine"),
    "extend another's hold": Extended(**LINE, estimated=Decimal(1), hold="another"),
    "note on another's hold": note(hold="another", event="gone"),
    "capture for another user": captured("", user="bob"),
    "capture on another day": captured("", user="ME", day="2026-01-01"),
    "capture in another project": captured("open", lab="03"),
    "take back what was spent": Corrected(
        **LINE, actual=Decimal(-1), lab="02", day="TODAY", reason="no", user="ME"
    ),
    "charge another user": Corrected(
        **LINE, actual=Decimal(1), lab="02", day="TODAY", reason="no", user="bob"
    ),
    "set a limit": Limited(**LINE, of="whole", limit=Decimal(9), by="ME", reason="more"),
    "remove a limit": Limited(**LINE, of="whole", by="ME", reason="more"),
    "accept the book": note(event="accepted", detail={"by": "ME", "reason": "no", "found": ""}),
    "allow more time": note(event="offline-allowance", detail={"by": "ME", "ns": "1"}),
    "deny a request": note(event="limit-denied", detail={"by": "ME", "request": "1"}),
    "ask as another": note(event="limit-requested", detail={"by": "bob", "request": "1"}),
    "seal bytes": Sealed(**LINE, torn_from=0, torn_bytes=9),
    "state a name twice": b'{"kind":"note","v":2,"ts":"NOW","currency":"USD","currency":"USD"}',
    "state an author twice": b'{"kind":"note","v":2,"ts":"NOW","currency":"USD",'
    b'"event":"limit-requested","detail":{"by":"bob","by":"ME"}}',
    "state no time": b'{"kind":"note","v":2,"op_label":"","currency":"USD","event":"seen"}',
    "state a time in another form": note(ts="yesterday"),
    "state no label": b'{"kind":"note","v":2,"ts":"NOW","currency":"USD","event":"seen"}',
    "a number as text": b'{"kind":"note","v":"2","ts":"NOW","op_label":"","currency":"USD",'
    b'"event":"seen"}',
    "a name that no line has": b'{"kind":"note","v":2,"ts":"NOW","op_label":"","currency":"USD",'
    b'"event":"seen","mine":1}',
    "an amount that is no number": b'{"kind":"note","v":2,"ts":"NOW","op_label":"",'
    b'"currency":"USD","event":"seen","actual":"NaN"}',
    "a rental without its vendor": b'{"kind":"hold","v":2,"ts":"NOW","op_label":"",'
    b'"currency":"USD","hold":"new","lab":"02","day":"TODAY","user":"ME","rental":{"name":"x"}}',
    "a NUL in a hold": b'{"kind":"hold","v":1,"currency":"USD","hold":"\\u0000"}',
}


@pytest.fixture(scope="module")
def settled(team: TeamDatabase) -> PostgresSpendLog:
    """A book with an open hold, a settled one, another user's, and a key."""
    log = team.log()
    BudgetGuard(9, log.name.url, environ={}).note("first")
    for entry in (held("open"), held("settled", key="used"), captured("settled")):
        append(log, chained(log, entry))
    other = team.log(team.another_login(log.name.book))
    append(other, chained(other, held("another")))
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


def test_what_a_launcher_shadows_changes_nothing(settled: PostgresSpendLog) -> None:
    with psycopg.connect(settled.name.server, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE counter (held bigint)")
        connection.execute("CREATE TEMPORARY TABLE member (login text, team text)")
        connection.execute(
            "CREATE FUNCTION pg_temp.pg_has_role(name, text, text) RETURNS boolean"
            " LANGUAGE sql AS 'SELECT true'"
        )
        connection.execute("SET search_path = pg_temp, outlay, pg_catalog")
        (seq,) = connection.execute(
            "SELECT seq FROM outlay.book WHERE name = %s", [settled.name.book]
        ).fetchone() or (0,)
        with pytest.raises(psycopg.Error, match="only an owner"):
            connection.execute(
                "SELECT outlay.append(%s, %s, %s::bytea[], %s::bytea[])",
                [settled.name.book, seq, [b""], [chained(settled, LINES["set a limit"])]],
            )


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
        "DELETE FROM outlay.snapshot", "TRUNCATE outlay.fold", "UPDATE outlay.book SET hash = ''",
        "UPDATE outlay.book SET bytes = bytes - 1", "UPDATE outlay.book SET id = DEFAULT",
        "UPDATE outlay.book SET name = name || 'x'",
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
