"""One round trip while nobody else writes to a book, and what it does when somebody does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from homes import move_home
from outlay import BudgetGuard
from outlay.clock import ManualClock
from outlay.guard.balance import Books
from outlay.guard.entries import Decision, Held
from outlay.guard.errors import BudgetGuardExceeded, SpendLogUnusable
from outlay.team import PostgresSpendLog
from outlay.team.session import Batch, Patience, Row
from pooler import Pooler
from postgres import TeamDatabase
from spend_lines import held_now
from waiting import until

ONE = ["append_after"]


@contextmanager
def trips(log: PostgresSpendLog) -> Iterator[list[str]]:
    """Yield a list that gets what each round trip is for."""
    session, found = log._session, list[str]()
    run, call = session.run, session.call

    def noted_run(batch: Batch) -> list[list[Row]]:
        found.append(batch[-1][0])
        return run(batch)

    def noted_call(statement: str, values: Sequence[object]) -> list[Row]:
        found.append("append_after" if "append_after" in statement else statement)
        return call(statement, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "run", noted_run)
        patch.setattr(session, "call", noted_call)
        yield found


def hold(log: PostgresSpendLog, name: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Append a hold; ``meanwhile`` happens between decision and append, once."""
    calls = iter([meanwhile])

    def decide(_: Books) -> Decision[None]:
        entry = held_now(log, name)
        next(calls, lambda: None)()
        return Decision((entry,), None)

    log.transact(decide)


def holds(log: PostgresSpendLog) -> list[str]:
    return [line.hold for line in log.lines() if isinstance(line, Held)]


@pytest.fixture
def warm(team: TeamDatabase) -> PostgresSpendLog:
    """A log whose last turn found nothing of others, and was just now, however long it takes."""
    log = team.log(clock=ManualClock())
    hold(log, "first")
    hold(log, "second")
    return log


def test_a_client_that_writes_alone_needs_one_round_trip(
    team: TeamDatabase, warm: PostgresSpendLog
) -> None:
    hold(warm, "warming")  # Whether a pooler is in between is asked once.
    with trips(warm) as found:
        for number in range(10):
            hold(warm, str(number))
    assert found == ONE * 10
    assert holds(warm)[3:] == [str(number) for number in range(10)]
    assert team.log(warm.name.url).verify().findings == ()


def test_settling_needs_one_round_trip(team: TeamDatabase) -> None:
    """Also of a hold from before the last snapshot: nothing else is looked up about it."""
    log = team.log(clock=ManualClock())
    guard = BudgetGuard(999, log.name.url, environ={}, log=log)
    held = [guard.authorize(f"lab02-{number}", 1) for number in range(70)]
    guard.record_actual("lab02-0", 1, hold=held[0])
    for one in (held[1], held[69]):
        with trips(log) as found:
            guard.record_actual(one.op_label, 1, hold=one)
        assert found == ONE
    assert guard.held == 67.0
    assert team.log(log.name.url).verify().findings == ()


def test_what_others_wrote_meanwhile_is_read_before_it_is_decided_again(
    team: TeamDatabase, warm: PostgresSpendLog
) -> None:
    other, seen = team.log(warm.name.url), list[list[str]]()

    def decide(books: Books) -> Decision[None]:
        if not seen:
            hold(other, "theirs")
        seen.append([each.id for each in books.open_holds()])
        return Decision((held_now(warm, "mine"),), None)

    warm.transact(decide)
    assert seen == [["first", "second"], ["first", "second", "theirs"]]
    assert holds(warm) == ["first", "second", "theirs", "mine"]
    assert team.log(warm.name.url).verify().findings == ()


def test_after_others_wrote_the_book_is_locked_before_a_decision(
    team: TeamDatabase, warm: PostgresSpendLog
) -> None:
    hold(team.log(warm.name.url), "theirs")
    hold(warm, "mine")
    with trips(warm) as found:
        hold(warm, "next")
    assert found[-1] == "COMMIT"
    with trips(warm) as found:  # That turn found nothing new.
        hold(warm, "last")
    assert found == ONE


def test_some_time_after_a_turn_another_one_is_taken(team: TeamDatabase) -> None:
    clock = ManualClock()
    log = team.log(clock=clock)
    hold(log, "first")
    hold(log, "second")
    clock.advance(6 * 10**9)
    with trips(log) as found:
        hold(log, "third")
    assert found[-1] == "COMMIT"


