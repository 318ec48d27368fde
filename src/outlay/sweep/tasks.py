"""From a planned run to a task that an engine can start, and to what may be written down of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlay.proc.identity import MARK_VARIABLE
from outlay.sweep.engines.base import Task
from outlay.sweep.launch import LOG_NAME, SWEEP_MARK, Place, command_of, environment_of
from outlay.sweep.plan import Plan, PlannedRun
from outlay.sweep.redaction import Redactor
from outlay.sweep.room import Share


@dataclass(slots=True)
class Tasks:
    """Makes the tasks of one sweep.

    Attributes:
        root: The sweep's directory.
        cwd: Where programs are started.
        environ: What runs inherit.
    """

    plan: Plan
    root: Path
    cwd: Path
    environ: Mapping[str, str]
    _redact: Redactor = field(init=False)

    def __post_init__(self) -> None:
        self._redact = self.plan.redactor(self.environ)

    def make(self, run: PlannedRun, ticket: str, share: Share) -> Task:
        """Return a run's task; its directory is made.

        Args:
            run: What is to be run.
            ticket: What the attempt is found again by.
            share: What it was given of this machine.
        """
        place = Place(
            root=str(self.root), run_dir=run.id, python=sys.executable, port=share.port,
            devices=share.devices, master=self.environ,
        )  # fmt: skip
        directory = Path(place.directory)
        directory.mkdir(parents=True, exist_ok=True)
        timeout = run.settings.timeout
        return Task(
            name=run.id, ticket=ticket, command=tuple(command_of(self.plan, run, place)),
            env={**self.environ, **environment_of(run, place)}, cwd=self.cwd, directory=directory,
            log=directory / LOG_NAME, gpus=run.most_gpus,
            nodes=run.most_gpus // run.world_size, most_ns=None if timeout is None else timeout.ns,
            options=run.settings.slurm,
        )  # fmt: skip

    def without_secrets(self, task: Task) -> tuple[list[str], dict[str, str]]:
        """Return a task's command and what the sweep sets in its environment, fit for a file.

        Neither holds a secret, nor where the sweep lies.
        """
        redact, root = self._redact, str(self.root)
        ours = {n: value for n, value in task.env.items() if self.environ.get(n) != value}
        command = [word.replace(root, SWEEP_MARK) for word in redact.command(task.command)]
        shown = redact.environment(ours)
        return command, {name: value.replace(root, SWEEP_MARK) for name, value in shown.items()}


def inherited_environment() -> dict[str, str]:
    """Return what runs inherit: ours, but for what belongs to this process alone."""
    own = ("OUTLAY_HOLD", "OUTLAY_RUN_DIR", MARK_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in own}
