"""Temporary signal handlers."""

from __future__ import annotations

import signal

import pytest

from outlay.handlers import handling


def test_signals_are_handled_until_the_block_ends() -> None:
    received: list[int] = []
    before = signal.getsignal(signal.SIGUSR1)
    with handling([signal.SIGUSR1], lambda number, _: received.append(number)):
        signal.raise_signal(signal.SIGUSR1)
    assert received == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) is before


def test_earlier_handlers_are_restored_after_an_error() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(KeyError), handling([signal.SIGUSR1], lambda *_: None):
        raise KeyError
    assert signal.getsignal(signal.SIGUSR1) is before
