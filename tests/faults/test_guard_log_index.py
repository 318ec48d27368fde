"""``spend.index``: damaged, swapped, forged, unwritable or killed, it changes no answer."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import textwrap
from pathlib import Path

import pytest

from command_line import python
from outlay.files import read_from
from outlay.guard import balance, spend_log
from outlay.guard.balance import Books, RowTable, Totals
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.chain import parse_slots
from outlay.guard.entries import Held, Simple
from outlay.guard.errors import BudgetGuardExceeded, HoldResolved, SpendLogRolledBack
from outlay.guard.index.head_file import head_path
from outlay.guard.index.index_file import IndexReader, append_to_index, index_path
from outlay.guard.spend_log import (
    FileSpendLog,
)

TAIL = spend_log._TAIL_LINES
SIMPLE = b'{"ts":"2026-11-15T10:00:00Z","op_label":"x","actual":0.5}\n'


def guard_of(path: Path) -> BudgetGuard:
    return BudgetGuard(1_000, path, environ={})


def write_lines(path: Path, holds: int = TAIL) -> None:
    """Authorise with a key each, and settle every other hold: more lines than a tail."""
    guard = guard_of(path)
    for number in range(holds):
        hold = guard.authorize(f"lab0{number % 3}-op", 1, key=f"key-{number}")
        if number % 2:
            guard.record_actual("op", 0.25, hold=hold)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "books" / "spend.jsonl"
    write_lines(path)
    return path


def contents(books: Books) -> tuple[object, ...]:
    return (books.state(), *(dict(books.rows(table)) for table in books.tables()))


def whole_fold(path: Path) -> tuple[object, ...]:
    return contents(FileSpendLog(path, indexed=False).books())


def check(path: Path) -> None:
    """Check the books of a fresh process, and that the next authorisations are right."""
    assert contents(FileSpendLog(path).books()) == whole_fold(path)
    held = [line for line in FileSpendLog(path).lines() if isinstance(line, Held)]
    for line in held[:2]:  # the second is settled
        again = guard_of(path).authorize(line.op_label, 1, key=line.key)
        assert again.id == line.hold
    with pytest.raises(HoldResolved):
        guard_of(path).void(held[1].hold, "settled before")
    with pytest.raises(BudgetGuardExceeded):
        guard_of(path).authorize("too much", guard_of(path).remaining + 0.01)
    assert guard_of(path).verify().sound


# -- when there is one -------------------------------------------------------------------------


def test_a_short_log_has_no_index(tmp_path: Path) -> None:
    guard_of(tmp_path / "spend.jsonl").authorize("a", 1)
    assert not index_path(tmp_path / "spend.jsonl").exists()


def test_a_fresh_process_reads_only_the_lines_after_the_index(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()

    def counting(file: int, start: int, end: int) -> bytes:
        read.append(end - start)
        return read_from(file, start, end)

    monkeypatch.setattr("outlay.guard.spend_log.read_from", counting)
    guard_of(path).authorize("a", 1)
    assert sum(read) < TAIL * 400 < path.stat().st_size
    assert contents(FileSpendLog(path).books()) == whole_fold(path)


def test_reading_a_log_writes_its_index_too(path: Path) -> None:
    index_path(path).unlink()
    assert guard_of(path).held == TAIL / 2
    assert IndexReader.open(index_path(path)) is not None
    check(path)


def test_the_index_may_be_read_by_those_who_may_read_the_log(path: Path) -> None:
    path.chmod(0o640)
    index_path(path).unlink()
    guard_of(path).authorize("a", 1)
    assert stat.S_IMODE(index_path(path).stat().st_mode) == 0o640


def test_the_index_is_rewritten_before_it_is_mostly_waste(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlay.guard.index.index_file._SLACK_BYTES", 0)
    monkeypatch.setattr(spend_log, "_TAIL_LINES", 1)
    for _ in range(40):
        guard_of(path).authorize("a", 1)
    index = IndexReader.open(index_path(path))
    assert index is not None
    assert index_path(path).stat().st_size < 4 * index.root.written
    check(path)


def test_an_index_of_other_rows_is_not_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = index_path(path).read_bytes()
    monkeypatch.setattr(balance, "FOLD", balance.FOLD + 1)
    (finding,) = guard_of(path).verify().findings
    assert "another version" in str(finding)
    check(path)
    assert index_path(path).read_bytes() != before


# -- damage ------------------------------------------------------------------------------------


def flip_and_check(path: Path, places: range) -> None:
    good = index_path(path).read_bytes()
    log, head = path.read_bytes(), head_path(path).read_bytes()
    expected, key = whole_fold(path), "key-1"
    line = next(x for x in FileSpendLog(path).lines() if isinstance(x, Held) and x.key == key)
    for at in places:
        index_path(path).write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        books = FileSpendLog(path).books()
        assert books.grant(key) == line, at
        assert books.resolution(line.hold) is not None, at
        assert books.grant("never used") is None, at
        assert contents(FileSpendLog(path).books()) == expected, at
        path.write_bytes(log)
        head_path(path).write_bytes(head)


def test_no_flipped_bit_changes_an_answer(path: Path) -> None:
    flip_and_check(path, range(0, index_path(path).stat().st_size, 61))


@pytest.mark.slow
def test_no_flipped_bit_at_any_byte_changes_an_answer(path: Path) -> None:
    flip_and_check(path, range(index_path(path).stat().st_size))


@pytest.mark.parametrize("length", [0, 1, 20, 56, 500, 5_000])
def test_a_cut_index_is_not_used(path: Path, length: int) -> None:
    index_path(path).write_bytes(index_path(path).read_bytes()[:length])
    check(path)


def test_a_damaged_index_is_a_warning_and_replaced(path: Path) -> None:
    raw = bytearray(index_path(path).read_bytes())
    raw[-1] ^= 1
    index_path(path).write_bytes(raw)
    (finding,) = guard_of(path).verify().findings
    assert (finding.severity, finding.source) == ("warning", str(index_path(path)))
    guard_of(path).authorize("a", 1)
    assert guard_of(path).verify().findings == ()


def test_damage_under_a_process_that_reads_the_index_changes_no_answer(path: Path) -> None:
    guard = guard_of(path)
    books = guard.log.books()
    index_path(path).write_bytes(b"\0" * index_path(path).stat().st_size)
    assert books.grant("key-1") is not None
    assert guard.authorize("lab01-op", 1, key="key-1").op_label == "lab01-op"
    assert contents(guard.log.books()) == whole_fold(path)
    check(path)


def test_an_older_index_is_used_up_to_its_line(path: Path) -> None:
    older = index_path(path).read_bytes()
    for number in range(TAIL):
        guard_of(path).authorize("later", 1, key=f"later-{number}")
    assert index_path(path).read_bytes() != older
    index_path(path).write_bytes(older)
    check(path)
    assert guard_of(path).log.books().grant("later-0") is not None


def test_a_process_does_not_extend_an_index_that_another_one_replaced(path: Path) -> None:
    guard = guard_of(path)
    guard.authorize("a", 1)
    index_path(path).unlink()
    assert guard_of(path).held  # reads all lines, and writes an index
    for _ in range(2 * TAIL):
        guard.authorize("a", 1)
    assert guard.verify().findings == ()
    check(path)


def test_the_index_of_another_log_is_not_used(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "spend.jsonl"
    write_lines(other, holds=TAIL + 1)
    shutil.copy(index_path(other), index_path(path))
    assert "another line" in str(guard_of(path).verify().findings[0])
    check(path)


def test_a_newer_index_does_not_hide_that_the_log_was_rolled_back(path: Path) -> None:
    older = path.read_bytes()
    for _ in range(2 * TAIL):
        guard_of(path).authorize("later", 1)
    path.write_bytes(older)
    with pytest.raises(SpendLogRolledBack):
        guard_of(path).authorize("a", 1)
    guard_of(path).accept("restored from the backup")
    check(path)


def test_a_line_that_this_machine_saw_before_the_index_is_still_looked_for(
    path: Path, private_home: Path
) -> None:
    (remembered,) = (private_home / "heads").iterdir()
    head = parse_slots(remembered.read_bytes()).head
    assert head is not None
    kept = remembered.read_bytes()
    # Another history, longer than the first, written where nobody remembers that.
    shutil.rmtree(path.parent)
    remembered.unlink()
    write_lines(path, holds=2 * TAIL)
    remembered.write_bytes(kept)
    assert path.stat().st_size > head.offset
    with pytest.raises(SpendLogRolledBack, match="acknowledged here is missing"):
        guard_of(path).authorize("a", 1)


# -- simple lines ------------------------------------------------------------------------------


def simple_log(tmp_path: Path, lines: int) -> Path:
    path = tmp_path / "simple" / "spend.jsonl"
    path.parent.mkdir()
    path.write_bytes(SIMPLE * lines)
    assert guard_of(path).total_spent == lines / 2
    assert index_path(path).exists()
    return path


def test_an_edited_line_that_no_hash_covers_counts_as_edited(tmp_path: Path) -> None:
    path = simple_log(tmp_path, 100)
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.9", 1))
    assert guard_of(path).total_spent == 50.4
    assert guard_of(path).verify().sound


def test_an_edited_line_before_the_index_that_a_hash_covers_is_found_by_verify(
    tmp_path: Path,
) -> None:
    path = simple_log(tmp_path, 100)
    for _ in range(2 * TAIL):
        guard_of(path).authorize("a", 1)
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.9", 1))
    assert not guard_of(path).verify().sound


def test_unsettled_estimates_of_a_label_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = 0
    real = RowTable.get

    def counting(table: RowTable[object], key: str) -> object:
        nonlocal looked_up
        looked_up += 1
        return real(table, key)

    monkeypatch.setattr(RowTable, "get", counting)
    per_line = list[float]()
    for unsettled in (10, 1_000):
        books, looked_up = Books(), 0
        for _ in range(unsettled):
            books.apply(Simple(ts="2026-11-15T10:00:00Z", op_label="x", estimated=1))  # type: ignore[arg-type]
        for _ in range(unsettled):
            books.apply(Simple(ts="2026-11-15T10:00:00Z", op_label="y", actual=1))  # type: ignore[arg-type]
        per_line.append(looked_up / unsettled)
    assert per_line[0] == per_line[1]


# -- forged ------------------------------------------------------------------------------------


def test_a_forged_index_is_found_by_verify(path: Path) -> None:
    index = IndexReader.open(index_path(path))
    assert index is not None
    forged = Books(index, index.root.state)
    forged.tables()["totals"].put("whole  ", Totals(0, 0))
    append_to_index(index_path(path), index, forged, index.root.position)
    assert not guard_of(path).verify().sound
    (finding,) = guard_of(path).verify().findings
    assert finding.source == str(index_path(path))
    assert "whole" in finding.message
    index_path(path).unlink()
    assert guard_of(path).verify().findings == ()


def test_an_index_without_a_row_is_found_by_verify(path: Path) -> None:
    index = IndexReader.open(index_path(path))
    assert index is not None
    forged = Books(index, index.root.state)
    forged.tables()["grants"].put("key-1", None)
    append_to_index(index_path(path), index, forged, index.root.position)
    (finding,) = guard_of(path).verify().findings
    assert f"grants has {index_rows(path)} rows" in finding.message
    assert finding.severity == "error"


def index_rows(path: Path) -> int:
    index = IndexReader.open(index_path(path))
    assert index is not None
    return len(list(index.rows("grants")))


# -- it can't be written -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket", "dangling link"])
def test_what_is_in_the_place_of_the_index_stops_nothing(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = index_path(path)
    where.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        match kind:
            case "directory":
                (where / "inside").mkdir(parents=True)
            case "fifo":
                os.mkfifo(where)
            case "socket":
                monkeypatch.chdir(path.parent)
                listening.bind(where.name)
            case _:
                where.symlink_to("nowhere")
        check(path)


def test_a_full_disk_for_the_index_stops_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_path(path).unlink()
    real = os.pwrite

    def full(file: int, data: bytes, offset: int) -> int:
        if ".index." in Path(f"/proc/self/fd/{file}").readlink().name:
            raise OSError(28, "No space left on device")
        return real(file, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    guard = guard_of(path)
    for _ in range(3):
        guard.authorize("a", 1)
    assert sorted(one.name for one in path.parent.iterdir()) == ["spend.head", "spend.jsonl"]
    monkeypatch.undo()
    check(path)


# -- kills -------------------------------------------------------------------------------------

KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from outlay.guard import spend_log
    from outlay.guard.budget_guard import BudgetGuard
    path, nth, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    spend_log._TAIL_LINES = 2
    guard, calls = BudgetGuard(1_000, path, environ={}), 0

    def deadly(name):
        real = getattr(os, name)
        def call(*args, **named):
            global calls
            if when == "midway" and name != "pwrite":
                return real(*args, **named)
            calls += 1
            if calls != nth:
                return real(*args, **named)
            if when == "midway":
                real(args[0], args[1][: len(args[1]) // 2], *args[2:])
            elif when == "after":
                real(*args, **named)
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(os, name, call)

    for name in ("open", "pwrite", "rename", "replace", "close", "chmod"):
        deadly(name)
    for number in range(3):
        print(guard.authorize("killed", 1, key=f"killed-{number}").id, flush=True)
    """
)
FIRST_CALL_BEYOND_THE_END = 120


@pytest.mark.parametrize("stride", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("when", ["before", "midway", "after"])
def test_a_kill_while_the_index_is_written_loses_nothing(
    path: Path, tmp_path: Path, when: str, stride: int, *, has_index: bool
) -> None:
    for nth in range(1, FIRST_CALL_BEYOND_THE_END, stride):
        mine = tmp_path / f"{nth}" / "spend.jsonl"
        shutil.copytree(path.parent, mine.parent)
        if not has_index:
            index_path(mine).unlink()
        done = python(KILLED, mine, str(nth), when)
        assert done.code in (0, -signal.SIGKILL), done.err
        assert contents(FileSpendLog(mine).books()) == whole_fold(mine)
        lines = [line for line in FileSpendLog(mine).lines() if isinstance(line, Held)]
        assert set(done.out.split()) <= {line.hold for line in lines}
        check(mine)
        if done.code == 0:
            return
    pytest.fail("the last system call was never reached")


def test_what_killed_processes_left_of_an_index_is_removed(path: Path) -> None:
    left = path.with_name(".spend.index.0123456789ab.draft")
    left.write_bytes(b"half")
    index_path(path).unlink()
    guard_of(path).authorize("a", 1)
    assert not left.exists()
