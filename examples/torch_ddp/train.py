"""A small DDP training that stops when its budget is used up, and resumes where it stopped.

    torchrun --nproc-per-node 2 train.py runtime.budget.enabled=true \
        runtime.budget.mode=iso_tokens runtime.budget.max_tokens=50_000

Two augmented views of every sample are trained on, with gradient accumulation. Interrupt it and run
the same command again: it resumes from its last checkpoint with what is left of the budget.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import hydra
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch.nn.parallel import DistributedDataParallel

import outlay


def batches(config: DictConfig, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches without end: two noisy views of random points, and their labels."""
    random = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn(config.batch_size, config.features, generator=random)
        noise = torch.randn(2, config.batch_size, config.features, generator=random) / 10
        labels = (points.sum(dim=1) > 0).float()
        yield {"view1": points + noise[0], "view2": points + noise[1], "label": labels}


def loss_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss over both views."""
    views = torch.cat([batch["view1"], batch["view2"]])
    labels = torch.cat([batch["label"], batch["label"]])
    logits = model(views).squeeze(1)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)


class Training:
    """The model, its optimiser, and the checkpoint they are kept in."""

    def __init__(self, config: DictConfig, run: outlay.Run) -> None:
        self.config = config
        self.run = run
        layers = [torch.nn.Linear(config.features, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)]
        self.network = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=config.lr)
        self.checkpoint = Path(config.run_dir) / "checkpoint.pt"

    def restore(self) -> None:
        """Load the last checkpoint, if there is one, with its budget."""
        if not self.checkpoint.exists():
            return
        with self.run.span("checkpoint_restore"):
            saved = torch.load(self.checkpoint, weights_only=True)
            self.network.load_state_dict(saved["network"])
            self.optimizer.load_state_dict(saved["optimizer"])
            if self.run.budget is not None and saved["budget"]:
                self.run.budget.load_state_dict(saved["budget"])

    def save(self) -> None:
        """Write a checkpoint on rank 0, and record that it is committed."""
        if dist.get_rank() != 0:
            return
        with self.run.span("checkpoint_save"):
            state = {
                "network": self.network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "budget": {} if self.run.budget is None else self.run.budget.state_dict(),
            }
            draft = self.checkpoint.with_suffix(".draft")
            torch.save(state, draft)
            draft.replace(self.checkpoint)
        self.run.checkpoint_committed()

    def evaluate(self) -> None:
        """Measure accuracy on fresh points, if the budget allows it."""
        if not self.run.allows("evaluation"):
            return
        with self.run.span("evaluation"), torch.no_grad():
            batch = next(batches(self.config, seed=10_000))
            right = (self.network(batch["view1"]).squeeze(1) > 0) == (batch["label"] > 0)
            self.run.metric("accuracy", right.float().mean().item())

    def train(self) -> None:
        """Train until the budget is used up."""
        config, run = self.config, self.run
        model = DistributedDataParallel(self.network)
        data = batches(config, seed=dist.get_rank())
        # Without tokens=..., a budget of tokens counts the samples of every view of a batch.
        for batch in run.steps(data):
            last = run.step_number % config.accumulate == config.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                (loss_of(model, batch) / config.accumulate).backward()
            if last:
                self.optimizer.step()
                self.optimizer.zero_grad()
            if run.step_number % config.checkpoint_every == config.checkpoint_every - 1:
                self.save()
            if run.step_number % config.evaluate_every == config.evaluate_every - 1:
                self.evaluate()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Train under the budget of the configuration."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    with outlay.run(
        "mlp", dir=config.run_dir, price=config.price, budget=config, config=config
    ) as run:
        training = Training(config, run)
        training.restore()
        training.train()
        if dist.get_rank() == 0:
            steps, reason = run.step_number + 1, run.stop_reason
            os.write(1, f"stopped after {steps} micro-batches: {reason}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
