"""Connections to the store, and the only SQL that depends on the database.

All other modules use portable SQLAlchemy Core.
"""

from __future__ import annotations

import getpass
import os
import re
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    ExceptionContext,
    Integer,
    NullPool,
    Pool,
    Table,
    cast,
    create_engine,
    event,
    func,
    or_,
    select,
    text,
)
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError

from outlay.clock import SYSTEM
from outlay.decoding import BadDocument, decode
from outlay.errors import Finding, OutlayError
from outlay.store.shown_names import is_plain_name, server_name

BUSY_TIMEOUT_MS = 30_000
LARGEST = 2**63 - 1
"""The largest integer of a column; in SQLite, damaged cells of other types compare as larger."""
_WAL_RETRY_S = 0.01
_SERVER: dict[str, Any] = {
    "connect_timeout": 10, "application_name": "outlay", "keepalives_idle": 10,
    "keepalives_interval": 2, "tcp_user_timeout": 10_000,  # A host that is cut off is noticed.
    "prepare_threshold": None,  # Behind a pooler, prepared statements are another client's.
}  # fmt: skip
"""What a URL of PostgreSQL may state otherwise."""
_REFUSED = ("42501", "42P01", "42703", "25006")
"""PostgreSQL's codes for what a login may not do, tables and columns that are not there, and a
database that is read-only: SQLite has no class of errors of its own for these."""


class StoreUnavailable(OutlayError):
    """The store cannot be opened, read or written."""

    def __init__(self, url: URL, error: Exception) -> None:
        super().__init__(
            f"cannot use the store in {shown_database(url)}: {shown_reason(url, error)}. "
            "Set OUTLAY_HOME to a directory you can write to, or OUTLAY_STORE to a database URL."
        )


_PART = re.compile(r"[^\s:@/?&=,;'\"()\[\]\\]+")
_LONG = 4
_LEFT_OUT = "…"


def shown_database(url: URL) -> str:
    """Return a URL's backend and database name, and nothing else of it.

    A password may be in any other part, also by mistake: ``user:p@ss@host``.
    """
    backend, name = url.get_backend_name(), url.database or ""
    return f"{backend} {name}" if _is_file(url) else server_name(backend, name)


def _is_file(url: URL) -> bool:
    is_local = not (url.username or url.password or url.host or url.query)
    return url.get_backend_name() == "sqlite" and is_local


def shown_reason(url: URL, error: Exception) -> str:
    """Return why a database failed, without any part of its URL."""
    # SQLAlchemy's own text repeats the statement and its parameters; the driver's says why.
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    for part in sorted(_parts(url), key=len, reverse=True):
        found = re.escape(part)
        reason = re.sub(
            found if len(part) >= _LONG else rf"(?<!\w){found}(?!\w)", _LEFT_OUT, reason
        )
    return reason


def _parts(url: URL) -> set[str]:
    """Return the words of a URL that no message may repeat: a driver's error quotes them."""
    if _is_file(url):
        return set()
    values = [value for each in url.normalized_query.values() for value in each]
    texts = [url.username, url.password, url.host, str(url.port or ""), *values]
    if not is_plain_name(url.database or ""):
        texts.append(url.database)
    known = [str(text) for text in texts if text]
    return {part for text in (*known, *map(quote, known)) for part in _PART.findall(text)}


def shown_cause(url: URL, error: Exception) -> Exception | None:
    """Return the cause to show with a StoreUnavailable: none that may quote a server's URL."""
    return error if _is_file(url) else None


def connect(url: URL) -> Engine:
    """Return an engine for the URL without connecting.

    Its use raises StoreUnavailable if the database is missing, locked, full or damaged.
    """
    if url.get_backend_name() == "postgresql":
        stated = {name: value for name, value in _SERVER.items() if name not in url.query}
        # A connection that the server or a pooler has closed is replaced before it is used.
        engine = create_engine(
            url, connect_args=stated, pool_pre_ping=True, json_deserializer=_decode_json
        )
        weakref.finalize(engine, _close_all, engine.pool, os.getpid())
    elif url.get_backend_name() != "sqlite":
        engine = create_engine(url, json_deserializer=_decode_json)
    else:
        # A connection per use: cheap with SQLite, and no open file is inherited by a fork.
        engine = create_engine(url, poolclass=NullPool, json_deserializer=_decode_json)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    event.listen(engine, "handle_error", _raise_unavailable)
    return engine


def _close_all(pool: Pool, pid: int) -> None:
    """Close the connections of an engine that is no longer used, unless they are a parent's."""
    if pid == os.getpid():
        pool.dispose()


def _decode_json(text: str) -> object:
    """Decode a JSON cell; None if it is damaged, which no valid row contains."""
    try:
        return decode(text, object)
    except BadDocument:
        return None


