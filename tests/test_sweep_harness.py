"""What the harness starts beside what, and what an attempt of unknown length costs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from outlay.clock import ManualClock
from outlay.sweep.engines.base import Ended, Task, TaskStanding
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.plan.plan import SweepPlan
from outlay.sweep.plan.planning import make_plan
from outlay.sweep.run.devices import Tasks, check_fit, find_devices
from outlay.sweep.run.harness import Harness, SweepOptions
from outlay.sweep.run.money import price_attempt
from outlay.sweep.state.journal import Journal
from outlay.sweep.state.outcomes import RunState
from outlay.sweep.state.setup import create
from outlay.units import Money, Rate

NS = 10**9


@dataclass
class Endless:
    """An engine of this machine whose tasks go on for ever."""

    at_once: int
    submitted: list[str] = field(default_factory=list)
    remote: ClassVar[bool] = False

    def allow(self, jobs: int | None) -> int:
        return jobs or self.at_once

    def all_submitted(self) -> bool:
        return True

    def standing(self, ticket: str) -> TaskStanding:
        return TaskStanding(text=ticket)

    def new_ticket(self, name: str) -> str:
        return name

    def submit(self, task: Task) -> None:
        self.submitted.append(task.name)

    def wait(self, timeout_s: float) -> None:
        """Nothing ends."""

    def poll(self, ticket: str) -> Ended | None:
        del ticket
        return None

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        """Nothing ends."""

    def reattach(self, task: Task) -> Ended | None:
        del task
        return None

    def close(self) -> None:
        """Nothing ends."""


class EndlessCluster(Endless):
    """The same, elsewhere."""

    remote = True


def plan_of(*entries: dict[str, Any]) -> SweepPlan:
    return make_plan(read_grid(json.dumps({"grid": entries}), source="g", default_name="g"))


def test_runs_here_do_not_wait_for_those_of_a_cluster(tmp_path: Path, clock: ManualClock) -> None:
    plan = plan_of(
        {"engine": "slurm", "params": {"x": [1, 2, 3]}},
        {"engine": "process", "params": {"x": 4}},
        {"engine": "torchrun", "params": {"x": 5}},
    )
    engines = {
        "slurm": EndlessCluster(at_once=10**9),
        "process": Endless(at_once=1),
        "torchrun": Endless(at_once=1),
    }
    journal = Journal(tmp_path)
    harness = Harness(
        manifest=create(plan, tmp_path, {}, clock, cwd=tmp_path), journal=journal,
        engines=engines, tasks=Tasks(plan, tmp_path, tmp_path, {}),
        options=SweepOptions(clock=clock),
    )  # fmt: skip
    harness.enqueue(plan.runs)
    assert harness.step()
    journal.close()
    started = {name: len(engine.submitted) for name, engine in engines.items()}
    assert started == {"slurm": 3, "process": 1, "torchrun": 0}


@pytest.mark.parametrize(
    ("ended", "cost"),
    [
        (Ended(how="exited", elapsed_ns=3600 * NS), "2 USD"),
        (Ended(how="lost", elapsed_ns=1800 * NS), "1 USD"),  # Until its last sign of life.
        (Ended(how="lost", never_ran=True), "0 USD"),
        (Ended(how="lost"), None),
    ],
)
def test_an_attempt_without_a_log_costs_what_it_ran_and_not_nothing_where_nobody_knows(
    ended: Ended, cost: str | None, tmp_path: Path
) -> None:
    expected = None if cost is None else Money.parse(cost)
    assert price_attempt(tmp_path, RunState(), Rate.parse("2 USD/h"), ended).cost == expected


@pytest.mark.parametrize(
    ("stated", "visible", "expected"),
    [
        ("0,5", "1", ("0", "5")),
        (None, "1, 2", ("1", "2")),
        (None, "", None),
        (None, "-1", None),
        (None, "3,-1,4", ("3",)),
    ],
)
def test_the_gpus_to_share_out_are_those_that_cuda_would_see(
    stated: str | None, visible: str, expected: tuple[str, ...] | None
) -> None:
    assert find_devices(stated, {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_only_runs_of_this_machine_must_fit_on_its_gpus() -> None:
    plan = plan_of({"engine": "process", "params": {"world_size": 8}})
    check_fit(plan, ("0",), elsewhere=["process"])
    with pytest.raises(InvalidGrid, match="needs 8 GPUs here, and there are 1"):
        check_fit(plan, ("0",), elsewhere=[])
