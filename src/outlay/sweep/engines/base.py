"""What an engine must do, wherever it starts its tasks; and from an engine's name to the engine.

A package announces one in the entry-point group ``outlay.engines``: a callable that takes the
sweep's directory and returns an ``Engine``.

The contract suite in ``tests/contracts`` runs on every implementation. A cluster's engine keeps the
same promises: its ticket is a job number, its ``wait`` a poll with back-off, and its tasks outlive
the process that submitted them.
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
    """One attempt of a run, ready to be started.

    Attributes:
        name: The run's id.
        ticket: What this attempt is found again by; never used twice.
        directory: The run's directory, which exists.
        log: Where its output goes, appended.
        gpus: GPUs over all nodes, for engines that have to ask for them.
        most_ns: How long it may take, for engines that enforce that themselves.
        kill_ns: After how long it is killed at the latest, likewise; None for some time later.
        options: What the grid asks of the engine besides; None for its defaults.
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
        returncode: As the system gives it, negative for a signal; None unless it exited.
        asked: Whether it was asked to end before it did.
        elapsed_ns: How long it ran; 0 where that is not known.
        ended_ns: When the last of it was reaped, UTC nanoseconds; 0 where the engine cannot say.
        reason: In words; "" where there is nothing to add.
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
        """How it exited, as a shell gives it."""
        return None if self.returncode is None else shell_code(self.returncode)

    @property
    def is_measured(self) -> bool:
        """Whether ``elapsed_ns`` is how long it ran, and not merely unknown."""
        return self.how != "lost" or self.elapsed_ns > 0 or self.never_ran


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStanding:
    """How a running task stands with whoever runs it.

    Attributes:
        text: For people; "" where there is nothing to say.
        job: The scheduler's number of it; "" where there is none.
        queued: Whether it waits to be started, and so costs nothing.
    """

    text: str = ""
    job: str = ""
    queued: bool = False


class Engine(Protocol):
    """Starts tasks, says how they ended, and ends them.

    Attributes:
        remote: Whether tasks run elsewhere and outlive this process; GPUs, ports and the order are
            then the scheduler's to give.
    """

    remote: ClassVar[bool]

    def allow(self, jobs: int | None) -> int:
        """Set how many tasks may run at once; return how many may be submitted at once."""

    def new_ticket(self, name: str) -> str:
        """Return what an attempt will be found again by."""

    def submit(self, task: Task) -> None:
        """Start a task; returns once it is certain that it can be found again by its ticket.

        Raises:
            EngineBroken: The engine cannot start anything any more.
        """

    def all_submitted(self) -> bool:
        """Say whether everything submitted has reached whoever runs it."""

    def standing(self, ticket: str) -> TaskStanding:
        """Return how a running task stands."""

    def wait(self, timeout_s: float) -> None:
        """Return when a task may have ended, or after the time."""

    def poll(self, ticket: str) -> Ended | None:
        """Return how a task ended, or None while it runs."""

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """SIGTERM a task and all its processes; with ``force``, end them at once."""

    def reattach(self, task: Task) -> Ended | None:
        """Reattach to a task that another process submitted; None while it runs."""

    def close(self) -> None:
        """Close; whatever would not outlive this process is ended."""


def jobs_in(root: Path) -> dict[str, str]:
    """Return the scheduler's number of every attempt of a sweep that has one, by ticket."""
    found: dict[str, str] = {}
    for entry in ENGINES.values():
        if entry.jobs:
            found |= pkgutil.resolve_name(entry.jobs)(root)
    return found


def ran_ns(engine: str, directory: Path, ticket: str, *, since_ns: int, now_ns: int) -> int:
    """Return how long an attempt that started at ``since_ns`` has run, not waited in a queue."""
    entry = ENGINES.get(engine)
    if entry is None or not entry.ran_ns:
        return now_ns - since_ns
    ran: int = pkgutil.resolve_name(entry.ran_ns)(directory, ticket, now_ns)
    return ran


def engine_named(name: str, root: Path) -> Engine:
    """Return the engine of a name for a sweep; only the one that is named is loaded.

    Raises:
        InvalidValue: Nobody brings one of that name.
        BrokenPlugin: A package announces it, and it cannot be loaded.
        MissingExtra: What it needs is not installed.
    """
    ours = ENGINES.get(name)
    make = plugins.load(plugins.ENGINES, name) if ours is None else pkgutil.resolve_name(ours.make)
    if make is None:
        raise InvalidValue("engine", name, choices(engine_names()))
    engine: Engine = make(root)
    return engine
