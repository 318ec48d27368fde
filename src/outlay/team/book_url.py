"""The URL of a book: ``postgresql://user@host/database?book=vision``. Shows no secret of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Final, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from outlay.errors import InvalidValue
from outlay.store.shown_names import server_name

_EXPECTED: Final = "postgresql://USER@HOST/DATABASE?book=NAME"
_BOOK: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def is_book_name(name: str) -> bool:
    """Return whether a book can have this name."""
    return _BOOK.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class PostgresUrl:
    """The URL of a book.

    Attributes:
        url: As it was given.
        server: Without the name of the book, as libpq takes it.
    """

    url: str = field(repr=False)
    server: str = field(repr=False)
    book: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return a URL.

        Raises:
            InvalidValue: It names no book, or is no URL.
        """
        try:
            parts = urlsplit(url)
            query = parse_qsl(parts.query, strict_parsing=True) if parts.query else []
        except ValueError:
            raise InvalidValue("log_path", "a URL that can't be parsed", _EXPECTED) from None
        books = [value for name, value in query if name == "book"]
        if len(books) != 1 or not is_book_name(books[0]):
            seen = f"a URL with book={books[0]!r}" if books else "a URL without a book"
            raise InvalidValue("log_path", seen, f"{_EXPECTED}; letters, digits, _ . and -")
        rest = urlencode([pair for pair in query if pair[0] != "book"], quote_via=quote)
        server = urlunsplit(parts._replace(scheme="postgresql", query=rest, fragment=""))
        return cls(url=url, server=server, book=books[0])

    def __str__(self) -> str:
        return f"{self.database}, book {self.book}"

    @cached_property
    def database(self) -> str:
        """Backend and name of the database, which is all that may be shown of the URL."""
        return server_name("postgresql", unquote(urlsplit(self.server).path[1:]))

    def shown_reason(self, error: Exception) -> str:
        """Return why the database failed, without any part of the URL."""
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        from outlay.store.connection import shown_reason

        try:
            return shown_reason(make_url(self.server), error)
        except (ArgumentError, ValueError):
            return type(error).__name__

    @cached_property
    def file_name(self) -> str:
        """Its name for files: the book, and a digest of where it is."""
        parts = urlsplit(self.server)
        where = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
        return f"{sha256(where.encode()).hexdigest()[:16]}-{self.book}"

    def without_password(self) -> str:
        """Return the URL without a password."""
        parts = urlsplit(self.url)
        login, at, host = parts.netloc.rpartition("@")
        query = [pair for pair in parse_qsl(parts.query) if "password" not in pair[0]]
        return urlunsplit(
            parts._replace(
                netloc=f"{login.partition(':')[0]}{at}{host}",
                query=urlencode(query, quote_via=quote),
            )
        )

    def handed_on(self) -> str:
        """Return the URL for another process, which shows it.

        Raises:
            InvalidValue: It has a password.
        """
        parts = urlsplit(self.url)
        if parts.password is not None or "password" in parts.query:
            expected = "one without, since other processes see it; keep that in ~/.pgpass"
            raise InvalidValue("log_path", f"{self} with a password", expected)
        return self.url
