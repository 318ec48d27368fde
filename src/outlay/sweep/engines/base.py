"""The protocol of engines, their options in a grid, and the engines by name. Opens no file.

Packages register an engine in the entry-point group ``outlay.engines``: a callable that takes the
sweep's directory and returns an ``Engine``. The contract suite in ``tests/contracts`` runs on every
implementation.

An engine's options are opaque to everything else: its reader turns the block with the engine's name
into an ``EngineOptions``, and a task passes that to the engine.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from outlay import plugins
from outlay.errors import InvalidValue, choices
from outlay.proc.exit_record import shell_code

if TYPE_CHECKING:
    from pathlib import Path

How = Literal["exited", "lost", "not_started", "preempted"]


class EngineOptions(Protocol):
    """The options of one engine; only that engine knows their content."""

    @property
    def identity(self) -> Sequence[object]:
        """The part that distinguishes configurations, for their hash."""

    @property
    def gpus_on_node(self) -> int | None:
        """GPUs requested per node; None without a number."""

    @property
    def partition(self) -> str:
        """The requested partition, by which its rate is looked up; "" for none."""


@dataclass(frozen=True, slots=True)
class PlainOptions:
    """The block of a plug-in's engine, as the grid states it."""

    values: Mapping[str, Any]
    gpus_on_node: int | None = None  # Unknown, as the meaning of the keys is.
    partition: str = ""

    @property
    def identity(self) -> Sequence[object]:
        """All of it."""
        return [dict(self.values)]


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
        sets: The names of the variables in ``env`` that the sweep sets; the others are inherited.
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
    sets: tuple[str, ...] = ()


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
    """A scheduler's status of a task that has not ended; one that is queued costs nothing."""

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


# The engines by name.


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """A built-in engine; functions are named as ``module:function``, and loaded when needed.

    Attributes:
        make: The class.
        options: The reader of its block; "" where it has none.
        scheduled: Whether a scheduler assigns machines and ports.
        one_node: Whether a run has one node only.
        needed: The option that a grid must state.
        jobs: Returns the job numbers of a sweep's attempts, by ticket.
        ran_ns: Returns how long an attempt has run, without queue waits.
    """

    make: str
    options: str = ""
    scheduled: bool = False
    one_node: bool = False
    needed: str = ""
    jobs: str = ""
    ran_ns: str = ""


ENGINES: Final = {
    "process": EngineEntry(make="outlay.sweep.engines.process:ProcessEngine"),
    "ray": EngineEntry(
        make="outlay.sweep.engines.ray.ray_engine:RayEngine",
        options="outlay.sweep.engines.ray.ray_options:read_options",
        scheduled=True,
        one_node=True,
        needed="address",
        jobs="outlay.sweep.engines.ray.ray_engine:jobs_in",
        ran_ns="outlay.sweep.engines.remote.job_spec:ran_so_far_ns",
    ),
    "slurm": EngineEntry(
        make="outlay.sweep.engines.slurm.engine:SlurmEngine",
        options="outlay.sweep.engines.slurm.job_options:read_options",
        scheduled=True,
        jobs="outlay.sweep.engines.slurm.queue:jobs_in",
        ran_ns="outlay.sweep.engines.remote.job_spec:ran_so_far_ns",
    ),
    "torchrun": EngineEntry(make="outlay.sweep.engines.process:TorchrunEngine"),
}


def engine_names() -> tuple[str, ...]:
    """Return the engine names that a grid may use: built-in ones and those of plug-ins."""
    return (*ENGINES, *plugins.names(plugins.ENGINES))


def is_scheduled(name: str) -> bool:
    """Say whether a scheduler assigns machines to the runs of an engine."""
    return name in ENGINES and ENGINES[name].scheduled


def is_local(name: str) -> bool:
    """Say whether the runs of an engine are processes of this machine, which end with the sweep."""
    return name in ENGINES and not ENGINES[name].scheduled


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
    entry = ENGINES.get(name)
    if entry is None:
        make = plugins.load(plugins.ENGINES, name)
    else:
        make = pkgutil.resolve_name(entry.make)
    if make is None:
        raise InvalidValue("engine", name, choices(engine_names()))
    engine: Engine = make(root)
    return engine
