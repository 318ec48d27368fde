"""Signal handlers for a while: put in place together, and what was there before put back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handling(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Hand signals to a handler until the block ends. Only the main thread may."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            if earlier is not None:  # One that was not installed from Python cannot be put back.
                signal.signal(number, earlier)
