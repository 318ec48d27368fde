"""One connection to PostgreSQL: one round trip per call, and errors as refusals.

No pipeline, in which the server's limit on an idle transaction does not apply. Statements are
prepared only on a connection that no pooler shares: behind one they fail, or are another client's.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outlay.clock import SYSTEM, Clock
from outlay.errors import MissingExtra
from outlay.guard.errors import SpendLogAway, SpendLogUnusable
from outlay.team.book_url import PostgresUrl

if TYPE_CHECKING:
    import psycopg

_CONNECT_S: Final = 10
_DEFAULTS: Final[dict[str, Any]] = {
    "connect_timeout": _CONNECT_S, "application_name": "outlay", "keepalives_idle": _CONNECT_S,
    "keepalives_interval": 2,  # The first probe ends no connection, and the next is 75 s later.
    "tcp_user_timeout": _CONNECT_S * 1000,
}  # fmt: skip
_RETRY_S: Final = 0.2
_PREPARED_AFTER: Final = 5  # as the driver does by default
_ANSWER_S: Final = 60.0
_NO_SCHEMA: Final = frozenset({"3F000", "42P01", "42703", "42883", "OUT02"})
_NOT_ALLOWED: Final = frozenset({"42501", "28000", "28P01"})
_OURS: Final = "OUT"  # begins the codes of the functions in schema.sql
_ABOVE_LIMIT: Final = "OUT04"
_NOT_YOURS: Final = "OUT05"
_TIMED_OUT: Final = frozenset({"55P03", "57014"})
_ENDED: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})  # by the server
_INIT: Final = "`outlay team init` prints the SQL that creates books."

Row = tuple[Any, ...]
Statement = tuple[str, Sequence[object]]
"""SQL and its parameters."""
Batch = Sequence[Statement]
Value = TypeVar("Value")


class ConnectionLost(SpendLogAway):
    """The server or the network went away; whether the last batch was done is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long things may take, in seconds.

    Attributes:
        lock: Waiting for another writer.
        idle: Holding the lock without a statement, after which the server ends the session.
        away: Waiting for a server that went away during a commit.
        answer: Waiting for a server that is connected and silent.
    """

    lock: float = 30.0
    idle: float = 10.0
    away: float = 30.0
    answer: float = _ANSWER_S


class TimedOut(SpendLogAway):
    """Another process held the book's lock for too long."""


class Declined(SpendLogUnusable):
    """The server refuses a statement, and has done nothing."""


@dataclass(slots=True, kw_only=True)
class _Connected:
    """A connection, and what is made of it once.

    Attributes:
        batches: Takes several statements, with values as text in them.
        calls: Takes one statement, with its values beside it.
        arrivals: Whether the server has sent something unasked, such as the end of the session.
        is_checked: Whether it is known if a pooler shares the connection.
    """

    connection: psycopg.Connection[Row]
    batches: psycopg.ClientCursor[Row]
    calls: psycopg.Cursor[Row]
    arrivals: select.poll
    is_checked: bool = False


