"""Integrations of loops of one's own: nv-one-logger, Optuna, Hydra, accelerate; real packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import optuna
import pytest

import outlay
import scripts
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.integrations.optuna import BudgetPruner
from outlay.ledger import CheckpointCommitted, Metric, Note, read_run
from trainer_labs import DATA_NS, FORWARD_NS, PlayedLab, play

MS = 10**6
SECOND = 10**9

pytestmark = pytest.mark.xdist_group("listeners")


# The same loop through each of them, on one and two ranks


KINDS = ["accelerate", "one_logger", "hydra", "optuna"]
LIMIT_NS, STEP_TOKENS, LIMIT_TOKENS = 3 * SECOND // 2, 10, 145


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> PlayedLab:
    return play("loops_lab.py", tmp_path_factory.mktemp("loops"))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_phase_is_as_long_as_the_loop_made_it(
    kind: str, ranks: int, played: PlayedLab
) -> None:
    name = f"{kind}-phases-{ranks}"
    run = played.read(name)
    assert run.phases == played.phases(name)
    assert (run.figures.steps, run.figures.tokens) == (12, 12 * STEP_TOKENS * ranks)
    assert run.status == "completed"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_never_passed_and_a_killed_run_stops_where_a_whole_one_does(
    kind: str, ranks: int, played: PlayedLab
) -> None:
    name = f"{kind}-tokens-{ranks}"
    assert played.all_of("exit", f"{name}-killed") == {-9}
    for end in ("whole", "again"):
        assert played.all_of("exit", f"{name}-{end}") == {0}
        totals = played.totals(f"{name}-{end}")
        steps = LIMIT_TOKENS // STEP_TOKENS // ranks
        assert (totals["tokens"], totals["steps"]) == (steps * STEP_TOKENS * ranks, steps)


@pytest.mark.parametrize("kind", KINDS)
def test_time_is_passed_by_at_most_one_step(kind: str, played: PlayedLab) -> None:
    name = f"{kind}-time-2"
    assert played.all_of("exit", f"{name}-killed") == {-9}
    for end in ("whole", "again"):
        assert LIMIT_NS <= played.used_ns(f"{name}-{end}") < LIMIT_NS + FORWARD_NS + DATA_NS


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trial_whose_run_is_exhausted_is_pruned_also_after_a_kill(
    ranks: int, played: PlayedLab
) -> None:
    assert played.results[f"optuna-tokens-{ranks}-whole"][0]["trials"] == ["PRUNED"]
    assert played.results[f"optuna-tokens-{ranks}-again"][0]["trials"] == ["RUNNING", "PRUNED"]


# nv-one-logger


ONE_LOGGER = """
    import sys
    from nv_one_logger.api.config import OneLoggerConfig
    from nv_one_logger.api.timed_span import timed_span
    from nv_one_logger.training_telemetry.api import callbacks as say
    from nv_one_logger.training_telemetry.api.checkpoint import CheckPointStrategy
    from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
    from nv_one_logger.training_telemetry.api.spans import StandardTrainingJobSpanName
    from nv_one_logger.training_telemetry.api.training_telemetry_provider import (
        TrainingTelemetryProvider,
    )
    from outlay.clock import ManualClock
    from outlay.integrations.one_logger import OutlayExporter

    clock = ManualClock()
    spend = lambda ms: clock.advance(ms * 10**6)
    exporter = OutlayExporter(
        model="m", dir=sys.argv[1], tokens=10, samples=2, clock=clock, budget="iso_tokens=80"
    )
    provider = TrainingTelemetryProvider.instance()
    provider.with_base_config(OneLoggerConfig(
        application_name="test", world_size_or_fn=1, session_tag_or_fn="test",
        enable_for_current_rank=True,
    ))
    exporter.attach_to(provider).configure_provider()
    say.on_app_start()
    provider.set_training_telemetry_config(TrainingTelemetryConfig(
        perf_tag_or_fn="test", global_batch_size_or_fn=2, log_every_n_train_iterations=5,
        save_checkpoint_strategy=CheckPointStrategy.SYNC, is_save_checkpoint_enabled_or_fn=True,
        train_iterations_target_or_fn=10, train_samples_target_or_fn=20,
    ))
    say.on_model_init_start(); spend(70); say.on_model_init_end()
    say.on_train_start(train_iterations_start=4, train_samples_start=8)
    for step in range(4, 14):
        with timed_span(StandardTrainingJobSpanName.DATA_LOADING):
            spend(30)
        say.on_training_single_iteration_start(); spend(100); say.on_training_single_iteration_end()
        if exporter.run.stop_reason:
            break
        if step == 8:
            say.on_validation_start(); spend(50); say.on_validation_end()
            say.on_save_checkpoint_start(global_step=step + 1); spend(200)
            say.on_save_checkpoint_success(global_step=step + 1); say.on_save_checkpoint_end()
    say.on_train_end()
    say.on_app_end()
    print("errors", exporter.driver.errors)
