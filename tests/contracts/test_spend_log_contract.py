"""What every spend log must do, whatever it is kept in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from outlay.guard.balance import Books
from outlay.guard.entries import SCHEMA, Captured, Decision, Held
from outlay.guard.errors import BudgetGuardExceeded
from outlay.guard.spend_log import FileSpendLog, MemorySpendLog, SpendLog
from spend_lines import held_now

MakeLog = Callable[[Path, pytest.FixtureRequest], SpendLog]
IMPLEMENTATIONS: dict[str, MakeLog] = {
    "file": lambda directory, _: FileSpendLog(directory / "spend.jsonl"),
    "memory": lambda _, __: MemorySpendLog(),
    "postgresql": lambda _, request: request.getfixturevalue("team").log(),
    "pooler": lambda _, request: request.getfixturevalue("pooler").log(),
}
GROUPS = {name: [pytest.mark.xdist_group("postgres")] for name in ("postgresql", "pooler")}


@pytest.fixture(params=[pytest.param(n, marks=GROUPS.get(n, [])) for n in IMPLEMENTATIONS])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> SpendLog:
    return IMPLEMENTATIONS[request.param](tmp_path, request)


def captured(of: Held, amount: str) -> Captured:
    return Captured(
        v=SCHEMA, ts=of.ts, op_label="op", currency="USD", actual=Decimal(amount), hold=of.hold,
        lab="buffer", day=of.day,
    )  # fmt: skip


def test_an_empty_log_holds_nothing(log: SpendLog) -> None:
    assert log.books().held() == 0
    assert log.lines() == ()
    assert log.verify().findings == ()


def test_a_transaction_answers_what_was_decided(log: SpendLog) -> None:
    assert log.transact(lambda _: Decision((held_now(log, "a"),), "yes")) == "yes"


def test_entries_are_folded_and_kept_in_order(log: SpendLog) -> None:
    first = held_now(log, "a", "2")
    second = captured(first, "1.5")
    log.transact(lambda _: Decision((first, second), None))
    assert log.lines() == (first, second)
    assert log.books().captured() == 1_500_000
    assert log.books().held() == 0


def test_the_next_decision_sees_the_last_ones_entries(log: SpendLog) -> None:
    log.transact(lambda _: Decision((held_now(log, "a", "3"),), None))
    assert log.transact(lambda books: Decision((), books.held())) == 3_000_000


def test_books_stay_as_they_were_when_asked_for(log: SpendLog) -> None:
    first = held_now(log, "a", "3")
    log.transact(lambda _: Decision((first,), None))
    books = log.books()
    log.transact(lambda _: Decision((captured(first, "2"), held_now(log, "b")), None))
    assert (books.captured(), books.held(), len(books.open_holds())) == (0, 3_000_000, 1)
    assert books.resolution("a") is None


def test_a_refusal_writes_nothing(log: SpendLog) -> None:
    def refuse(_: Books) -> Decision[None]:
        raise BudgetGuardExceeded("no")

    with pytest.raises(BudgetGuardExceeded):
        log.transact(refuse)
    assert log.lines() == ()
    assert log.transact(lambda _: Decision((held_now(log, "a"),), "still usable")) == "still usable"


def test_deciding_and_appending_are_one_step_between_threads(log: SpendLog) -> None:
    def at_most_ten(books: Books) -> Decision[bool]:
        if books.held() >= 10_000_000:
            return Decision((), False)
        return Decision((held_now(log, f"{threading.get_ident()}-{books.held()}"),), True)

    def ask() -> None:
        for _ in range(5):
            log.transact(at_most_ten)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.books().held() == 10_000_000
