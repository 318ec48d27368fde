"""What callers hand to the guard: wrong is InvalidValue, before anything is written."""

from __future__ import annotations

import decimal
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from outlay.errors import InvalidValue
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.checklist import LaunchEstimate
from outlay.guard.errors import BudgetGuardExceeded
from outlay.units import Money

NO_TEXT: list[Any] = [None, 7, b"a", ["a"], "lone \udcff surrogate"]


@pytest.fixture
def guard(tmp_path: Path) -> BudgetGuard:
    return BudgetGuard(5, tmp_path / "books" / "spend.jsonl", environ={})


@pytest.fixture(params=["one digit", "rounds down", "forgives"])
def decimal_context_of_caller(request: pytest.FixtureRequest) -> Iterator[None]:
    """A program that sets its thread's decimal context as it likes."""
    with decimal.localcontext() as context:
        if request.param == "one digit":
            context.prec = 1
        elif request.param == "rounds down":
            context.prec, context.rounding = 2, decimal.ROUND_DOWN
        else:
            context.traps = dict.fromkeys(context.traps, False)
            context.prec, context.Emax, context.Emin = 1, 1, -1
        yield


@pytest.mark.parametrize("text", NO_TEXT, ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda guard, text: guard.authorize(text, 1),
        lambda guard, text: guard.authorize("a", 1, lab=text or 0),
        lambda guard, text: guard.authorize("a", 1, key=text),
        lambda guard, text: guard.authorize("a", 1, by=text or 0),
        lambda guard, text: guard.record_actual(text, 1),
        lambda guard, text: guard.record_actual("a", 1, hold=text or 0),
        lambda guard, text: guard.record_actual("a", 1, basis=text),
        lambda guard, text: guard.void(text, "why"),
        lambda guard, text: guard.void("hold", text),
        lambda guard, text: guard.correct(text, 1, "why"),
        lambda guard, text: guard.note(text),
        lambda guard, text: guard.note("event", text),
        lambda guard, text: guard.note("event", detail={"a": text}),
        lambda guard, text: guard.set_ceiling(6, text),
        lambda guard, text: guard.accept(text),
    ],
)
def test_arguments_that_are_no_text_are_refused_before_writing(
    guard: BudgetGuard, call: Callable[[BudgetGuard, Any], object], text: Any
) -> None:
    with pytest.raises(InvalidValue):
        call(guard, text)
    assert not guard.log_path.parent.exists()


@pytest.mark.parametrize(
    "name", ["spend.head", "spend.index", "manifest.json", "/", "nul\0byte", None, 7]
)
def test_paths_that_cannot_be_a_log_are_refused_before_writing(tmp_path: Path, name: Any) -> None:
    path = tmp_path / name if isinstance(name, str) else name
    with pytest.raises(InvalidValue, match="log_path"):
        BudgetGuard(5, path, environ={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("decimal_context_of_caller")
class TestCallersDecimalContext:
    """The host program's precision changes no amount."""

    def test_no_more_is_granted_than_the_ceiling(self, tmp_path: Path) -> None:
        guard = BudgetGuard(1, tmp_path / "spend.jsonl", environ={})
        granted = 0
        for _ in range(20):
            try:
                granted += guard.authorize("a", "0.1639").amount.micros
            except BudgetGuardExceeded:
                break
        assert granted == 6 * 163_900
        assert guard.held == 0.9834
        assert BudgetGuard(1, tmp_path / "spend.jsonl", environ={}).held == 0.9834

    def test_corrections_are_exact(self, tmp_path: Path) -> None:
        guard = BudgetGuard(9, tmp_path / "spend.jsonl", environ={})
        guard.record_actual("a", "4.123456")
        guard.correct("a", "-1.654321", "invoice")
        assert guard.total_spent == 2.469135

    def test_amounts_are_read_and_shown_exactly(self) -> None:
        money = Money.parse("1234.567891")
        assert (money.micros, str(money), money.amount) == (
            1_234_567_891, "1234.567891 USD", Decimal("1234.567891"),
        )  # fmt: skip

    def test_an_estimate_is_exact(self) -> None:
        assert str(LaunchEstimate(hours=Decimal("3.25")).cost) == "2.275 USD"


@pytest.fixture
def short_switch_interval() -> Iterator[None]:
    """Let threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("short_switch_interval")
def test_threads_query_a_guard_while_another_writes(tmp_path: Path) -> None:
    guard = BudgetGuard(10**6, tmp_path / "spend.jsonl", environ={})
    troubles, done = list[BaseException](), threading.Event()

    def look() -> None:
        try:
            while not done.is_set():
                assert sum(hold.amount.micros for hold in guard.log.books().open_holds()) >= 0
                assert guard.standings()[0].remaining.micros > 0
                assert guard.findings() == ()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
            troubles.append(error)

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for looker in lookers:
        looker.start()
    for number in range(150):
        hold = guard.authorize(f"lab{number:02d}-a", 1)
        if number % 2:
            guard.record_actual(hold.op_label, 1, hold=hold)
    done.set()
    for looker in lookers:
        looker.join()
    assert troubles == []


def test_returned_books_are_a_copy(guard: BudgetGuard) -> None:
    hold = guard.authorize("a", 1)
    books = guard.log.books()
    guard.authorize("a", 2)
    guard.record_actual("a", 1, hold=hold)
    assert (books.held(), books.captured()) == (1_000_000, 0)
    assert [one.id for one in books.open_holds()] == [hold.id]
    assert books.oldest_open("a") == hold
