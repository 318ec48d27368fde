"""SIGTERM on behalf of a run: it is noted, and then whatever was there before decides."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class TerminationWatch:
    """Calls back on SIGTERM and then does what would have happened without it.

    Only the main thread may install signal handlers, so elsewhere it watches nothing.

    Args:
        on_signal: Told whether the process will die of it at once.
    """

    def __init__(self, on_signal: Callable[[bool], None]) -> None:
        self._on_signal = on_signal
        self._installed = False
        self._previous: Callable[[int, FrameType | None], object] | int | None = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._handle)
            self._installed = True

    def remove(self) -> None:
        """Put the previous handler back, unless somebody installed another one since."""
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        self._installed = False
        if signal.getsignal(signal.SIGTERM) == self._handle:
            # A handler that was not installed from Python reads as None and cannot be put back.
            with contextlib.suppress(TypeError):
                signal.signal(signal.SIGTERM, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        dies = self._dies()
        self._on_signal(dies)
        if callable(self._previous):
            self._previous(number, frame)
        elif dies:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _dies(self) -> bool:
        """Say whether the process dies at once, of this or of the watch that was there before."""
        watch = getattr(self._previous, "__self__", None)
        if isinstance(watch, TerminationWatch):
            return watch._dies()
        return self._previous in (signal.SIG_DFL, None)
