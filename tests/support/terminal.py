"""Run a command in a pseudo-terminal of any width: type, read, wait."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outlay.clock import SYSTEM
from waiting import PATIENCE_S

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")


class Terminal:
    """The controlling side of a pseudo-terminal in which one command runs as session leader."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._master = master
        self._raw = b""

    @property
    def shown(self) -> str:
        """Everything that was printed so far, without colours and movements."""
        text = self._raw.decode(errors="replace").replace("\r\n", "\n")
        return _CONTROL.sub("", text)

    @property
    def raw(self) -> str:
        """The same with them."""
        return self._raw.decode(errors="replace")

    @property
    def widest(self) -> int:
        """The length of the longest line that was printed."""
        return max(len(line.rstrip()) for line in re.split(r"[\r\n]+", self.shown))

    def type(self, keys: str) -> None:
        """Press keys; ``\\x03`` is Ctrl-C."""
        os.write(self._master, keys.encode())

    def until(self, text: str) -> None:
        """Wait until a text was printed."""
        self.until_matches(re.escape(text))

    def until_matches(self, pattern: str) -> None:
        """Wait until something was printed that matches."""
        deadline_ns = SYSTEM.monotonic_ns() + PATIENCE_S * 10**9
        while not re.search(pattern, self.shown):
            assert SYSTEM.monotonic_ns() < deadline_ns, f"no {pattern!r} in: {self.shown}"
            more = self._read() or re.search(pattern, self.shown)
            assert more, f"ended without {pattern!r}: {self.shown}"

    def end(self) -> int:
        """Wait for the command to end and return its exit code."""
        while self._read():
            pass
        return self.process.wait()

    def _read(self) -> bool:
        """Read the available output; False when the command has ended."""
        if not select.select([self._master], [], [], 0.2)[0]:
            return self.process.poll() is None
        try:
            more = os.read(self._master, 1 << 16)
        except OSError:  # Linux raises EIO when the other side is closed.
            return False
        self._raw += more
        return bool(more)


@contextmanager
def terminal(*arguments: str | Path, columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
    """Run ``outlay`` in a terminal of its own; it is killed at the end if it still runs."""
    master, command_side = pty.openpty()
    fcntl.ioctl(command_side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    # A session leader that opens a terminal by its name makes it its controlling terminal.
    shell = ["/bin/sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(command_side)]
    environ = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }
    process = subprocess.Popen(
        [*shell, sys.executable, "-m", "outlay", *map(str, arguments)],
        env=environ | {"TERM": "xterm-256color"},
        start_new_session=True,
    )
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(command_side)
        os.close(master)
