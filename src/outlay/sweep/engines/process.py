"""Engines for processes of this machine, with or without torchrun, under a keeper."""

from __future__ import annotations

import importlib.util
import secrets
import signal
import sys
from pathlib import Path
from typing import ClassVar

from outlay.clock import SYSTEM
from outlay.errors import MissingExtra
from outlay.proc.exit_record import exit_path, read_exit
from outlay.proc.identity import MARK_VARIABLE, end_marked
from outlay.proc.keeper import KeeperTerms, Launch
from outlay.proc.supervisor import KeeperKilled, KeptEvent, ProcessSupervisor
from outlay.store import outlay_home
from outlay.store.home import outliving_dir
from outlay.sweep.engines.base import Ended, Task, TaskStanding
from outlay.sweep.errors import EngineBroken


class ProcessEngine:
    """Starts commands, each in its own process group."""

    remote: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        self._session = secrets.token_hex(8)
        terms = KeeperTerms(
            session=self._session,
            spared=(str(outliving_dir("watchers")), str(outliving_dir("uploaders"))),
            afterwards=(sys.executable, "-m", "outlay.sweep.state.manifest", str(root)),
            record=str(outlay_home() / "kept" / f"{self._session}.json"),
        )
        self._processes = ProcessSupervisor(terms, about={"kind": "sweep", "root": str(root)})
        self._ended: dict[str, Ended] = {}
        self._live: set[str] = set()

    def allow(self, jobs: int | None) -> int:
        """Return how many tasks may run at once: one by default."""
        return jobs or 1

    def all_submitted(self) -> bool:
        """Return True: tasks start when they are submitted."""
        return True

    def standing(self, ticket: str) -> TaskStanding:
        """Return an empty status: a task that has not ended is running."""
        del ticket
        return TaskStanding()

    def new_ticket(self, name: str) -> str:
        """Return a new unique ticket; it ends in a slash, as marks are matched by prefix."""
        return f"{self._session}/{name}/{secrets.token_hex(4)}/"

    def submit(self, task: Task) -> None:
        """Start a task."""
        self._live.add(task.ticket)
        launch = Launch(
            ticket=task.ticket, command=task.command,
            env={**task.env, MARK_VARIABLE: task.ticket}, cwd=str(task.cwd), output=str(task.log),
            exit_file=str(exit_path(task.directory)),
        )  # fmt: skip
        try:
            self._processes.submit(launch)
        except OSError as error:
            raise EngineBroken(error.strerror or str(error)) from None

    def wait(self, timeout_s: float) -> None:
        """Return when a task may have ended, or after the timeout; not because one has started."""
        until_ns = SYSTEM.monotonic_ns() + round(timeout_s * 1e9)
        try:
            while events := self._processes.wait(timeout_s):
                for event in events:
                    self._record(event)
                if self._ended:
                    return
                timeout_s = max(0.0, (until_ns - SYSTEM.monotonic_ns()) / 1e9)
        except KeeperKilled:
            raise EngineBroken("the keeper of the runs was killed") from None

    def poll(self, ticket: str) -> Ended | None:
        """Return how a task ended, once; None while it runs."""
        if ticket not in self._ended:
            self.wait(0)
        return self._ended.pop(ticket, None)

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """SIGTERM a task's process group; with ``force``, SIGKILL everything it started."""
        if ticket in self._live:
            number = signal.SIGKILL if force else signal.SIGTERM
            self._processes.signal(ticket, number, "tree" if force else "group")

    def reattach(self, task: Task) -> Ended | None:
        """Return how an earlier harness's task ended, after killing what is left of it.

        Never None: tasks do not outlive their harness.
        """
        end_marked(task.ticket)
        record = read_exit(task.directory, task.ticket)
        if record is None:
            return Ended(how="lost", reason="its harness died")
        return Ended(
            how="exited", returncode=record.returncode, asked=record.asked,
            elapsed_ns=record.elapsed_ns, ended_ns=record.ended_ns,
        )  # fmt: skip

    def close(self) -> None:
        """Close the keeper, which ends what is left."""
        self._processes.close()

    def _record(self, event: KeptEvent) -> None:
        if event.event == "not_started":
            self._ended[event.ticket] = Ended(how="not_started", reason=event.problem)
        elif event.event == "exited":
            self._ended[event.ticket] = Ended(
                how="exited", returncode=event.returncode, asked=event.asked,
                elapsed_ns=event.elapsed_ns, ended_ns=event.ended_ns,
            )  # fmt: skip
        else:
            return
        self._live.discard(event.ticket)


class TorchrunEngine(ProcessEngine):
    """Starts torchrun commands, which ``outlay.sweep.plan.launch`` builds."""

    def __init__(self, root: Path) -> None:
        if importlib.util.find_spec("torch") is None:
            raise MissingExtra("engine: torchrun", "torch")
        super().__init__(root)
