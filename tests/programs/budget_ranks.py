"""A real distributed training under a budget; prints one JSON line per rank.

Usage: budget_ranks.py SCENARIO RUN_DIR, by torchrun; or with WORLD_SIZE and without RANK in the
environment: then it forks its ranks, which is quicker, as each process of torchrun imports torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import outlay
from outlay.clock import SYSTEM
from outlay.record.meters.collectives import CollectiveMeter

ACCUMULATE = 2
FEATURES = 8


def batches(rank: int) -> Iterator[torch.Tensor]:
    """Yield micro-batches: rank r's hold two samples more for every r."""
    while True:
        yield torch.ones(2 + 2 * rank, FEATURES)


def train_ddp(run: outlay.Run, *, dies_at: int | None) -> dict[str, object]:
    """Train with gradient accumulation; every second micro-batch synchronises."""
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, FEATURES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
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
    collectives = run.meters.collectives
    assert collectives is not None
    counted = {traffic.operation: size for traffic, size in collectives.payload_bytes.items()}
    return {"synced": synced, "payload": counted}


def train_straggler(run: outlay.Run) -> dict[str, object]:
    """Train with the last rank four times as slow as the others."""
    slow = dist.get_rank() == dist.get_world_size() - 1
    for _ in run.steps(batches(0), tokens=1):
        SYSTEM.sleep(0.04 if slow else 0.01)  # stands for the work
        if run.step_number == 2:
            allowed = run.allows("evaluation")
    return {"allowed": allowed}


def train_uneven(run: outlay.Run) -> dict[str, object]:
    """Train on batches of two samples, of which rank 1's thirty-first has nine hundred."""
    sizes = [2] * 30 + [900 if dist.get_rank() == 1 else 2] + [2] * 300
    for _ in run.steps((torch.ones(size, 1) for size in sizes), tokens=len):
        dist.all_reduce(torch.ones(1))
    return {}


def train_until_a_rank_dies(run: outlay.Run) -> dict[str, object]:
    """Train while rank 1 is killed in its sixth step."""
    for _ in run.steps(batches(0), tokens=1):
        if run.step_number == 5 and dist.get_rank() == 1:
            os.kill(os.getpid(), 9)
    return {}


def train_talking(run: outlay.Run) -> dict[str, object]:
    """Train with steps that each reduce a thousand bytes on every rank."""
    for _ in run.steps(batches(0), tokens=1):
        dist.all_reduce(torch.ones(250))
    return {}


def count_fsdp() -> dict[str, int]:
    """Return the payload of one FSDP2 step by operation."""
    meter = CollectiveMeter()
    model = torch.nn.Linear(FEATURES, FEATURES, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    meter.start()
    model(torch.ones(2, FEATURES)).sum().backward()
    meter.stop()
    return {traffic.operation: size for traffic, size in meter.payload_bytes.items()}


BUDGETS = {
    "ddp": outlay.iso_tokens(100, max_comm_bytes=10**9),
    "ddp-dies": outlay.iso_tokens(100, max_comm_bytes=10**9),
    "straggler": outlay.iso_time("600ms"),
    "talking": outlay.comm_cap(9000),
    "uneven": outlay.iso_tokens(1000),
    "killed": outlay.iso_tokens(10**9),
}


def main() -> None:
    """Train as the scenario says."""
    scenario, run_dir = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    with outlay.run("m", dir=run_dir, budget=BUDGETS[scenario]) as run:
        match scenario:
            case "ddp" | "ddp-dies":
                result = train_ddp(run, dies_at=6 if scenario == "ddp-dies" else None)
            case "straggler":
                result = train_straggler(run)
            case "talking":
                result = train_talking(run)
            case "uneven":
                result = train_uneven(run)
            case _:
                result = train_until_a_rank_dies(run)
        assert run.budget is not None
        result |= {
            "rank": dist.get_rank(),
            "steps": run.step_number + 1,
            "totals": run.budget.totals,
            "reason": run.stop_reason,
        }
    if scenario == "ddp":
        result["fsdp"] = count_fsdp()
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    dist.barrier()
    # All is said. Tearing gloo down while its threads live now and then aborts a process.
    os._exit(0)


def fork_ranks(count: int) -> int:
    """Fork so many ranks and wait for them; return 0 where all of them do."""
    ranks = []
    for rank in range(count):
        if (child := os.fork()) == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            main()
        ranks.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks)


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        sys.exit(fork_ranks(int(os.environ["WORLD_SIZE"])))
