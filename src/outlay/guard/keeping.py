"""The supervisor's end of the line to its keeper; what the keeper does is told in ``keeper``."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress


class Keeping:
    """A keeper that runs, and is replaced when it does not.

    Args:
        mark: What everything that the command starts carries in its environment.
        notice_ns: How long the command is given to end.
    """

    def __init__(self, mark: str, notice_ns: int) -> None:
        self._mark = mark
        self._notice_ns = notice_ns
        self._told: dict[str, int] = {}
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        """Start it in a session of its own, which what ends ours does not reach."""
        arguments = [self._mark, str(self._notice_ns)]
        command = [sys.executable, "-m", "outlay.guard.keeper", *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)

    def follow(self, group: int) -> None:
        """Name the process group of the command."""
        self._remember("group", group)

    def promise(self, until_ns: int) -> None:
        """Tell up to when, on the monotonic clock, the command may run without another word."""
        self._remember("until", until_ns)

    def replace_if_dead(self) -> None:
        """Start another keeper for one that died, and tell it everything again."""
        if self._process.poll() is not None:
            self._process = self._start()
            for word, value in self._told.items():
                self._tell(f"{word} {value}")

    def dismiss(self) -> None:
        """Let it go: the command has ended."""
        self._tell("done")
        self.fall_silent()

    def fall_silent(self) -> None:
        """Say nothing any more, as if we had died; returns once the keeper ended the command."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _remember(self, word: str, value: int) -> None:
        self._told[word] = value
        self._tell(f"{word} {value}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a keeper that died is replaced at the next tick
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
