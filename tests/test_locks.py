"""Locks of files: who has one, and that it ends with its process though a forked child lives."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from outlay.files import open_own
from outlay.locks import FileLock, FileLocked, is_locked

TAKERS: dict[str, Callable[[int], FileLock]] = {
    "flock": FileLock,
    "visible": lambda file: FileLock(file, visible=True),
}
each_kind = pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)


def opened(directory: Path) -> int:
    return open_own(directory / "locked", os.O_RDWR | os.O_CREAT)


def is_free(directory: Path, take: Callable[[int], FileLock]) -> bool:
    with suppress(FileLocked):
        take(opened(directory)).release()
        return True
    return False


@contextmanager
def child_that_waits(before: Callable[[], object] = lambda: None) -> Iterator[int]:
    """Fork a child that lives until the block ends; yield its pid after it has done something."""
    (ready, say), (wait, end) = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.close(end)
        before()
        os.write(say, b"r")
        os.read(wait, 1)
        os._exit(0)
    os.read(ready, 1)
    try:
        yield child
    finally:
        for file in (ready, say, wait, end):
            os.close(file)
        os.waitpid(child, 0)


@each_kind
def test_a_lock_ends_with_its_block_though_a_child_was_forked_in_it(
    tmp_path: Path, take: Callable[[int], FileLock]
) -> None:
    with take(opened(tmp_path)) as lock, child_that_waits():
        assert not is_free(tmp_path, take)
        lock.release()
        assert is_free(tmp_path, take)


@each_kind
def test_a_child_that_leaves_the_block_does_not_free_its_parents_lock(
    tmp_path: Path, take: Callable[[int], FileLock]
) -> None:
    with take(opened(tmp_path)) as lock, child_that_waits(lock.release):
        assert not is_free(tmp_path, take)


@each_kind
def test_the_lock_of_a_killed_process_is_free_though_its_forked_child_lives(
    tmp_path: Path, take: Callable[[int], FileLock]
) -> None:
    def lock_and_fork() -> None:
        take(opened(tmp_path))
        if os.fork() == 0:
            os.read(wait, 1)
            os._exit(0)

    wait, end = os.pipe()
    with child_that_waits(lock_and_fork) as holder:
        assert not is_free(tmp_path, take)
        os.kill(holder, signal.SIGKILL)
        os.waitid(os.P_PID, holder, os.WEXITED | os.WNOWAIT)
        assert is_free(tmp_path, take)
        os.write(end, b"e")
    os.close(wait)
    os.close(end)


def test_one_who_is_refused_learns_the_holder_whose_name_goes_with_the_lock(tmp_path: Path) -> None:
    with (
        FileLock(opened(tmp_path), holder="7 here\n"),
        pytest.raises(FileLocked) as refused,
    ):
        FileLock(opened(tmp_path))
    assert refused.value.holder == "7 here"
    assert (tmp_path / "locked").read_bytes() == b""


def test_only_a_visible_lock_is_seen_and_seeing_does_not_lock(tmp_path: Path) -> None:
    with FileLock(opened(tmp_path)):
        assert is_locked(tmp_path / "locked") is False
    with FileLock(opened(tmp_path), visible=True):
        assert is_locked(tmp_path / "locked") is True
    assert is_free(tmp_path, TAKERS["visible"])


def test_shared_locks_exclude_only_exclusive_ones(tmp_path: Path) -> None:
    with FileLock(opened(tmp_path), shared=True):
        FileLock(opened(tmp_path), shared=True).release()
        assert not is_free(tmp_path, FileLock)


@each_kind
def test_a_refused_lock_leaves_no_open_file(
    tmp_path: Path, take: Callable[[int], FileLock]
) -> None:
    def open_here() -> int:
        # Of this file alone: the collector may close any other in between.
        return sum(link.resolve() == tmp_path / "locked" for link in Path("/dev/fd").iterdir())

    with take(opened(tmp_path)):
        before = open_here()
        assert not is_free(tmp_path, take)
        assert open_here() == before > 0
