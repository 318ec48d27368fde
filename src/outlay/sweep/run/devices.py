"""What this machine gives its runs: GPUs, ports; and the task that an engine starts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from outlay.errors import Finding, InvalidValue
from outlay.proc.identity import MARK_VARIABLE
from outlay.record.machine import device_names
from outlay.record.redaction import Redactor
from outlay.sweep.engines.base import Task
from outlay.sweep.engines.ports import Ports
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.plan.launch import LOG_NAME, Place, command_of, environment_of
from outlay.sweep.plan.plan import PlannedRun, SweepPlan

# Which GPUs there are to share out between runs, and whether the runs fit on them.


def find_devices(stated: str | None, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs to share out: those named, those visible, those of the driver, or None."""
    text = stated if stated is not None else environ.get("CUDA_VISIBLE_DEVICES")
    if text is not None:
        names = device_names(text)
        if stated is not None and (not names or len(set(names)) < len(names)):
            raise InvalidValue("--gpus", stated, 'GPUs, each once, such as "0,1,2,3"')
        return names or None
    with contextlib.suppress(OSError):
        count = sum(1 for _ in Path("/proc/driver/nvidia/gpus").iterdir())
        return tuple(map(str, range(count))) or None
    return None


def check_fit(plan: SweepPlan, devices: tuple[str, ...] | None, elsewhere: Collection[str]) -> None:
    """Refuse a plan with runs that need more GPUs on this machine than there are.

    ``elsewhere`` names the engines whose runs are not on this machine.
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
        and "CUDA_VISIBLE_DEVICES" not in run.env
        and run.settings.engine not in elsewhere
    ]
    if findings:
        raise InvalidGrid(findings)


# What this machine gives its runs: GPUs, each to one run at a time, and ports of their own.


class MachineResources:
    """What is free.

    Args:
        devices: The GPUs to share out; None leaves CUDA_VISIBLE_DEVICES alone.
    """

    def __init__(self, devices: tuple[str, ...] | None) -> None:
        self._free = None if devices is None else list(devices)
        self._ports = Ports()

    def has_gpus_for(self, run: PlannedRun) -> bool:
        """Say whether a run need not wait for GPUs."""
        free = self._free_for(run)
        return free is None or len(free) >= run.world_size

    def allocate(self, run: PlannedRun, place: Place) -> Place:
        """Return a place with a port and GPUs, which no other run gets until they are released."""
        place, free = replace(place, port=self._ports.reserve()), self._free_for(run)
        if free is None:
            return place
        devices = tuple(free[: run.world_size])
        del free[: run.world_size]
        return replace(place, devices=devices)

    def release(self, place: Place) -> None:
        """Let others have its port and its GPUs."""
        if place.port is not None:
            self._ports.release(place.port)
        if self._free is not None:
            self._free += place.devices or ()

    def _free_for(self, run: PlannedRun) -> list[str] | None:
        """Return the GPUs that a run can be given; None where it is not for us to give any."""
        return None if "CUDA_VISIBLE_DEVICES" in run.env else self._free


# From a planned run to a task that an engine can start, and to what may be written down of it.


@dataclass(slots=True)
class Tasks:
    """Makes the tasks of one sweep.

    Attributes:
        cwd: Where programs are started.
        environ: What runs inherit.
    """

    plan: SweepPlan
    root: Path
    cwd: Path
    environ: Mapping[str, str]
    _redact: Redactor = field(init=False)

    def __post_init__(self) -> None:
        self._redact = self.plan.redactor(self.environ)

    def place(self, run: PlannedRun) -> Place:
        """Return where a run is started, without anything of this machine."""
        directory = str(self.root / run.id)
        return Place(directory=directory, python=sys.executable, inherited=self.environ)

    def make(self, run: PlannedRun, ticket: str, place: Place) -> Task:
        """Return a run's task; its directory is made."""
        directory = self.root / run.id
        directory.mkdir(parents=True, exist_ok=True)
        timeout = run.settings.timeout
        return Task(
            name=run.id, ticket=ticket, command=tuple(command_of(self.plan, run, place)),
            env={**self.environ, **environment_of(run, place)}, cwd=self.cwd, directory=directory,
            log=directory / LOG_NAME, gpus=run.most_gpus,
            nodes=run.most_gpus // run.world_size, most_ns=None if timeout is None else timeout.ns,
            options=run.settings.options,
        )  # fmt: skip

    def without_secrets(self, task: Task) -> tuple[list[str], dict[str, str]]:
        """Return a task's command and what the sweep sets in its environment, fit for a file."""
        ours = {n: value for n, value in task.env.items() if self.environ.get(n) != value}
        return self._redact.command(task.command), self._redact.environment(ours)


def inherited_environment() -> dict[str, str]:
    """Return what runs inherit: ours, but for what belongs to this process alone."""
    own = ("OUTLAY_HOLD", "OUTLAY_RUN_DIR", MARK_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in own}
