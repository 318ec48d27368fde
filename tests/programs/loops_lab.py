"""Scenarios of loops of one's own, for test_integrations_listeners; see trainer_lab.

Each is the same loop with known times, opened, told or stopped through accelerate, nv-one-logger,
Hydra or Optuna.

Usage: loops_lab.py ROOT
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import optuna
import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from nv_one_logger.api.config import OneLoggerConfig
from nv_one_logger.api.timed_span import timed_span
from nv_one_logger.training_telemetry.api import callbacks as say
from nv_one_logger.training_telemetry.api.checkpoint import CheckPointStrategy
from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
from nv_one_logger.training_telemetry.api.spans import StandardTrainingJobSpanName
from nv_one_logger.training_telemetry.api.training_telemetry_provider import (
    TrainingTelemetryProvider,
)
from optuna.storages.journal import JournalFileBackend

import outlay
from outlay.integrations.accelerate import OutlayTracker
from outlay.integrations.one_logger import OutlayExporter
from outlay.integrations.optuna import BudgetPruner
from trainer_lab import Lab, Truth

TOKENS = 10
IDS = torch.zeros(2, TOKENS // 2, dtype=torch.long)
EVALUATE_EVERY, SAVE_EVERY = 3, 4
HYDRA_CONFIG = """
hydra:
  callbacks:
    outlay: {_target_: outlay.integrations.hydra.OutlayCallback}
"""
Backward = Callable[[torch.Tensor], None]


def batches(truth: Truth, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield so many batches of inputs and targets, each of which takes time to load."""
    for _ in range(steps):
        truth.draw()
        yield IDS, IDS


def is_due(step: int, every: int) -> bool:
    return step % every == every - 1


def own_loop(
    run: outlay.Run,
    truth: Truth,
    steps: int,
    *,
    evaluate: bool = True,
    tokens: int | None = TOKENS,
) -> None:
    """Train in a loop that outlay drives; what earlier attempts did is skipped."""
    for _ in run.steps(batches(truth, steps), tokens=tokens, samples=1, skip=True):
        truth.forward(TOKENS)
        if dist.is_initialized():
            dist.all_reduce(torch.ones(1))
        if evaluate and is_due(run.step_number, EVALUATE_EVERY):
            with run.span("evaluation"):
                truth.evaluate()
        if is_due(run.step_number, SAVE_EVERY):
            with run.span("checkpoint_save"):
                truth.save()
            run.checkpoint_committed()


def join_ranks() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")


# The last reference to a gloo group: torch joins its thread with the GIL held, and that thread may
# be waiting for the GIL to release the last collective. The process ends without freeing it.
_never_freed: list[object] = []


def with_accelerate(truth: Truth, out: Path, steps: int, **how: Any) -> dict[str, Any]:
    """Train with an Accelerator's model and its tracker."""
    evaluate = how.pop("evaluate", True)
    PartialState(cpu=True)
    tracker = OutlayTracker("m", dir=out, clock=truth.clock, **how)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    config = {"steps": steps, "api_key": "hunter2hunter2"}
    accelerator.init_trackers("project", config=config)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    _never_freed.append(model)
    accelerator.backward(model(torch.ones(1, 1)).sum())
    if accelerator.is_main_process:
        assert accelerator.get_tracker("outlay", unwrap=True) is tracker.run
    # A budget of tokens counts them itself.
    tokens = None if "iso_tokens" in how.get("budget", "") else TOKENS
    own_loop(tracker.run, truth, steps, evaluate=evaluate, tokens=tokens)
    accelerator.log({"loss": 0.5, "note": "text"})
    accelerator.end_training()
    return {"reason": tracker.run.stop_reason}


