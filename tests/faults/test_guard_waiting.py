"""Waiting for the lock of a spend log, and file systems whose locks do not exclude others."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlay import locks
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded, SpendLogUnusable

THREADS = 500


def test_every_guard_of_five_hundred_threads_is_answered(tmp_path: Path) -> None:
    path, answers = tmp_path / "spend.jsonl", Counter[str]()
    start = threading.Event()

    def race() -> None:
        guard = BudgetGuard(5, path, environ={})
        start.wait()
        try:
            guard.authorize("race", "0.10")
            answers["won"] += 1
        except BudgetGuardExceeded:
            answers["refused"] += 1
        except SpendLogUnusable as error:
            answers[str(error)] += 1

    threads = [threading.Thread(target=race) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    start.set()
    for thread in threads:
        thread.join()
    assert answers == {"won": 50, "refused": THREADS - 50}
    assert BudgetGuard(5, path, environ={}).held == 5.0


@contextlib.contextmanager
def locked(path: Path, meanwhile: str) -> Iterator[None]:
    """Have another process hold the lock of a log until it has done something."""
    script = textwrap.dedent(
        f"""
        import fcntl, os, time
        file = os.open({str(path)!r}, os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX)
        print("locked", flush=True)
        {meanwhile}
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield


def test_a_waiter_does_not_time_out_while_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spend.jsonl"
    BudgetGuard(5, path, environ={}).authorize("a", 1)
    monkeypatch.setattr("outlay.guard.spend_log._LOCK_TIMEOUT_S", 2)
    with locked(path, "for _ in range(60): time.sleep(0.05); os.utime(file)"):
        assert BudgetGuard(5, path, environ={}).held == 1.0


def test_a_waiter_that_timed_out_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spend.jsonl"
    guard = BudgetGuard(5, path, environ={})
    guard.authorize("a", 1)
    with monkeypatch.context() as patch, path.open("rb") as other:
        patch.setattr("outlay.guard.spend_log._LOCK_TIMEOUT_S", 0.1)
        fcntl.flock(other, fcntl.LOCK_EX)
        for _ in range(3):
            with pytest.raises(SpendLogUnusable, match="held its lock"):
                guard.authorize("b", 1)
    assert guard.authorize("b", 1).amount.micros == 1_000_000
    assert BudgetGuard(5, path, environ={}).held == 2.0


def test_a_thread_that_hangs_in_its_turn_refuses_others_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlay.guard.spend_log._LOCK_TIMEOUT_S", 0.2)
    guard = BudgetGuard(5, tmp_path / "spend.jsonl", environ={})
    guard.authorize("a", 1)
    inside, leave = threading.Event(), threading.Event()

    def hang() -> None:
        def wait(_: object) -> None:
            inside.set()
            leave.wait()

        guard.log.look(wait)

    thread = threading.Thread(target=hang)
    thread.start()
    inside.wait()
    with pytest.raises(SpendLogUnusable, match=r"held its lock for 0\.2 s"):
        guard.authorize("b", 1)
    leave.set()
    thread.join()
    assert guard.authorize("b", 1).amount.micros == 1_000_000


def test_without_a_new_thread_the_lock_is_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spend.jsonl"
    BudgetGuard(5, path, environ={}).authorize("a", 1)

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with locked(path, "time.sleep(0.5)"):
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert BudgetGuard(5, path, environ={}).held == 1.0


def test_a_process_forked_during_a_query_keeps_no_lock(tmp_path: Path) -> None:
    guard = BudgetGuard(5, tmp_path / "spend.jsonl", environ={})
    guard.authorize("a", 1)
    reader, writer = os.pipe()

    def fork(_: object) -> int:
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent is done
            os._exit(0)
        return pid

    pid = guard.log.look(fork)
    try:
        assert guard.authorize("b", 1).amount.micros == 1_000_000
    finally:
        os.close(writer)
        os.waitpid(pid, 0)
        os.close(reader)


MOUNTS = """\
22 1 0:5 / /proc rw,relatime - proc proc rw
36 35 {device} / /mnt rw,relatime shared:1 - {kind} server:/export rw,{options}
"""


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nfs", "vers=3,nolock,proto=tcp"),
        ("nfs", "vers=3,local_lock=all"),
        ("nfs4", "vers=4.2,local_lock=flock"),
        ("cifs", "vers=3.1.1,nobrl"),
        ("lustre", "localflock"),
        ("fuse.sshfs", "user_id=0"),
        ("fuse.gcsfuse", "user_id=0"),
    ],
)
def test_nothing_is_authorised_where_locks_are_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str
) -> None:
    pretend_mount(tmp_path, monkeypatch, kind, options)
    with pytest.raises(SpendLogUnusable, match=rf"\({kind}.*other machines.*PostgreSQL"):
        BudgetGuard(5, tmp_path / "spend.jsonl", environ={}).authorize("a", 1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nfs4", "vers=4.2,local_lock=none"),
        ("nfs", "vers=3,local_lock=none"),
        ("nfs", "vers=3,local_lock=posix"),
        ("ext4", "nolock"),
        ("lustre", "flock"),
    ],
)
def test_a_file_system_with_shared_locks_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str
) -> None:
    pretend_mount(tmp_path, monkeypatch, kind, options)
    BudgetGuard(5, tmp_path / "spend.jsonl", environ={}).authorize("a", 1)


def pretend_mount(
    directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str
) -> None:
    """Let the system say that a directory is on another file system than it is."""
    number = directory.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    mounts = directory / "mountinfo"
    mounts.write_text(MOUNTS.format(device=device, kind=kind, options=options))
    monkeypatch.setattr(locks, "MOUNTS", mounts)


def test_a_lock_without_effect_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def granted(_file: int, _kind: int) -> None:
        return None

    monkeypatch.setattr(fcntl, "flock", granted)
    with pytest.raises(SpendLogUnusable, match="flock does not exclude others"):
        BudgetGuard(5, tmp_path / "spend.jsonl", environ={}).authorize("a", 1)


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_there(_file: int, _kind: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none_there)
    with pytest.raises(SpendLogUnusable, match="No locks available"):
        BudgetGuard(5, tmp_path / "spend.jsonl", environ={}).authorize("a", 1)
