"""A spend log that someone changed: found, with the line, before anything is authorised."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.chain import SLOT_BYTES, START, Head, encode_slot, parse_slots, scan
from outlay.guard.errors import SpendLogAltered, SpendLogUnusable
from outlay.guard.index.head_file import head_path
from outlay.guard.spend_log import (
    FileSpendLog,
)
from outlay.store import outlay_home

SIMPLE = b'{"ts": "2026-11-01T10:00:00Z", "op_label": "hand", "actual": 0.5, "currency": "USD"}\n'


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    """A log with every kind of line in it, one of them in the document's simple form."""
    path = tmp_path / "spend.jsonl"
    guard = BudgetGuard(20, path, environ={})
    hold = guard.authorize("lab02-a", 2, key="k")
    guard.extend(hold, 1)
    with path.open("ab") as file:
        file.write(SIMPLE)
    guard.record_actual("lab02-a", 2.5)
    guard.void(guard.authorize("b", 1), "not needed")
    guard.correct("lab02-a", -0.5, "invoice")
    return path


def sound(path: Path) -> bool:
    return FileSpendLog(path).verify().sound


def forget_seen_heads() -> None:
    """Be a machine that has seen no log yet."""
    shutil.rmtree(outlay_home() / "heads", ignore_errors=True)


def refused(path: Path) -> bool:
    try:
        BudgetGuard(20, path, environ={}).authorize("next", 0.01)
    except SpendLogUnusable:
        return True
    return False


def reader_of(path: Path) -> Callable[[bytes], bool]:
    """Return a function that returns whether a scan of a log's changed bytes detects the change."""
    head = parse_slots(head_path(path).read_bytes()).head
    assert head is not None

    def detects(changed: bytes) -> bool:
        try:
            return scan(str(path), changed, START, [head]).missing != ()
        except SpendLogAltered:
            return True

    assert not detects(path.read_bytes())
    return detects


def test_the_untouched_log_is_sound_and_usable(log_path: Path) -> None:
    assert sound(log_path)
    assert not refused(log_path)


def test_every_changed_byte_is_detected(log_path: Path) -> None:
    original, detects, missed = log_path.read_bytes(), reader_of(log_path), []
    for position, byte in enumerate(original):
        for other in (byte ^ 0x01, byte ^ 0x20, ord("\n") if byte != ord("\n") else ord(" ")):
            changed = original[:position] + bytes([other]) + original[position + 1 :]
            if not detects(changed):
                missed.append((position, other))
    assert missed == []


def test_every_removed_line_is_detected(log_path: Path) -> None:
    lines = log_path.read_bytes().splitlines(keepends=True)
    for index in range(len(lines)):
        log_path.write_bytes(b"".join(lines[:index] + lines[index + 1 :]))
        assert not sound(log_path), f"line {index + 1} removed"


def test_every_removed_tail_is_detected(log_path: Path) -> None:
    original, detects = log_path.read_bytes(), reader_of(log_path)
    assert [size for size in range(len(original)) if not detects(original[:size])] == []


def test_every_two_swapped_lines_are_detected(log_path: Path) -> None:
    lines = log_path.read_bytes().splitlines(keepends=True)
    for a, b in itertools.combinations(range(len(lines)), 2):
        swapped = list(lines)
        swapped[a], swapped[b] = lines[b], lines[a]
        log_path.write_bytes(b"".join(swapped))
        assert not sound(log_path), f"lines {a + 1} and {b + 1} swapped"


def test_every_repeated_line_is_detected(log_path: Path) -> None:
    lines = log_path.read_bytes().splitlines(keepends=True)
    for index, line in enumerate(lines):
        log_path.write_bytes(b"".join([*lines[:index], line, *lines[index:]]))
        assert not sound(log_path), f"line {index + 1} repeated"


def test_an_altered_log_authorises_nothing_and_names_the_line(log_path: Path) -> None:
    lines = log_path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"estimated":1.00', b'"estimated":0.10')
    log_path.write_bytes(b"".join(lines))
    with pytest.raises(SpendLogAltered, match="line 2"):
        BudgetGuard(20, log_path, environ={}).authorize("next", 0.01)
    assert log_path.read_bytes() == b"".join(lines)


def test_the_finding_of_an_altered_line_names_the_line_once(log_path: Path) -> None:
    lines = log_path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"estimated":1.00', b'"estimated":0.10')
    log_path.write_bytes(b"".join(lines))
    (finding,) = FileSpendLog(log_path).verify().findings
    assert finding.line == 2
    assert finding.message.startswith("its hash does not match")


def test_a_removed_log_is_noticed_by_its_head(log_path: Path) -> None:
    log_path.unlink()
    assert refused(log_path)


@pytest.mark.parametrize("left", [None, b""], ids=["removed", "emptied"])
def test_a_log_without_its_head_is_refused_and_not_called_sound(
    log_path: Path, left: bytes | None
) -> None:
    head_path(log_path).unlink() if left is None else head_path(log_path).write_bytes(left)
    forget_seen_heads()
    verification = FileSpendLog(log_path).verify()
    assert not verification.sound
    assert "spend.head, which should be beside it, is missing" in str(verification.findings[0])
    assert refused(log_path)


def test_a_log_by_hand_that_was_never_seen_needs_no_head(tmp_path: Path) -> None:
    path = tmp_path / "spend.jsonl"
    path.write_bytes(SIMPLE)
    assert sound(path)
    assert not refused(path)


