"""What every engine of jobs elsewhere has: tickets, a poller, tasks that no scheduler has yet."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from outlay.clock import Clock
from outlay.sweep.engines.base import Ended, TaskStanding
from outlay.sweep.engines.remote.poller import Poller

NOT_QUEUED: Final = TaskStanding(text="not in the queue yet", queued=True)


class RemoteEngine(ABC):
    """The base of engines that submit runs as jobs, which outlive this process."""

    remote: ClassVar[bool] = True
    name: ClassVar[str]

    def __init__(
        self, root: Path, clock: Clock, poller: Poller, pending: Mapping[str, object]
    ) -> None:
        self._root = root
        self._clock = clock
        self._poller = poller
        self._pending = pending  # By ticket, what the scheduler has not accepted yet.

    def new_ticket(self, name: str) -> str:
        """Return a new unique ticket."""
        return f"{self.name}/{name}/{secrets.token_hex(6)}"

    def all_submitted(self) -> bool:
        """Say whether the scheduler has accepted everything."""
        return not self._pending

    @abstractmethod
    def submit_pending(self) -> None:
        """Submit what the scheduler has not accepted yet, if it is time to."""

    def wait(self, timeout_s: float) -> None:
        """Submit and poll; return when a job may have ended, or after the timeout."""
        self.submit_pending()
        self._poller.poll_if_due()
        if not self._poller.ended:
            self._clock.sleep(min(timeout_s, self._poller.due_in_s()))

    def poll(self, ticket: str) -> Ended | None:
        """Return how a job ended, once; None while it runs."""
        return self._poller.ended.pop(ticket, None)

    def standing(self, ticket: str) -> TaskStanding:
        """Return the scheduler's status of a job; while it does not answer, the job's own."""
        return NOT_QUEUED if ticket in self._pending else self._poller.standing(ticket)

    def close(self) -> None:  # noqa: B027
        """Do nothing: jobs continue."""
