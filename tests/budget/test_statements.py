"""Statements: when they are written, how large they are, and what a start need not read."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest

import outlay
from outlay.budget.gate import EVERY, FOLD_EVERY
from outlay.budget.history import read_history, read_since_statements
from outlay.clock import ManualClock
from outlay.ledger import BudgetStatement, Step, read_run, segment_paths
from trackers import tracker_of

SECOND = 10**9


def statements(run_dir: Path) -> list[BudgetStatement]:
    return [one for one in read_run(run_dir).records if isinstance(one, BudgetStatement)]


def test_a_run_without_a_budget_states_nothing(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        for _ in run.steps(range(5)):
            run.checkpoint_committed()
    assert not statements(tmp_path)


def test_what_was_used_is_stated_at_every_committed_checkpoint_and_at_the_end(
    tmp_path: Path,
) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10**6)) as run:
        for number in run.steps(range(9), tokens=3):
            if number % 4 == 3:
                run.checkpoint_committed()
    stated = [statement.state["executed"][0] for statement in statements(tmp_path)]
    assert stated == [3 * 3, 7 * 3, 9 * 3]


def test_what_was_used_is_stated_after_so_many_records_without_any_checkpoint(
    tmp_path: Path,
) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10**9)) as run:
        for _ in run.steps(range(3 * EVERY), tokens=1):
            pass
        places = [0, *(statement.seq for statement in statements(tmp_path))]
    gaps = [after - before for before, after in pairwise(places)]
    assert len(gaps) == 3
    assert max(gaps) <= EVERY + FOLD_EVERY < 50_000


def test_a_statement_stays_small_however_uneven_the_steps_are(tmp_path: Path) -> None:
    sizes = [1 + number * 7 % 1009 for number in range(3 * EVERY)]
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10**9)) as run:
        for number in run.steps(range(3 * EVERY), tokens=lambda step: sizes[step]):
            if number == 5000:
                run.checkpoint_committed()
    (path,) = segment_paths(tmp_path)
    lines = [line for line in path.read_bytes().splitlines() if b"budget_statement" in line]
    assert max(map(len, lines)) < 16_000
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10**9)) as run:
        assert run.resume_step == 5001
        assert tracker_of(run).totals["tokens"] == sum(sizes[:5001])


def test_rollback_between_checkpoints_of_uneven_steps_refunds_no_token(tmp_path: Path) -> None:
    sizes = [1 + number * 7 % 1009 for number in range(3 * EVERY)]
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10**9)) as run:
        for _ in run.steps(range(3 * EVERY), tokens=lambda step: sizes[step]):
            pass
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10**9)) as run:
        for _ in run.steps(range(1), tokens=1, start=7000):
            pass
        survived = tracker_of(run).totals["tokens"]
        assert tracker_of(run).totals["steps"] == 7001
    true = sum(sizes[:7000]) + 1
    assert true <= survived <= true + sum(sizes) // 15


def test_a_start_reads_only_what_follows_the_last_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10**9)) as run:
        for _ in run.steps(range(2 * EVERY), tokens=1):
            pass
        run.checkpoint_committed()
    decoded = 0
    reader = sys.modules["outlay.ledger.reader"]
    decode = reader.decode_block

    def counting(block: bytes) -> object:
        nonlocal decoded
        found = decode(block)
        decoded += len(found.records)
        return found

    monkeypatch.setattr(reader.LedgerReader.__init__, "__defaults__", (counting, None))
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10**9)) as run:
        assert tracker_of(run).totals["tokens"] == 2 * EVERY
    assert 0 < decoded < 5


def test_resumed_start_does_not_import_numpy(tmp_path: Path) -> None:
    program = (
        "import sys, outlay\n"
        "for _ in range(2):\n"
        f"    with outlay.run('m', dir={str(tmp_path)!r}, budget=outlay.iso_tokens(100)) as run:\n"
        "        for _ in run.steps(range(4), tokens=1):\n"
        "            run.checkpoint_committed()\n"
        "assert 'numpy' not in sys.modules\n"
    )
    environ = {**os.environ, "OUTLAY_HOME": str(tmp_path / "home"), "OUTLAY_PROGRESS": "0"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environ)


def test_records_of_other_threads_do_not_disturb_statements(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10**9)) as run:
        done = threading.Event()

        def beat() -> None:
            while not done.is_set():
                run.recorder.heartbeat(energy_mj=1)

        beating = threading.Thread(target=beat)
        beating.start()
        for number in run.steps(range(3000), tokens=1):
            if number % 100 == 99:
                run.checkpoint_committed()
        done.set()
        beating.join()
    assert len(statements(tmp_path)) > 5
    until_ns = 2**62
    assert read_since_statements(tmp_path).spend(until_ns).total(charge="all") == read_history(
        tmp_path
    ).spend(until_ns).total(charge="all")


def test_steps_lost_to_a_full_disk_are_in_the_next_statement(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10**6), clock=clock) as run:
        for number in run.steps(range(10), tokens=7):
            clock.advance(SECOND)
            if number == 3:
                monkeypatch.setattr(
                    os, "write", mock.Mock(side_effect=OSError(errno.ENOSPC, "full"))
                )
            if number == 6:
                monkeypatch.setattr(os, "write", write)
    lost = [one for one in read_run(tmp_path).records if isinstance(one, Step)]
    assert len(lost) < 10
    spend = read_since_statements(tmp_path).spend(clock.wall_ns())
    assert spend.total(charge="training").tokens == 70
    assert spend.total(charge="training").time_ns == 10 * SECOND
