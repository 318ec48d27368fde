"""The engines by name, and their options in a grid. Pure.

An engine's options are opaque to everything else: its reader turns the block with the engine's name
into an ``EngineOptions``, and a task passes that to the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from outlay import plugins


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
class EngineEntry:
    """A built-in engine; functions are named as ``module:function``, and loaded when needed.

    Attributes:
        make: The class.
        options: The reader of its block; "" where it has none.
        scheduled: Whether a scheduler assigns machines and ports.
        jobs: Returns the job numbers of a sweep's attempts, by ticket.
        ran_ns: Returns how long an attempt has run, without queue waits.
    """

    make: str
    options: str = ""
    scheduled: bool = False
    jobs: str = ""
    ran_ns: str = ""


ENGINES: Final = {
    "process": EngineEntry(make="outlay.sweep.engines.process:ProcessEngine"),
    "slurm": EngineEntry(
        make="outlay.sweep.engines.slurm.engine:SlurmEngine",
        options="outlay.sweep.engines.slurm.options:read_options",
        scheduled=True,
        jobs="outlay.sweep.engines.slurm.queue:jobs_in",
        ran_ns="outlay.sweep.engines.slurm.allocation:ran_so_far_ns",
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
