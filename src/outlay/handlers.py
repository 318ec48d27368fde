"""Handlers for a while: of signals and of ``sys.exit``, and what was there before put back."""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


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


class ExitWatch:
    """Remembers with what ``sys.exit`` was called: by the time of ``atexit`` nothing else knows.

    An exit that was caught on its way counts for nothing. ``raise SystemExit`` is not seen.
    """

    def __init__(self) -> None:
        self._before = sys.exit
        self._error: SystemExit | None = None
        self._main: FrameType | None = None
        self._mine = self._exit  # One object, so that it is known again.
        sys.exit = self._mine

    @property
    def error(self) -> SystemExit | None:
        """The exit that left the main program, if one did: that has then not returned."""
        main = self._main
        if main is None or dis.opname[main.f_code.co_code[main.f_lasti]].startswith("RETURN"):
            return None
        return self._error

    def remove(self) -> None:
        """Put back what was there, unless somebody else has come between."""
        if sys.exit is self._mine:
            sys.exit = self._before
        self._error = self._main = None

    def _exit(self, status: object = None, /) -> NoReturn:
        self._main = sys._getframe(1)
        while self._main is not None and not _is_main(self._main):
            self._main = self._main.f_back
        self._error = SystemExit() if status is None else SystemExit(status)
        self._before(*self._error.args)


def _is_main(frame: FrameType) -> bool:
    is_module = frame.f_code.co_name == "<module>"
    return is_module and frame.f_globals.get("__name__") == "__main__"
