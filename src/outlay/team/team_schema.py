"""The SQL that creates books, and removes their old snapshots: what an owner does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue
from outlay.guard.errors import SpendLogUnusable
from outlay.team.book_url import PostgresUrl, is_book_name
from outlay.team.session import Session

NEWEST: Final = 3
"""So many snapshots of a book stay when the others are removed."""
_WAITING: Final = "SELECT set_config('lock_timeout', '30s', true)"
_PRUNE: Final = "SELECT outlay.prune(%s, %s)"

SCHEMA: Final = Path(__file__).with_name("schema.sql")


def schema_text() -> str:
    """Return the SQL of all tables, functions and roles; running it again changes nothing."""
    return SCHEMA.read_text()


def setup_text(book: str) -> str:
    """Return the SQL that creates everything, and an empty book unless there is one of that name.

    Raises:
        InvalidValue: It is no name of a book.
    """
    if not is_book_name(book):
        raise InvalidValue("book", book, "letters, digits, _ . and -")
    named = f"VALUES ('{book}') ON CONFLICT (name) DO NOTHING;"
    return f"{schema_text()}\nINSERT INTO outlay.book (name) {named}\n"


def create_book(url: PostgresUrl, *, clock: Clock = SYSTEM) -> None:
    """Create a book, with everything that it needs, as the login of a URL.

    Raises:
        SpendLogUnusable: The login may not, or the server does not answer.
    """
    session = Session(url, clock)
    try:
        session.run([(setup_text(url.book).replace("%", "%%"), ())])
    finally:
        session.rollback()
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
