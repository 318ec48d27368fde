"""Runs as processes of this machine, kept by a keeper that sees to it that none outlives us."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from outlay.decoding import decode
from outlay.guard.processes import MARK_VARIABLE
from outlay.sweep.engines.base import Ended, Task
from outlay.sweep.engines.exits import read_exit
from outlay.sweep.engines.leftovers import kill_marked
from outlay.sweep.errors import EngineBroken


class ProcessEngine:
    """Starts plain commands, each in a process group of its own.

    Args:
        root: The sweep's directory.
    """

    remote: ClassVar[bool] = False
    thorough: ClassVar[bool] = False
    """Whether to look for processes that left the run's group even after a good end."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._session = secrets.token_hex(8)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._heard = b""
        self._ended: dict[str, Ended] = {}
        self._live: set[str] = set()

    def allow(self, jobs: int | None) -> int:
        """Return how many tasks may run at once: one, where nobody said."""
        return jobs or 1

    def all_submitted(self) -> bool:
        """Say that tasks are started when they are submitted."""
        return True

    def standing(self, ticket: str) -> str:
        """Say nothing: a task that goes on runs."""
        del ticket
        return ""

    def new_ticket(self, name: str) -> str:
        """Return a ticket that nobody has used; marks are told apart by their prefix."""
        return f"{self._session}/{name}/{secrets.token_hex(4)}/"

    def submit(self, task: Task) -> None:
        """Start a task."""
        self._live.add(task.ticket)
        self._tell(
            do="start", ticket=task.ticket, command=task.command,
            env={**task.env, MARK_VARIABLE: task.ticket}, cwd=str(task.cwd), log=str(task.log),
            directory=str(task.directory), thorough=self.thorough,
        )  # fmt: skip

    def wait(self, timeout_s: float) -> None:
        """Return when a task may have ended, or after the time."""
        if self._keeper is None or self._keeper.stdout is None:
            return
        source = self._keeper.stdout.fileno()
        while select.select([source], [], [], timeout_s)[0]:
            more = os.read(source, 1 << 16)
            if not more:
                self._lose_keeper()
            *lines, self._heard = (self._heard + more).split(b"\n")
            for line in lines:
                self._hear(decode(line, dict[str, Any]))
            if self._ended:
                return
            timeout_s = 0

    def poll(self, ticket: str) -> Ended | None:
        """Return how a task ended, once; None while it goes on."""
        if self._keeper is not None and ticket not in self._ended:
            self.wait(0)
        return self._ended.pop(ticket, None)

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """Tell a task and its group to end, or end them."""
        if ticket in self._live:
            number = signal.SIGKILL if force else signal.SIGTERM
            self._tell(do="signal", ticket=ticket, number=int(number))

    def reattach(self, task: Task) -> Ended | None:
        """Say how an earlier harness's task ended; whatever is left of it is ended.

        Tasks do not outlive their harness, so there is never one that goes on.
        """
        kill_marked(task.ticket)
        record = read_exit(task.directory, task.ticket)
        if record is None:
            return Ended(how="lost", reason="its harness died")
        return Ended(
            how="exited", returncode=record.returncode, asked=record.asked,
            elapsed_ns=record.elapsed_ns,
        )  # fmt: skip

    def close(self) -> None:
        """Let the keeper end what is left, and go."""
        if self._keeper is None:
            return
        self._tell(do="bye")
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.stdout.read()
        self._keeper.wait()
        self._keeper.stdout.close()
        self._keeper = None

    # -- the keeper -------------------------------------------------------------------------

    def _tell(self, **message: object) -> None:
        """Send the keeper a line; variables that are no text survive in it."""
        if self._keeper is None:
            self._keeper = self._start_keeper()
        assert self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(json.dumps(message).encode() + b"\n")
            self._keeper.stdin.flush()
        except BrokenPipeError:
            self._lose_keeper()

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "outlay.sweep.engines.keeper", self._session]
        return subprocess.Popen(
            [*command, str(self._root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # What ends our group does not end the keeper.
        )

    def _hear(self, told: Mapping[str, Any]) -> None:
        ticket = told["ticket"]
        if problem := told.get("not_started"):
            self._ended[ticket] = Ended(how="not_started", reason=problem)
        elif "returncode" in told:
            fields = {name: told[name] for name in ("returncode", "asked", "elapsed_ns")}
            self._ended[ticket] = Ended(how="exited", **fields)
        else:
            return
        self._live.discard(ticket)

    def _lose_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        kill_marked(self._session)
        if keeper is not None:
            keeper.kill()
            with suppress(BrokenPipeError):
                keeper.communicate()
        raise EngineBroken("the keeper of the runs was killed")
