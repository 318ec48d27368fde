"""What a sweep will run: every run with its id, its content's hash and what it should cost. Pure.

How a grid becomes a plan is the subject of ``outlay.sweep.planning``, and how a planned run is
launched that of ``outlay.sweep.launch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from outlay.budget.limits import StartUp
from outlay.errors import Finding
from outlay.sweep.engines.slurm.options import gpus_of_node
from outlay.sweep.grid import Grid, Settings
from outlay.sweep.prediction import Prediction
from outlay.sweep.redaction import Redactor
from outlay.units import Money


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run before it is started.

    Attributes:
        id: ``<index>_<group>[_<combo>]``; also the name of its directory.
        fingerprint: A hash of everything that decides what it computes, and of nothing else.
        configuration: A hash of what it shares with the runs that differ from it in seed alone.
        params: Its parameters, the seed included.
        overrides: The parameters, and what the grid adds, as Hydra overrides.
        world_size: Processes per node.
        env: What the grid sets in its environment.
        metadata: What the grid says about it, its budget and target included.
        prediction: What it should take and cost; its parts None where nothing says.
    """

    id: str
    group: str
    params: Mapping[str, Any]
    overrides: tuple[str, ...]
    world_size: int
    env: Mapping[str, str]
    metadata: Mapping[str, Any]
    settings: Settings
    prediction: Prediction
    fingerprint: str = ""
    configuration: str = ""

    @property
    def gpus(self) -> int | None:
        """GPUs over all nodes; None where the number of nodes is a range."""
        nodes = self.settings.nnodes or 1
        return self.world_size * nodes if isinstance(nodes, int) else None

    @property
    def by_torchrun(self) -> bool:
        """Whether torchrun starts its processes: where the grid says so, or there are several."""
        settings = self.settings
        if settings.launcher:
            return settings.launcher == "torchrun"
        several = self.world_size > 1 or str(settings.nnodes or 1) != "1"
        return settings.engine == "torchrun" or (settings.engine == "slurm" and several)

    @property
    def most_gpus(self) -> int:
        """GPUs over as many nodes as there may be."""
        nodes = str(self.settings.nnodes or 1).rpartition(":")[2]
        return self.world_size * int(nodes)

    @property
    def charged_gpus(self) -> Fraction:
        """GPUs that are paid for: as the grid states, else those that a cluster is asked for.

        Else one for each process that there may be.
        """
        settings = self.settings
        if settings.gpus is not None:
            return settings.gpus
        on_node = gpus_of_node(settings.slurm.gres) if settings.engine == "slurm" else None
        if on_node is None:
            return Fraction(self.most_gpus)
        return Fraction(on_node * self.most_gpus, self.world_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs of a sweep, in order, and what they should cost together.

    Attributes:
        start_up: What earlier runs of the program took to start; None where nothing is known.
    """

    grid: Grid
    runs: tuple[PlannedRun, ...]
    warnings: tuple[Finding, ...] = ()
    start_up: StartUp | None = None

    @property
    def predicted_cost(self) -> Money | None:
        """The sum over all runs; None where one of them has no prediction or currencies differ."""
        costs = [run.prediction.cost for run in self.runs]
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(costs) or len({cost.currency for cost in known}) != 1:
            return None
        return sum(known[1:], start=known[0])

    @property
    def predicted_ns(self) -> int | None:
        """The time of all runs, one after the other; None where one has no prediction."""
        times = [run.prediction.ns for run in self.runs]
        known = [ns for ns in times if ns is not None]
        return sum(known) if len(known) == len(times) else None

    def redactor(self, environ: Mapping[str, str]) -> Redactor:
        """Return what removes the secrets of its runs and of an environment."""
        return Redactor([environ, *(run.env for run in self.runs)])
