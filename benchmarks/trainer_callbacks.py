"""What a callback adds to a trainer's step: all that it is called for in one.

    python benchmarks/trainer_callbacks.py

Beside it stands what the frameworks do for a callback that does nothing. Tokens are counted from
the shapes of a batch of tensors, as in training; one callback has a budget, one has none.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import timing
import torch
from lightning.pytorch import Callback
from lightning.pytorch.profilers import PassThroughProfiler
from transformers import TrainerCallback, TrainerControl, TrainerState

from outlay.integrations.lightning import OutlayCallback as LightningCallback
from outlay.integrations.lightning import OutlayProfiler
from outlay.integrations.transformers import OutlayCallback as TransformersCallback

CALLS = 2_000
ROUNDS = 9
STEP_MS = 20
MOST_SHARE = 1.0
BUDGET = "iso_tokens=1000T,max_minutes=1000000"
FETCH = "[_TrainingEpochLoop].train_dataloader_next"


def batch() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.zeros(8, 512, dtype=torch.long), "labels": torch.zeros(8, 512)}


def transformers_steps(callback: TrainerCallback, folder: Path) -> Callable[[], None]:
    """Return the steps of a Trainer as its callback sees them, the forward hook included."""
    arguments: Any = SimpleNamespace(
        output_dir=str(folder), to_sanitized_dict=dict, eval_on_start=False,
        save_strategy=SimpleNamespace(value="no"),
    )  # fmt: skip
    state, control, inputs = TrainerState(), TrainerControl(), batch()
    model = torch.nn.Identity()
    callback.on_train_begin(arguments, state, control, model=model)
    hooks = list(model._forward_pre_hooks.values())

    def work() -> None:
        for _ in range(CALLS):
            callback.on_step_begin(arguments, state, control)
            for hook in hooks:
                hook(model, (), inputs)
            state.global_step += 1
            callback.on_step_end(arguments, state, control)

    return work


def lightning_steps(callback: Callback, folder: Path) -> Callable[[], None]:
    """Return the steps of a Trainer as its callback and its profiler see them."""
    trainer: Any = SimpleNamespace(
        profiler=PassThroughProfiler(), default_root_dir=folder, global_step=0,
        accumulate_grad_batches=1, strategy=SimpleNamespace(checkpoint_io=None),
    )  # fmt: skip
    module: Any = SimpleNamespace(hparams={})
    callback.setup(trainer, module, "fit")
    callback.on_train_start(trainer, module)
    profiler, inputs = trainer.profiler, batch()
    assert isinstance(callback, LightningCallback) is isinstance(profiler, OutlayProfiler)

    def work() -> None:
        for _ in range(CALLS):
            profiler.start(FETCH)
            profiler.stop(FETCH)
            callback.on_train_batch_start(trainer, module, inputs, 0)
            trainer.global_step += 1
            callback.on_train_batch_end(trainer, module, None, inputs, 0)

    return work


def report(folder: Path) -> None:
    options: dict[str, Any] = {"model": "m", "price": "1 USD/h"}
    budgeted = options | {"budget": BUDGET}
    ours: list[Any] = [
        TransformersCallback(**options), TransformersCallback(**budgeted),
        LightningCallback(**options), LightningCallback(**budgeted),
    ]  # fmt: skip
    found = timing.compare(
        {
            "transformers: a callback that does nothing": transformers_steps(
                TrainerCallback(), folder / "1"
            ),
            "transformers: outlay": transformers_steps(ours[0], folder / "2"),
            "transformers: outlay with a budget": transformers_steps(ours[1], folder / "3"),
            "Lightning: a callback that does nothing": lightning_steps(Callback(), folder / "4"),
            "Lightning: outlay": lightning_steps(ours[2], folder / "5"),
            "Lightning: outlay with a budget": lightning_steps(ours[3], folder / "6"),
        },
        calls=CALLS,
        rounds=ROUNDS,
    )
    for callback in ours:
        callback.driver.finish()
    timing.show("A trainer's callback", found, unit="µs a step", scale=1e6)
    for each in (found[2], found[5]):
        peer = timing.Figure(f"1 % of a step of {STEP_MS} ms", STEP_MS * 10)
        timing.row(each.name, each.seconds * 1e6, peer, unit="us", least=1)
        share = 100 * each.seconds / (STEP_MS / 1000)
        timing.verdict(f"{each.name}, in % of a step of {STEP_MS} ms", share, MOST_SHARE)


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"OUTLAY_HOME": home, "OUTLAY_PROGRESS": "0"}
        report(Path(home))


if __name__ == "__main__":
    main()
