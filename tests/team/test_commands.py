"""``outlay team init``, ``guard export`` and ``guard import``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from command_line import in_process
from outlay import BudgetGuard
from outlay.cli.app import app
from outlay.team.team_schema import schema_text
from postgres import PostgresServer, TeamDatabase


@pytest.fixture
def empty(postgres_server: PostgresServer) -> Iterator[TeamDatabase]:
    """A database without books."""
    database = TeamDatabase(postgres_server)
    postgres_server.execute(f"CREATE DATABASE {database.name}")
    yield database
    database.remove()


def test_init_prints_sql_that_creates_a_book(empty: TeamDatabase) -> None:
    owner = empty.server.url(empty.name)
    printed = in_process("team", "init", "--url", f"{owner}?book=vision")
    assert (printed.code, printed.err) == (0, "")
    assert empty.server.password not in printed.out
    for _ in range(2):
        empty.execute(printed.out)
    assert empty.execute("SELECT name, seq FROM outlay.book") == [("vision", 0)]
    empty.add_login(empty.login, empty.password)
    BudgetGuard(5, empty.url("vision"), environ={}).authorize("lab02-a", 1)
    again = in_process("team", "init", "--url", f"{owner}?book=speech", "--json").json
    assert (again["book"], again["ran"]) == ("speech", False)
    empty.execute(again["sql"])
    assert empty.execute("SELECT name, seq FROM outlay.book ORDER BY id") == [
        ("vision", 1), ("speech", 0),
    ]  # fmt: skip


def test_init_runs_only_after_the_name_is_typed(empty: TeamDatabase) -> None:
    words = ["team", "init", "--run", "--url", empty.server.url(empty.name) + "?book=vision"]
    refused = CliRunner().invoke(app, words, input="speech\n")
    assert "nothing was done" in str(refused.exception)
    with pytest.raises(psycopg.Error):
        empty.execute("SELECT 1 FROM outlay.book")
    done = CliRunner().invoke(app, words, input="vision\n")
    assert (done.exit_code, "`outlay team add`" in done.stdout) == (0, True)
    assert empty.execute("SELECT name FROM outlay.book") == [("vision",)]


def test_init_by_a_login_that_may_not_is_refused(team: TeamDatabase) -> None:
    done = CliRunner().invoke(
        app, ["team", "init", "--run", "--url", team.url("mine")], input="mine\n"
    )
    assert "GRANT outlay_launcher" in str(done.exception)
    assert team.execute("SELECT 1 FROM outlay.book WHERE name = 'mine'") == []


def test_a_log_is_exported_and_imported(team: TeamDatabase, tmp_path: Path) -> None:
    path, url = tmp_path / "spend.jsonl", team.new_book(owner=True)
    BudgetGuard(5, path, environ={}).authorize("lab02-a", 1)
    assert in_process("guard", "import", path, "--log", url).code == 0
    BudgetGuard(5, url, environ={}).authorize("lab02-b", 1)
    copy = tmp_path / "copy.jsonl"
    head = in_process("guard", "export", copy, "--log", url, "--json").json["head"]
    assert copy.read_bytes().startswith(path.read_bytes())
    verified = in_process("guard", "verify", "--log", copy, "--expect", head, columns=200)
    assert "sound, 2 of 2 lines chained" in verified.out
    refused = in_process("guard", "export", copy, "--log", url)
    assert (refused.code, "where no spend log is yet" in refused.err) == (2, True)


def test_a_book_of_the_version_before_opens_and_is_brought_up_to_date(empty: TeamDatabase) -> None:
    """Its members have no column that says who owns a team."""
    column = "ALTER TABLE outlay.member ADD COLUMN IF NOT EXISTS owns"
    before = schema_text()
    assert column in before
    empty.execute(before.replace(column, "--").replace("AND m.owns", "AND false"))
    empty.add_login(empty.login, empty.password)
    url = empty.new_book()
    guard = BudgetGuard(9, url, environ={})
    guard.log.beat(guard.authorize("lab02-a", 1).id, "a-process")
    assert (guard.stale_holds(), guard.verify().findings) == ((), ())
    book = url.rpartition("=")[2]
    named = ("--url", empty.owner_url(book))
    assert in_process("team", "members", *named).code == 0
    words = ("team", "add", "x", "--team", "y", *named, "--run")
    lacking = in_process(*words, typed=f"{book}\n")
    assert "outlay team init" in lacking.err
    empty.execute(schema_text())
    empty.execute("INSERT INTO outlay.member (login, team, owns) VALUES ('z', 'y', true)")
    guard.void(guard.holds()[0], "that it may")


def test_who_only_reads_sees_which_rentals_nobody_watches(team: TeamDatabase) -> None:
    url = team.new_book()
    BudgetGuard(9, url, environ={}).authorize("lab02-a", 1)
    login, word = f"ron_{url[-6:]}", "word"
    team.execute(f"CREATE ROLE {login} LOGIN PASSWORD '{word}' IN ROLE outlay_reader")
    reader = url.replace(f"{team.login}:{team.password}", f"{login}:{word}")
    assert BudgetGuard.of_log(reader, environ={}).stale_holds() == ()


def test_every_table_and_column_of_a_book_is_documented(team: TeamDatabase) -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    section = page.partition("### A book in PostgreSQL")[2].partition("\n### ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ")][1:]
    described: dict[str, set[str]] = {}
    table = ""
    for name, columns in rows:
        table = name.strip(" `") or table
        described.setdefault(table, set()).update(columns.replace("`", "").replace(",", "").split())
    found = team.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'outlay'"
    )
    assert {(table, name) for table, names in described.items() for name in names} == set(found)
