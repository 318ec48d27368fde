"""A small language model, trained with transformers' Trainer for a fixed number of tokens.

    python train.py                                   # one process
    torchrun --nproc-per-node 2 train.py              # two
    outlay report runs/transformers

Stop it at any point and run the same command again: it resumes from its last checkpoint, with what
is left of the budget.
"""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from outlay.integrations.transformers import OutlayCallback, OutlayTrainerMixin

VOCABULARY, LENGTH = 64, 16


class BudgetedTrainer(OutlayTrainerMixin, Trainer):
    """With the mixin a batch that does not fit the budget is refused before it is trained on."""


def sequences(count: int) -> list[dict[str, torch.Tensor]]:
    """Return sequences that count upwards from random numbers."""
    random = torch.Generator().manual_seed(0)
    starts = torch.randint(VOCABULARY, (count, 1), generator=random)
    tokens = (starts + torch.arange(LENGTH)) % VOCABULARY
    return [{"input_ids": row, "labels": row} for row in tokens]


def main() -> None:
    """Train under a budget."""
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **size)
    )
    arguments = TrainingArguments(
        output_dir="runs/transformers", num_train_epochs=10, per_device_train_batch_size=8,
        learning_rate=1e-2, eval_strategy="steps", eval_steps=20, save_steps=20, logging_steps=10,
        use_cpu=True, disable_tqdm=True, report_to=[],
    )  # fmt: skip
    callback = OutlayCallback(price="1.50 USD/h", budget="iso_tokens=4k")
    trainer = BudgetedTrainer(
        model, arguments, train_dataset=sequences(256), eval_dataset=sequences(32),
        callbacks=[callback],
    )  # fmt: skip
    checkpoint = get_last_checkpoint(arguments.output_dir)
    loop_s = trainer.train(resume_from_checkpoint=checkpoint).metrics["train_runtime"]
    if trainer.is_world_process_zero():
        print(f"stopped after {trainer.state.global_step} steps: loop {loop_s:.6f} s")
        print(callback.summary)


if __name__ == "__main__":
    main()
