"""Two ranks of ``torch.multiprocessing.spawn``, whose environment says nothing of their rank.

Usage: spawned_ranks.py ROOT
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import outlay

RANKS = 2


def train(rank: int, root: str) -> None:
    """Train until the budget of both ranks is used up."""
    rendezvous = f"file://{root}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
    with outlay.run("m", dir=f"{root}/run", budget=outlay.iso_tokens(100)) as run:
        for _ in run.steps(range(50), tokens=6):
            dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    spawn(train, (sys.argv[1],), nprocs=RANKS)  # type: ignore[no-untyped-call]