@pytest.fixture
def two(
    team: TeamDatabase, homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> tuple[BudgetGuard, BudgetGuard]:
    """Guards of one book with a ceiling of 5, on two machines; the first one has written alone."""
    url = team.new_book()
    log = team.log(url, clock=ManualClock())
    guard = BudgetGuard(5, url, environ={}, log=log)
    for _ in range(3):
        guard.authorize("lab02-a", 1)
    with monkeypatch.context() as patch:  # What the other sees is not remembered here.
        move_home(next(homes), patch)
        return guard, BudgetGuard(5, url, environ={})


def test_money_that_others_took_meanwhile_is_not_granted_again(
    two: tuple[BudgetGuard, BudgetGuard],
) -> None:
    guard, other = two
    other.authorize("lab02-b", 2)
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("lab02-c", 1)
    assert other.held == 5


def test_a_refusal_is_never_based_on_what_was_known_before(
    two: tuple[BudgetGuard, BudgetGuard],
) -> None:
    guard, other = two
    other.void(guard.holds()[0], "not needed")
    assert guard.authorize("lab02-b", 3).amount.micros == 3 * 10**6


def test_a_key_that_others_used_is_found(two: tuple[BudgetGuard, BudgetGuard]) -> None:
    guard, other = two
    theirs = other.authorize("lab02-b", 1, key="k")
    assert guard.authorize("lab02-b", 1, key="k").id == theirs.id


def test_a_snapshot_is_kept_although_most_lines_are_written_without_a_turn(
    team: TeamDatabase,
) -> None:
    log = team.log()
    for number in range(70):
        hold(log, str(number))
    fresh = team.log(log.name.url)
    assert len(fresh.look(Books.open_holds)) == 70
    assert fresh._began == 64


def test_a_line_that_the_database_refuses_is_decided_again_under_the_lock(
    team: TeamDatabase, warm: PostgresSpendLog
) -> None:
    """Whoever joins a team is told so, although the last turn knew of none."""
    guard = BudgetGuard(9, warm.name.url, environ={}, log=warm)
    team.add_member(team.login, "vision")
    try:
        assert guard.authorize("lab02-a", 1).team == "vision"
    finally:
        team.forget_people()


def test_a_commit_without_a_turn_waits_for_the_disk(team: TeamDatabase) -> None:
    asked = "SHOW synchronous_commit"
    team.execute(f"ALTER ROLE {team.login} SET synchronous_commit = off")
    try:
        with psycopg.connect(team.url()) as connection:
            assert connection.execute(asked).fetchone() == ("off",)
            connection.execute("SELECT outlay.append_after(0, 0, '', '1s', '{}')")
            assert connection.execute(asked).fetchone() == ("on",)
    finally:
        team.execute(f"ALTER ROLE {team.login} RESET synchronous_commit")


def test_a_server_that_no_longer_syncs_is_refused_without_a_turn(
    team: TeamDatabase, warm: PostgresSpendLog
) -> None:
    def set_fsync(setting: str, shown: str) -> None:
        team.execute(f"ALTER SYSTEM {setting}")
        team.execute("SELECT pg_reload_conf()")
        until(lambda: team.execute("SHOW fsync") == [(shown,)], "the setting was not read")

    set_fsync("SET fsync = off", "off")
    try:
        with pytest.raises(SpendLogUnusable, match="fsync off"):
            hold(warm, "third")
    finally:
        set_fsync("RESET fsync", "on")
    assert holds(warm) == ["first", "second"]


def test_a_lock_that_is_not_given_is_waited_for_once(team: TeamDatabase) -> None:
    log = team.log(patience=Patience(lock=0.2), clock=ManualClock())
    hold(log, "first")
    hold(log, "second")
    with psycopg.connect(team.url()) as connection:
        connection.execute("SELECT outlay.lock(%s)", [log.name.book])
        with trips(log) as found, pytest.raises(SpendLogUnusable, match="holds the book's lock"):
            hold(log, "third")
    assert [each for each in found if "pg_backend_pid" not in each] == ONE


def test_statements_are_prepared_only_if_no_pooler_is_in_between(
    warm: PostgresSpendLog, pooler: Pooler
) -> None:
    pooled = pooler.log()
    for log in (warm, pooled):
        for number in range(10):
            hold(log, str(number))
    prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%%append_after%%'"
    assert warm._query(prepared, ()) == [(1,)]
    assert pooled._query(prepared, ()) == [(0,)]
    assert pooled.verify().findings == ()
