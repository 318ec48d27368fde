"""The SQL that creates books and lets people use them, and that removes snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, Literal, get_args

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue, choices
from outlay.guard.errors import SpendLogUnusable
from outlay.team.book_url import PostgresUrl, is_book_name
from outlay.team.session import Row, Session
from outlay.units import Unit

NEWEST: Final = 3
"""So many snapshots of a book stay when the others are removed."""
_WAITING: Final = "SELECT set_config('lock_timeout', '30s', true)"
_PRUNE: Final = "SELECT outlay.prune(%s, %s)"

SCHEMA: Final = Path(__file__).with_name("schema.sql")
Role = Literal["owner", "launcher", "reader"]
ROLES: tuple[Role, ...] = get_args(Role)
_TODAY: Final = "(outlay.now() AT TIME ZONE 'UTC')::date"


def schema_text() -> str:
    """Return the SQL of all tables, functions and roles; running it again changes nothing."""
    return SCHEMA.read_text()


def setup_text(book: str, unit: Unit | None = None) -> str:
    """Return the SQL that creates everything, and an empty book unless there is one of that name.

    Raises:
        InvalidValue: It is no name of a book.
    """
    if not is_book_name(book):
        raise InvalidValue("book", book, "letters, digits, _ . and -")
    row = f"({_literal(book)}, {_literal('' if unit is None else str(unit))})"
    return f"{schema_text()}\n{_insert('book (name, currency)', row, '(name) DO NOTHING')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A login, and what it may do.

    Attributes:
        team: Empty if it is in none.
        since: The first UTC day in the team; None: today.
        until: The UTC day on which it is no longer in it.
        acts_for: The users for whom a service may act; ``*`` is everybody.
        owns: Whether it may settle what the team holds.
    """

    login: str
    role: Role = "launcher"
    team: str = ""
    since: date | None = None
    until: date | None = None
    acts_for: tuple[str, ...] = ()
    owns: bool = False


def member_text(member: Member) -> str:
    """Return the SQL that adds a login, its role, its membership and whom it acts for."""
    name, role = _identifier(member.login), f"outlay_{_role(member.role)}"
    lines = [
        "DO $login$ BEGIN",
        f"  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {_literal(member.login)}) THEN",
        f"    CREATE ROLE {name} LOGIN;",
        "  END IF;",
        "END $login$;",
        f"ALTER ROLE {name} LOGIN;",
        f"GRANT {role} TO {name};",
    ]
    if member.team:
        since = _TODAY if member.since is None else _literal(member.since.isoformat())
        until = "NULL" if member.until is None else _literal(member.until.isoformat())
        who = f"{_literal(member.login)}, {_literal(member.team)}"
        row = f"({who}, {since}, {until}, {str(member.owns).lower()})"
        again = "(login, team, since) DO UPDATE SET until = EXCLUDED.until, owns = EXCLUDED.owns"
        lines.append(_insert("member (login, team, since, until, owns)", row, again))
    for user in member.acts_for:
        row = f"({_literal(member.login)}, {_literal(user)})"
        lines.append(_insert("service (login, acts_for)", row, "DO NOTHING"))
    return "\n".join(("BEGIN;", *lines, "COMMIT;")) + "\n"


def removal_text(login: str, team: str = "") -> str:
    """Return the SQL that ends a membership; without a team, all of them, and the login's rights.

    Its lines and its open holds stay.
    """
    whose = f"login = {_literal(login)}" + (f" AND team = {_literal(team)}" if team else "")
    lines = [
        f"UPDATE outlay.member SET until = greatest(since, {_TODAY})",  # noqa: S608 - quoted
        f"  WHERE {whose} AND (until IS NULL OR until > {_TODAY});",
    ]
    if not team:
        name = _identifier(login)
        lines += [
            f"DELETE FROM outlay.service WHERE {_literal(login)} IN (login, acts_for);",  # noqa: S608
            f"REVOKE {', '.join(f'outlay_{role}' for role in ROLES)} FROM {name};",
            f"ALTER ROLE {name} NOLOGIN;",
        ]
    return "\n".join(("BEGIN;", *lines, "COMMIT;")) + "\n"


def run_sql(url: PostgresUrl, text: str, *, clock: Clock = SYSTEM) -> None:
    """Run SQL as the login of a URL.

    Raises:
        SpendLogUnusable: The login may not, or the server does not answer.
    """
    session = Session(url, clock)
    try:
        session.run([(text.replace("%", "%%"), ())])
    finally:
        session.rollback()
        session.close()


def create_book(url: PostgresUrl, unit: Unit | None = None, *, clock: Clock = SYSTEM) -> None:
    """Create a book, with everything that it needs, as the login of a URL.

    Raises:
        SpendLogUnusable: The login may not, or the server does not answer.
    """
    run_sql(url, setup_text(url.book, unit), clock=clock)


# Tables of an earlier version lack the column.
_MEMBERS: Final = """SELECT m.login, m.team, m.since::text, coalesce(m.until::text, ''), '',
  coalesce((to_jsonb(m) ->> 'owns')::boolean, false)
FROM outlay.member m UNION ALL SELECT s.login, '', '', '', s.acts_for, false FROM outlay.service s
ORDER BY 1, 2, 3, 5"""


def list_members(url: PostgresUrl, *, clock: Clock = SYSTEM) -> list[Row]:
    """Return login, team, first day, end, whom it acts for, and whether it owns the team."""
    session = Session(url, clock)
    try:
        return session.run([(_MEMBERS, ())])[0]
    finally:
        session.close()


def prune_book(url: PostgresUrl, *, newest: int = NEWEST, clock: Clock = SYSTEM) -> int:
    """Remove old snapshots of a book, as the login of a URL; return how many rows of them went.

    Its lines stay as they are. With ``newest`` 0 no snapshot stays: whoever uses the book next
    folds it from its first line.

    Raises:
        SpendLogUnusable: The login is not an owner's, or the server does not answer.
    """
    session = Session(url, clock)
    try:
        asked = (_PRUNE, (url.book, newest))
        found = session.run([("BEGIN", ()), (_WAITING, ()), asked, ("COMMIT", ())])
    except SpendLogUnusable as error:
        if "permission denied" not in error.problem:
            raise
        remedy = "An owner does this: a login with the role outlay_owner."
        raise SpendLogUnusable(error.path, error.problem, remedy) from None
    finally:
        session.rollback()
        session.close()
    return int(found[2][0][0])


def _insert(into: str, row: str, conflict: str) -> str:
    return f"INSERT INTO outlay.{into}\n  VALUES {row}\n  ON CONFLICT {conflict};\n"  # noqa: S608


def _role(role: str) -> str:
    if role not in ROLES:
        raise InvalidValue("role", role, choices(ROLES))
    return role


def _identifier(name: str) -> str:
    if not name or "\0" in name or len(name.encode()) > 63:
        raise InvalidValue("login", name, "the name of a login, at most 63 bytes")
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    if "\0" in text:
        raise InvalidValue("text", text, "text without NUL")
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'" if "\\" in text else f"'{escaped}'"
