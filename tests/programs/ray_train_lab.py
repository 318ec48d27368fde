"""A training of Ray Train on two nodes with outlay's integration, for test_ray.

The first start trains until Ray announces that a node is taken back, and waits until it is gone;
the second one resumes after its steps.

Usage: ray_train_lab.py ROOT
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train.torch import TorchTrainer

from outlay.clock import SYSTEM
from outlay.integrations.ray import PreemptionWatch, figures, worker_run

STEPS, TOKENS = 3, 10


def train(config: dict[str, Any]) -> None:
    root = Path(config["root"])
    with worker_run("toy", dir=root / "run", price="1 USD/h", gpus=2) as run:
        watch = PreemptionWatch(run)
        for number in range(run.resume_step, run.resume_step + STEPS):
            with run.step(tokens=TOKENS):
                pass
            ray.train.report({"step": number} | figures(run))
        if run.resume_step:
            return
        (root / f"node-{run.rank}").write_text(ray.get_runtime_context().get_node_id())
        while not watch.ask():
            SYSTEM.sleep(0.2)
        run.checkpoint_committed()
    (root / f"notice-{run.rank}").write_text(watch.notice)
    threading.Event().wait()  # Ray ends this process; one that returns would end the training.


def main(root: Path) -> None:
    ray.init(log_to_driver=False)
    scaling = ray.train.ScalingConfig(
        num_workers=2, resources_per_worker={"CPU": 1}, placement_strategy="STRICT_SPREAD"
    )
    # A node that is gone before its deadline counts as failed.
    retried = ray.train.FailureConfig(max_failures=1)
    settings = ray.train.RunConfig(name="train", storage_path=str(root), failure_config=retried)
    TorchTrainer(
        train, train_loop_config={"root": str(root)}, scaling_config=scaling, run_config=settings
    ).fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
