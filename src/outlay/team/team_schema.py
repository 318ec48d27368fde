"""The SQL that creates books: tables, functions, roles and what these may do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from outlay.errors import InvalidValue
from outlay.team.book_url import is_book_name

SCHEMA: Final = Path(__file__).with_name("schema.sql")


def schema_text() -> str:
    """Return the SQL of all tables, functions and roles; running it again changes nothing."""
    return SCHEMA.read_text()


def book_text(book: str) -> str:
    """Return the SQL that creates an empty book, unless there is one of that name.

    Raises:
        InvalidValue: It is no name of a book.
    """
    if not is_book_name(book):
        raise InvalidValue("book", book, "letters, digits, _ . and -")
    named = f"VALUES ('{book}') ON CONFLICT (name) DO NOTHING;\n"
    return f"INSERT INTO outlay.book (name) {named}"
