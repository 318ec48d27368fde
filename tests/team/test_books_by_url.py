"""A book is named by a URL wherever a spend log is named, and shows no secret of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command_line import in_process, outlay
from outlay import BudgetGuard, BudgetGuardExceeded
from outlay.errors import InvalidValue, MissingExtra
from outlay.guard.errors import CeilingUnusable, SpendLogUnusable
from outlay.guard.gate import HOLD_VARIABLE, read_guarding
from outlay.guard.spend_log import MemorySpendLog
from outlay.ledger import Price
from outlay.team import PostgresUrl
from postgres import TeamDatabase

ELSEWHERE = "postgresql://ada:se%40cret@db.example:6543/spend?book=vision&sslmode=require"


def test_a_guard_takes_the_url_of_a_book(team: TeamDatabase) -> None:
    url = team.new_book()
    hold = BudgetGuard(5, url, environ={}).authorize("lab02-a", "3.00 USD")
    other = BudgetGuard(5, url, environ={})
    assert other.holds() == (hold,)
    with pytest.raises(BudgetGuardExceeded):
        other.authorize("lab02-b", "2.01 USD")


def test_a_guard_of_a_book_has_the_ceiling_of_its_last_line(team: TeamDatabase) -> None:
    url = team.new_book()
    with pytest.raises(CeilingUnusable, match=r"book book-\w+: got nothing"):
        BudgetGuard.of_log(url, environ={})
    BudgetGuard(5, url, environ={}).authorize("lab02-a", 1)
    guard = BudgetGuard.of_log(url, environ={})
    guard.set_ceiling("8 USD", "agreed")
    assert str(BudgetGuard.of_log(url, environ={}).ceilings.whole) == "8.00 USD"


def test_test_mode_connects_nowhere() -> None:
    guard = BudgetGuard(5, ELSEWHERE, environ={"BUDGET_GUARD_TEST_MODE": "1"})
    assert isinstance(guard.log, MemorySpendLog)
    guard.authorize("lab02-a", 1)


@pytest.mark.parametrize(
    "name", ["mysql://ada:secret@db/spend?book=vision", "mysqls://ada:secret@db/spend"]
)
def test_a_url_that_nothing_takes_is_refused_and_makes_no_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValue, match=r"postgres://.*postgresql://") as caught:
        BudgetGuard(5, name, environ={})
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_url_as_a_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValue, match="a URL is text") as caught:
        BudgetGuard(5, Path(ELSEWHERE), environ={})
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada@db/spend", "postgresql://ada@db/spend?book=",
        "postgresql://ada@db/spend?book=a&book=b", "postgresql://ada@db/spend?book=a'b",
        "postgresql://ada@[db/spend?book=a",
    ],
)  # fmt: skip
def test_a_url_without_a_book_is_refused(url: str) -> None:
    with pytest.raises(InvalidValue, match="book=NAME"):
        BudgetGuard(5, url, environ={})


def test_only_backend_database_and_book_of_a_url_are_shown() -> None:
    url = PostgresUrl.parse(ELSEWHERE)
    assert str(url) == "postgresql database spend, book vision"
    assert repr(url) == "PostgresUrl(book='vision')"
    assert str(PostgresUrl.parse("postgresql://u:p/w@db/x?book=b")) == "postgresql database, book b"


def test_parameters_of_the_connection_are_kept() -> None:
    server = PostgresUrl.parse(ELSEWHERE + "&options=-c%20geqo%3Doff").server
    assert server.endswith("/spend?sslmode=require&options=-c%20geqo%3Doff")


@pytest.mark.parametrize("what", ["nobody:secret", "{login}:secret"])
def test_a_login_that_fails_is_a_refusal_without_the_url(team: TeamDatabase, what: str) -> None:
    book = team.new_book()
    url = book.replace(f"{team.login}:{team.password}", what.format(login=team.login))
    with pytest.raises(SpendLogUnusable, match="outlay_launcher") as caught:
        BudgetGuard(5, url, environ={}).authorize("lab02-a", 1)
    said = str(caught.value)
    assert not [part for part in ("secret", team.login, "127.0.0.1") if part in said]


def test_a_server_that_does_not_answer_is_a_refusal() -> None:
    with pytest.raises(SpendLogUnusable, match="Make sure that the server runs"):
        BudgetGuard(5, "postgresql://ada:secret@127.0.0.1:1/spend?book=a", environ={}).authorize(
            "lab02-a", 1
        )


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"outlay\[postgres\]"):
        BudgetGuard(5, ELSEWHERE, environ={}).authorize("lab02-a", 1)


@pytest.mark.parametrize("lacks", ["book", "schema"])
def test_a_missing_book_or_schema_names_what_creates_it(team: TeamDatabase, lacks: str) -> None:
    url = team.url("no-such-book") if lacks == "book" else team.server.url() + "?book=a"
    guard = BudgetGuard(5, url, environ={})
    with pytest.raises(SpendLogUnusable, match="outlay team init"):
        guard.authorize("lab02-a", 1)
    with pytest.raises(SpendLogUnusable, match="outlay team init"):
        guard.holds()


def test_commands_take_the_url_of_a_book(
    team: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = team.new_book()
    held = in_process("guard", "authorize", "lab02-a", "3 USD", "--ceiling", "5", "--log", url)
    assert (held.code, held.err) == (0, "")
    monkeypatch.setenv("OUTLAY_SPEND_LOG", url)
    assert in_process("guard", "record", "lab02-a", "2 USD").code == 0
    status = in_process("guard", "status", "--json")
    assert status.json["log"].startswith(f"postgresql database {team.name}, book ")
    assert team.password not in status.out + held.out
    assert "sound, 2 of 2 lines chained" in in_process("guard", "verify", columns=200).out
    assert "capture" in in_process("guard", "history").out


def test_a_run_joins_the_hold_of_its_launcher_in_a_book(
    team: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = team.new_book()
    hold = BudgetGuard(5, url, environ={}).authorize("lab02-a", "3.00 USD")
    monkeypatch.setenv("PGPASSWORD", team.password)
    named = url.replace(f":{team.password}", "")
    guarding = read_guarding(None, {HOLD_VARIABLE: f"{hold.id}@{named}"}, price=Price(1_000_000))
    assert guarding is not None
    assert guarding.guard.holds() == (hold,)


def test_a_command_runs_under_a_book(team: TeamDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    url = team.new_book()
    monkeypatch.setenv("PGPASSWORD", team.password)
    named = url.replace(f":{team.password}", "")
    words = ("--label", "lab02-a", "--rate", "1 USD/h", "--ceiling", "5", "--log", named)
    done = outlay("guard", "run", *words, "--json", "--", "sh", "-c", "echo $OUTLAY_HOLD >&2")
    guard = BudgetGuard(5, url, environ={})
    assert (done.code, guard.holds()) == (0, ())
    assert done.json["head"] == guard.head
    assert f"{done.json['hold']}@{named}" in done.err
    assert guard.verify().findings == ()


def test_a_url_with_a_password_is_not_handed_on(team: TeamDatabase) -> None:
    url = team.new_book()
    BudgetGuard(5, url, environ={}).authorize("lab02-a", "1 USD")
    words = ("guard", "run", "--log", url, "--label", "lab02-b", "--rate", "1 USD/h", "true")
    refused = in_process(*words)
    assert (refused.code, "with a password" in refused.err) == (2, True)
    assert len(BudgetGuard(5, url, environ={}).holds()) == 1


def test_a_book_has_no_path(team: TeamDatabase) -> None:
    with pytest.raises(InvalidValue, match="a spend log in a file"):
        _ = BudgetGuard(5, team.new_book(), environ={}).log_path
