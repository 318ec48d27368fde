"""A dead man's switch beside a supervised command: ``python -m outlay.guard.keeper``.

It reads lines from its supervisor: ``group PGID``, ``until NS`` (on the monotonic clock: paid up to
here, stopping not counted) and ``done``. When the supervisor dies (end of input) or falls silent
past what is paid, the keeper tells the command to end, and kills it after the notice.
"""

from __future__ import annotations

import os
import select
import signal
import sys

from outlay.clock import SYSTEM, Clock
from outlay.guard.processes import anything_left, signal_all

_LOOK_EVERY_S = 0.05


class Keeper:
    """What the keeper has been told so far."""

    def __init__(self, mark: str, notice_ns: int, clock: Clock = SYSTEM) -> None:
        self.mark = mark
        self.notice_ns = notice_ns
        self.group: int | None = None
        self.until_ns: int | None = None
        self.done = False
        self._clock = clock

    def hear(self, line: str) -> None:
        """Take one line of the supervisor's."""
        word, _, value = line.strip().partition(" ")
        if word == "done":
            self.done = True
        elif word == "group":
            self.group = int(value)
        elif word == "until":
            self.until_ns = int(value)

    def patience_s(self) -> float | None:
        """Return how long to wait for the next line."""
        if self.until_ns is None:
            return None
        return max(0.0, (self.until_ns - self._clock.monotonic_ns()) / 1e9)

    def end_everything(self) -> None:
        """Tell the command to end, and kill it after the notice."""
        signal_all(signal.SIGTERM, self.group, self.mark)
        kill_ns = self._clock.monotonic_ns() + self.notice_ns
        while anything_left(self.group, self.mark):
            if self._clock.monotonic_ns() >= kill_ns:
                signal_all(signal.SIGKILL, self.group, self.mark)
            self._clock.sleep(_LOOK_EVERY_S)


def listen(keeper: Keeper, source: int) -> None:
    """Hear lines until the supervisor is done, dead (end of input) or silent for too long."""
    heard = b""
    while not keeper.done and select.select([source], [], [], keeper.patience_s())[0]:
        more = os.read(source, 4096)
        if not more:
            return
        *lines, heard = (heard + more).split(b"\n")
        for line in lines:
            keeper.hear(line.decode())


def main() -> None:
    """Keep watch; a terminal's or a launcher's signals to end are not for the keeper."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keeper = Keeper(sys.argv[1], int(sys.argv[2]))
    listen(keeper, sys.stdin.fileno())
    if not keeper.done:
        keeper.end_everything()


if __name__ == "__main__":
    main()
