"""What whoever runs a sweep has asked for by a signal: its end, at once, or to be left alone."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Final

from outlay.handlers import handling

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Interrupts:
    """What was asked so far.

    Attributes:
        asked: How often the end was asked for: once to cancel, twice to force.
        left_alone: Whether the terminal is gone, and what runs elsewhere may go on without us.
    """

    asked: int = 0
    left_alone: bool = False

    def heard(self, *, remote: bool) -> AbstractContextManager[None]:
        """Take signals as wishes.

        Args:
            remote: Whether everything runs elsewhere, so that none of it need end with a terminal.
        """

        def remember(number: int, frame: FrameType | None) -> None:
            del frame
            if number == signal.SIGHUP and remote:
                self.left_alone = True
            else:
                self.asked += 1

        return handling(_SIGNALS, remember)