def with_one_logger(truth: Truth, out: Path, steps: int, **how: Any) -> dict[str, Any]:
    """Train in a loop that reports to nv-one-logger and asks only whether it must stop."""
    evaluate = how.pop("evaluate", True)
    join_ranks()
    saved = out / f"saved-{os.environ.get('RANK', '0')}"
    first = int(saved.read_text()) if saved.exists() else 0
    exporter = OutlayExporter(
        model="m", dir=out, tokens=TOKENS, samples=1, clock=truth.clock, **how
    )
    provider = TrainingTelemetryProvider.instance()
    provider.with_base_config(
        OneLoggerConfig(
            application_name="test", world_size_or_fn=1, session_tag_or_fn="test",
            enable_for_current_rank=True,
        )
    )  # fmt: skip
    exporter.attach_to(provider).configure_provider()
    say.on_app_start()
    provider.set_training_telemetry_config(
        TrainingTelemetryConfig(
            perf_tag_or_fn="test", global_batch_size_or_fn=1, log_every_n_train_iterations=5,
            save_checkpoint_strategy=CheckPointStrategy.SYNC, is_save_checkpoint_enabled_or_fn=True,
            train_iterations_target_or_fn=steps, train_samples_target_or_fn=steps,
        )
    )  # fmt: skip
    say.on_train_start(train_iterations_start=first, train_samples_start=first)
    run = exporter.run
    assert run is not None
    for step in range(first, steps):
        if run.stop_reason:
            break
        with timed_span(StandardTrainingJobSpanName.DATA_LOADING):
            truth.draw()
        say.on_training_single_iteration_start()
        truth.forward(TOKENS)
        say.on_training_single_iteration_end()
        if evaluate and is_due(step, EVALUATE_EVERY):
            say.on_validation_start()
            truth.evaluate()
            say.on_validation_end()
        if is_due(step, SAVE_EVERY):
            say.on_save_checkpoint_start(global_step=step + 1)
            truth.save()
            saved.write_text(str(step + 1))
            say.on_save_checkpoint_success(global_step=step + 1)
            say.on_save_checkpoint_end()
    say.on_train_end()
    say.on_app_end()
    return {"reason": run.stop_reason, "errors": exporter.driver.errors}


def with_hydra(
    truth: Truth, out: Path, steps: int, *, evaluate: bool = True, budget: str = "", **how: Any
) -> dict[str, Any]:
    """Train in a job of Hydra, whose callback knows the directory and the budget."""
    join_ranks()
    reasons = []

    def job(config: Any) -> None:
        with outlay.run("m", clock=truth.clock, config=config, **how) as run:
            own_loop(run, truth, steps, evaluate=evaluate)
        reasons.append(run.stop_reason)

    (out.parent / "hydra.yaml").write_text(HYDRA_CONFIG)
    stated = [f"+hydra.callbacks.outlay.budget='{budget}'"] if budget else []
    sys.argv = ["job.py", f"hydra.run.dir={out}", "hydra.output_subdir=null", *stated]
    hydra.main(version_base=None, config_path=str(out.parent), config_name="hydra")(job)()
    return {"reason": reasons[0]}


def with_optuna(
    truth: Truth, out: Path, steps: int, *, evaluate: bool = True, **how: Any
) -> dict[str, Any]:
    """Train in a trial of Optuna, whose study is kept in a file; rank 0 alone has the trial."""
    join_ranks()
    run: outlay.Run

    def train() -> None:
        nonlocal run
        with outlay.run("m", dir=out, clock=truth.clock, **how) as run:
            own_loop(run, truth, steps, evaluate=evaluate)

    def objective(trial: optuna.Trial) -> float:
        train()
        pruner.watch(trial, run.budget)
        trial.report(1.0, run.step_number)
        if trial.should_prune():
            raise optuna.TrialPruned
        return 1.0

    if os.environ.get("RANK", "0") != "0":
        train()
        return {"reason": run.stop_reason}
    pruner = BudgetPruner()
    journal = JournalFileBackend(str(out.parent / f"{out.name}.journal"))
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(journal), study_name="s", pruner=pruner,
        load_if_exists=True,
    )  # fmt: skip
    study.optimize(objective, n_trials=1)
    return {"reason": run.stop_reason, "trials": [trial.state.name for trial in study.trials]}


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "accelerate": with_accelerate,
    "one_logger": with_one_logger,
    "hydra": with_hydra,
    "optuna": with_optuna,
}


def main(root: Path) -> None:
    """Play every scenario."""
    lab = Lab(root)
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def play(kind: str, name: str, ranks: int, run: str = "", **how: Any) -> None:
        train = KINDS[kind]
        steps, dies_after = how.pop("steps", 12), how.pop("dies_after", 0)

        def scenario(truth: Truth) -> dict[str, Any]:
            truth.dies_after = dies_after
            out = root / f"{kind}-{run or name}"
            out.mkdir(exist_ok=True)
            return train(truth, out, steps, price="3.60 USD/h", **how)

        lab.play(f"{kind}-{name}", ranks, scenario)

    for kind in KINDS:
        for ranks in (1, 2):
            play(kind, f"phases-{ranks}", ranks)
            for name, budget in (("tokens", "iso_tokens=145"), ("time", "iso_time=1.5s"))[:ranks]:
                how: dict[str, Any] = {"steps": 60, "budget": budget, "evaluate": False}
                run = f"{name}-{ranks}-again"
                play(kind, f"{name}-{ranks}-whole", ranks, **how)
                play(kind, f"{name}-{ranks}-killed", ranks, run, dies_after=6, **how)
                play(kind, run, ranks, run, **how)
    (root / "results.json").write_text(json.dumps(lab.results))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
