"""The protocol of engines, and loading an engine by name.

Packages register one in the entry-point group ``outlay.engines``: a callable that takes the sweep's
directory and returns an ``Engine``. The contract suite in ``tests/contracts`` runs on every
implementation.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from outlay import plugins
from outlay.errors import InvalidValue, choices
from outlay.proc.strays import shell_code
from outlay.sweep.engines.names import ENGINES, EngineOptions, engine_names

How = Literal["exited", "lost", "not_started", "preempted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One attempt of a run, ready to start.

    Attributes:
        name: The run's id.
        ticket: The attempt's unique id, by which an engine finds it again.
        directory: The run's directory, which exists.
        log: Its output is appended here.
        gpus: GPUs over all nodes, for engines that request them.
        most_ns: Time limit, for engines that enforce it themselves.
        kill_ns: When it is killed at the latest, likewise; None for the engine's choice.
        options: The engine's block of the grid; None for defaults.
    """

    name: str
    ticket: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    directory: Path
    log: Path
    gpus: int = 1
    nodes: int = 1
    most_ns: int | None = None
    kill_ns: int | None = None
    options: EngineOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an attempt ended.

    Attributes:
        how: ``exited``; ``lost`` (how it ended is unknown), ``not_started``, ``preempted``.
        returncode: As ``subprocess`` has it, negative for a signal; None unless it exited.
        asked: Whether it was told to end before it did.
        elapsed_ns: How long it ran; 0 if unknown.
        ended_ns: When its last process was reaped, UTC nanoseconds; 0 if unknown.
        never_ran: Whether it is certain that nothing ran.
    """

    how: How
    returncode: int | None = None
    asked: bool = False
    elapsed_ns: int = 0
    ended_ns: int = 0
    reason: str = ""
    never_ran: bool = False

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell reports it."""
        return None if self.returncode is None else shell_code(self.returncode)

    @property
    def is_measured(self) -> bool:
        """Whether ``elapsed_ns`` is known."""
        return self.how != "lost" or self.elapsed_ns > 0 or self.never_ran


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStanding:
    """A scheduler's status of a task that has not ended.

    Attributes:
        text: For display; "" for none.
        job: The scheduler's job number; "" for none.
        queued: Whether it waits to be started, and so costs nothing.
    """

    text: str = ""
    job: str = ""
    queued: bool = False


class Engine(Protocol):
    """Starts, polls and cancels tasks.

    Attributes:
        remote: Whether tasks run elsewhere and outlive this process; the scheduler then assigns
            GPUs and ports, and orders the tasks.
    """

    remote: ClassVar[bool]

    def allow(self, jobs: int | None) -> int:
        """Set how many tasks may run at once; return how many may be submitted at once."""

    def new_ticket(self, name: str) -> str:
        """Return a new unique ticket for an attempt."""

    def submit(self, task: Task) -> None:
        """Start a task; on return it can be found again by its ticket.

        Raises:
            EngineBroken: The engine cannot start tasks any more.
        """

    def all_submitted(self) -> bool:
        """Say whether the scheduler has accepted every submitted task."""

    def standing(self, ticket: str) -> TaskStanding:
        """Return the status of a running task."""

    def wait(self, timeout_s: float) -> None:
        """Return when a task may have ended, or after the timeout."""

    def poll(self, ticket: str) -> Ended | None:
        """Return how a task ended, or None while it runs."""

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """SIGTERM a task and all its processes; with ``force``, SIGKILL."""

    def reattach(self, task: Task) -> Ended | None:
        """Reattach to a task that another process submitted; None while it runs."""

    def close(self) -> None:
        """Close; tasks that do not outlive this process are ended."""


def jobs_in(root: Path) -> dict[str, str]:
    """Return the known job numbers of a sweep's attempts, by ticket."""
    found: dict[str, str] = {}
    for entry in ENGINES.values():
        if entry.jobs:
            found |= pkgutil.resolve_name(entry.jobs)(root)
    return found


def ran_ns(engine: str, directory: Path, ticket: str, *, since_ns: int, now_ns: int) -> int:
    """Return how long an attempt submitted at ``since_ns`` has run, without queue waits."""
    entry = ENGINES.get(engine)
    if entry is None or not entry.ran_ns:
        return now_ns - since_ns
    ran: int = pkgutil.resolve_name(entry.ran_ns)(directory, ticket, now_ns)
    return ran


def engine_named(name: str, root: Path) -> Engine:
    """Return a sweep's engine by name; loads no other.

    Raises:
        InvalidValue: There is none of that name.
        BrokenPlugin: A package registers it, and it cannot be loaded.
        MissingExtra: It needs an extra that is not installed.
    """
    ours = ENGINES.get(name)
    make = plugins.load(plugins.ENGINES, name) if ours is None else pkgutil.resolve_name(ours.make)
    if make is None:
        raise InvalidValue("engine", name, choices(engine_names()))
    engine: Engine = make(root)
    return engine
