"""Two ranks that meet, add up, and say so; with ``--linger`` they stay until they are ended."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    line = f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item()}\n"
    os.write(1, line.encode())
    if "--linger" in sys.argv:
        (Path(os.environ["MARKS"]) / str(os.getpid())).touch()
        threading.Event().wait()
    dist.destroy_process_group()
