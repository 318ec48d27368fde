"""Scenarios of transformers' Trainer, for test_integrations_transformers; see trainer_lab.

Usage: transformers_lab.py ROOT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

import trl_lab
from outlay.integrations.transformers import OutlayCallback, OutlayTrainerMixin
from trainer_lab import Lab, SlowSaves, Synchronisations, Truth, break_outlay, refusal_of

SAMPLES = 64


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples of four, six or eight tokens; those to train on take time to load."""

    def __init__(self, truth: Truth | None, count: int) -> None:
        self.truth = truth
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.truth is not None:
            self.truth.draw()
        ids = torch.zeros(4 + 2 * (index % 3), dtype=torch.long)
        return {"input_ids": ids, "labels": ids}


class Images(Samples):
    """Images and their classes."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        super().__getitem__(index)
        return {"pixel_values": torch.ones(2), "labels": torch.zeros((), dtype=torch.long)}


class Classifier(torch.nn.Module):
    """A model of images, which has no tokens."""

    def __init__(self, truth: Truth, **_: Any) -> None:
        super().__init__()
        self.truth = truth
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.truth.forward(0)
        return {"loss": self.layer(pixel_values).mean() + labels.sum() * 0}


class Model(torch.nn.Module):
    """A model whose forward pass takes a known time."""

    def __init__(self, truth: Truth, *, raises_at: int = 0) -> None:
        super().__init__()
        self.truth = truth
        self.raises_at = raises_at
        self.embedding = torch.nn.Embedding(2, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.truth.forward(input_ids.numel())
            if self.truth.forwards == self.raises_at:
                raise RuntimeError("the model diverged")
        else:
            self.truth.evaluate()
        return {"loss": self.embedding(input_ids).mean() + labels.sum() * 0}


class Plain(SlowSaves, Trainer):
    """A Trainer whose saves take a known time."""


class Mixed(OutlayTrainerMixin, Plain):
    """The same with outlay's mixin."""


def train(
    truth: Truth,
    root: Path,
    name: str,
    *,
    mixed: bool = True,
    dies_after: int = 0,
    raises_at: int = 0,
    resume: bool = False,
    steps: int = 12,
    evaluate: str = "steps",
    datasets: int = 1,
    recorded: bool = True,
    broken: bool = False,
    images: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Train with two micro-batches a step."""
    truth.dies_after = dies_after
    out = root / name
    callback = OutlayCallback(clock=truth.clock, price="3.60 USD/h", **options)
    if broken:
        break_outlay()
    arguments = TrainingArguments(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=1,
        gradient_accumulation_steps=2, save_steps=4, logging_steps=2, disable_tqdm=True,
        eval_strategy=evaluate, eval_steps=3, per_device_eval_batch_size=1,
        use_cpu=True, report_to=[], dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = (Mixed if mixed else Plain)(
        (Classifier if images else Model)(truth, raises_at=raises_at), arguments,
        train_dataset=(Images if images else Samples)(truth, SAMPLES),
        eval_dataset={str(number): Samples(None, 4) for number in range(datasets)}
        if datasets > 1 else Samples(None, 4),
        callbacks=[callback] if recorded else [],
    )  # fmt: skip
    with Synchronisations() as synchronisations:
        refused = refusal_of(lambda: trainer.train(resume_from_checkpoint=resume))
    return {
        "refused": refused,
        "synchronisations": synchronisations.count,
        "global_step": trainer.state.global_step,
        "errors": callback.driver.errors,
        "reason": callback.summary.get("outlay/stop_reason"),
    }


def generate(truth: Truth, out: Path) -> dict[str, Any]:
    """Call the hooks of two steps on prompts: the model generates, and is then trained."""
    model = torch.nn.Embedding(2, 2)
    callback = OutlayCallback(model="m", dir=out, clock=truth.clock)
    callback.mixed_in = True
    arguments = SimpleNamespace(output_dir=out, to_sanitized_dict=dict, eval_on_start=False)
    state, control = TrainerState(), TrainerControl()
    callback.on_train_begin(arguments, state, control, model=model)
    for _ in range(2):
        assert callback.admit([[{"prompt": "one"}, {"prompt": "two"}]])
        callback.on_step_begin(arguments, state, control)
        with torch.no_grad():
            model(torch.zeros(2, 3, dtype=torch.long))
        model(torch.zeros(2, 8, dtype=torch.long))
        callback.on_step_end(arguments, state, control)
    callback.on_train_end(arguments, state, control)
    return {"counted": callback.summary["outlay/tokens"]}


def fails(batch: object) -> int:
    """Count nothing."""
    raise ValueError(batch)


def main(root: Path) -> None:
    """Play every scenario."""
    lab = Lab(root)

    def play(name: str, ranks: int = 1, run: str = "", **how: Any) -> None:
        lab.play(name, ranks, lambda truth: train(truth, root, run or name, **how))

    for kind in ("callback", "mixin"):
        mixed = kind == "mixin"
        for ranks in (1, 2):
            play(f"phases-{kind}-{ranks}", ranks, mixed=mixed)
            budgets = {"tokens": "iso_tokens=157"}
            if (kind, ranks) in {("callback", 2), ("mixin", 1)}:
                budgets["time"] = "iso_time=3s"
            for name, budget in budgets.items():
                how: dict[str, Any] = {"mixed": mixed, "evaluate": "no", "steps": 60}
                how["budget"] = budget
                run = f"{name}-{kind}-{ranks}-again"
                play(f"{name}-{kind}-{ranks}-whole", ranks, **how)
                play(f"{name}-{kind}-{ranks}-killed", ranks, run, dies_after=11, **how)
                play(run, ranks, resume=True, **how)
        how = {"mixed": mixed, "evaluate": "no", "steps": 60, "budget": "iso_tokens=157"}
        how |= {"evaluate": "epoch"}
        play(f"exhausted-{kind}", run=f"tokens-{kind}-1-again", resume=True, **how)
        play(f"broken-{kind}", mixed=mixed, broken=True)
        play(f"datasets-{kind}", mixed=mixed, datasets=3)
        play(f"raises-{kind}", mixed=mixed, raises_at=7)
        play(f"fails-{kind}", mixed=mixed, tokens=fails)
        how = {"mixed": mixed, "images": True, "evaluate": "no"}
        play(f"images-{kind}", **how)
        play(f"images-{kind}-limited", budget="iso_tokens=40", **how)
        how["tokens"] = lambda batch: len(batch["labels"])
        play(f"images-{kind}-stated", budget="iso_tokens=15", steps=60, **how)
    play("unrecorded", recorded=False)
    lab.play("generation", 1, lambda truth: generate(truth, root / "generation"))
    trl_lab.play_all(lab)
    (root / "results.json").write_text(json.dumps(lab.results))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
