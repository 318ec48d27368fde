"""Kills, full disks, locks and clocks: never an overspend, never a lost entry, a clear refusal."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from command_line import python
from outlay.clock import ManualClock
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded, SpendLogUnusable
from outlay.guard.index.head_file import head_path
from outlay.guard.spend_log import (
    FileSpendLog,
)
from system_parts import missing

# Kills itself just before, in the middle of, or just after the n-th system call that matters.
KILLED_MIDWAY = textwrap.dedent(
    """
    import os, signal, sys
    path, nth, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    calls = 0

    def deadly(name):
        real = getattr(os, name)
        def call(*args):
            global calls
            if when == "midway" and name not in ("write", "pwrite"):
                return real(*args)
            calls += 1
            if calls != nth:
                return real(*args)
            if when == "midway":
                real(args[0], args[1][: len(args[1]) // 2], *args[2:])
            elif when == "after":
                real(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(os, name, call)

    from outlay.guard.budget_guard import BudgetGuard
    guard = BudgetGuard(5, path)
    for name in ("open", "write", "fsync", "pwrite", "close"):
        deadly(name)
    guard.authorize("a", 3)
    print("authorised", flush=True)
    guard.record_actual("a", 2)
    print("recorded", flush=True)
    """
)
FIRST_CALL_BEYOND_THE_END = 80


def run_and_kill(path: Path, nth: int, when: str) -> tuple[int, list[str]]:
    done = python(KILLED_MIDWAY, path, str(nth), when)
    assert done.code in (0, -signal.SIGKILL), done.err
    return done.code, done.out.split()


@pytest.mark.parametrize("when", ["before", "midway", "after"])
def test_a_kill_at_any_step_loses_no_acknowledged_line(tmp_path: Path, when: str) -> None:
    for nth in range(1, FIRST_CALL_BEYOND_THE_END):
        path = tmp_path / f"{nth}" / "spend.jsonl"
        code, answers = run_and_kill(path, nth, when)
        guard = BudgetGuard(5, path, environ={})
        if "recorded" in answers:
            assert (guard.total_spent, guard.held) == (2.0, 0.0)
        elif "authorised" in answers:
            assert guard.committed in (3.0, 2.0)
        else:
            assert guard.committed in (0.0, 3.0)
        free = guard.remaining
        guard.authorize("the rest", free)
        with pytest.raises(BudgetGuardExceeded):
            guard.authorize("more", 0.01)
        assert FileSpendLog(path).verify().sound
        if code == 0:
            return
    pytest.fail("the last system call was never reached")


def test_a_full_disk_refuses_until_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "spend.jsonl"
    BudgetGuard(5, path, environ={}).authorize("a", 1)
    room = path.stat().st_size + 100
    # The limit is set by the program: code between fork and exec is unsafe beside other threads.
    script = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room})); "
    script += "from outlay.guard.budget_guard import BudgetGuard; "
    script += f"BudgetGuard(5, {str(path)!r}).authorize('b', 1)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "SpendLogUnusable" in done.stderr
    assert "only 100 of" in done.stderr
    guard = BudgetGuard(5, path, environ={})
    assert guard.held == 1.0
    guard.authorize("c", 4)
    assert FileSpendLog(path).verify().sound


def test_a_line_is_on_disk_before_the_head_moves_and_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = tmp_path / "spend.jsonl", list[str]()
    guard = BudgetGuard(5, path, environ={})
    guard.authorize("first", 1)

    def observed(name: str) -> None:
        real = getattr(os, name)

        def call(file: int, *rest: object) -> object:
            calls.append(f"{name} {Path(f'/proc/self/fd/{file}').readlink().name}")
            return real(file, *rest)

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fsync", "pwrite"):
        observed(name)
    guard.authorize("second", 1)
    assert calls[:3] == ["write spend.jsonl", "fsync spend.jsonl", "pwrite spend.head"]
    (remembered,) = calls[3:]
    assert remembered.startswith("pwrite spend-")


def test_a_disk_that_cannot_sync_refuses_and_what_was_written_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = BudgetGuard(5, tmp_path / "spend.jsonl", environ={})
    guard.authorize("before", 1)

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(SpendLogUnusable, match="Input/output error"):
            guard.authorize("a", 3)
    assert guard.held == 4.0


def test_a_retried_key_is_made_durable_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = BudgetGuard(5, tmp_path / "spend.jsonl", environ={})

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    for _ in range(2):
        with pytest.raises(SpendLogUnusable):
            guard.authorize("a", 3, key="k")
    monkeypatch.undo()
    assert guard.authorize("a", 3, key="k").amount.micros == 3_000_000
    assert guard.held == 3.0


def run_without_privileges(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script without root's right to write to read-only files."""
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    if without and shutil.which("setpriv") is None:
        missing("root writes to read-only files, and there is no setpriv to give that up")
    command = [*without, sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_read_only_log_refuses_and_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "spend.jsonl"
    BudgetGuard(5, path, environ={}).authorize("a", 1)
    script = textwrap.dedent(
        f"""
        from outlay.guard.budget_guard import BudgetGuard
        guard = BudgetGuard(5, {str(path)!r})
        print(guard.held)
        guard.authorize("b", 1)
        """
    )
    path.chmod(0o444)
    done = run_without_privileges(script)
    assert done.stdout.strip() == "1.0", done.stderr
    assert "SpendLogUnusable" in done.stderr
    assert "Permission denied" in done.stderr


def test_a_directory_that_cannot_be_looked_into_is_no_new_log(tmp_path: Path) -> None:
    path = tmp_path / "books" / "spend.jsonl"
    BudgetGuard(5, path, environ={}).authorize("a", 1)
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from outlay.guard.spend_log import FileSpendLog
        FileSpendLog(Path({str(path)!r})).books()
        """
    )
    try:
        path.parent.chmod(0o000)
        done = run_without_privileges(script)
    finally:
        path.parent.chmod(0o755)
    assert "SpendLogUnusable" in done.stderr
    assert "Permission denied" in done.stderr


def test_every_directory_of_a_new_log_is_on_disk_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = list[str](), os.fsync

    def observed(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink().name)
        real(file)

    monkeypatch.setattr(os, "fsync", observed)
    BudgetGuard(5, tmp_path / "team" / "books" / "spend.jsonl", environ={}).authorize("a", 1)
    assert synced == [tmp_path.name, "team", "spend.head", "spend.jsonl", "books"]


def test_a_log_that_is_a_directory_refuses(tmp_path: Path) -> None:
    (tmp_path / "spend.jsonl").mkdir()
    with pytest.raises(SpendLogUnusable):
        BudgetGuard(5, tmp_path / "spend.jsonl", environ={}).authorize("a", 1)


def test_a_head_that_cannot_be_written_refuses_before_the_log_is(tmp_path: Path) -> None:
    path = tmp_path / "spend.jsonl"
    head_path(path).symlink_to(tmp_path / "missing" / "head")
    with pytest.raises(SpendLogUnusable):
        BudgetGuard(5, path, environ={}).authorize("a", 1)
    assert path.read_bytes() == b""


def test_a_lock_held_by_a_dead_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "spend.jsonl"
    BudgetGuard(5, path, environ={}).authorize("a", 1)
    script = (
        f"import fcntl, os, signal; file = os.open({str(path)!r}, os.O_RDWR); "
        "fcntl.flock(file, fcntl.LOCK_EX); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    assert BudgetGuard(5, path, environ={}).authorize("b", 1).amount.micros == 1_000_000


def test_a_lock_held_by_a_live_process_refuses_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spend.jsonl"
    guard = BudgetGuard(5, path, environ={})
    guard.authorize("a", 1)
    monkeypatch.setattr("outlay.guard.spend_log._LOCK_TIMEOUT_S", 0.2)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SpendLogUnusable, match=r"held its lock for 0\.2 s"):
            guard.authorize("b", 1)
    assert guard.authorize("b", 1).amount.micros == 1_000_000


def test_a_fork_does_not_share_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "spend.jsonl"
    guard = BudgetGuard(100, path, environ={})
    guard.authorize("before", 1)
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(50):
                    guard.authorize("child", 0.1)
                os._exit(0)
            finally:  # A child that failed must not go on with the tests.
                os._exit(1)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    assert guard.held == 21.0


def test_a_clock_set_back_loses_no_entry_and_frees_no_money(
    tmp_path: Path, clock: ManualClock
) -> None:
    guard = BudgetGuard(5, tmp_path / "spend.jsonl", clock=clock, environ={})
    guard.authorize("a", 3)
    clock.step_wall(-400 * 86_400 * 10**9)
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("b", 3)
    guard.record_actual("a", 2)
    assert guard.total_spent == 2.0
    assert guard.verify().sound
