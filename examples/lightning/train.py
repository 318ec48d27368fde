"""A small classifier, trained with Lightning for a fixed number of samples.

    python train.py                                   # one process
    python train.py 2                                 # two
    outlay report runs/lightning

Stop it at any point and run the same command again: it resumes from its last checkpoint, with what
is left of the budget.
"""

from __future__ import annotations

import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from torch.utils.data import DataLoader, TensorDataset

from outlay.integrations.lightning import OutlayCallback

ROOT = Path("runs/lightning")


class Classifier(lightning.LightningModule):
    """Classifies points by their side of a plane."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        points, labels = batch
        logits = self.network(points).squeeze(1)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Log how many points of a batch are on the right side."""
        points, labels = batch
        right = (self.network(points).squeeze(1) > 0) == (labels > 0)
        self.log("accuracy", right.float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def loader(count: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return random points and their sides."""
    points = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(points, (points.sum(dim=1) > 0).float()), batch_size=16)


def main(processes: int) -> None:
    """Train under a budget."""
    # Points have no tokens: their samples are counted.
    callback = OutlayCallback(
        price="1.50 USD/h", budget="iso_tokens=1k", tokens=lambda batch: len(batch[0])
    )
    timer = Timer()
    checkpoints = ModelCheckpoint(ROOT / "checkpoints", every_n_train_steps=20, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=processes, max_epochs=10, default_root_dir=ROOT, logger=False,
        callbacks=[callback, timer, checkpoints], val_check_interval=16,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    last = ROOT / "checkpoints" / "last.ckpt"
    trainer.fit(Classifier(), loader(512), loader(64), ckpt_path=last if last.exists() else None)
    if trainer.is_global_zero:
        loop_s = timer.time_elapsed("train")
        print(f"stopped after {trainer.global_step} steps: loop {loop_s:.6f} s")
        print(callback.summary)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
