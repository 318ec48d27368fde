"""``outlay team prune`` and ``rebuild``: old and wrong snapshots go, and every figure stays."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from command_line import in_process
from outlay import BudgetGuard
from outlay.guard.balance import Books
from outlay.guard.errors import SpendLogUnusable
from outlay.guard.spend_log import apply_line
from outlay.team import PostgresSpendLog, PostgresUrl, postgres_log
from outlay.team.kept_folds import DatabaseRows, SnapshotPruned
from outlay.team.team_schema import NEWEST, prune_book
from postgres import TeamDatabase


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Keep a snapshot after every fourth entry."""
    with mock.patch.object(postgres_log, "_TAIL", 4):
        yield


def guard_of(log: PostgresSpendLog) -> BudgetGuard:
    return BudgetGuard(1000, log.name.url, environ={}, log=log)


def spend(guard: BudgetGuard, times: int) -> None:
    """Open, settle and void holds: rows of the fold come, change and go."""
    for number in range(times):
        hold = guard.authorize(f"lab0{number % 3}-a", 1, key=f"{len(guard.log.lines())}")
        if number % 3:
            guard.record_actual("a", "0.5", hold=hold)


def contents(books: Books) -> tuple[object, ...]:
    return (books.state(), *(dict(books.rows(table)) for table in books.tables()))


def owners(team: TeamDatabase, log: PostgresSpendLog) -> str:
    return f"{team.server.url(team.name)}?book={log.name.book}"


def kept(team: TeamDatabase, log: PostgresSpendLog) -> list[int]:
    rows = f"book = (SELECT id FROM outlay.book WHERE name = '{log.name.book}')"
    found = team.execute(f"SELECT seq FROM outlay.snapshot WHERE {rows} ORDER BY seq")
    return [int(str(row[0])) for row in found]


def rows_kept(team: TeamDatabase, log: PostgresSpendLog) -> int:
    rows = f"book = (SELECT id FROM outlay.book WHERE name = '{log.name.book}')"
    return len(team.execute(f"SELECT 1 FROM outlay.fold WHERE {rows}"))


def folded(log: PostgresSpendLog) -> tuple[object, ...]:
    """Return the fold of every line, without any snapshot."""
    books = Books()
    for number, line in enumerate(log.lines(), 1):
        apply_line("", books, number, line)
    return contents(books)


def test_what_is_kept_is_what_new_processes_need(team: TeamDatabase) -> None:
    log = team.log()
    spend(guard_of(log), 20)
    before, rows = kept(team, log), rows_kept(team, log)
    done = in_process("team", "prune", "--url", owners(team, log), "--json")
    assert done.json == {"book": log.name.book, "removed": rows - rows_kept(team, log)}
    assert done.json["removed"] > 0
    assert kept(team, log) == before[-NEWEST:]
    fresh = team.log(log.name.url)
    assert contents(fresh.books()) == folded(log)
    assert fresh._began == before[-1]
    assert fresh.verify().findings == ()
    assert in_process("team", "prune", "--url", owners(team, log), "--json").json["removed"] == 0


def test_each_kept_snapshot_is_whole(team: TeamDatabase) -> None:
    """A process may have begun with any of them."""
    log = team.log()
    spend(guard_of(log), 20)
    copies = {seq: _at(log, seq) for seq in kept(team, log)[-NEWEST:]}
    prune_book(PostgresUrl.parse(owners(team, log)))
    assert {seq: _at(log, seq) for seq in copies} == copies


def _at(log: PostgresSpendLog, seq: int) -> tuple[object, ...]:
    rows = DatabaseRows(log._query_many, log._book or 0, seq)
    return tuple(sorted(rows.rows(table)) for table in Books().tables())


def test_a_process_whose_snapshot_went_begins_anew(team: TeamDatabase) -> None:
    log = team.log()
    guard = guard_of(log)
    spend(guard, 4)
    sleeper = team.log(log.name.url)
    sleeping = guard_of(sleeper)
    assert sleeping.held == guard.held
    escaped, began = sleeper.books(), sleeper._began
    spend(guard, 20)
    while log._seq > kept(team, log)[-1]:  # Else one is due, and who is behind begins anew anyway.
        guard.authorize("lab02-more", 1)
    prune_book(PostgresUrl.parse(owners(team, log)))
    assert began not in kept(team, log)
    with pytest.raises(SnapshotPruned, match="Ask again"):
        contents(escaped)
    sleeping.authorize("lab02-late", 1)
    assert sleeper._began in kept(team, log)
    assert contents(sleeper.books()) == folded(log)
    assert sleeping.verify().findings == ()


def test_a_reader_is_not_disturbed(team: TeamDatabase) -> None:
    log = team.log()
    guard = guard_of(log)
    spend(guard, 20)
    other = team.log(log.name.url)

    def ask(books: Books) -> tuple[object, ...]:
        prune_book(PostgresUrl.parse(owners(team, log)), newest=0)
        assert kept(team, log) == []
        return contents(books)

    assert other.look(ask) == folded(log)


def test_a_snapshot_that_lies_is_thrown_away_by_an_owner(team: TeamDatabase) -> None:
    log = team.log()
    guard = guard_of(log)
    spend(guard, 9)
    rows = f"book = (SELECT id FROM outlay.book WHERE name = '{log.name.book}')"
    team.execute(
        "ALTER TABLE outlay.fold DISABLE TRIGGER append_only;"
        f"UPDATE outlay.fold SET value = '[0,1]' WHERE {rows} AND name = 'totals';"
        "ALTER TABLE outlay.fold ENABLE TRIGGER append_only;"
    )
    deceived = team.log(log.name.url)
    assert contents(deceived.books()) != folded(log)
    assert deceived.verify().findings
    done = in_process("team", "rebuild", "--url", owners(team, log), columns=200)
    assert (done.code, "the next process makes new ones" in done.out) == (0, True)
    assert rows_kept(team, log) == 0
    for each in (deceived, log, team.log(log.name.url)):
        assert contents(each.books()) == folded(log)
        assert each.verify().findings == ()
    spend(guard_of(deceived), 4)
    assert kept(team, log)
    assert contents(team.log(log.name.url).books()) == folded(log)


@pytest.mark.parametrize("command", ["prune", "rebuild"])
def test_only_an_owner_may(team: TeamDatabase, command: str) -> None:
    log = team.log()
    spend(guard_of(log), 20)
    before = kept(team, log)
    done = in_process("team", command, "--url", log.name.url)
    assert (done.code, "An owner does this" in done.err) == (SpendLogUnusable.exit_code, True)
    assert kept(team, log) == before
