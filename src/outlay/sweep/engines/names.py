"""Every engine by its name, and what a grid must know of it; what packages bring is found beside.

What a grid asks of one engine is opaque to everything else: its reader makes an ``EngineOptions``
of the block with the engine's name, and a task carries that back to the engine. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from outlay import plugins


class EngineOptions(Protocol):
    """What a grid asks of one engine; only that engine knows what is in it."""

    @property
    def identity(self) -> Sequence[object]:
        """What of it makes one configuration another, for fingerprints."""

    @property
    def gpus_on_node(self) -> int | None:
        """GPUs that it asks for on each node; None where it states no number."""

    @property
    def partition(self) -> str:
        """The machines that it asks for, by the name that they have a rate under; "" for none."""


@dataclass(frozen=True, slots=True)
class PlainOptions:
    """The block of an engine that an installed package brings, as the grid states it."""

    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> Sequence[object]:
        """All of it."""
        return [dict(self.values)]

    @property
    def gpus_on_node(self) -> int | None:
        """None: what its keys mean is not known here."""
        return None

    @property
    def partition(self) -> str:
        """None, likewise."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """One engine of ours.

    Attributes:
        make: Where its class is.
        options: Where the reader of its block is; "" where it takes none.
        scheduled: Whether a scheduler gives it machines, and finds ports on them.
        jobs: Where the scheduler's numbers of a sweep's attempts are read, by ticket.
        ran_ns: Where it is read how long an attempt has run, its time in a queue left out.
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
        options="outlay.sweep.engines.slurm.reading:read_options",
        scheduled=True,
        jobs="outlay.sweep.engines.slurm.queue:jobs_in",
        ran_ns="outlay.sweep.engines.slurm.allocation:ran_so_far_ns",
    ),
    "torchrun": EngineEntry(make="outlay.sweep.engines.process:TorchrunEngine"),
}


def engine_names() -> tuple[str, ...]:
    """Return the names that a grid may use: ours, and those that installed packages announce."""
    return (*ENGINES, *plugins.names(plugins.ENGINES))


def is_scheduled(name: str) -> bool:
    """Say whether a scheduler gives the runs of an engine their machines."""
    return name in ENGINES and ENGINES[name].scheduled


def is_local(name: str) -> bool:
    """Say whether the runs of an engine are processes of this machine, which end with its sweep."""
    return name in ENGINES and not ENGINES[name].scheduled
