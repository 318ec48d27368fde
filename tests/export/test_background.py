"""Background work: in order, never blocking the caller, every loss counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest

from outlay.export.background import Background, Limits
from waiting import PATIENCE_S, until

SOON_S = float(PATIENCE_S)


def test_items_are_processed_in_order() -> None:
    seen: list[int] = []
    background: Background[int] = Background("work", seen.extend)
    for item in range(50):
        background.offer(item)
    assert background.drain(SOON_S)
    assert seen == list(range(50))
    assert background.outcome.done == 50


def test_a_batch_fills_up_while_it_lingers() -> None:
    batches: list[Sequence[int]] = []
    limits = Limits(waiting=100, batch=10, linger_s=SOON_S)
    background: Background[int] = Background("work", batches.append, limits)
    for item in range(25):
        background.offer(item)
    assert background.drain(SOON_S)
    assert [len(batch) for batch in batches] == [10, 10, 5]


def test_work_that_hangs_blocks_neither_offer_nor_the_end() -> None:
    released, started = threading.Event(), threading.Event()

    def hang(_: Sequence[int]) -> None:
        started.set()
        released.wait(SOON_S)

    background = Background("work", hang, Limits(waiting=5))
    background.offer(0)
    assert started.wait(SOON_S)
    for item in range(20):
        background.offer(item)
    assert not background.drain(0.01)
    background.abandon()
    assert background.outcome.lost == 21
    released.set()
    background.offer(0)
    assert background.drain(SOON_S)
    assert background.outcome.done == 1, "an abandoned item is not counted as done"


def test_its_thread_ends_with_its_items_and_a_later_item_starts_another() -> None:
    seen: list[int] = []
    lingering = Limits(batch=10, linger_s=SOON_S)
    background: Background[int] = Background("work of a test", seen.extend, lingering)
    for item in (1, 2):
        background.offer(item)
        assert background.drain(SOON_S)
        until(lambda: "work of a test" not in names_of_threads(), "the thread stayed")
    background.offer(3)
    background.abandon()
    until(lambda: "work of a test" not in names_of_threads(), "it lingers for nothing")
    background.offer(4)
    assert background.drain(SOON_S)
    assert seen == [1, 2, 4]


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_a_failure_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Sequence[int]) -> None:
        raise ConnectionError("no way")

    background: Background[int] = Background("work", fail)
    with caplog.at_level(logging.WARNING, "outlay"):
        for item in range(5):
            background.offer(item)
        assert background.drain(SOON_S)
    assert background.outcome.lost == 5
    assert [record.getMessage() for record in caplog.records] == [
        "work: ConnectionError: no way; losses are counted"
    ]


def test_a_failed_batch_is_retried() -> None:
    tries: list[Sequence[int]] = []

    def fail_once(batch: Sequence[int]) -> None:
        tries.append(batch)
        if len(tries) == 1:
            raise ConnectionError

    background: Background[int] = Background("work", fail_once, Limits(attempts=2))
    background.offer(7)
    assert background.drain(SOON_S)
    assert tries == [[7], [7]]
    assert (background.outcome.done, background.outcome.lost) == (1, 0)
