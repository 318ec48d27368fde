"""The keeper's process: the message pipe to its supervisor, and its event loop.

It runs as ``python -I -S`` with the standard library only: starting it takes 30 ms.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from outlay.clock import SYSTEM
from outlay.proc.cgroup import Cgroup
from outlay.proc.identity import set_parent_death_signal, set_subreaper
from outlay.proc.keeper import LOOK_EVERY_S, Keeper, KeeperTerms, Launch, started_event

_MOST_SUCCESSORS: Final = 3


class MessagePipe:
    """One end of two pipes between a supervisor and a keeper; messages are JSON lines."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading = reading
        self._writing = writing
        self._buffer = b""

    @classmethod
    def pair(cls) -> tuple[MessagePipe, MessagePipe]:
        """Return both ends of a new pair of pipes."""
        (here, theirs), (there, ours) = os.pipe(), os.pipe()
        return cls(here, ours), cls(there, theirs)

    @property
    def descriptors(self) -> tuple[int, int]:
        """The descriptors to read from and to write to, for a process to inherit."""
        return self.reading, self._writing

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; undecodable environment variables survive the encoding."""
        rest = memoryview(json.dumps(message).encode() + b"\n")
        while rest:
            rest = rest[os.write(self._writing, rest) :]

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have arrived; None when the other end is closed."""
        more = os.read(self.reading, 1 << 16)
        if not more:
            return None
        *lines, self._buffer = (self._buffer + more).split(b"\n")
        return [json.loads(line) for line in lines]

    def close_writing(self) -> None:
        """Close the writing end."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1

    def close(self) -> None:
        """Close both ends."""
        self.close_writing()
        os.close(self.reading)


class KeeperProcess:
    """The event loop of a keeper's process."""

    def __init__(self, line: MessagePipe, woken: int) -> None:
        self._pipe: MessagePipe | None = line
        self._woken = woken
        self._unsent: list[dict[str, Any]] = []
        self._until_ns: int | None = None
        self._successors = 0
        self.dismissed = False
        self.keeper = Keeper(KeeperTerms(session=""), self._notify)

    def _notify(self, message: dict[str, Any]) -> None:
        try:
            if self._pipe is None:
                raise BrokenPipeError
            self._pipe.send(message)
        except OSError:  # Kept for a successor; a sweep reads the exit record instead.
            self._unsent.append(message)

    def run(self) -> None:
        """Serve until the supervisor closes or dies; end the commands if it misses its deadline."""
        while not self.dismissed:
            sources = [self._woken, *([] if self._pipe is None else [self._pipe.reading])]
            ready, _, _ = select.select(sources, [], [], self._patience_s())
            if self._woken in ready:
                os.read(self._woken, 4096)
            if not ready and self._is_silent():
                self.keeper.end_everything(self.keeper.terms.notice_ns)
                self._until_ns = None
            alive = self._pipe is None or self._pipe.reading not in ready or self._receive_orders()
            self.keeper.reap()
            if not alive and not self._start_successor():
                return
            if self._pipe is None and not self.keeper.commands:
                return

    def _patience_s(self) -> float | None:
        if any(command.reported for command in self.keeper.commands.values()):
            return LOOK_EVERY_S
        if self._until_ns is None:
            return None
        return max(0.0, (self._until_ns - SYSTEM.monotonic_ns()) / 1e9)

    def _is_silent(self) -> bool:
        return self._until_ns is not None and SYSTEM.monotonic_ns() >= self._until_ns

    def _receive_orders(self) -> bool:
        """Handle the supervisor's messages; False at the end of input."""
        assert self._pipe is not None
        orders = self._pipe.receive()
        for order in orders or ():
            self._handle_order(order)
        return orders is not None

    def _handle_order(self, order: dict[str, Any]) -> None:
        match order.pop("do"):
            case "keep":
                self._apply_terms(**order)
            case "start":
                self.keeper.start(Launch(**order))
            case "signal":
                self.keeper.signal(**order)
            case "leave":
                self.keeper.terms = replace(self.keeper.terms, leftovers="leave")
            case "until":
                self._until_ns = order["ns"]
            case _:
                self.dismissed = True

    def _apply_terms(
        self, *, terms: dict[str, Any], adopted: list[dict[str, Any]], cgroup: str
    ) -> None:
        self.keeper.terms = KeeperTerms(**terms)
        if cgroup:
            self.keeper.cgroup = Cgroup(Path(cgroup))
        self.keeper.adopt(adopted)
        if adopted:
            self.keeper.parent = False
        elif self.keeper.cgroup is not None:
            self.keeper.cgroup.enter(os.getpid())

    def _start_successor(self) -> bool:
        """Start a successor of a dead supervisor; False if the commands have to end instead."""
        assert self._pipe is not None
        self._pipe.close()
        self._pipe = None
        keeper = self.keeper
        if not keeper.terms.successor or not (keeper.commands or self._unsent):
            return False
        if self._successors >= _MOST_SUCCESSORS:
            return bool(keeper.commands)  # Nothing records them any more, but they keep running.
        self._successors += 1
        ours, theirs = MessagePipe.pair()
        with contextlib.suppress(OSError):
            successor = subprocess.Popen(
                [*keeper.terms.successor, *map(str, theirs.descriptors)],
                pass_fds=theirs.descriptors, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            successor.returncode = 0
            keeper.helpers.add(successor.pid)
        theirs.close()
        self._pipe = ours
        unsent, self._unsent = self._unsent, []
        for message in [*map(started_event, keeper.commands.values()), *unsent]:
            self._notify(message)
        # Commands of an earlier keeper are not our children: the successor polls them once we exit.
        return keeper.parent

    def leave(self) -> None:
        """End what is left, unless the terms say to leave it, and clean up."""
        keeper = self.keeper
        abandoned = not self.dismissed
        terms = keeper.terms
        is_inherited = abandoned and bool(terms.successor)  # The successor watches what is left.
        if terms.leftovers != "leave" and not is_inherited:
            left = keeper.end_everything(terms.orphan_notice_ns if abandoned else terms.notice_ns)
            if left:
                pids = ", ".join(str(process.pid) for process in left)
                sys.stderr.write(f"outlay: processes {pids} were killed and do not end\n")
        if abandoned:
            if keeper.terms.afterwards:
                with contextlib.suppress(OSError):
                    subprocess.run(keeper.terms.afterwards, stdin=subprocess.DEVNULL, check=False)
            with contextlib.suppress(OSError):
                Path(keeper.terms.record).unlink()
        if keeper.cgroup is not None:
            for pid in keeper.cgroup.members():  # This process, and spared ones.
                keeper.cgroup.leave(pid)
            keeper.cgroup.remove()


def _wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading


def main() -> None:
    """Run a keeper on the two pipe descriptors in the arguments."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        # A handler, since commands would inherit SIG_IGN.
        signal.signal(number, lambda *_: None)
    # The kernel wakes a stopped keeper when the supervisor dies.
    set_parent_death_signal(signal.SIGCONT)
    set_subreaper(on=True)
    process = KeeperProcess(MessagePipe(int(sys.argv[1]), int(sys.argv[2])), _wake_on_child())
    process.keeper.notify({"event": "ready"})
    process.run()
    process.leave()


if __name__ == "__main__":
    main()
