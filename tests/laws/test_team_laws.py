"""The law of books: a file and PostgreSQL hold the same bytes and give the same answers."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlay.clock import ManualClock
from outlay.errors import OutlayError
from outlay.guard.balance import Books
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.ceilings import LimitChange
from outlay.guard.scopes import ScopePattern
from outlay.team import PostgresSpendLog, postgres_log
from outlay.team.transfer import export_book
from outlay.units import Money, Rate
from postgres import USER, TeamDatabase

labels = st.sampled_from(["lab02-a", "lab02-b", "other\n\"'é"])
keys = st.sampled_from(["", "", "k1", "k2"])
patterns = st.sampled_from([
    ScopePattern(), ScopePattern("lab", "02", "day"), ScopePattern("user", USER, "month"),
    ScopePattern("user", "*"), ScopePattern("team", "vision", "day"), ScopePattern(period="hour"),
])  # fmt: skip
amounts = st.integers(min_value=0, max_value=2_000_000).map(Money)
Act = Callable[[BudgetGuard], object]


def authorize(label: str, amount: Money, key: str, per_hour: int) -> Act:
    rate = Rate(per_hour) if per_hour else None
    return lambda guard: guard.authorize(label, amount, key=key, rate=rate).id


def record(label: str, amount: Money, key: str) -> Act:
    return lambda guard: guard.record_actual(label, amount, key=key).actual


def extend(number: int, amount: Money) -> Act:
    return lambda guard: guard.extend(_open(guard, number), amount).amount


def void(number: int) -> Act:
    return lambda guard: guard.void(_open(guard, number), "no")


def correct(label: str, amount: Money) -> Act:
    return lambda guard: guard.correct(label, -amount.amount, "back")


def limit(pattern: ScopePattern, amount: Money | None, refuses: bool) -> Act:
    change = LimitChange(pattern=pattern, amount=amount, refuses=refuses)
    return lambda guard: guard.set_limit(change, "so").limit


def note(label: str) -> Act:
    return lambda guard: guard.note("seen", label, detail={"a": "b"})


def ask(_: int) -> Act:
    return lambda guard: (guard.total_spent, guard.held, guard.holds(), guard.standings())


def _open(guard: BudgetGuard, number: int) -> str:
    holds = guard.holds()
    return holds[number % len(holds)].id if holds else "none"


acts = st.one_of(
    st.builds(authorize, labels, amounts, keys, st.integers(0, 2)),
    st.builds(record, labels, amounts, keys),
    st.builds(extend, st.integers(0, 9), amounts), st.builds(void, st.integers(0, 9)),
    st.builds(correct, labels, amounts), st.builds(note, labels), st.builds(ask, st.just(0)),
    st.builds(limit, patterns, st.none() | amounts, st.booleans()),
)  # fmt: skip


def outcome(act: Act, guard: BudgetGuard) -> object:
    """Return an act's answer, or its refusal; holds have the same ids in each log."""
    numbers = itertools.count(len(guard.log.lines()))
    with mock.patch("secrets.token_hex", side_effect=lambda _: f"{next(numbers):012x}"):
        try:
            return act(guard)
        except OutlayError as error:
            return type(error).__name__


def contents(books: Books) -> tuple[object, ...]:
    return (books.state(), *(dict(books.rows(table)) for table in books.tables()))


@pytest.mark.xdist_group("postgres")
@given(steps=st.lists(st.tuples(acts, st.booleans()), max_size=30), tail=st.integers(1, 5))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_and_a_book_hold_the_same_bytes(
    team: TeamDatabase, steps: list[tuple[Act, bool]], tail: int
) -> None:
    """Acts go through both; now and then a process begins anew, with snapshots in between."""
    clock, url = ManualClock(), team.new_book(owner=True)

    def opened(name: str | Path) -> BudgetGuard:
        guard = BudgetGuard(5, name, day_usd=4, user=USER, team="vision", clock=clock, environ={})
        if isinstance(guard.log, PostgresSpendLog):
            closing.callback(guard.log.close)
        return guard

    with (
        ExitStack() as closing,
        mock.patch("outlay.guard.spend_log.this_user", return_value=USER),
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(postgres_log, "_TAIL", tail),
        team.at_time(clock) as advance,
    ):
        closing.callback(team.forget_people)
        team.add_member(USER, "vision")
        path = Path(name) / "spend.jsonl"
        in_file, in_book, other = opened(path), opened(url), opened(url)
        for act, is_new in steps:
            assert outcome(act, in_book) == outcome(act, in_file)
            other.holds()
            in_book, other = (opened(url) if is_new else other), in_book
            clock.advance(3600 * 10**9)
            advance()
        assert contents(in_book.log.books()) == contents(in_file.log.books())
        assert [f.message for f in in_book.verify().findings] == [
            f.message for f in in_file.verify().findings
        ]
        if in_file.log.lines():
            export_book(team.log(url), Path(name) / "export.jsonl")
            assert (Path(name) / "export.jsonl").read_bytes() == path.read_bytes()
