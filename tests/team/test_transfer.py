"""A book and a file are the same log: byte for byte, with the same hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlay import BudgetGuard
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.guard.chain import NOTHING, Head, encode_slot, link_entries
from outlay.guard.entries import AnyEntry
from outlay.guard.errors import SpendLogUnusable
from outlay.guard.index.head_file import head_path
from outlay.guard.spend_log import (
    FileSpendLog,
)
from outlay.team import postgres_log
from outlay.team.transfer import export_book, import_file
from postgres import TeamDatabase
from spend_lines import pairs_of_lines

SIMPLE = b'{"ts":"2026-11-15T10:00:00","op_label":"by hand","estimated":null,"actual":0.25}\n'


def spend(guard: BudgetGuard) -> None:
    hold = guard.authorize("lab02-a", "1.50 USD", key="k")
    guard.extend(hold, "0.10 USD")
    guard.record_actual("lab02-a", "1.20 USD", hold=hold)
    guard.void(guard.authorize("lab03-\u00fc\n\u0001", 1), "it failed")
    guard.correct("lab02-a", "-0.20", "a refund")
    guard.note("seen", "lab02-a", detail={"by": "ada"})


def test_an_exported_book_is_a_sound_log_with_its_head(team: TeamDatabase, tmp_path: Path) -> None:
    guard = BudgetGuard(5, team.new_book(owner=True), environ={})
    spend(guard)
    path = tmp_path / "spend.jsonl"
    head = export_book(team.log(guard.log_name.url), path)  # type: ignore[union-attr]
    log = FileSpendLog(path)
    assert log.verify().findings == ()
    assert log.lines() == guard.log.lines()
    assert log.head() == head.hash == guard.head
    BudgetGuard(5, path, environ={}).authorize("lab02-b", 1)


def test_an_export_replaces_nothing(team: TeamDatabase, tmp_path: Path) -> None:
    log = team.log(team.new_book(owner=True))
    with pytest.raises(InvalidValue, match="a book with lines"):
        export_book(log, tmp_path / "spend.jsonl")
    (tmp_path / "spend.head").touch()
    with pytest.raises(InvalidValue, match="where no spend log is yet"):
        export_book(log, tmp_path / "spend.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["spend.head"]


def test_import_and_export_give_the_same_bytes(team: TeamDatabase, tmp_path: Path) -> None:
    """Also with lines of other programs, and with a torn write that was sealed."""
    path = tmp_path / "spend.jsonl"
    spend(BudgetGuard(5, path, environ={}))
    with path.open("ab") as file:
        file.write(SIMPLE + SIMPLE)
    BudgetGuard(5, path, environ={}).authorize("lab02-b", 1)
    with path.open("ab") as file:
        file.write(b'{"kind":"hold","ts":"2026-\0\xff')
    BudgetGuard(5, path, environ={}).authorize("lab02-c", "0.10 USD")
    log = team.log(team.new_book(owner=True))
    import_file(path, log)
    export_book(log, tmp_path / "copy.jsonl")
    assert (tmp_path / "copy.jsonl").read_bytes() == path.read_bytes()
    found, expected = log.verify(), FileSpendLog(path).verify()
    assert (found.lines, found.chained, found.head) == (
        expected.lines, expected.chained, expected.head,
    )  # fmt: skip
    assert [each.message for each in found.findings] == [e.message for e in expected.findings]
    assert log.books().captured() == FileSpendLog(path).books().captured()


def test_a_log_goes_on_after_its_import(team: TeamDatabase, tmp_path: Path) -> None:
    path, url = tmp_path / "spend.jsonl", team.new_book(owner=True)
    hold = BudgetGuard(5, path, environ={}).authorize("lab02-a", 4)
    import_file(path, team.log(url))
    guard = BudgetGuard(5, url, environ={})
    assert guard.holds() == (hold,)
    guard.record_actual("lab02-a", 4, hold=hold)
    assert guard.verify().findings == ()
    with pytest.raises(SpendLogUnusable, match="it has entries already"):
        import_file(path, team.log(url))


def test_lines_without_a_hash_are_not_imported(team: TeamDatabase, tmp_path: Path) -> None:
    path, log = tmp_path / "spend.jsonl", team.log(team.new_book(owner=True))
    BudgetGuard(5, path, environ={}).authorize("lab02-a", 4)
    with path.open("ab") as file:
        file.write(SIMPLE)
    with pytest.raises(SpendLogUnusable, match="carry no hash"):
        import_file(path, log)
    assert log.lines() == ()


def test_a_log_that_was_edited_is_not_imported(team: TeamDatabase, tmp_path: Path) -> None:
    path, log = tmp_path / "spend.jsonl", team.log(team.new_book(owner=True))
    BudgetGuard(5, path, environ={}).authorize("lab02-a", 4)
    path.write_bytes(path.read_bytes().replace(b'"estimated":4', b'"estimated":1'))
    with pytest.raises(SpendLogUnusable, match="not sound"):
        import_file(path, log)
    assert log.lines() == ()


def test_an_import_is_in_chunks_and_keeps_its_fold(
    team: TeamDatabase, tmp_path: Path, clock: ManualClock
) -> None:
    path, url = tmp_path / "spend.jsonl", team.new_book(owner=True)
    entries: list[AnyEntry] = list(pairs_of_lines(1200))
    linked = link_entries(NOTHING, entries, ts=entries[0].ts)
    path.write_bytes(linked.blob)
    link = linked.after.link
    head_path(path).write_bytes(encode_slot(Head(link.covered + 1, link.hash)))
    import_file(path, team.log(url))
    log = team.log(url, clock=clock)
    assert log.books().captured() == FileSpendLog(path).books().captured()
    assert log._seq == 1200
    assert log._base is not None
    assert log._base.seq == 1200
    assert postgres_log._TAIL < 1200
