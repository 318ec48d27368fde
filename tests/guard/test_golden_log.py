"""A spend log as schema 1 wrote it still reads, whatever the program has become since."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from outlay.clock import ManualClock
from outlay.errors import OutlayError
from outlay.guard.balance import shape_of_rows
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.spend_log import FileSpendLog

GOLDEN = Path(__file__).parents[1] / "data" / "spend-log-v1"


def test_a_log_of_schema_1_can_be_read_verified_and_appended_to(
    tmp_path: Path, clock: ManualClock
) -> None:
    directory = tmp_path / "books"
    shutil.copytree(GOLDEN, directory)
    clock.advance(3600 * 10**9)  # what it says is rented is not overdue yet
    guard = BudgetGuard(25, directory / "spend.jsonl", clock=clock, environ={})
    verification = guard.verify()
    assert verification.sound
    assert [finding.line for finding in verification.findings] == [7]
    assert (guard.total_spent, guard.held) == (2.75, 7.0)
    pod = guard.holds()[0]
    assert (pod.resource, pod.state, pod.op_label) == ("pod-1", "created", "lab02-pod")
    assert "raised from 20.00 to 25.00" in str(guard.findings()[0])
    guard.authorize("next", 1)
    assert guard.verify().sound


def test_what_the_fold_makes_of_a_line_is_versioned() -> None:
    """An index that was folded otherwise must not be used.

    If the types in the rows changed, paste both; if only the rows did, add one to ``FOLD``, too.
    """
    books = FileSpendLog(GOLDEN / "spend.jsonl", indexed=False).books()
    rows = [(table, sorted(books.rows(table))) for table in sorted(books.tables())]
    digest = hashlib.sha256(repr((books.state(), rows)).encode()).hexdigest()[:16]
    assert (shape_of_rows(), digest) == ("f0c341c4225d4ec5", "818b6b2957674c9d")


def test_lines_of_a_newer_schema_are_refused(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "spend.jsonl"
    with monkeypatch.context() as tomorrow:
        for module in ("entries", "decisions"):
            tomorrow.setattr(f"outlay.guard.{module}.SCHEMA", 3)
        BudgetGuard(5, log, clock=clock, environ={}).authorize("first", 1)
    before = log.read_bytes()
    guard = BudgetGuard(5, log, clock=clock, environ={})
    with pytest.raises(OutlayError, match="schema 3 is newer than this outlay"):
        guard.authorize("second", 1)
    assert log.read_bytes() == before
