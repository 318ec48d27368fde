"""The SQL that creates books: tables, functions, roles and what these may do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue
from outlay.team.book_url import PostgresUrl, is_book_name
from outlay.team.session import Session

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
