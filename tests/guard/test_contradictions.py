"""Lines that are chained well and still can't be true: refused, with their number."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.chain import START, ScanResult, link_entries, scan
from outlay.guard.entries import (
    SCHEMA,
    AnyEntry,
    Captured,
    Decision,
    Extended,
    Held,
    Sealed,
    Voided,
)
from outlay.guard.errors import SpendLogAltered
from outlay.guard.spend_log import FileSpendLog

TS, DAY = "2026-11-15T10:00:00Z", "2026-11-15"


def held(hold: str, amount: str = "1", *, currency: str = "USD", v: int = SCHEMA) -> Held:
    return Held(
        v=v, ts=TS, op_label="a", currency=currency, estimated=Decimal(amount), hold=hold,
        lab="buffer", day=DAY,
    )  # fmt: skip


def void(hold: str) -> Voided:
    return Voided(v=SCHEMA, ts=TS, op_label="a", currency="USD", hold=hold, reason="x")


def capture(hold: str, amount: str = "1") -> Captured:
    return Captured(
        v=SCHEMA, ts=TS, op_label="a", currency="USD", actual=Decimal(amount), hold=hold,
        lab="buffer", day=DAY,
    )  # fmt: skip


def extend(hold: str) -> Extended:
    return Extended(v=SCHEMA, ts=TS, op_label="a", currency="USD", estimated=Decimal(1), hold=hold)


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ([held("h"), held("h")], 2),
        ([held("h"), void("h"), held("h")], 3),
        ([held("h"), void("h"), void("h")], 3),
        ([held("h"), void("h"), capture("h")], 3),
        ([held("h"), capture("h"), extend("h")], 3),
        ([capture("nobody")], 1),
        ([held("h"), held("i", currency="EUR")], 2),
        ([held("h"), held("i", v=SCHEMA + 1)], 2),
        ([held("h"), held("i", "-1")], 2),
        ([held("h"), capture("h", "-1")], 2),
    ],
)
def test_a_line_that_contradicts_those_before_it_is_refused_with_its_number(
    tmp_path: Path, entries: list[AnyEntry], line: int
) -> None:
    path = tmp_path / "spend.jsonl"
    empty = ScanResult(lines=(), link=START, torn=b"", findings=())
    path.write_bytes(link_entries(empty, entries, ts=TS).blob)
    with pytest.raises(SpendLogAltered, match=f"line {line}"):
        BudgetGuard(50, path, environ={}).authorize("next", 1)


def test_a_contradiction_is_refused_before_it_is_written(tmp_path: Path) -> None:
    log = FileSpendLog(tmp_path / "spend.jsonl")
    log.transact(lambda _: Decision((held("h"),), None))
    before = log.path.read_bytes()
    with pytest.raises(SpendLogAltered):
        log.transact(lambda _: Decision((held("h"),), None))
    assert log.path.read_bytes() == before
    assert log.books().held() == 1_000_000


def test_a_seal_without_anything_torn_moves_no_money(tmp_path: Path) -> None:
    log = FileSpendLog(tmp_path / "spend.jsonl")
    log.transact(lambda _: Decision((seal_of(3, 4),), None))
    assert log.books().held() == 0


WRITTEN = link_entries(
    ScanResult(lines=(), link=START, torn=b"", findings=()), [held("h")], ts=TS
).blob
TORN = b'{"kind":"hold","ts":"20\n'


def chained_behind_torn(entry: AnyEntry) -> bytes:
    """Return a log with a torn line, and behind it an entry whose hash covers it."""
    before = scan("log", WRITTEN, START)
    hasher = before.link.hasher.copy()
    hasher.update(TORN)
    after = replace(before, link=replace(before.link, hasher=hasher))
    return WRITTEN + TORN + link_entries(after, [entry], ts=TS).blob


def seal_of(torn_from: int, torn_bytes: int) -> Sealed:
    return Sealed(
        v=SCHEMA, ts=TS, op_label="", currency="USD", torn_from=torn_from, torn_bytes=torn_bytes
    )


def test_a_seal_that_names_the_torn_bytes_is_valid() -> None:
    entry = seal_of(len(WRITTEN), len(TORN))
    found = scan("log", chained_behind_torn(entry), START)
    assert [line for _, line in found.lines] == [held("h"), entry]


@pytest.mark.parametrize(
    "entry",
    [seal_of(len(WRITTEN), len(TORN) - 1), seal_of(len(WRITTEN) + 1, len(TORN)), held("i")],
    ids=["other bytes", "another place", "no seal"],
)
def test_a_torn_line_that_no_seal_names_is_refused_with_its_number(entry: AnyEntry) -> None:
    with pytest.raises(SpendLogAltered, match="line 2: it is broken and was never sealed"):
        scan("log", chained_behind_torn(entry), START)


@pytest.mark.parametrize("field", ["estimated", "actual"])
def test_an_amount_that_is_no_number_is_refused(tmp_path: Path, field: str) -> None:
    path = tmp_path / "spend.jsonl"
    path.write_bytes(
        msgspec.json.encode({"ts": TS, "op_label": "a", field: "lots", "currency": "USD"}) + b"\n"
    )
    with pytest.raises(SpendLogAltered, match="line 1"):
        BudgetGuard(50, path, environ={}).authorize("next", 1)
