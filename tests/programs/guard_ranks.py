"""A real distributed training under a guard, for torchrun; prints one JSON line per rank.

Usage: guard_ranks.py RUN_DIR SPEND_LOG
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

import outlay
from outlay.units import Duration


def batches() -> Iterator[torch.Tensor]:
    """Yield batches without end: only the guard ends this training."""
    while True:
        yield torch.ones(4)


def main() -> None:
    """Train until the guard says stop; every step needs all ranks."""
    run_dir, log = sys.argv[1:]
    dist.init_process_group("gloo")
    guarding = outlay.Guarding(
        guard=outlay.BudgetGuard(320, log),
        slice=Duration.parse("2s"),
        grace=Duration.parse("60s"),  # 300 dollars of the 320
    )
    # Starting the ranks is cheap, however long it takes; training gets four seconds at most.
    with outlay.run("ranks", dir=run_dir, price="180 USD/h", gpus=2, guard=guarding) as run:
        run.set_price("9000 USD/h")
        for batch in run.steps(batches()):
            dist.all_reduce(batch)
        result = {"rank": dist.get_rank(), "step": run.step_number, "why": run.stop_reason}
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
