"""The demo's grid, its injected faults, and the measured overhead of recording."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import outlay
from outlay.clock import SYSTEM, Clock
from outlay.errors import NotARun
from outlay.ledger import SUPERVISOR, segment_paths
from outlay.ledger.segments import id_from_name
from outlay.runs.reading import read_figures
from outlay.units import Money

# The grid: three sizes of network, two seeds each, with equal budgets.

PRICE: Final = "3600 USD/h"
JOBS: Final = 2
LEAST: Final = Money(2_000_000)
"""The smallest budget of a run: start-up takes one or two seconds."""
TARGET: Final = "target_metric: accuracy, target_value: 0.9"


@dataclass(frozen=True, slots=True)
class DemoMoney:
    """The demo's amounts; ``limit`` is the budget of each of its six runs."""

    limit: Money

    @property
    def ceiling(self) -> Money:
        """The ceiling: room for the six runs and their faults, but not for the seventh."""
        return self.limit * 20

    @property
    def too_much(self) -> Money:
        """The budget of the seventh run: more than the six leave."""
        return self.limit * 18

    @property
    def fault_at(self) -> Money:
        """The cost at which a fault is injected: early, because the restart costs too."""
        return Money(self.limit.micros // 5, self.limit.currency)


def grid_text(money: DemoMoney) -> str:
    """Return the grid as YAML."""
    return f"""\
# Written by `outlay demo`. Which size of network is best for the same money?
name: demo
engine: process
arguments: flags                    # parameters become --hidden 16 and so on
entrypoint: -m outlay.demo.mlp --dir {{run_dir}} --steps 1000000 --turns 5 --learning-rate 0.1
price: {PRICE}                   # invented: as if 1,440 GPUs at 2.50 USD/h, a dollar a second
ceiling: {money.ceiling}
retries: 1                          # a run that is killed goes on from its last checkpoint
env: {{OMP_NUM_THREADS: 1, OPENBLAS_NUM_THREADS: 1}}   # two runs at once share the cores
# Starting up is paid for and not charged, so that all sizes train for the same money.
budget: {{mode: iso_cost, limit: {money.limit}, charge: training, {TARGET}}}
grid:
  - name: size
    params: {{hidden: [16, 64, 192]}}
    seeds: [1, 2]
  - name: greedy                    # a seventh run, which the ceiling has no room for
    params: {{hidden: 512}}
    budget: {{mode: iso_cost, limit: {money.too_much}, charge: training, {TARGET}}}
"""


# Faults: one run is killed, another is preempted.


@dataclass(slots=True)
class Fault:
    """A signal that is sent to a run once its steps have cost ``spent``."""

    run: str
    number: signal.Signals
    spent: Money
    happened: bool = False


@dataclass(slots=True)
class FaultInjector:
    """Sends the signals when they are due."""

    root: Path
    planned: Sequence[Fault]
    clock: Clock = SYSTEM

    def inject_due(self) -> None:
        """Send the signals that are due."""
        for fault in self.planned:
            if not fault.happened and self._is_due(fault):
                fault.happened = _send(self.root / fault.run, fault.number)

    def _is_due(self, fault: Fault) -> bool:
        try:
            figures = read_figures(self.root / fault.run, self.clock.wall_ns())
        except NotARun:
            return False
        if figures.cost is None or figures.status != "running" or not figures.wall_ns:
            return False
        trained_ns = figures.step_ns + figures.wait_ns
        return figures.cost.micros * trained_ns >= fault.spent.micros * figures.wall_ns


def _send(run_dir: Path, number: signal.Signals) -> bool:
    """Signal the training process; return whether there was one."""
    for path in reversed(segment_paths(run_dir)):
        writer = id_from_name(path)
        if writer is not None and writer.rank != SUPERVISOR:
            with suppress(ProcessLookupError):
                os.kill(writer.pid, number)
                return True
    return False


# Overhead of recording

STEPS = 5_000
ROUNDS = 5


def recording_ns_per_step(directory: Path) -> int:
    """Return the extra time per step of a recorded empty loop; the best of five."""
    with outlay.run("overhead", dir=directory) as run:
        recorded = min(_loop_ns(run.steps(range(STEPS))) for _ in range(ROUNDS))
    bare = min(_loop_ns(range(STEPS)) for _ in range(ROUNDS))
    return (recorded - bare) // STEPS


def _loop_ns(steps: Iterable[int]) -> int:
    begun_ns = SYSTEM.monotonic_ns()
    for _ in steps:
        pass
    return SYSTEM.monotonic_ns() - begun_ns