class Session:
    """A connection that is made when it is needed, and made again after it was lost."""

    def __init__(self, url: PostgresUrl, clock: Clock, *, answer_s: float = _ANSWER_S) -> None:
        self.url = url
        self._clock = clock
        self._answer_s = answer_s
        self._connected: _Connected | None = None
        self._finalizer: weakref.finalize[[psycopg.Connection[Row], int], Session] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connected is not None

    @property
    def is_quiet(self) -> bool:
        """Whether there is a connection on which the server has said nothing unasked."""
        return self._connected is not None and not self._connected.arrivals.poll(0)

    @property
    def login(self) -> str:
        """The login that the present connection was made with."""
        assert self._connected is not None
        return self._connected.connection.info.user

    def run(self, batch: Batch) -> list[list[Row]]:
        """Run statements in one round trip; return the rows of each.

        Raises:
            ConnectionLost: The connection was lost.
            SpendLogUnusable: The server refuses.
        """
        cursor = (self._connected or self._connect()).batches
        import psycopg

        text = ";\n".join(statement for statement, _ in batch)
        values = [value for _, values in batch for value in values]
        try:
            cursor.execute(text.encode(), values)
            found = [_rows(cursor)]
            while cursor.nextset():
                found.append(_rows(cursor))
            return found
        except psycopg.Error as error:
            raise self._refusal(error) from None

    def call(self, statement: str, values: Sequence[object]) -> list[Row]:
        """Run one statement, which is a transaction of its own; return its rows.

        Raises:
            ConnectionLost: The connection was lost.
            SpendLogUnusable: The server refuses.
        """
        connected = self._connected or self._connect()
        import psycopg

        try:
            if not connected.is_checked:
                _prepare_if_direct(connected)
            return connected.calls.execute(statement.encode(), values).fetchall()
        except psycopg.Error as error:
            raise self._refusal(error) from None

    def rollback(self) -> None:
        """End the present transaction, if there is one, without its changes."""
        if self._connected is None:
            return
        import psycopg

        connection = self._connected.connection
        if connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            return
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    def wait(self, patience_s: float) -> None:
        """Connect again, to a server that may be about to come back.

        Raises:
            ConnectionLost: It did not come back in time.
        """
        deadline_ns = self._clock.monotonic_ns() + int(patience_s * 1e9)
        while True:
            try:
                self._connect()
            except ConnectionLost:
                if self._clock.monotonic_ns() >= deadline_ns:
                    raise
                self._clock.sleep(_RETRY_S)
            else:
                return

    def close(self) -> None:
        """Close the connection."""
        self._connected = None
        if self._finalizer is not None:
            self._finalizer()

    def abandon(self) -> None:
        """Forget a connection of the process that this one was forked from."""
        self._connected = None
        if self._finalizer is not None:
            self._finalizer.detach()

    def _connect(self) -> _Connected:
        try:
            import psycopg
            from psycopg import conninfo
        except ImportError as error:
            raise MissingExtra("a book in PostgreSQL", "postgres") from error
        self.close()
        try:
            given: dict[str, Any] = conninfo.conninfo_to_dict(self.url.server)
            connection = _limited_connection(self._answer_s).connect(
                autocommit=True, prepare_threshold=None, **(_DEFAULTS | given)
            )
        except psycopg.Error as error:
            raise self._refusal(error) from None
        self._finalizer = weakref.finalize(self, _close, connection, os.getpid())
        arrivals = select.poll()
        arrivals.register(connection.fileno(), select.POLLIN)
        self._connected = _Connected(
            connection=connection, batches=psycopg.ClientCursor(connection),
            calls=psycopg.Cursor(connection), arrivals=arrivals,
        )  # fmt: skip
        return self._connected

    def _refusal(self, error: psycopg.Error) -> SpendLogUnusable:
        """Return an error of the driver as a refusal; a lost connection is closed."""
        import psycopg

        state = error.sqlstate or ""
        ours = error.diag.message_primary if state.startswith(_OURS) else None
        reason = ours or self.url.shown_reason(error)
        connection = None if self._connected is None else self._connected.connection
        # An error of connecting has no code.
        is_denied = state in _NOT_ALLOWED or "authentication" in reason or "password" in reason
        is_lost = state in _ENDED or connection is None or connection.closed or connection.broken
        if is_lost:
            self.close()
        if is_lost and not is_denied and not isinstance(error, psycopg.ProgrammingError):
            remedy = "Make sure that the server runs and can be reached, then try again."
            return ConnectionLost(str(self.url), reason, remedy)
        remedy = "Ask whoever runs the database; its log says more."
        if is_denied:
            remedy = "The login needs its password, and `GRANT outlay_launcher` by an owner."
        elif state in _NO_SCHEMA:
            remedy = _INIT
        elif state == _ABOVE_LIMIT:
            remedy = "`outlay team limits` lists what is set, `outlay team request` asks for more."
        elif state == _NOT_YOURS:
            remedy = "An owner of the books can, or can let you: `outlay team add`."
        elif state in _TIMED_OUT:
            remedy = "Another process holds the book's lock; `pg_stat_activity` lists it."
            return TimedOut(str(self.url), reason, remedy)
        return Declined(str(self.url), reason, remedy)


def _prepare_if_direct(connected: _Connected) -> None:
    """Let the driver prepare what it runs often, unless a pooler stands before the server.

    A pooler makes up the number of the process that it names to its clients.
    """
    connection = connected.connection
    found = connected.batches.execute("SELECT pg_backend_pid()").fetchone()
    if found == (connection.info.backend_pid,):
        connection.prepare_threshold = _PREPARED_AFTER
    connected.is_checked = True


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    """Return the rows of the present result; none of a statement that returns none."""
    return [] if cursor.rownumber is None else cursor.fetchall()


def bytea_array(values: Iterable[bytes | None]) -> str:
    """Return the text of an array, which the driver takes several times as long to make."""
    texts = ("NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values)
    return "{" + ",".join(texts) + "}"


@cache
def _limited_connection(answer_s: float) -> type[psycopg.Connection[Row]]:
    """Return a connection that is closed once the server has been silent for so long."""
    import psycopg

    class LimitedConnection(psycopg.Connection[Row]):
        def wait(self, gen: Generator[Any, Any, Value], *more: Any, **others: Any) -> Value:
            return super().wait(self._limited(gen), *more, **others)

        def _limited(self, gen: Generator[Any, Any, Value]) -> Generator[Any, Any, Value]:
            silent_ns = SYSTEM.monotonic_ns()
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    now_ns = SYSTEM.monotonic_ns()
                    silent_ns = now_ns if ready else silent_ns
                    if now_ns - silent_ns > answer_s * 1e9:
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"no answer for {answer_s:g} s")
                    wanted = gen.send(ready)
            except StopIteration as ended:
                value: Value = ended.value
                return value

    return LimitedConnection


def _close(connection: psycopg.Connection[Row], pid: int) -> None:
    if pid == os.getpid():  # Else the server would end the session of the process forked from.
        connection.close()
