"""Signal handlers for a while."""

from __future__ import annotations

import signal

import pytest

from outlay.handlers import handling


def test_signals_go_to_the_handler_until_the_block_ends() -> None:
    heard: list[int] = []
    before = signal.getsignal(signal.SIGUSR1)
    with handling([signal.SIGUSR1], lambda number, _: heard.append(number)):
        signal.raise_signal(signal.SIGUSR1)
    assert heard == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) is before


def test_earlier_handlers_are_back_after_a_block_that_fails() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(KeyError), handling([signal.SIGUSR1], lambda *_: None):
        raise KeyError
    assert signal.getsignal(signal.SIGUSR1) is before
