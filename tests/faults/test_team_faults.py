"""A book while servers stop, connections break and clients die: nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import start_python
from homes import move_home
from outlay import BudgetGuard
from outlay.errors import InvalidValue
from outlay.guard.balance import Books
from outlay.guard.entries import Decision, Held
from outlay.guard.errors import SpendLogAltered, SpendLogRolledBack, SpendLogUnusable
from outlay.team import PostgresSpendLog
from outlay.team.session import Patience
from postgres import PostgresServer, TeamDatabase
from spend_lines import held_now
from waiting import until

SHORT = Patience(lock=20, idle=2, away=1)


def hold(log: PostgresSpendLog, name: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Append a hold; ``meanwhile`` happens between lock and append, once."""
    calls = iter([meanwhile])

    def decide(_: Books) -> Decision[None]:
        next(calls, lambda: None)()
        return Decision((held_now(log, name),), None)

    log.transact(decide)


def holds(log: PostgresSpendLog) -> list[str]:
    return [line.hold for line in log.lines() if isinstance(line, Held)]


def test_a_line_that_others_write_during_a_read_is_not_missing(
    team: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is remembered on this machine, and the snapshot of the reader is older."""
    writer = team.log()
    reader = team.log(writer.name.url)
    hold(writer, "a")
    begin = reader._begin

    def begin_before_a_write(*, writes: bool) -> object:
        head = begin(writes=writes)
        hold(writer, "b")
        return head

    monkeypatch.setattr(reader, "_begin", begin_before_a_write)
    assert [each.id for each in reader.look(Books.open_holds)] == ["a"]
    monkeypatch.undo()
    assert [each.id for each in reader.look(Books.open_holds)] == ["a", "b"]


# -- a connection that breaks ----------------------------------------------------------------------


class BreakingProxy:
    """Forwards to a server; breaks the first connection that sends a statement which commits.

    Before or after the server got it.
    """

    def __init__(self, port: int, statement: bytes, *, commits: bool) -> None:
        self._port, self._statement = port, statement
        self._commits, self._broken = commits, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> BreakingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, socket.create_connection(("127.0.0.1", self._port)) as server:
                    self._forward(client, server)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            ready, _, _ = select.select([client, server], [], [])
            for source in ready:
                data = source.recv(1 << 16)
                if not data:
                    return
                if source is client and self._statement in data and not self._broken:
                    self._broken = True
                    if self._commits:
                        server.sendall(data)
                        assert server.recv(1 << 16)  # The answer, which the client never gets.
                    return
                (server if source is client else client).sendall(data)


@pytest.mark.parametrize("statement", [b"COMMIT", b"append_after"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_connection_lost_at_commit_writes_once(
    team: TeamDatabase, statement: bytes, commits: bool
) -> None:
    url = team.new_book()
    with BreakingProxy(team.server.port, statement, commits=commits) as proxy:
        log = team.log(url.replace(f":{team.server.port}/", f":{proxy.port}/"))
        for name in "abcd":
            hold(log, name)
        assert proxy._broken
        assert holds(log) == ["a", "b", "c", "d"]
        log._session.close()
    assert team.log(url).verify().findings == ()


def test_a_session_that_the_server_ended_is_made_again(team: TeamDatabase) -> None:
    log = team.log()
    hold(log, "a")
    end_sessions(team)
    hold(log, "b")
    assert holds(log) == ["a", "b"]


def sessions(team: TeamDatabase, which: str = "true") -> list[tuple[object, ...]]:
    """Return the sessions of outlay, or some of them."""
    return team.execute(
        f"SELECT pid FROM pg_stat_activity WHERE application_name = 'outlay' AND {which}"
    )


def end_sessions(team: TeamDatabase) -> None:
    team.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outlay'"
    )
    until(lambda: not sessions(team), "a session did not end")


def test_a_session_ended_with_the_lock_writes_once(team: TeamDatabase) -> None:
    log = team.log()
    hold(log, "a", meanwhile=lambda: end_sessions(team))
    hold(log, "b", meanwhile=lambda: end_sessions(team))
    assert holds(log) == ["a", "b"]


def test_a_decision_that_takes_too_long_is_made_again(team: TeamDatabase) -> None:
    """The server ends the session that idles with the lock; nothing was written."""
    log, held_up = team.log(patience=Patience(idle=0.2)), "the server did not end the session"
    in_use = "xact_start IS NOT NULL"
    hold(log, "a", meanwhile=lambda: until(lambda: not sessions(team, in_use), held_up))
    assert holds(log) == ["a"]


# -- a server that stops ---------------------------------------------------------------------------


def restart(server: PostgresServer) -> None:
    server.stop_at_once()
    server.start()


def test_a_server_stopped_at_once_loses_nothing(team: TeamDatabase) -> None:
    log = team.log()
    hold(log, "a")
    hold(log, "b", meanwhile=lambda: restart(team.server))
    hold(log, "c")
    assert holds(log) == ["a", "b", "c"]
    assert log.verify().findings == ()


def test_an_outcome_that_stays_unknown_is_a_refusal_that_says_so(team: TeamDatabase) -> None:
    log = team.log(patience=SHORT)
    hold(log, "a")
    try:
        with pytest.raises(SpendLogUnusable, match=r"unknown.*same idempotency key"):
            hold(log, "b", meanwhile=team.server.stop_at_once)
        with pytest.raises(SpendLogUnusable, match="Make sure that the server runs"):
            hold(log, "c")
    finally:
        team.server.start()
    hold(log, "d")
    assert holds(log) == ["a", "d"]


def test_every_commit_waits_for_the_servers_disk(team: TeamDatabase) -> None:
    """Also where the login, the database or the server says otherwise."""
    team.execute(f"ALTER ROLE {team.login} SET synchronous_commit = off")
    try:
        log = team.log()
        assert log.transact(lambda _: Decision((), log._query("SHOW synchronous_commit", ()))) == [
            ("on",)
        ]
    finally:
        team.execute(f"ALTER ROLE {team.login} RESET synchronous_commit")


def test_a_server_without_fsync_is_refused(team: TeamDatabase) -> None:
    def set_fsync(setting: str, shown: str) -> None:
        team.execute(f"ALTER SYSTEM {setting}")
        team.execute("SELECT pg_reload_conf()")
        until(lambda: team.execute("SHOW fsync") == [(shown,)], "the setting was not read")

    log = team.log()
    hold(log, "a")
    set_fsync("SET fsync = off", "off")
    try:
        with pytest.raises(SpendLogUnusable, match="fsync off"):
            hold(team.log(log.name.url), "b")
    finally:
        set_fsync("RESET fsync", "on")
    assert holds(log) == ["a"]


# -- a client that dies ----------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from outlay.clock import SYSTEM
from outlay.guard.entries import Decision
from outlay.team import PostgresSpendLog, PostgresUrl
from outlay.team.session import Patience

def decide(books):
    Path(sys.argv[2]).touch()
    SYSTEM.sleep(600)

log = PostgresSpendLog(PostgresUrl.parse(sys.argv[1]), patience=Patience(idle=float(sys.argv[3])))
log.transact(decide)
"""


@contextlib.contextmanager
def lock_holder(url: str, mark: Path, *, idle_s: float) -> Iterator[Any]:
    """A process that holds the lock of a book and does nothing."""
    child = start_python(HOLDER, url, str(mark), str(idle_s))
    try:
        until(mark.exists, "the child never had the lock")
        yield child
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def test_a_client_killed_with_the_lock_blocks_nobody(team: TeamDatabase, tmp_path: Path) -> None:
    url = team.new_book()
    log = team.log(url)
    hold(log, "a")
    with lock_holder(url, tmp_path / "locked", idle_s=600) as child:
        child.send_signal(signal.SIGKILL)
        hold(log, "b")
    assert holds(log) == ["a", "b"]


def test_a_client_that_idles_with_the_lock_is_ended(team: TeamDatabase, tmp_path: Path) -> None:
    url = team.new_book()
    log = team.log(url)
    with lock_holder(url, tmp_path / "locked", idle_s=1) as child:
        child.send_signal(signal.SIGSTOP)
        hold(log, "a")
    assert holds(log) == ["a"]


def test_waiting_for_the_lock_ends_in_a_refusal(team: TeamDatabase, tmp_path: Path) -> None:
    url = team.new_book()
    with lock_holder(url, tmp_path / "locked", idle_s=600):
        log = team.log(url, patience=Patience(lock=0.2))
        with pytest.raises(SpendLogUnusable, match="holds the book's lock"):
            hold(log, "a")
        assert holds(log) == []  # Reading waits for nobody.


def test_a_forked_process_leaves_its_parents_session_alone(team: TeamDatabase) -> None:
    log = team.log()
    hold(log, "parent")
    child = os.fork()
    if not child:
        code = 1
        try:
            hold(log, "child")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hold(log, "parent again")
    assert holds(log) == ["parent", "child", "parent again"]


# -- a server that lacks lines ---------------------------------------------------------------------


@pytest.fixture
def failing(postgres_server: PostgresServer) -> Iterator[TeamDatabase]:
    """A database of its own, that can be set back."""
    database = TeamDatabase(postgres_server)
    database.create()
    yield database
    database.remove()
    postgres_server.execute(f"DROP DATABASE IF EXISTS {database.name}_older WITH (FORCE)")


def save(database: TeamDatabase, *logs: PostgresSpendLog) -> None:
    """Copy the state of a database, as a standby has it."""
    for log in logs:
        log._session.close()
    copy = f"CREATE DATABASE {database.name}_older TEMPLATE {database.name}"
    until(lambda: _runs(database.server, copy), "the database is still in use")


def _runs(server: PostgresServer, statement: str) -> bool:
    import psycopg

    try:
        server.execute(statement)
    except psycopg.errors.ObjectInUse:
        return False
    return True


def promote(database: TeamDatabase) -> None:
    """Put the copy in the place of the database."""
    database.server.execute(f"DROP DATABASE {database.name} WITH (FORCE)")
    database.server.execute(f"ALTER DATABASE {database.name}_older RENAME TO {database.name}")


@pytest.mark.parametrize("others_wrote", [False, True])
def test_a_server_that_lacks_lines_is_refused_until_a_person_accepts_it(
    failing: TeamDatabase, others_wrote: bool, homes: Iterator[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url = failing.new_book()
    warm = failing.log(url)
    hold(warm, "a")
    save(failing, warm)
    hold(warm, "lost")
    promote(failing)
    if others_wrote:
        with monkeypatch.context() as patch:  # Another machine, which has seen nothing of it.
            move_home(next(homes), patch)
            other = failing.log(url)
            hold(other, "b")
            hold(other, "c")
    for log in (warm, failing.log(url)):
        with pytest.raises(SpendLogRolledBack, match="lines up to byte"):
            hold(log, "d")
        with pytest.raises(SpendLogRolledBack, match="lines up to byte"):
            log.books()
        assert ["lines up to byte" in each.message for each in log.verify().findings] == [True]
    owner = failing.owner_url(warm.name.book)
    BudgetGuard(5, owner, environ={}).accept("the primary burned")
    expected = ["a", "b", "c"] if others_wrote else ["a"]
    for log in (warm, failing.log(url)):
        assert holds(log) == expected
        assert log.verify().findings == ()


def test_a_warm_process_goes_on_remembering_after_another_ones_acceptance(
    team: TeamDatabase,
) -> None:
    """An acceptance replaces the file with the remembered head; nobody writes to the old one."""
    url = team.new_book()
    warm, other = team.log(url), team.log(url)
    hold(warm, "a")
    hold(other, "b")
    assert other._seen is not None
    other._memory.replace(other._seen)
    hold(warm, "c")
    remembered = team.log(url)._memory.seen().head
    assert remembered == warm._seen


def test_a_book_in_order_is_not_accepted(team: TeamDatabase) -> None:
    guard = BudgetGuard(5, team.new_book(), environ={})
    guard.authorize("lab02-a", 1)
    with pytest.raises(InvalidValue, match="a log in order"):
        guard.accept("to be sure")


def test_a_head_that_names_another_line_is_refused(failing: TeamDatabase) -> None:
    url = failing.new_book()
    log = failing.log(url)
    hold(log, "a")
    hold(log, "b")
    failing.execute(
        "ALTER TABLE outlay.entry DISABLE TRIGGER append_only;"
        "DELETE FROM outlay.entry WHERE seq = 2"
    )
    for each in (log, failing.log(url)):
        each._forget()  # What is cached goes on from the line that was there.
        with pytest.raises(SpendLogAltered, match="its head names entry 2, and the last one is 1"):
            hold(each, "c")


# -- many at once ----------------------------------------------------------------------------------

RACER = """
import sys
from outlay import BudgetGuard, BudgetGuardExceeded

guard, won = BudgetGuard(1, sys.argv[1], environ={}), 0
for number in range(8):
    try:
        guard.authorize("lab02-race", "0.10 USD")
        won += 1
    except BudgetGuardExceeded:
        pass
sys.exit(won)
"""


def test_processes_that_race_for_the_last_dollar_never_exceed_it(team: TeamDatabase) -> None:
    url = team.new_book()
    children = [start_python(RACER, url) for _ in range(3)]
    assert sum(child.wait() for child in children) == 10
    guard = BudgetGuard(1, url, environ={})
    assert (guard.held, len(guard.holds())) == (1.0, 10)
    assert guard.verify().findings == ()