"""


def test_telemetry_of_nv_one_logger_becomes_a_run(tmp_path: Path) -> None:
    done = scripts.finish(ONE_LOGGER, tmp_path, OUTLAY_PROGRESS="0")
    assert done.returncode == 0, done.stderr
    assert "errors 0" in done.stdout
    run = outlay.read_run(tmp_path)
    assert run.phases == {
        "step": 8 * 100 * MS,
        "training_prep": 70 * MS,
        "data_loading": 8 * 30 * MS,
        "checkpoint_save": 200 * MS,
        "evaluation": 50 * MS,
    }
    assert (run.figures.steps, run.figures.tokens, run.status) == (12, 80, "completed")
    records = read_run(tmp_path).records
    assert [one.step for one in records if isinstance(one, CheckpointCommitted)] == [8]


def test_limited_tokens_that_are_not_stated_are_refused_before_the_first_step(
    tmp_path: Path,
) -> None:
    """nv-one-logger exports none."""
    done = scripts.finish(ONE_LOGGER.replace("tokens=10, ", ""), tmp_path, OUTLAY_PROGRESS="0")
    assert done.returncode == 1
    assert "max_tokens is set, but nv-one-logger exports no tokens" in done.stderr
    run = outlay.read_run(tmp_path)
    assert (run.figures.steps, run.status) == (0, "failed")


# Optuna


def study_with(pruner: BudgetPruner) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(pruner=pruner)


def test_a_trial_is_pruned_once_its_budget_is_used_up(tmp_path: Path) -> None:
    pruner = BudgetPruner()

    def objective(trial: optuna.Trial) -> float:
        run_dir = tmp_path / str(trial.number)
        with outlay.run("m", dir=run_dir, budget=outlay.iso_tokens(30)) as run:
            pruner.watch(trial, run.budget)
            for step in range(10):
                with run.step(tokens=10):
                    pass
                trial.report(1.0, step)
                if trial.should_prune():
                    raise optuna.TrialPruned
        return 1.0

    study = study_with(pruner)
    study.optimize(objective, n_trials=2)
    assert {trial.state.name for trial in study.trials} == {"PRUNED"}
    assert [len(trial.intermediate_values) for trial in study.trials] == [3, 3]


def test_each_trial_may_use_the_same_time() -> None:
    clock = ManualClock()

    def objective(trial: optuna.Trial) -> float:
        for step in range(10):
            trial.report(1.0, step)
            if trial.should_prune():
                raise optuna.TrialPruned
            clock.advance(SECOND)
        return 1.0

    study = study_with(BudgetPruner(budget="iso_time=3s", clock=clock))
    study.optimize(objective, n_trials=2)
    assert [len(trial.intermediate_values) for trial in study.trials] == [4, 4]


def test_another_pruner_decides_while_there_is_budget_left() -> None:
    inner = optuna.pruners.ThresholdPruner(upper=0.5)

    def objective(trial: optuna.Trial) -> float:
        trial.report(1.0, 0)
        assert trial.should_prune()
        raise optuna.TrialPruned

    study_with(BudgetPruner(inner, budget="iso_time=1h")).optimize(objective, n_trials=1)


def test_a_pruner_can_count_time_alone_by_itself() -> None:
    with pytest.raises(InvalidValue, match="watch"):
        BudgetPruner(budget="iso_tokens=5")


# Hydra


HYDRA = """
    import os, sys
    from pathlib import Path
    import hydra, outlay
    from omegaconf import DictConfig

    @hydra.main(version_base=None, config_path=".", config_name="config")
    def main(config: DictConfig) -> None:
        with outlay.run("m", config=config) as run:
            print(run.dir.name, len(list(run.steps(range(100), tokens=1))))

    main()
    print(sorted(name for name in os.environ if name.startswith("OUTLAY_")))
"""
HYDRA_CONFIG = """
size: 1
hydra:
  sweep: {dir: out}
  callbacks:
    outlay: {_target_: outlay.integrations.hydra.OutlayCallback, budget: iso_tokens=5}
"""


BUDGET = ["+runtime.budget.mode=iso_tokens", "+runtime.budget.max_tokens=7"]


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["size=1,2"], ["0 5", "1 5"]),
        ([*BUDGET, "+runtime.budget.enabled=true,false"], ["0 7", "1 100"]),
    ],
    ids=["the callback's", "the job's own"],
)
def test_each_job_of_a_multirun_has_its_directory_and_its_budget(
    overrides: list[str], steps: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(HYDRA_CONFIG)
    (tmp_path / "app.py").write_text(textwrap.dedent(HYDRA))
    environ = {name: text for name, text in os.environ.items() if not name.startswith("OUTLAY_")}
    done = subprocess.run(
        [sys.executable, "app.py", "--multirun", *overrides],
        cwd=tmp_path, env=environ | {"OUTLAY_PROGRESS": "0"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^[0-9] [0-9]+$", done.stdout, re.MULTILINE) == steps
    assert done.stdout.endswith("['OUTLAY_PROGRESS']\n")
    assert outlay.read_run(tmp_path / "out" / "0").config["size"] == 1


# accelerate


def test_what_an_accelerator_logs_are_metrics_of_the_run(played: PlayedLab) -> None:
    run_dir = played.root / "accelerate-phases-1"
    records = read_run(run_dir).records
    assert [one.value for one in records if isinstance(one, Metric)] == [0.5]
    (note,) = [one for one in records if isinstance(one, Note)]
    assert note.data == {"steps": 12, "api_key": "<redacted>"}
    run = outlay.read_run(run_dir)
    assert (run.config, run.status) == (note.data, "completed")


# Without the packages


@pytest.mark.parametrize(
    ("module", "package"),
    [("transformers", "transformers"), ("lightning", "lightning"), ("optuna", "optuna"),
     ("hydra", "hydra"), ("accelerate", "accelerate"), ("one_logger", "nv_one_logger"),
     ("ray", "ray")],
)  # fmt: skip
def test_an_integration_whose_package_is_missing_names_the_extra(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # It takes seconds to import.
    monkeypatch.delitem(sys.modules, f"outlay.integrations.{module}", raising=False)
    extra = re.escape(f"outlay[{module.replace('_', '-')}]")
    with pytest.raises(outlay.errors.MissingExtra, match=extra):
        __import__(f"outlay.integrations.{module}")
