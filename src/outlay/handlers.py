"""Temporary handlers of signals and of ``sys.exit``, which restore the previous ones."""

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
    """Handle signals until the block ends; works in the main thread only."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            if earlier is not None:  # A handler not installed from Python cannot be restored.
                signal.signal(number, earlier)


class ExitWatch:
    """Remembers the status passed to ``sys.exit``, for ``atexit`` functions.

    An exit that the program caught is ignored. ``raise SystemExit`` is not seen.
    """

    def __init__(self) -> None:
        self._before = sys.exit
        self._error: SystemExit | None = None
        self._main: FrameType | None = None
        self._mine = self._exit  # One bound method, for the comparison in ``remove``.
        sys.exit = self._mine

    @property
    def error(self) -> SystemExit | None:
        """The exit that ended the main program, if one did: its frame has then not returned."""
        main = self._main
        if main is None or dis.opname[main.f_code.co_code[main.f_lasti]].startswith("RETURN"):
            return None
        return self._error

    def remove(self) -> None:
        """Restore the previous ``sys.exit``, unless it was replaced again meanwhile."""
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
