"""Pages, metrics, digests and alerts show a book; one that is away delays and breaks none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import outlay
from command_line import in_process
from outlay import BudgetGuard
from outlay.clock import SYSTEM, ManualClock
from outlay.errors import InvalidValue
from outlay.export.live_runs import LiveRuns
from outlay.export.prometheus import exposition
from outlay.export.spend_logs import shared_logs
from outlay.guard.away.polled_log import Polled, PolledLog
from outlay.guard.entries import timestamp
from outlay.store import open_store
from outlay.store.home import settings_path
from outlay.team.session import Session
from outlay.web.book_reader import BookReader
from outlay.web.guard import guard_page, guard_stamp
from outlay.web.money import money_page
from outlay.web.now import now_page
from outlay.web.page import Page, PageQuery
from postgres import PostgresServer, TeamDatabase
from waiting import until
from web_server import serving

GUARD = PageQuery(path="/guard")


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[TeamDatabase]:
    """A database of its own, which the test may close."""
    database = TeamDatabase(postgres_server)
    database.create()
    yield database
    database.remove()


@pytest.fixture
def book(database: TeamDatabase, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a book with a ceiling of 5 USD and a hold of 4, named by the environment."""
    url = database.new_book()
    BudgetGuard(5, url, environ={}).authorize("lab02-a", 4)
    monkeypatch.setenv("OUTLAY_SPEND_LOG", url)
    return url


@pytest.fixture
def books(book: str, clock: ManualClock) -> Iterator[BookReader]:
    """The data of pages, with the book."""
    assert book
    books = BookReader(clock=clock)
    yield books
    books.close()


def shown_name(database: TeamDatabase, url: str) -> str:
    return f"postgresql database {database.name}, book {url.rpartition('=')[2]}"


def text_of(page: Page) -> str:
    return "".join(page.parts)


def connections(database: TeamDatabase) -> list[int]:
    """Return the server's processes of the launcher's connections."""
    rows = database.server.execute(
        f"SELECT pid FROM pg_stat_activity WHERE datname = '{database.name}' "
        f"AND usename = '{database.login}'"
    )
    return [int(str(pid)) for (pid,) in rows]


def shut(database: TeamDatabase) -> None:
    database.server.execute(f"ALTER DATABASE {database.name} ALLOW_CONNECTIONS false")
    for pid in connections(database):
        database.server.execute(f"SELECT pg_terminate_backend({pid})")
    until(lambda: not connections(database), "closed connections")


def reopen(database: TeamDatabase) -> None:
    database.server.execute(f"ALTER DATABASE {database.name} ALLOW_CONNECTIONS true")


