"""A small DDP training that stops when its budget is used up, and resumes where it stopped.

    torchrun --nproc-per-node 2 train.py runtime.budget.enabled=true \
        runtime.budget.mode=iso_tokens runtime.budget.max_tokens=50_000

Two augmented views of every sample are trained on, with gradient accumulation. Interrupt it and run
the same command again: it resumes from its last checkpoint with what is left of the budget.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import hydra
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch.nn.parallel import DistributedDataParallel

import outlay

Batch = dict[str, torch.Tensor]


def batches(config: DictConfig, first: int, seed: int) -> Iterator[Batch]:
    """Yield the batches from a step on: two noisy views of random points, and their labels."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(first, config.max_steps):
        points = torch.randn(config.batch_size, config.features, generator=random)
        noise = torch.randn(2, config.batch_size, config.features, generator=random) / 10
        labels = (points.sum(dim=1) > 0).float()
        yield {"view1": points + noise[0], "view2": points + noise[1], "label": labels}


def loss_of(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean loss over both views."""
    views = torch.cat([batch["view1"], batch["view2"]])
    labels = torch.cat([batch["label"], batch["label"]])
    logits = model(views).squeeze(1)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)


def accuracy_of(network: torch.nn.Module, batch: Batch) -> float:
    """Return the share of points that are classified right."""
    with torch.no_grad():
        right = (network(batch["view1"]).squeeze(1) > 0) == (batch["label"] > 0)
    return right.float().mean().item()


def say(text: str) -> None:
    """Print a line at once, on rank 0."""
    if dist.get_rank() == 0:
        os.write(1, f"{text}\n".encode())


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Train, from the last checkpoint if there is one."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(config.features, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)]
    network = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(network.parameters(), lr=config.lr)
    checkpoint, first = Path(config.run_dir) / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    run = outlay.run("mlp", dir=config.run_dir, price=config.price, budget=config, config=config)

    def save() -> None:
        if dist.get_rank() != 0:
            return
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, checkpoint.with_suffix(".draft"))
        checkpoint.with_suffix(".draft").replace(checkpoint)
        run.checkpoint_committed()

    run.on_stop(save)
    model = DistributedDataParallel(network)
    data, step = batches(config, first, seed=dist.get_rank()), first - 1
    train_ns, began = 0, time.perf_counter_ns()
    for step, batch in enumerate(run.steps(data), first):
        t0 = time.perf_counter_ns()
        last = step % config.accumulate == config.accumulate - 1
        with contextlib.nullcontext() if last else model.no_sync():
            (loss_of(model, batch) / config.accumulate).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        train_ns += time.perf_counter_ns() - t0
        if step % config.checkpoint_every == config.checkpoint_every - 1:
            run.phase("checkpoint_save")
            save()
        if step % config.evaluate_every == config.evaluate_every - 1:
            run.phase("evaluation")
            accuracy = accuracy_of(network, next(batches(config, 0, seed=10_000)))
            run.metric("accuracy", accuracy)
            say(f"step {step}: accuracy {accuracy:.2f}")
    loop_ns = time.perf_counter_ns() - began
    say(f"stopped after {step + 1} micro-batches: train {train_ns} ns, loop {loop_ns} ns")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
