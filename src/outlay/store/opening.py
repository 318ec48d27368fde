"""Opening the store: its URL, migrations and errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Executable,
    Index,
    MetaData,
    Table,
    UniqueConstraint,
    func,
    insert,
    inspect,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from outlay.clock import SYSTEM
from outlay.decoding import BadDocument, read_toml
from outlay.errors import InvalidValue, MissingExtra, OutlayError
from outlay.files import make_private, mode_in
from outlay.store import schema
from outlay.store.connection import StoreUnavailable, connect, shown_cause, writing
from outlay.store.home import outlay_home, settings_path

# Migrations, forward only
#
# All pending ones run in one transaction under SQLite's write lock, or an advisory lock of
# PostgreSQL: if two processes open a store at once, one migrates and the other then finds it up to
# date.


class StoreTooNew(OutlayError):
    """A newer outlay wrote this store."""

    def __init__(self, seen: int, known: int) -> None:
        super().__init__(
            f"the store has schema version {seen}, and this outlay supports up to {known}. "
            "Upgrade outlay, or set OUTLAY_HOME to another directory."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One schema change.

    Attributes:
        version: The schema version afterwards.
        creates: New tables, without the columns that later migrations add.
        adds: New columns of existing tables; NULL in existing rows.
        rebuilds: Tables whose constraints change, referenced tables first; rows are kept.
        fills: Statements that set values in existing rows.
    """

    version: int
    creates: tuple[Table, ...] = ()
    adds: tuple[Column[Any], ...] = ()
    indexes: tuple[Index, ...] = ()
    rebuilds: tuple[Table, ...] = ()
    fills: tuple[Executable, ...] = ()


def _copies(table: Table, without: Collection[str]) -> list[Column[Any]]:
    """Return copies of a table's columns, without those of some names."""
    return [
        Column(column.name, column.type, primary_key=column.primary_key, nullable=column.nullable)
        for column in table.columns
        if column.name not in without
    ]


_PRICE_SERIES_2 = Table(
    "price_series",
    MetaData(),
    *_copies(schema.price_series, without=["gpu_count"]),
    UniqueConstraint("source", "provider", "gpu", "tier", "community", "currency"),
)

MIGRATIONS = (
    Migration(version=1, creates=(schema.runs,)),
    Migration(
        version=2,
        creates=(
            schema.price_snapshots,
            schema.price_offers,
            _PRICE_SERIES_2,
            schema.price_points,
            schema.price_alerts,
        ),
    ),
    Migration(
        version=3,
        creates=(
            schema.cost_reports,
            schema.model_budgets,
            schema.budget_alerts,
            schema.recommendations,
        ),
    ),
    Migration(version=4, adds=(schema.cost_reports.c.kind,)),
    Migration(
        version=5,
        adds=(
            schema.runs.c.log_bytes,
            schema.runs.c.log_mtime_ns,
            schema.runs.c.figures_version,
            schema.runs.c.findings,
            schema.runs.c.kind,
        ),
        indexes=tuple(i for i in schema.runs.indexes if i.name == "runs_by_last_seen"),
    ),
    Migration(
        version=6,
        adds=(
            schema.runs.c.assumed_micros,
            schema.cost_reports.c.assumed_micros,
            schema.cost_reports.c.charges,
        ),
    ),
    Migration(
        version=7,
        adds=(schema.runs.c.goodput, schema.runs.c.metric, schema.runs.c.metric_value),
    ),
    Migration(
        version=8,
        rebuilds=(schema.price_series, schema.price_points, schema.price_alerts),
        # Prices tracked with GPUPriceTracker are of one GPU.
        fills=(
            update(schema.price_series)
            .where(schema.price_series.c.source.startswith("tracked:"))
            .values(gpu_count=1),
        ),
    ),
    Migration(version=9, adds=(schema.runs.c.figures,)),
    Migration(version=10, adds=(schema.runs.c.charges,)),
    Migration(version=11, creates=(schema.bills,), adds=(schema.price_offers.c.terms,)),
    Migration(
        version=12,
        creates=(schema.sightings, schema.machine_lists, schema.claims),
        adds=(schema.runs.c.seen_from, schema.runs.c.seen_ns),
    ),
    Migration(version=13, creates=(schema.closed_months,)),
)
NEWEST = MIGRATIONS[-1].version


_LOCK = 0x6F75746C6179
"""The advisory lock of migrations: "outlay" in ASCII."""


def migrate(engine: Engine, *, to: int = NEWEST) -> None:
    """Migrate the store to version ``to``; does nothing if it is there already.

    A new store gets the newest tables at once.

    Raises:
        StoreTooNew: The store's version is newer than all known ones.
    """
    with engine.begin() as connection:
        if _version(connection) == to:
            return
    with writing(engine) as connection:
        if connection.dialect.name == _POSTGRESQL:
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        schema.versions.create(connection, checkfirst=True)
        at = _version(connection)
        if at == 0 and to == NEWEST:
            tables = [t for t in schema.metadata.sorted_tables if t is not schema.versions]
            # Fails if another program has a table of the same name.
            schema.metadata.create_all(connection, tables, checkfirst=False)
            _record_version(connection, NEWEST)
            return
        for migration in MIGRATIONS:
            if at < migration.version <= to:
                _apply(connection, migration)
                _record_version(connection, migration.version)


def _record_version(connection: Connection, version: int) -> None:
    applied_ns = SYSTEM.wall_ns()
    connection.execute(insert(schema.versions).values(version=version, applied_ns=applied_ns))


