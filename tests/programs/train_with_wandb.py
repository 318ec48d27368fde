"""Train under W&B, offline, with outlay's numbers beside; ends in order, or is killed.

Every fifth step lasts until outlay's numbers were logged again, however busy the machine is.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import wandb

import outlay
from outlay.clock import SYSTEM
from outlay.integrations.wandb import attach

run_dir, steps, killed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "killed"
readings = 0


def count(data: dict[str, Any], **options: Any) -> None:
    """Log what W&B would, and count the rows of outlay."""
    global readings
    log(data, **options)
    readings += "outlay/cost_usd" in data


tracked = wandb.init(project="books", settings=wandb.Settings(x_disable_stats=True))
log, tracked.log = tracked.log, count  # type: ignore[assignment, method-assign]
with outlay.run("m", dir=run_dir, price="3600 USD/h", stopped_price="0 USD/h", gpus=1) as run:
    attach(run, every="50ms", against_cost=["loss"])
    for step in run.steps(range(run.resume_step, 10**6), start=run.resume_step):
        seen = readings
        while step % 5 == 4 and readings == seen:
            SYSTEM.sleep(0.02)
        tracked.log({"loss": 1 / (step + 1)}, step=step)
        run.checkpoint_committed()
        if step + 1 == steps:
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            break
tracked.finish()
