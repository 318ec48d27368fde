"""The law of the index: with it a spend log answers as without it, whatever happened to it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outlay.clock import ManualClock
from outlay.errors import OutlayError
from outlay.guard.balance import Books
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Decision, Rental, Simple, Vendor, decode_simple, timestamp
from outlay.guard.index import trie
from outlay.guard.index.index_file import index_path
from outlay.guard.spend_log import FileSpendLog, MemorySpendLog
from outlay.units import Money

labels = st.sampled_from(["lab02-a", "lab02-b", "other\n\"'"])
keys = st.sampled_from(["", "", "k1", "k2", "k3"])
amounts = st.integers(min_value=0, max_value=2_000_000).map(Money)
VENDOR = Vendor(name="v", list=("list",), terminate=("end", "{id}"))


def contents(books: Books) -> tuple[object, ...]:
    return (books.state(), *(dict(books.rows(table)) for table in books.tables()))


class Nodes:
    """Nodes in memory."""

    def __init__(self) -> None:
        self.raw = b""

    def store(self, node: bytes) -> trie.NodeRef:
        ref = trie.ref_to(node, len(self.raw))
        self.raw += node
        return ref

    def load(self, ref: trie.NodeRef) -> bytes:
        return trie.checked(self.raw[ref.offset : ref.offset + ref.length], ref)


changed_rows = st.dictionaries(
    st.one_of(st.text(max_size=3), st.integers(0, 40).map(str)),
    st.one_of(st.none(), st.binary(max_size=9).map(lambda raw: raw.hex().encode())),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(changed_rows, max_size=6), st.sampled_from([1, 60, 4096]))
def test_a_trie_has_the_rows_of_all_changes(
    batches: list[dict[str, bytes | None]], leaf: int
) -> None:
    nodes, root, expected = Nodes(), trie.NO_NODE, dict[str, bytes]()
    with mock.patch("outlay.guard.index.trie._LEAF_BYTES", leaf):
        for batch in batches:
            before, old = dict(expected), root
            root = trie.merge(nodes.load, nodes.store, root, batch.items())
            merged = expected | batch
            expected = {key: raw for key, raw in merged.items() if raw is not None}
            assert dict(trie.walk(nodes.load, old)) == before
        copied = Nodes()
        other = trie.merge(nodes.load, copied.store, root, (), copy=True)
    for load, ref in ((nodes.load, root), (copied.load, other)):
        assert dict(trie.walk(load, ref)) == expected
        for key in {key for batch in batches for key in batch} | {"absent"}:
            assert trie.find(load, ref, key) == expected.get(key)


@pytest.mark.parametrize("node", [b"B", b"B" + b"\0" * 9, b"\nno key\t1\n", b"B itself"])
def test_nodes_that_nobody_wrote_are_doubtful(node: bytes) -> None:
    nodes = Nodes()
    ref = nodes.store(node)

    def load(asked: trie.NodeRef) -> bytes:
        return b"B" + trie._CHILD.pack(*ref) * 16 if node == b"B itself" else nodes.load(asked)

    with pytest.raises(trie.DoubtfulIndex):
        dict(trie.walk(load, ref))
    if not node.startswith(b"\n"):
        with pytest.raises(trie.DoubtfulIndex):
            trie.find(load, ref, "key")


class IndexedAgainstMemory(RuleBasedStateMachine):
    """A file with an index, damaged and swapped at random, and a log in memory agree."""

    @initialize(tail=st.sampled_from([1, 2, 5]), leaf=st.sampled_from([1, 200, 4096]))
    def start(self, tail: int, leaf: int) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "spend.jsonl"
        self.index = index_path(self.path)
        self.patches: list[Any] = [
            mock.patch("os.fsync"),
            mock.patch("outlay.guard.spend_log._TAIL_LINES", tail),
            mock.patch("outlay.guard.index.trie._LEAF_BYTES", leaf),
        ]
        for patch in self.patches:
            patch.start()
        self.clock, self.memory, self.ids = ManualClock(), MemorySpendLog(), list[str]()
        self.kept = [b"", b"outlay-index 1 ", self.index_of_another_log()]
        self.ceiling = 20
        self.restart(self.ceiling)

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()
        self.directory.cleanup()

    def index_of_another_log(self) -> bytes:
        other = Path(self.directory.name) / "other.jsonl"
        for _ in range(6):
            BudgetGuard(20, other, clock=self.clock, environ={}).authorize("x", 1, key="k1")
        return index_path(other).read_bytes() if index_path(other).exists() else b""

    @rule(ceiling=st.sampled_from([10, 20, 20, 30]))
    def restart(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self.guard = self.opened()
        self.reference = BudgetGuard(
            ceiling, self.path, clock=self.clock, environ={}, log=self.memory
        )

    def opened(self) -> BudgetGuard:
        return BudgetGuard(self.ceiling, self.path, clock=self.clock, environ={})

    def both(self, act: Callable[[BudgetGuard], Any]) -> Any:
        """Do the same with both; they must answer the same."""
        numbers, answers = len(self.ids), []
        for guard in (self.guard, self.reference):
            fresh = count(numbers)
            with mock.patch("secrets.token_hex", lambda _, fresh=fresh: f"h{next(fresh)}"):
                try:
                    answers.append(act(guard))
                except OutlayError as error:
                    answers.append((type(error), str(error)))
        assert answers[0] == answers[1]
        self.ids.append(f"h{numbers}")
        return answers[0]

    @rule(label=labels, amount=amounts, key=keys, rents=st.booleans())
    def authorize(self, label: str, amount: Money, key: str, *, rents: bool) -> None:
        now = timestamp(self.clock.wall_ns())
        rental = Rental(name="n", rate="1 USD/h", started=now, deadline=now, vendor=VENDOR)
        self.both(
            lambda guard: guard.authorize(
                label, amount, key=key, by="elsewhere:1", rental=rental if rents else None
            )
        )

    @rule(data=st.data(), amount=amounts)
    def extend(self, data: st.DataObject, amount: Money) -> None:
        hold = self.any_hold(data)
        self.both(lambda guard: guard.extend(hold, amount))

    @rule(data=st.data(), label=labels, amount=amounts, key=keys, named=st.booleans())
    def record(
        self, data: st.DataObject, label: str, amount: Money, key: str, *, named: bool
    ) -> None:
        hold = self.any_hold(data) if named else None
        self.both(lambda guard: guard.record_actual(label, amount, hold=hold, key=key))

    @rule(data=st.data())
    def void(self, data: st.DataObject) -> None:
        hold = self.any_hold(data)
        self.both(lambda guard: guard.void(hold, "not needed"))

    @rule(label=labels, amount=st.integers(min_value=-500_000, max_value=500_000))
    def correct(self, label: str, amount: int) -> None:
        self.both(lambda guard: guard.correct(label, amount / 1_000_000, "found later"))

    @rule(data=st.data(), event=st.sampled_from(["created", "unknown", "gone", "watched"]))
    def note_about_a_rental(self, data: st.DataObject, event: str) -> None:
        rentals = self.memory.books().rentals()
        if rentals:
            hold = data.draw(st.sampled_from(rentals))
            self.both(lambda guard: guard.note(event, hold=hold, detail={"resource": "r-1"}))

    @rule(data=st.data(), amount=amounts)
    def settle_a_rental(self, data: st.DataObject, amount: Money) -> None:
        rentals = self.memory.books().rentals()
        if rentals:
            hold = data.draw(st.sampled_from(rentals))
            self.both(lambda guard: guard.settle_rental(hold, amount, "not listed"))

    @rule(label=labels, amount=amounts, settles=st.booleans(), ended=st.booleans())
    def another_program_writes(
        self, label: str, amount: Money, *, settles: bool, ended: bool
    ) -> None:
        fields = {"ts": "2026-11-15T10:00:00Z", "op_label": label, "currency": "USD"}
        fields["actual" if settles else "estimated"] = str(amount.amount)
        raw = json.dumps(fields).encode()
        before = self.path.read_bytes() if self.path.exists() else b""
        gap = b"\n" if before and not before.endswith(b"\n") else b""
        with self.path.open("ab") as file:
            file.write(gap + raw + b"\n" * ended)
        line: Simple = decode_simple(raw)
        self.memory.transact(lambda _: Decision(cast(Any, (line,)), None))

    @rule(seconds=st.integers(min_value=1, max_value=40_000))
    def time_passes(self, seconds: int) -> None:
        self.clock.step_wall(seconds * 10**9)

    # -- what happens to the index ----------------------------------------------------------

    @precondition(lambda self: self.index.exists())
    @rule(place=st.integers(min_value=0, max_value=10**6), reopens=st.booleans())
    def flip_a_bit(self, place: int, *, reopens: bool) -> None:
        raw = bytearray(self.index.read_bytes())
        if raw:
            raw[place % len(raw)] ^= 1 << place % 8
        self.overwrite(bytes(raw), reopens=reopens)

    @precondition(lambda self: self.index.exists())
    @rule()
    def keep_a_copy(self) -> None:
        self.kept.append(self.index.read_bytes())

    @rule(data=st.data(), reopens=st.booleans())
    def swap(self, data: st.DataObject, *, reopens: bool) -> None:
        self.overwrite(data.draw(st.sampled_from(self.kept)), reopens=reopens)

    @rule()
    def remove(self) -> None:
        self.index.unlink(missing_ok=True)

    def overwrite(self, raw: bytes, *, reopens: bool) -> None:
        if self.path.exists():
            self.index.write_bytes(raw)  # in place: also under a process that reads it
        if reopens:
            self.guard = self.opened()

    def any_hold(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([*self.ids[-12:], "simple-0", "simple-1", "unknown"]))

    # -- the law ----------------------------------------------------------------------------

    @invariant()
    def the_books_are_those_in_memory(self) -> None:
        expected = contents(self.memory.books())
        for log in (self.guard.log, FileSpendLog(self.path)):
            assert contents(log.books()) == expected

    @invariant()
    def no_damage_is_an_error_of_the_log(self) -> None:
        errors = [one for one in self.guard.verify().findings if one.severity == "error"]
        assert not [one for one in errors if "should have been refused" not in str(one)]


IndexedAgainstMemory.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None
)
TestIndexedAgainstMemory = IndexedAgainstMemory.TestCase
