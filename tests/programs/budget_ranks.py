"""Real distributed trainings under a budget; each rank writes its result to a JSON file.

Usage: ``budget_ranks.py ROOT SCENARIO...`` forks the ranks of each scenario, one scenario after the
other, which is quicker than a launcher, as torch is imported once. By torchrun: ``budget_ranks.py
ROOT``, which resumes the DDP that failed as a scenario.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

import outlay
from outlay.clock import SYSTEM

ACCUMULATE = 2
FEATURES = 8
LIMIT = timedelta(seconds=60)
"""Of a collective."""
Result = dict[str, object]


def batches(rank: int) -> Iterator[torch.Tensor]:
    """Yield micro-batches: rank r's hold two samples more for every r."""
    while True:
        yield torch.ones(2 + 2 * rank, FEATURES)


def train_ddp(run: outlay.Run) -> Result:
    """Train with gradient accumulation; every second micro-batch synchronises.

    Without a launcher it fails at step 6.
    """
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(FEATURES, FEATURES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dies_at = None if "TORCHELASTIC_RUN_ID" in os.environ else 6
    synced = 0
    for batch in run.steps(batches(dist.get_rank()), tokens=len):
        last = run.step_number % ACCUMULATE == ACCUMULATE - 1
        with contextlib.nullcontext() if last else model.no_sync():
            model(batch).sum().backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            synced += 1
        if run.step_number == dies_at:
            os._exit(1)
        if run.step_number == 3 and dist.get_rank() == 0:
            run.checkpoint_committed()
    return {"synced": synced, "payload": payload(run)}


def train_straggler(run: outlay.Run) -> Result:
    """Train with the last rank four times as slow as the others."""
    slow = dist.get_rank() == dist.get_world_size() - 1
    saved: list[int] = []

    def save() -> None:
        dist.barrier()  # Would hang unless every rank saves.
        saved.append(run.step_number)

    run.on_stop(save)
    for _ in run.steps(batches(0), tokens=1):
        SYSTEM.sleep(0.04 if slow else 0.01)  # stands for the work
        if run.step_number == 0:  # A slow machine may reach the limit with it.
            allowed = run.allows("evaluation")
    return {"allowed": allowed, "saved": saved}


def train_uneven(run: outlay.Run) -> Result:
    """Train on batches of two samples, of which rank 1's thirty-first has nine hundred."""
    sizes = [2] * 30 + [900 if dist.get_rank() == 1 else 2] + [2] * 300
    for _ in run.steps((torch.ones(size, 1) for size in sizes), tokens=len):
        dist.all_reduce(torch.ones(1))
    return {}


def train_until_killed(run: outlay.Run) -> Result:
    """Train while rank 1 is killed in its sixth step."""
    for _ in run.steps(batches(0), tokens=1):
        if run.step_number == 5 and dist.get_rank() == 1:
            os.kill(os.getpid(), 9)
    return {}


def train_reducing(run: outlay.Run) -> Result:
    """Train with steps that each reduce a thousand bytes on every rank."""
    for _ in run.steps(batches(0), tokens=1):
        dist.all_reduce(torch.ones(250))
    return {}


def train_fsdp(run: outlay.Run) -> Result:
    """Train one step with FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(FEATURES, FEATURES, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    for batch in run.steps([torch.ones(2, FEATURES)]):
        model(batch).sum().backward()
    return {"payload": payload(run)}


def payload(run: outlay.Run) -> dict[str, int]:
    """Return the bytes of collectives that a run counted, by operation."""
    assert run.meters.collectives is not None
    counted = run.meters.collectives.payload_bytes.items()
    return {traffic.operation: size for traffic, size in counted}


@dataclass(frozen=True)
class Scenario:
    """How many ranks train, how, and under which budget."""

    ranks: int
    budget: outlay.Budget
    train: Callable[[outlay.Run], Result]


SCENARIOS = {
    "ddp": Scenario(2, outlay.iso_tokens(100, max_comm_bytes=10**9), train_ddp),
    "fsdp": Scenario(2, outlay.comm_cap(10**9), train_fsdp),
    "spawned": Scenario(2, outlay.iso_tokens(100), train_reducing),
    "straggler": Scenario(4, outlay.iso_time("600ms"), train_straggler),
    "reducing": Scenario(2, outlay.comm_cap(9000), train_reducing),
    "uneven": Scenario(2, outlay.iso_tokens(1000), train_uneven),
    "killed": Scenario(2, outlay.iso_tokens(10**9), train_until_killed),
}


def train_rank(name: str, root: Path) -> None:
    """Train one rank of the present process group, write its result, and end the process."""
    scenario = SCENARIOS[name]
    with outlay.run("m", dir=root / name, budget=scenario.budget) as run:
        result = scenario.train(run)
        assert run.budget is not None
        result |= {
            "steps": run.step_number + 1,
            "totals": run.budget.totals,
            "reason": run.stop_reason,
        }
    (root / f"{name}-{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.barrier()
    # Tearing gloo down while its threads live now and then aborts a process.
    os._exit(0)


def join_and_train(rank: int, name: str, root: Path) -> None:
    """Join the other ranks of a scenario without a launcher, and train."""
    with (root / f"{name}-{rank}.err").open("w") as errors:
        os.dup2(errors.fileno(), 2)
    rendezvous, size = f"file://{root}/{name}-rendezvous", SCENARIOS[name].ranks
    dist.init_process_group("gloo", rendezvous, LIMIT, rank=rank, world_size=size)
    train_rank(name, root)


def fork_rank(rank: int, name: str, root: Path) -> int:
    """Fork one rank of a scenario; return its process id."""
    if child := os.fork():
        return child
    size = SCENARIOS[name].ranks
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    join_and_train(rank, name, root)
    raise AssertionError("the rank has ended its process")


def main() -> None:
    """Train what the command line names; of forked ranks, write the exit codes to a file."""
    root, names = Path(sys.argv[1]), sys.argv[2:]
    if not names:
        dist.init_process_group("gloo", timeout=LIMIT)
        train_rank("ddp", root)
    if "fsdp" in names:
        importlib.import_module("torch.distributed.fsdp")  # Once, rather than in each rank.
    for name in names:
        size = SCENARIOS[name].ranks
        if name == "spawned":  # Whose environment says nothing of their rank.
            start_processes(join_and_train, (name, root), size, start_method="fork")  # type: ignore[no-untyped-call]
            continue
        children = [fork_rank(rank, name, root) for rank in range(size)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        (root / f"{name}-codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
