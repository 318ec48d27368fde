"""Scenarios of Lightning's Trainer, for test_integrations_lightning; see trainer_lab.

Usage: lightning_lab.py ROOT [STRATEGY]
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from lightning.pytorch.profilers import SimpleProfiler

from outlay.integrations.lightning import OutlayCallback
from trainer_lab import Lab, Synchronisations, Truth, break_outlay, refusal_of

SAMPLES = 128


IDS = torch.ones(3, 2, dtype=torch.long)
FORMS: dict[str, Any] = {
    "pair": (IDS, IDS),
    "named": {"input_ids": IDS, "labels": IDS},
    "nested": ({"text": {"ids": IDS, "attention_mask": IDS}}, IDS),
    "images": (torch.ones(3, 2), torch.ones(3, dtype=torch.long)),
}


def input_of(batch: Any) -> torch.Tensor:
    """Return the first tensor of a batch."""
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return batch


class Samples(torch.utils.data.Dataset[Any]):
    """Batches of three samples; those to train on take time to load."""

    def __init__(self, truth: Truth | None, count: int, form: str = "pair") -> None:
        self.truth = truth
        self.count = count
        self.form = form

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.truth is not None:
            self.truth.draw()
        del index
        return FORMS[self.form]


class Module(pl.LightningModule):
    """A model whose steps take a known time."""

    def __init__(self, truth: Truth, raises_at: int = 0, secret_key: str = "hunter2") -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["truth"])
        self.truth = truth
        self.raises_at = raises_at
        self.has_key = bool(secret_key)
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        del batch_idx
        ids = input_of(batch)
        self.truth.forward(ids.numel())
        if self.truth.forwards == self.raises_at:
            raise RuntimeError("the model diverged")
        loss: torch.Tensor = self.layer(ids.float()).mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        del batch_idx
        self.truth.evaluate()
        self.log("val_loss", self.layer(input_of(batch).float()).mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TwoOptimizers(Module):
    """A model with an optimizer of its own for each parameter, as adversaries have."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([each], lr=0.1) for each in self.parameters()]


class SlowIO(TorchCheckpointIO):
    """Checkpoints whose writing takes a known time."""

    truth: Truth

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.truth.save()
        super().save_checkpoint(*args, **kwargs)


def train(
    truth: Truth,
    root: Path,
    name: str,
    *,
    dies_after: int = 0,
    raises_at: int = 0,
    resume: bool = False,
    steps: int = 12,
    min_steps: int | None = None,
    evaluate: bool = True,
    asynchronous: bool = False,
    optimizers: int = 1,
    starts_ranks: str = "",
    recorded: bool = True,
    broken: bool = False,
    form: str = "pair",
    **options: Any,
) -> dict[str, Any]:
    """Fit with two batches a step; the strategy ``starts_ranks`` starts two processes itself."""
    truth.dies_after = dies_after
    out = root / name
    callback = OutlayCallback(clock=truth.clock, price="3.60 USD/h", **options)
    if broken:
        break_outlay()
    checkpoints = ModelCheckpoint(
        dirpath=out / "checkpoints", every_n_train_steps=4, save_top_k=-1, save_last=True
    )
    io = SlowIO()
    io.truth = truth
    profiler = SimpleProfiler()
    ranks = 2 if starts_ranks else int(os.environ.get("WORLD_SIZE", "1"))
    strategy = starts_ranks or ("ddp" if ranks > 1 else "auto")
    pickled = None if options else pickle.loads(pickle.dumps(callback))
    trainer = pl.Trainer(
        accelerator="cpu", devices=ranks, strategy=strategy,
        default_root_dir=out, max_steps=steps, min_steps=min_steps,
        accumulate_grad_batches=2 // optimizers,
        val_check_interval=6, limit_val_batches=2 if evaluate else 0,
        callbacks=[callback, checkpoints] if recorded else [checkpoints],
        plugins=[AsyncCheckpointIO(io) if asynchronous else io],
        logger=False, enable_progress_bar=False, enable_model_summary=False, profiler=profiler,
    )  # fmt: skip
    model = (Module if optimizers == 1 else TwoOptimizers)(truth, raises_at)
    loader = torch.utils.data.DataLoader(Samples(truth, SAMPLES, form), batch_size=None)
    validation = torch.utils.data.DataLoader(Samples(None, 4), batch_size=None)
    last = out / "checkpoints" / "last.ckpt"
    with Synchronisations() as synchronisations:
        refused = refusal_of(
            lambda: trainer.fit(model, loader, validation, ckpt_path=last if resume else None)
        )
    return {
        "refused": refused,
        "synchronisations": synchronisations.count,
        "global_step": trainer.global_step,
        "errors": callback.driver.errors,
        "reason": callback.summary.get("outlay/stop_reason"),
        "profiled": len(profiler.recorded_durations["run_training_batch"]),
        "restored": trainer.profiler is profiler,
        "pickles": isinstance(pickled, OutlayCallback),
    }


def fails(batch: object) -> int:
    """Count nothing."""
    raise ValueError(batch)


def main(root: Path, strategy: str = "") -> None:
    """Play every scenario, or that of a strategy which starts processes."""
    lab = Lab(root)

    def play(name: str, ranks: int = 1, run: str = "", **how: Any) -> None:
        lab.play(name, ranks, lambda truth: train(truth, root, run or name, **how))

    if strategy:
        play(strategy, starts_ranks=strategy)
    else:
        play_all(lab, play)
    (root / "results.json").write_text(json.dumps(lab.results))


def play_all(lab: Lab, play: Callable[..., None]) -> None:
    """Play what needs no processes that import Lightning again."""
    for ranks in (1, 2):
        play(f"phases-{ranks}", ranks)
        for name, budget in (("tokens", "iso_tokens=150"), ("time", "iso_time=3s"))[:ranks]:
            how: dict[str, Any] = {"evaluate": False, "steps": 60, "budget": budget}
            run = f"{name}-{ranks}-again"
            play(f"{name}-{ranks}-whole", ranks, min_steps=50, **how)
            play(f"{name}-{ranks}-killed", ranks, run, dies_after=11, **how)
            play(run, ranks, resume=True, **how)
    play("exhausted", run="tokens-1-again", resume=True, budget="iso_tokens=150", steps=60)
    play("raises", raises_at=7)
    play("broken", broken=True)
    for name in ("recorded", "unrecorded"):
        play(name, recorded=name == "recorded", evaluate=False)
    how = {"evaluate": False, "steps": 60, "budget": "iso_tokens=66", "optimizers": 2}
    play("optimizers-whole", **how)
    play("optimizers-killed", run="optimizers-again", dies_after=8, **how)
    play("optimizers-again", resume=True, **how)
    play("fails", tokens=fails)
    for form in FORMS:
        play(f"form-{form}", form=form, evaluate=False)
        play(f"form-{form}-limited", form=form, evaluate=False, budget="iso_tokens=40")
    play("fails-limited", tokens=fails, budget="iso_tokens=40")
    play("stated", form="images", tokens=lambda batch: len(batch[0]), budget="iso_tokens=40")
    play("asynchronous", asynchronous=True)
    play("ddp_fork", starts_ranks="ddp_fork")
    lab.play_example("lightning", "2")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), *sys.argv[2:])