@pytest.mark.parametrize("content", ["nonsense", "outlay-head 1 x y\n" * 20, "outlay-head 2 "])
def test_an_unreadable_head_refuses(log_path: Path, content: str) -> None:
    head_path(log_path).write_text(content)
    assert refused(log_path)


def test_a_head_that_names_another_line_refuses(log_path: Path) -> None:
    end = log_path.stat().st_size
    head_path(log_path).write_bytes(encode_slot(Head(end, "0" * 64)))
    assert refused(log_path)


def test_a_head_record_cut_off_anywhere_leaves_the_one_before_it() -> None:
    older, newer = Head(100, "a" * 64), Head(200, "b" * 64)
    for size in range(SLOT_BYTES):
        assert parse_slots(encode_slot(older) + encode_slot(newer)[:size]).head == older
        assert parse_slots(encode_slot(newer)[:size]).head is None
    assert parse_slots(encode_slot(older) + encode_slot(newer)).head == newer


def test_a_process_that_has_read_a_log_notices_a_cut_file_however_often_it_asks(
    log_path: Path,
) -> None:
    guard = BudgetGuard(20, log_path, environ={})
    guard.authorize("a", 1)
    head_path(log_path).unlink()
    log_path.write_bytes(log_path.read_bytes()[:-400])
    for _ in range(2):
        with pytest.raises(SpendLogAltered, match="the file ends at byte"):
            guard.authorize("b", 1)


def test_a_process_that_has_read_a_log_notices_that_it_and_its_head_are_gone(
    log_path: Path,
) -> None:
    guard = BudgetGuard(20, log_path, environ={})
    guard.authorize("a", 1)
    head_path(log_path).unlink()
    log_path.unlink()
    with pytest.raises(SpendLogUnusable):
        _ = guard.remaining
    for _ in range(2):
        with pytest.raises(SpendLogAltered, match="the file ends at byte"):
            guard.authorize("b", 1)


def test_a_log_replaced_by_another_file_is_read_from_its_start(
    log_path: Path, tmp_path: Path
) -> None:
    guard = BudgetGuard(20, log_path, environ={})
    guard.authorize("a", 1)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(log_path.read_bytes())
    copy.replace(log_path)
    assert guard.authorize("b", 1).amount.micros == 1_000_000
    assert sound(log_path)


class TestTornTails:
    """A line that was cut off while being written counts nothing, and is sealed."""

    def test_a_tail_cut_at_any_byte_is_sealed_and_the_log_usable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "fsync", lambda _: None)
        path = tmp_path / "spend.jsonl"
        guard = BudgetGuard(20, path, environ={})
        guard.authorize("a", 1)
        acknowledged, head = path.read_bytes(), head_path(path).read_bytes()
        guard.authorize("b", 2)
        torn = path.read_bytes()[len(acknowledged) :]
        for size in range(1, len(torn) - 1):
            path.write_bytes(acknowledged + torn[:size])
            head_path(path).write_bytes(head)
            forget_seen_heads()  # What is cut off while being written, nobody has seen.
            fresh = BudgetGuard(20, path, environ={})
            assert fresh.held == 1.0
            fresh.authorize("c", 3)
            assert fresh.held == 4.0, f"cut after {size} bytes"
            verification = FileSpendLog(path).verify()
            assert verification.sound
            assert "torn write" in str(verification.findings)
            assert path.read_bytes().startswith(acknowledged + torn[:size])

    def test_a_whole_line_without_its_newline_counts(self, tmp_path: Path) -> None:
        path = tmp_path / "spend.jsonl"
        guard = BudgetGuard(20, path, environ={})
        guard.authorize("a", 1)
        head = head_path(path).read_bytes()
        guard.authorize("b", 2)
        path.write_bytes(path.read_bytes()[:-1])
        head_path(path).write_bytes(head)
        forget_seen_heads()
        fresh = BudgetGuard(20, path, environ={})
        assert fresh.held == 3.0
        fresh.authorize("c", 1)
        assert FileSpendLog(path).verify().findings == ()

    def test_a_seal_that_is_cut_off_itself_is_sealed(self, tmp_path: Path) -> None:
        path = tmp_path / "spend.jsonl"
        BudgetGuard(20, path, environ={}).authorize("a", 1)
        with path.open("ab") as file:
            file.write(b'{"kind":"hold","ts":"20\n{"kind":"seal","t')
        guard = BudgetGuard(20, path, environ={})
        guard.authorize("b", 1)
        assert guard.held == 2.0
        assert sound(path)

    def test_zeros_left_by_a_power_failure_are_sealed(self, tmp_path: Path) -> None:
        path = tmp_path / "spend.jsonl"
        BudgetGuard(20, path, environ={}).authorize("a", 1)
        with path.open("ab") as file:
            file.write(b"\0" * 300)
        guard = BudgetGuard(20, path, environ={})
        guard.authorize("b", 1)
        assert guard.held == 2.0
        assert sound(path)

    def test_a_seal_that_names_other_bytes_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "spend.jsonl"
        BudgetGuard(20, path, environ={}).authorize("a", 1)
        with path.open("ab") as file:
            file.write(b'{"kind":"hold","ts":"20')
        BudgetGuard(20, path, environ={}).authorize("b", 1)
        content = path.read_bytes()
        path.write_bytes(content.replace(b'"ts":"20\n', b'"ts":"2\n'))
        assert refused(path)