def _version(connection: Connection) -> int:
    if not inspect(connection).has_table(schema.versions.name):
        return 0
    at: int = connection.scalar(select(func.max(schema.versions.c.version))) or 0
    if at > NEWEST:
        raise StoreTooNew(at, NEWEST)
    return at


def _before_later_migrations(table: Table, version: int) -> Table:
    """Return a table without the columns and indexes that later migrations add."""
    later = [migration for migration in MIGRATIONS if migration.version > version]
    added = {column.name for each in later for column in each.adds if column.table is table}
    if not added:
        return table
    indexes = {index.name for each in later for index in each.indexes}
    return Table(
        table.name,
        MetaData(),
        *_copies(table, without=added),
        *(Index(i.name, *i.columns.keys()) for i in table.indexes if i.name not in indexes),
    )


def _apply(connection: Connection, migration: Migration) -> None:
    for table in migration.creates:
        _before_later_migrations(table, migration.version).create(connection)
    for column in migration.adds:
        column_sql = CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {column_sql}")
    for index in migration.indexes:
        index.create(connection)
    _rebuild(connection, migration.rebuilds)
    for statement in migration.fills:
        connection.execute(statement)


def _rebuild(connection: Connection, tables: tuple[Table, ...]) -> None:
    """Recreate tables with their rows, since SQLite cannot alter constraints.

    Referencing tables are dropped before the table that they refer to.
    """
    before: dict[Table, Table] = {}
    for table in tables:
        had = {column["name"] for column in inspect(connection).get_columns(table.name)}
        columns = [column for column in table.columns if column.name in had]
        copies = (Column(column.name, column.type) for column in columns)
        kept = before[table] = Table(f"{table.name}_before", MetaData(), *copies)
        kept.create(connection)
        connection.execute(insert(kept).from_select([c.name for c in columns], select(*columns)))
    for table in reversed(tables):
        table.drop(connection)
    for table, kept in before.items():
        table.create(connection)
        names = [column.name for column in kept.columns]
        connection.execute(insert(table).from_select(names, select(kept)))
        kept.drop(connection)
        if connection.dialect.name == _POSTGRESQL and "id" in names:
            sequence = func.pg_get_serial_sequence(table.name, "id")
            connection.execute(select(func.setval(sequence, func.max(table.c.id))))


_POSTGRESQL, _DRIVER = "postgresql", "postgresql+psycopg"
_EXPECTED_URL = "a database URL such as postgresql+psycopg://host/outlay or sqlite:////path/to.db"


def open_store(data_dir: Path | str | None = None) -> Engine:
    """Open the store, creating or migrating it if necessary.

    It is in ``data_dir``, else at ``$OUTLAY_STORE``, else where ``store`` of ``outlay.toml`` says,
    else in ``$OUTLAY_HOME``.

    Raises:
        StoreUnavailable: It cannot be opened.
        StoreTooNew: A newer outlay wrote it.
        MissingExtra: It is in PostgreSQL, and the driver is not installed.
    """
    url = store_url(data_dir)
    try:
        if url.get_backend_name() == "sqlite" and url.database:
            _make_file(Path(url.database))
        return _migrated(connect(url))
    except ImportError as error:
        if url.get_backend_name() == _POSTGRESQL:
            raise MissingExtra("a store in PostgreSQL", "postgres") from None
        raise StoreUnavailable(url, error) from shown_cause(url, error)
    except (SQLAlchemyError, OSError, TypeError, ValueError) as error:
        # A driver refuses what it does not know in a URL with any of these.
        raise StoreUnavailable(url, error) from shown_cause(url, error)


def _migrated(engine: Engine) -> Engine:
    try:
        migrate(engine)
    except BaseException:
        engine.dispose()  # A server's connections are kept open otherwise.
        raise
    return engine


def _make_file(path: Path) -> None:
    """Create an empty database, since SQLite would create one that others may read."""
    make_private(path.parent)
    if path.name != ":memory:":
        with contextlib.suppress(OSError):  # Connecting gets the same error, and says why.
            path.touch(mode=mode_in(path.parent))


def store_url(data_dir: Path | str | None = None) -> URL:
    """Return the URL of the store: explicit directory, environment, settings, or home.

    Raises:
        InvalidValue: It is no URL, or one in ``outlay.toml`` has a password.
    """
    if data_dir is None:
        if named := os.environ.get("OUTLAY_STORE"):
            return _parsed_url(named, "OUTLAY_STORE")
        if named := _stated_store():
            url = _parsed_url(named, "store in outlay.toml")
            if url.password is not None or "password" in url.query:
                expected = "one without: keep it in ~/.pgpass, or set OUTLAY_STORE"
                raise InvalidValue("store in outlay.toml", "a URL with a password", expected)
            return url
    directory = outlay_home() if data_dir is None else Path(data_dir).expanduser()
    return URL.create("sqlite", database=str(directory.absolute() / "outlay.db"))


class _StoreFile(msgspec.Struct):  # Tables belong to other packages.
    store: str = ""


def _stated_store() -> str:
    path = settings_path()
    try:
        return read_toml(path, _StoreFile).store
    except FileNotFoundError:
        return ""
    except (OSError, BadDocument) as error:
        raise InvalidValue(str(path), str(error), f"a file with store = {_EXPECTED_URL}") from None


def _parsed_url(text: str, name: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # The latter for a port that is no number.
        # The value may hold a password, so the message does not repeat it.
        raise InvalidValue(name, "an unreadable URL", _EXPECTED_URL) from None
    # The default driver differs between SQLAlchemy 2.0 and 2.1; the extra installs psycopg.
    return url.set(drivername=_DRIVER) if url.drivername == _POSTGRESQL else url