def test_pages_show_a_book_without_its_secrets_over_one_connection(
    books: BookReader, book: str, database: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, connect = list[Session](), Session._connect

    def counted(session: Session) -> object:
        made.append(session)
        return connect(session)

    monkeypatch.setattr(Session, "_connect", counted)
    for _ in range(3):
        page, now = guard_page(GUARD, books), now_page(PageQuery(path="/"), books)
        guard_stamp(GUARD, books)
    assert len(made) == 1
    name = shown_name(database, book)
    assert name in text_of(page)
    assert page.document["log"] == name
    assert [hold.op_label for hold in page.document["holds"]] == ["lab02-a"]
    assert page.document["verification"].sound
    assert [str(each.remaining) for each in now.document["standings"]] == ["1.00 USD"]
    assert database.password not in text_of(page) + text_of(now) + str(page.document)
    assert database.login not in text_of(now)  # Of the guard page, whose hold it is.


@pytest.mark.parametrize("unit", ["USD showback", "GPU-h"])
def test_a_run_draws_on_a_book_and_the_page_shows_its_unit(
    team: TeamDatabase,
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
) -> None:
    url = team.new_book()
    name = url.rpartition("=")[2]
    team.execute(f"UPDATE outlay.book SET currency = '{unit}' WHERE name = '{name}'")
    BudgetGuard(50, url, currency=unit, environ={}).note("opened")
    monkeypatch.setenv("OUTLAY_SPEND_LOG", url)
    price = "2 USD/h showback"
    with outlay.run("bert", dir=tmp_path / "run", gpus=2, price=price, guard=url, clock=clock):
        clock.advance(3600 * 10**9)
    spent = {"GPU-h": "2.00 GPU-h"}.get(unit, "4.00 USD showback")
    books = BookReader(clock=clock)
    try:
        page = guard_page(GUARD, books)
        assert f"50.00 {unit}" in text_of(page)
        assert spent in text_of(page)
        assert page.document["unit"] == unit
        assert [row["currency"] for row in page.rows] == [unit] * len(page.rows)
    finally:
        books.close()


def test_the_stamp_of_a_page_is_the_head_of_the_book(books: BookReader, book: str) -> None:
    before = guard_stamp(GUARD, books)
    assert guard_stamp(GUARD, books) == before
    guard = BudgetGuard.of_log(book, environ={})
    guard.note("seen")
    assert guard_stamp(GUARD, books) != before
    assert guard.head in str(guard_stamp(GUARD, books))
    assert [row["what"] for row in guard_page(GUARD, books).rows][-1] == "seen"


def test_a_page_says_as_of_when_while_its_database_is_away(
    books: BookReader, database: TeamDatabase, clock: ManualClock
) -> None:
    first, stamp = guard_page(GUARD, books), guard_stamp(GUARD, books)
    at = first.document["standings"]
    clock.advance(60 * 10**9)
    shut(database)
    page = guard_page(GUARD, books)
    assert "as of 20" in text_of(page)
    assert "not currently accepting connections" in text_of(page)
    assert page.document["standings"] == at
    assert guard_stamp(GUARD, books) != stamp
    reopen(database)
    clock.advance(60 * 10**9)
    assert "as of 20" not in text_of(guard_page(GUARD, books)).replace("journal as of", "")


def test_a_page_whose_database_was_never_there_is_a_page(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setenv("OUTLAY_SPEND_LOG", "postgresql://ada:hunter2@127.0.0.1:9/spend?book=vision")
    books = BookReader(clock=clock)
    page, now = guard_page(GUARD, books), now_page(PageQuery(path="/"), books)
    books.close()
    assert "not read yet" in text_of(page)
    for each in (page, now):
        assert "postgresql database spend, book vision" in text_of(each)
        assert "hunter2" not in text_of(each)


def test_a_server_that_does_not_answer_delays_nobody(
    book: str, database: TeamDatabase, clock: ManualClock
) -> None:
    log = PolledLog(book, clock=clock, patience_s=0.2)

    def ask() -> Polled[Any]:
        return log.ask("standings", lambda: log.open().standings())

    with closing(log):
        until(lambda: not ask().problem, "an answer")  # A busy machine needs longer than that.
        known = log.last("standings").value
        (backend,) = [pid for pid in connections(database) if is_idle(database, pid)]
        os.kill(backend, signal.SIGSTOP)
        try:
            late, later = ask(), ask()
        finally:
            os.kill(backend, signal.SIGCONT)
        until(lambda: not ask().problem, "an answer")
    assert len(known or ()) == 1
    assert late.value == later.value == known
    assert late.problem == "no answer within 0.2 seconds"
    assert later.problem == "the database has not answered yet"


def is_idle(database: TeamDatabase, pid: int) -> bool:
    """Return whether a connection is still used: those of other guards are closed or collected."""
    rows = database.server.execute(f"SELECT state FROM pg_stat_activity WHERE pid = {pid}")
    return rows == [("idle",)]


def test_metrics_have_a_book_by_its_shown_name_and_no_old_balance(
    book: str, database: TeamDatabase, clock: ManualClock
) -> None:
    live = LiveRuns(open_store(), [book], clock=clock)
    labels = f'{{log="{shown_name(database, book)}",scope="whole"}}'
    assert f"outlay_guard_held_usd{labels} 4.0" in exposition(live.read())
    shut(database)
    away = exposition(live.read())
    assert "outlay_guard_held_usd" not in away
    assert "outlay_unreadable{} 1.0" in away
    reopen(database)
    clock.advance(60 * 10**9)
    assert f"outlay_guard_held_usd{labels} 4.0" in exposition(live.read())
    live.close()


def test_commands_show_a_book(book: str, database: TeamDatabase) -> None:
    name, head = shown_name(database, book), BudgetGuard.of_log(book, environ={}).head
    digest = in_process("digest", "--log", book, "--json").json
    assert digest["heads"] == {name: head}
    assert [(each["name"], each["percent"]) for each in digest["limits"]] == [
        (f"whole in {name}", 80.0)
    ]
    said = in_process("export", "prometheus").out  # Found in the environment.
    assert f'log="{name}"' in said


def test_an_alert_is_raised_on_a_book_that_the_settings_name(
    book: str, database: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUTLAY_SPEND_LOG")
    monkeypatch.setenv("PGPASSWORD", database.password)
    path = settings_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    rule = '[[alerts.rule]]\nwhen = "ceiling"\n'
    path.write_text(f'spend_logs = ["{book}"]\n{rule}')
    with pytest.raises(InvalidValue, match="pgpass") as refused:
        shared_logs()
    assert database.password not in str(refused.value)
    plain = book.replace(f":{database.password}@", "@")
    path.write_text(f'spend_logs = ["{plain}"]\n{rule}')
    checked = in_process("watch", "--check", "--json")
    (alert,) = [each for each in checked.json["alerts"] if not each["implied"]]
    said = "4.00 USD of the 5.00 USD for whole are spent or held"
    assert f"{said} ({shown_name(database, book)})" in alert["text"]


# -- teams of members ------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The month of a run of the user ada without a tag, and of one with the tag speech."""
    monkeypatch.setenv("LOGNAME", "ada")
    for name, tags in (("untagged", {}), ("tagged", {"team": "speech"})):
        with outlay.run(name, dir=tmp_path / name, price="36000 USD/h", tags=tags) as run:
            list(run.steps(range(3)))
    return timestamp(SYSTEM.wall_ns())[:7]


def owners_of(month: str) -> dict[str, int]:
    found = in_process("cost", "allocate", "--by", "team", "--month", month, "--json").json
    return {row["owner"]: row["runs"] for row in found["rows"]}


def test_a_run_without_a_tag_is_charged_to_the_team_of_its_user(
    books: BookReader, database: TeamDatabase, trained: str
) -> None:
    assert owners_of(trained) == {"(untagged)": 1, "speech": 1}
    database.add_member("ada", "vision")
    assert owners_of(trained) == {"vision": 1, "speech": 1}
    page = money_page(PageQuery(path="/money", query=[("by", "team"), ("month", trained)]), books)
    assert {str(row["owner"]) for row in page.rows} == {"vision", "speech"}
    database.add_member("ada", "audio")  # Which of the two pays is unknown.
    assert owners_of(trained) == {"(untagged)": 1, "speech": 1}


def test_teams_are_known_by_tags_while_the_book_is_away(
    trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_SPEND_LOG", "postgresql://ada@127.0.0.1:1/none?book=lab")
    asked = ("cost", "allocate", "--by", "team", "--month", trained, "--json")
    found = in_process(*asked).json
    assert {row["owner"] for row in found["rows"]} == {"(untagged)", "speech"}
    assert "book lab" in found["findings"][0]["source"]


def test_a_settings_file_that_is_none_is_refused() -> None:
    path = settings_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("spend_logs = 7")
    with pytest.raises(InvalidValue, match="spend_logs"):
        shared_logs()


def test_a_server_shows_a_book_and_stops_while_its_database_is_away(
    book: str, database: TeamDatabase, tmp_path: Path
) -> None:
    name = shown_name(database, book)
    with serving(tmp_path) as served, served.client() as client:
        assert name in client.get("/guard").text
        until(
            lambda: (
                [hold["op_label"] for hold in client.get("/guard.json").json()["holds"]]
                == ["lab02-a"]
            ),
            "the book's hold",  # A database that answers late is away until it has.
        )
        bearer = {"Authorization": f"Bearer {served.url.rpartition('=')[2]}"}
        assert f'log="{name}"' in client.get("/metrics", headers=bearer).text
        shut(database)
        until(lambda: "as of 20" in client.get("/guard").text, "a page that says as of when")
        assert client.get("/").status_code == 200
        assert "outlay_unreadable{} 1.0" in client.get("/metrics", headers=bearer).text
    assert served.process.returncode == 0