def _decode_text(raw: bytes) -> str | bytes:
    """Decode a text cell; bytes if it is not UTF-8, so that only its row is damaged."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def is_damaged(table: Table) -> ColumnElement[bool]:
    """Return the condition that an integer column holds another type, which SQLite permits."""
    numbers = [column for column in table.columns if isinstance(column.type, Integer)]
    return or_(*(cast(column, BigInteger) != column for column in numbers))


def report_damage(damage: list[Finding], what: str, problem: str) -> None:
    """Add a finding about a damaged row, once."""
    message = f"its row in the store is damaged ({problem}) and was left out"
    finding = Finding(source=what, message=message)
    if finding not in damage:
        damage.append(finding)


def _raise_unavailable(context: ExceptionContext) -> None:
    error = context.sqlalchemy_exception
    if error is not None and _is_of_the_database(error, context.original_exception):
        assert context.engine is not None
        raise StoreUnavailable(context.engine.url, error) from shown_cause(
            context.engine.url, error
        )


def _is_of_the_database(error: Exception, cause: BaseException | None) -> bool:
    """Say whether a database refuses or is away; other errors are bugs in a query."""
    if type(error) in (DatabaseError, OperationalError, InterfaceError):
        return True
    return getattr(cause, "sqlstate", None) in _REFUSED


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver would leave DDL outside of transactions; _begin_sqlite starts them instead.
    connection.isolation_level = None
    connection.text_factory = _decode_text
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    _use_wal(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    # Survives any process crash. A power failure may lose the last commits but not the consistency;
    # the data can be collected or fetched again.
    connection.execute("PRAGMA synchronous = NORMAL")


def _use_wal(connection: Any) -> None:
    """Switch the file to write-ahead logging, which is permanent.

    If two processes switch a new file at the same time, one gets SQLITE_BUSY at once regardless of
    the busy timeout, so this retries.
    """
    deadline_ns = SYSTEM.monotonic_ns() + BUSY_TIMEOUT_MS * 1_000_000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or SYSTEM.monotonic_ns() >= deadline_ns:
                raise
            SYSTEM.sleep(_WAL_RETRY_S)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    # BEGIN IMMEDIATE waits; upgrading a read transaction raises SQLITE_BUSY.
    writes = connection.get_execution_options().get("outlay_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a write transaction; commits at the end, rolls back on any exception.

    Raises:
        StoreUnavailable: The disk is full, or another process held the lock past the timeout.
    """
    with engine.execution_options(outlay_writes=True).begin() as connection:
        yield connection


def database_ns(connection: Connection) -> int:
    """Return the time, UTC nanoseconds: of a server its own, which all hosts share."""
    if connection.dialect.name != "postgresql":
        return SYSTEM.wall_ns()
    epoch = func.extract("epoch", func.clock_timestamp())
    return int(connection.scalar(select(epoch * 1_000_000)) or 0) * 1000


def database_user(connection: Connection) -> str:
    """Return who uses the database: a server's login, else the user of this process."""
    if connection.dialect.name != "postgresql":
        return getpass.getuser()
    return str(connection.scalar(select(text("session_user"))))


Excluded = Any
"""The row that an upsert would insert, by column."""


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    newer: str = "",
    wins: Callable[[Excluded], ColumnElement[bool]] | None = None,
) -> None:
    """Insert rows, or replace rows with the same primary key unless those are newer.

    ``newer`` is the version column; ``wins`` another condition on which a row is replaced.
    """
    if not rows:
        return
    statement = _insert(connection, table)
    keys = [column.name for column in table.primary_key]
    replaced = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in keys}
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=keys,
            set_=replaced,
            where=wins(statement.excluded) if wins else is_newer(table, statement.excluded, newer),
        ),
        list(rows),
    )


def is_newer(table: Table, excluded: Excluded, column: str) -> ColumnElement[bool]:
    """Return the condition that a row is not older than the one it would replace."""
    return or_(table.c[column] <= excluded[column], table.c[column] > LARGEST)


def insert_rows(
    connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[tuple[object, ...]]
) -> None:
    """Insert many rows through the driver: cells in the order of the columns, JSON as text.

    Ten times as fast as SQLAlchemy's insert, which names and converts every cell.
    """
    if not rows:
        return
    compiled = table.insert().compile(dialect=connection.dialect, column_keys=columns)
    if connection.dialect.positional:
        places = [columns.index(name) for name in compiled.positiontup or ()]
        in_order = rows if places == sorted(places) else map(itemgetter(*places), rows)
        connection.exec_driver_sql(str(compiled), list(in_order))
    else:
        named = [dict(zip(columns, row, strict=True)) for row in rows]
        connection.exec_driver_sql(str(compiled), named)


def _insert(connection: Connection, table: Table) -> Any:
    """Return the dialect's INSERT; imported lazily, since dialects are slow to load."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)
