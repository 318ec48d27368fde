"""The law of money: no authorisation ever takes captured + held past a limit, whatever happens."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from outlay.clock import ManualClock
from outlay.guard.balance import Books
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.chain import NOTHING, START, ScanResult, link_entries, scan
from outlay.guard.entries import SCHEMA, AnyEntry, Noted, Simple, amount_of, micros_of
from outlay.guard.errors import BudgetGuardExceeded, HoldResolved
from outlay.guard.spend_log import FileSpendLog, MemorySpendLog

CEILING, LAB_CAP, DAY_CAP = 5_000_000, 3_000_000, 4_000_000
micros = st.integers(min_value=0, max_value=6_000_000)
labels = st.sampled_from(["lab02-a", "lab02-b", "other"])


@dataclass
class ReferenceHold:
    label: str
    day: int
    amount: int


@dataclass
class Reference:
    """The simplest thing that could be right: lists, added up from scratch at every question."""

    holds: dict[str, ReferenceHold] = field(default_factory=dict)
    spends: list[ReferenceHold] = field(default_factory=list)

    def total(self, label_prefix: str = "", day: int | None = None) -> int:
        rows = [*self.holds.values(), *self.spends]
        return sum(
            row.amount
            for row in rows
            if row.label.startswith(label_prefix) and day in (None, row.day)
        )

    def fits(self, label: str, day: int, asked: int) -> bool:
        lab_fits = self.total("lab02") + asked <= LAB_CAP if label.startswith("lab02") else True
        buffer_fits = label.startswith("lab02") or self.total("other") + asked <= CEILING
        return (
            self.total() + asked <= CEILING
            and lab_fits
            and buffer_fits
            and self.total(day=day) + asked <= DAY_CAP
        )

    def oldest(self, label: str) -> str | None:
        return next((key for key, hold in self.holds.items() if hold.label == label), None)


def contents(books: Books) -> tuple[object, ...]:
    return (books.state(), *(dict(books.rows(table)) for table in books.tables()))


class GuardAgainstReference(RuleBasedStateMachine):
    """Any order of calls, clock steps and restarts: the guard and the reference agree."""

    @initialize()
    def start(self) -> None:
        self.fsync = mock.patch("os.fsync")  # Durability is the subject of the faults.
        self.fsync.start()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "spend.jsonl"
        self.clock = ManualClock()
        self.latest_day = 0
        self.reference = Reference()
        self.restart()

    def teardown(self) -> None:
        self.fsync.stop()
        self.directory.cleanup()

    def day(self) -> int:
        self.latest_day = max(self.latest_day, self.clock.wall_ns() // (86_400 * 10**9))
        return self.latest_day

    @rule()
    def restart(self) -> None:
        caps = {"02": amount_of(LAB_CAP), "buffer": amount_of(CEILING)}
        self.guard = BudgetGuard(
            amount_of(CEILING), self.path, caps=caps, day_usd=amount_of(DAY_CAP),
            clock=self.clock, environ={},
        )  # fmt: skip

    @rule(hours=st.integers(min_value=-30, max_value=30))
    def move_the_clock(self, hours: int) -> None:
        self.clock.step_wall(hours * 3600 * 10**9)

    @rule(label=labels, asked=micros)
    def authorize(self, label: str, asked: int) -> None:
        # A refusal is judged on today as well, but leaves no day behind in the log.
        today = max(self.latest_day, self.clock.wall_ns() // (86_400 * 10**9))
        if self.reference.fits(label, today, asked):
            hold = self.guard.authorize(label, amount_of(asked))
            self.reference.holds[hold.id] = ReferenceHold(label, self.day(), asked)
        else:
            with pytest.raises(BudgetGuardExceeded):
                self.guard.authorize(label, amount_of(asked))

    @rule(data=st.data(), asked=micros)
    def extend(self, data: st.DataObject, asked: int) -> None:
        if not self.reference.holds:
            return
        key = data.draw(st.sampled_from(list(self.reference.holds)))
        hold = self.reference.holds[key]
        if self.reference.fits(hold.label, hold.day, asked):
            self.guard.extend(key, amount_of(asked))
            hold.amount += asked
        else:
            with pytest.raises(BudgetGuardExceeded):
                self.guard.extend(key, amount_of(asked))

    @rule(label=labels, actual=micros)
    def record_actual(self, label: str, actual: int) -> None:
        key = self.reference.oldest(label)
        self.guard.record_actual(label, amount_of(actual))
        day = self.reference.holds.pop(key).day if key else self.day()
        self.reference.spends.append(ReferenceHold(label, day, actual))

    @rule(data=st.data())
    def void(self, data: st.DataObject) -> None:
        if not self.reference.holds:
            return
        key = data.draw(st.sampled_from(list(self.reference.holds)))
        self.guard.void(key, "not needed")
        del self.reference.holds[key]
        with pytest.raises(HoldResolved):
            self.guard.void(key, "twice")

    @rule(data=st.data())
    def die_while_writing(self, data: st.DataObject) -> None:
        if not self.path.exists():
            return
        ts = "2026-11-15T10:00:00Z"
        note = Noted(v=SCHEMA, ts=ts, op_label="x", currency="USD", event="moves no money")
        blob = link_entries(scan("log", self.path.read_bytes(), START), [note], ts=ts).blob
        with self.path.open("ab") as file:
            file.write(blob[: data.draw(st.integers(min_value=1, max_value=len(blob)))])
        self.restart()

    @invariant()
    def the_books_agree(self) -> None:
        spent = sum(spend.amount for spend in self.reference.spends)
        held = sum(hold.amount for hold in self.reference.holds.values())
        books = self.guard.log.books()
        assert (books.captured(), books.held()) == (spent, held)
        assert sum(books.captured_by_basis().values()) == spent
        assert [hold.id for hold in books.open_holds()] == list(self.reference.holds)

    @invariant()
    def a_fresh_reading_agrees_with_the_kept_fold(self) -> None:
        whole = FileSpendLog(self.path, indexed=False).books()
        for log in (FileSpendLog(self.path), self.guard.log):
            assert contents(log.books()) == contents(whole)


GuardAgainstReference.TestCase.settings = settings(
    max_examples=50, stateful_step_count=20, deadline=None
)
TestGuardAgainstReference = GuardAgainstReference.TestCase


@given(st.integers(min_value=-(10**18) + 1, max_value=10**18 - 1))
def test_amounts_round_trip_through_the_log(amount: int) -> None:
    assert micros_of(amount_of(amount)) == amount


@st.composite
def written_entries(draw: st.DrawFn) -> tuple[AnyEntry, ...]:
    """Whatever a guard writes when asked at random."""
    guard = BudgetGuard(10, "spend.jsonl", environ={}, log=MemorySpendLog())
    for label, asked in draw(st.lists(st.tuples(labels, micros), max_size=8)):
        try:
            guard.authorize(label, amount_of(asked))
        except BudgetGuardExceeded:
            guard.record_actual(label, amount_of(asked // 2))
    return tuple(line for line in guard.log.lines() if not isinstance(line, Simple))


@settings(max_examples=40, deadline=None)
@given(written_entries(), st.data())
def test_reading_a_prefix_and_then_the_rest_equals_reading_all(
    entries: tuple[AnyEntry, ...], data: st.DataObject
) -> None:
    empty = ScanResult(lines=(), link=START, torn=b"", findings=())
    blob = link_entries(empty, entries, ts="2026-11-15T10:00:00Z").blob if entries else b""
    cut = data.draw(st.integers(min_value=0, max_value=len(blob)))
    first = scan("log", blob[:cut], START)
    rest = scan("log", blob[first.link.offset :], first.link)
    assert [line for _, line in (*first.lines, *rest.lines)] == list(entries)


@settings(max_examples=40, deadline=None)
@given(written_entries(), st.data())
def test_the_cached_fold_after_an_append_equals_a_scan_of_the_file(
    entries: tuple[AnyEntry, ...], data: st.DataObject
) -> None:
    before = b""
    if len(entries) > 1:
        blob = link_entries(NOTHING, entries[:1], ts="2026-11-15T10:00:00Z").blob
        before = blob[: data.draw(st.integers(min_value=0, max_value=len(blob)))]
    known = scan("log", before, START)
    rest = entries[1:] if known.lines else entries
    if not rest:
        return
    linked = link_entries(known, rest, ts="2026-11-15T10:00:00Z")
    whole = scan("log", before + linked.blob, START)
    assert (*known.lines, *linked.after.lines) == whole.lines
    assert (*known.hashes, *linked.after.hashes) == whole.hashes
    kept, read = linked.after.link, whole.link
    assert kept.hasher.hexdigest() == read.hasher.hexdigest()
    assert replace(kept, hasher=read.hasher) == read
