"""GPUs and ports of this machine for its runs, and the tasks that engines start."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from outlay.errors import Finding, InvalidValue
from outlay.files import make_private
from outlay.machine import CUDA_VISIBLE, device_names, driver_gpus
from outlay.proc.identity import MARK_VARIABLE
from outlay.record.redaction import Redactor
from outlay.sweep.engines.base import Task
from outlay.sweep.engines.ports import Ports
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.plan.launch import LOG_NAME, Place, command_of, environment_of
from outlay.sweep.plan.plan import PlannedRun, SweepPlan

# The GPUs of this machine.


def find_devices(stated: str | None, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs to allocate: those stated, else the visible ones, else the driver's."""
    text = stated if stated is not None else environ.get(CUDA_VISIBLE)
    if text is not None:
        names = device_names(text)
        if stated is not None and (not names or len(set(names)) < len(names)):
            raise InvalidValue("--gpus", stated, 'GPUs, each once, such as "0,1,2,3"')
        return names or None
    return tuple(map(str, range(driver_gpus()))) or None


def check_fit(plan: SweepPlan, devices: tuple[str, ...] | None, elsewhere: Collection[str]) -> None:
    """Check that no run needs more GPUs than this machine has.

    ``elsewhere`` names the engines whose runs are not on this machine.

    Raises:
        InvalidGrid: Some do; names all of them.
    """
    if devices is None:
        return
    findings = [
        Finding(
            source=plan.grid.source,
            message=f"{run.id} needs {run.world_size} GPUs here, and there are {len(devices)}",
        )
        for run in plan.runs
        if run.world_size > len(devices)
        and CUDA_VISIBLE not in run.env
        and run.entry.engine not in elsewhere
    ]
    if findings:
        raise InvalidGrid(findings)


# Allocation of GPUs and ports, each to one run at a time.


class MachineResources:
    """The free GPUs and ports.

    Args:
        devices: The GPUs to allocate; None leaves CUDA_VISIBLE_DEVICES alone.
    """

    def __init__(self, devices: tuple[str, ...] | None) -> None:
        self._free = None if devices is None else list(devices)
        self._ports = Ports()

    def has_gpus_for(self, run: PlannedRun) -> bool:
        """Say whether enough GPUs are free for a run."""
        free = self._free_for(run)
        return free is None or len(free) >= run.world_size

    def allocate(self, run: PlannedRun, place: Place) -> Place:
        """Return a place with a port and GPUs, reserved until ``release``."""
        place, free = replace(place, port=self._ports.reserve()), self._free_for(run)
        if free is None:
            return place
        devices = tuple(free[: run.world_size])
        del free[: run.world_size]
        return replace(place, devices=devices)

    def release(self, place: Place) -> None:
        """Free the port and the GPUs of a place."""
        if place.port is not None:
            self._ports.release(place.port)
        if self._free is not None:
            self._free += place.devices or ()

    def _free_for(self, run: PlannedRun) -> list[str] | None:
        """Return the free GPUs; None where they are not allocated here."""
        return None if CUDA_VISIBLE in run.env else self._free


# Tasks of planned runs.


@dataclass(slots=True)
class Tasks:
    """Makes the tasks of one sweep, whose programs run in ``cwd`` and inherit ``environ``."""

    plan: SweepPlan
    root: Path
    cwd: Path
    environ: Mapping[str, str]
    _redact: Redactor = field(init=False)

    def __post_init__(self) -> None:
        self._redact = self.plan.redactor(self.environ)

    def place(self, run: PlannedRun) -> Place:
        """Return the place of a run, without GPUs and port."""
        directory = str(self.root / run.id)
        return Place(directory=directory, python=sys.executable, inherited=self.environ)

    def make(self, run: PlannedRun, ticket: str, place: Place) -> Task:
        """Return a run's task, and create its directory."""
        directory = self.root / run.id
        make_private(directory)
        timeout, own = run.entry.timeout, environment_of(run, place)
        return Task(
            name=run.id, ticket=ticket, command=tuple(command_of(self.plan, run, place)),
            env={**self.environ, **own}, sets=tuple(own), cwd=self.cwd, directory=directory,
            log=directory / LOG_NAME, gpus=run.most_gpus,
            nodes=run.most_gpus // run.world_size, most_ns=None if timeout is None else timeout.ns,
            options=run.entry.options,
        )  # fmt: skip

    def without_secrets(self, task: Task) -> tuple[list[str], dict[str, str]]:
        """Return a task's command and the variables that the sweep sets, redacted."""
        ours = {n: task.env[n] for n in task.sets if self.environ.get(n) != task.env[n]}
        return self._redact.command(task.command), self._redact.environment(ours)


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without the variables of its own hold and run."""
    own = ("OUTLAY_HOLD", "OUTLAY_RUN_DIR", MARK_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in own}
