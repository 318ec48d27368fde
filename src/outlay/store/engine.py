"""Connecting to the store: the only SQL that depends on which database it is.

Queries live in the modules beside this one and speak plain SQLAlchemy Core.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    ExceptionContext,
    Integer,
    NullPool,
    Table,
    cast,
    create_engine,
    event,
    or_,
)
from sqlalchemy.exc import DatabaseError, OperationalError

from outlay.clock import SYSTEM, Clock
from outlay.decoding import BadDocument, decode
from outlay.errors import OutlayError

BUSY_TIMEOUT_MS = 30_000
LARGEST = 2**63 - 1
"""The largest integer of a column; SQLite takes whatever else stands in one for larger."""
_SWITCH_WAIT_S = 0.01


class StoreUnavailable(OutlayError):
    """The store cannot be opened, read or written."""

    def __init__(self, url: URL, error: Exception) -> None:
        shown = url.render_as_string(hide_password=True)
        super().__init__(
            f"cannot use the store at {shown}: {_reason(error)}. "
            "Set OUTLAY_HOME to a directory you can write to, or OUTLAY_STORE to a database URL."
        )


def _reason(error: Exception) -> str:
    # SQLAlchemy's own text repeats the statement and its parameters; the driver's says why.
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def connect(url: URL) -> Engine:
    """Return an engine for the URL; touches nothing yet.

    Whoever uses it meets StoreUnavailable where the database is gone, locked, full or damaged.
    """
    if url.get_backend_name() != "sqlite":
        engine = create_engine(url, json_deserializer=_decode_json)
    else:
        # A connection per use: cheap with SQLite, and nothing open is carried across a fork.
        engine = create_engine(url, poolclass=NullPool, json_deserializer=_decode_json)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    event.listen(engine, "handle_error", _say_unavailable)
    return engine


def _decode_json(text: str) -> object:
    """Return what a cell holds; None for one that is damaged, where no row of ours has it."""
    try:
        return decode(text, object)
    except BadDocument:
        return None


def _decode_text(raw: bytes) -> str | bytes:
    """Return a cell's text; as bytes where it is none, so that its row alone is damaged."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def is_damaged(table: Table) -> ColumnElement[bool]:
    """Return the condition that a column of integers holds something else, as SQLite lets it."""
    numbers = [column for column in table.columns if isinstance(column.type, Integer)]
    return or_(*(cast(column, BigInteger) != column for column in numbers))


def _say_unavailable(context: ExceptionContext) -> None:
    error = context.sqlalchemy_exception
    # Other subclasses are mistakes in a query of ours, and stay what they are.
    if error is not None and type(error) in (DatabaseError, OperationalError):
        assert context.engine is not None
        raise StoreUnavailable(context.engine.url, error) from error


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver's own idea of when a transaction begins leaves DDL outside of it; we begin.
    connection.isolation_level = None
    connection.text_factory = _decode_text
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    _use_wal(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    # Survives any crash of a process. A power cut may take the last commits, never the store's
    # consistency; what it holds can be collected or fetched again.
    connection.execute("PRAGMA synchronous = NORMAL")


def _use_wal(connection: Any, clock: Clock = SYSTEM) -> None:
    """Switch the file to a write-ahead log, once for all who will ever open it.

    Of two processes that switch a new file at the same instant one is told that it is locked at
    once, whatever the busy time-out: so the wait is here.
    """
    deadline_ns = clock.monotonic_ns() + BUSY_TIMEOUT_MS * 1_000_000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or clock.monotonic_ns() >= deadline_ns:
                raise
            clock.sleep(_SWITCH_WAIT_S)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    # BEGIN IMMEDIATE waits; upgrading a read transaction raises SQLITE_BUSY.
    writes = connection.get_execution_options().get("outlay_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction that writes; commits at the end, rolls back on any exception.

    Raises:
        StoreUnavailable: The disk is full, or another process kept the store locked for too long.
    """
    with engine.execution_options(outlay_writes=True).begin() as connection:
        yield connection


def upsert(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, newer: str
) -> None:
    """Insert rows, or replace those with the same primary key unless they are newer.

    ``newer`` is the column that says which of two versions is the later one.
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
            where=or_(table.c[newer] <= statement.excluded[newer], table.c[newer] > LARGEST),
        ),
        list(rows),
    )


def insert_rows(
    connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[tuple[object, ...]]
) -> None:
    """Insert many rows as the driver takes them: cells in the order of the columns, JSON as text.

    A tenth of what it takes to have each row's cells named and converted.
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
    """Return the database's own INSERT; a dialect takes long to load, so only the one in use is."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)
