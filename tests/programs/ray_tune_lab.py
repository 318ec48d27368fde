"""Experiments of Ray Tune with outlay's integration, for test_ray; a driver on a cluster of Ray.

A step of a trial costs what its configuration says, and no time: trials have clocks of their own.

Usage: ray_tune_lab.py ROOT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import TuneError
from ray.tune.schedulers import ASHAScheduler

from outlay.clock import ManualClock
from outlay.integrations.ray import BudgetStopper, figures, trial_run

STEPS, TOKENS, SECOND = 8, 10, 10**9


def train(space: dict[str, Any]) -> None:
    """Train steps of a given cost, and report each; never ask whether to stop."""
    config = space["trial"]
    clock, seconds = ManualClock(), config["step_usd"]
    options = {"price": config.get("price"), "budget": config.get("budget"), "config": config}
    with trial_run("toy", runs=config["runs"], gpus=1, clock=clock, **options) as run:
        for _ in range(STEPS):
            with run.step(tokens=TOKENS):
                clock.advance(seconds * SECOND)
            tune.report({"loss": config["loss"]} | figures(run))


def experiment(
    root: Path, name: str, trials: list[dict[str, Any]], stop: Any = None, scheduler: Any = None
) -> dict[str, Any]:
    """Run trials one after another; return how each ended, or the error of all."""
    runs = root / name / "runs"
    price = {"price": "3600 USD/h", "runs": str(runs), "loss": 1, "step_usd": 1}
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"trial": tune.grid_search([price | trial for trial in trials])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1, scheduler=scheduler),
        run_config=tune.RunConfig(name=name, storage_path=str(root), stop=stop, verbose=0),
    )
    try:
        results = tuner.fit()
    except TuneError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"trials": [each.metrics for each in results if each.metrics], "runs": str(runs)}


def main(root: Path) -> None:
    ray.init(log_to_driver=False)
    asha = ASHAScheduler(
        time_attr="outlay/cost_usd", metric="loss", mode="min", max_t=8, grace_period=2,
        reduction_factor=2,
    )  # fmt: skip
    played = {
        "budget": experiment(root, "budget", [{"budget": "iso_tokens=30"}], BudgetStopper()),
        "total": experiment(root, "total", [{}, {}, {}], BudgetStopper(total="12 USD")),
        "asha": experiment(root, "asha", [{}, {"loss": 2}, {"loss": 2, "step_usd": 2}], None, asha),
        "unpriced": experiment(root, "unpriced", [{"price": None}], BudgetStopper(total="1 USD")),
    }
    (root / "results.json").write_text(json.dumps(played, default=str))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
