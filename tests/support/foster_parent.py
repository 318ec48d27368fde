"""Run daemons as children of one process of their own, which adopts and reaps what they disown.

A test that supervises commands adopts the orphans below it: without this process between them,
those of a daemon, too, which end at any time.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_DEATH_SIGNAL, _SUBREAPER = 1, 36


class FosterParent:
    """The other side of ``serve``: starts daemons there.

    Args:
        within: A command that runs the process, such as one that puts it into namespaces.
    """

    def __init__(self, *within: str) -> None:
        self._process = subprocess.Popen(
            [*within, sys.executable, "-ISB", __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the process, or of the command that runs it."""
        return self._process.pid

    def start(self, *command: str, env: Mapping[str, str], output: Path) -> int:
        """Start a daemon in a session of its own that appends to a file; return its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = json.dumps({"command": command, "env": dict(env), "output": str(output)})
        self._process.stdin.write(order.encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> None:
        """End the process; whoever uses it has ended the daemons."""
        with self._process:
            pass


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def serve() -> None:
    """Start what the lines of stdin say, until there are no more."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel reaps.
    started = []
    for line in sys.stdin:
        order = json.loads(line)
        with Path(order["output"]).open("ab") as output:
            daemon = subprocess.Popen(
                order["command"], env=order["env"], stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True, preexec_fn=_as_a_daemon,
            )  # fmt: skip
        started.append(daemon)
        sys.stdout.write(f"{daemon.pid}\n")
        sys.stdout.flush()
    os._exit(0)


def _as_a_daemon() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()


if __name__ == "__main__":
    serve()
