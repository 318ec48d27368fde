"""Scenarios of trl's trainers, which transformers_lab plays; see trainer_lab.

Models are small and random, the tokenizer is made here, and nothing is fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from outlay.integrations.transformers import OutlayCallback, OutlayTrainerMixin
from trainer_lab import Lab, SlowSaves, Truth

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(13))]


class TimedEmbedding(torch.nn.Embedding):
    """The first layer of a model, whose passes take known times; trl replaces ``forward`` above."""

    def __init__(self, truth: Truth, width: int, *, generates: bool) -> None:
        super().__init__(len(WORDS), width)
        self.truth = truth
        self.generates = generates

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            self.truth.forward(input.numel())
        elif self.generates:
            self.truth.generate()
        else:
            self.truth.evaluate()
        return super().forward(input)


class Sft(SlowSaves, SFTTrainer):
    """Supervised fine-tuning."""


class MixedSft(OutlayTrainerMixin, Sft):
    """The same with outlay's mixin."""


class Grpo(SlowSaves, GRPOTrainer):
    """Reinforcement learning on what the model generates."""


class MixedGrpo(OutlayTrainerMixin, Grpo):
    """The same with outlay's mixin."""


def small_model(truth: Truth, *, generates: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS), hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
            pad_token_id=0, eos_token_id=1, bos_token_id=None,
        )
    )  # fmt: skip
    model.set_input_embeddings(TimedEmbedding(truth, 8, generates=generates))
    model.truth = truth
    return model


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def sequences(count: int) -> Dataset:
    """Return sequences of four, six or eight tokens."""
    ids = [[3 + (row + word) % 13 for word in range(4 + 2 * (row % 3))] for row in range(count)]
    return Dataset.from_dict({"input_ids": ids})


def prompts(count: int) -> Dataset:
    """Return prompts of four tokens."""
    texts = [" ".join(WORDS[3 + (row + word) % 13] for word in range(4)) for row in range(count)]
    return Dataset.from_dict({"prompt": texts})


def reward(completions: list[str], **_: Any) -> list[float]:
    """Prefer completions with the first word."""
    return [float(completion.count("w0")) for completion in completions]


def trainer_of(kind: str, truth: Truth, arguments: dict[str, Any], *, mixed: bool) -> Any:
    model, tokenizer = small_model(truth, generates=kind == "grpo"), word_tokenizer()
    if kind == "sft":
        return (MixedSft if mixed else Sft)(
            model, SFTConfig(**arguments), processing_class=tokenizer,
            train_dataset=sequences(64), eval_dataset=sequences(4),
        )  # fmt: skip
    arguments |= {"per_device_train_batch_size": 4, "num_generations": 4, "eval_strategy": "no"}
    return (MixedGrpo if mixed else Grpo)(
        model, reward, GRPOConfig(**arguments, max_completion_length=6),
        processing_class=tokenizer, train_dataset=prompts(64),
    )  # fmt: skip


def draw_slowly(trainer: Any, truth: Truth) -> None:
    """Let the batches to train on take a known time to collate."""
    collate, loader_of = trainer.data_collator, trainer.get_train_dataloader

    def draw(rows: list[Any]) -> Any:
        truth.draw()
        return collate(rows)

    def train_loader() -> Any:
        trainer.data_collator = draw
        loader = loader_of()
        trainer.data_collator = collate
        return loader

    trainer.get_train_dataloader = train_loader


def train(
    truth: Truth,
    out: Path,
    *,
    kind: str,
    mixed: bool,
    steps: int = 12,
    dies_after: int = 0,
    resume: bool = False,
    evaluate: str = "steps",
    **options: Any,
) -> dict[str, Any]:
    """Train with two micro-batches a step."""
    truth.dies_after = dies_after
    callback = OutlayCallback(clock=truth.clock, price="3.60 USD/h", **options)
    trainer = trainer_of(
        kind, truth, {
            "output_dir": str(out), "max_steps": steps, "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 2, "save_steps": 4, "logging_steps": 2,
            "disable_tqdm": True, "eval_strategy": evaluate, "eval_steps": 3,
            "per_device_eval_batch_size": 1, "use_cpu": True, "bf16": False, "report_to": [],
            "dataloader_pin_memory": False,
        }, mixed=mixed,
    )  # fmt: skip
    trainer.add_callback(callback)
    draw_slowly(trainer, truth)
    trainer.train(resume_from_checkpoint=resume)
    return {
        "global_step": trainer.state.global_step,
        "errors": callback.driver.errors,
        "reason": callback.summary.get("outlay/stop_reason"),
    }


def play_all(lab: Lab) -> None:
    """Play every scenario of trl."""

    def play(name: str, ranks: int, run: str = "", **how: Any) -> None:
        lab.play(name, ranks, lambda truth: train(truth, lab.root / (run or name), **how))

    def play_killed(name: str, ranks: int, **how: Any) -> None:
        how |= {"mixed": True, "evaluate": "no", "steps": 60}
        play(f"{name}-whole", ranks, **how)
        play(f"{name}-killed", ranks, f"{name}-again", dies_after=11, **how)
        play(f"{name}-again", ranks, resume=True, **how)

    for ranks in (1, 2):
        play(f"sft-phases-{ranks}", ranks, kind="sft", mixed=False)
        play_killed(f"sft-tokens-{ranks}", ranks, kind="sft", budget="iso_tokens=157")
    play("grpo-phases", 1, kind="grpo", mixed=False)
    how = {"kind": "grpo", "budget": "iso_tokens=1350"}
    play_killed("grpo-tokens", 2, **how)
    play("grpo-exhausted", 2, "grpo-tokens-again", resume=True, mixed=True, steps=60, **how)
