"""Documented fields, flags and variables, tested through public functions and commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import outlay
from command_line import outlay as command
from command_line import python
from outlay import (
    CostAnalyzer,
    CostOptimizer,
    GPUPrice,
    GPUPriceTracker,
    OptimizationRecommendation,
    TrainingMetrics,
)
from outlay.clock import SYSTEM, utc_now
from outlay.handlers import handling
from outlay.sweep.engines.ports import Ports

# -- prices and costs ------------------------------------------------------------------------------

METRICS = TrainingMetrics(
    run_id="my_run_001", model_name="bert-base", num_samples=100_000, num_epochs=3, batch_size=32,
    learning_rate=2e-5, total_duration_hours=24.5, gpu_name="A100", gpu_price_per_hour=1.50,
    validation_loss=0.31, test_accuracy=0.94, tokens_processed=50_000_000,
    timestamp=datetime(2026, 1, 2, tzinfo=UTC),
)  # fmt: skip


def test_every_field_of_a_price_survives_a_restart() -> None:
    price = GPUPrice(
        "A100", "vast.ai", 1.4142135, availability=3, cuda_version="12.4", vram_gb=80,
        instance_id="i-17", region="eu-west", timestamp=datetime(2026, 1, 2, tzinfo=UTC),
    )  # fmt: skip
    GPUPriceTracker().track_price(price)
    cheapest = GPUPriceTracker().get_cheapest_gpu()
    assert cheapest is not None
    assert cheapest.price == price


def test_a_history_has_every_price_that_was_tracked() -> None:
    now = utc_now()
    for hours, each in ((30, 4.0), (2, 2.0), (1, 1.0)):
        at = now - timedelta(hours=hours)
        GPUPriceTracker().track_price(GPUPrice("A100", "vast.ai", each, timestamp=at))
    history = GPUPriceTracker().histories["A100", "vast.ai"]
    assert [price for _, price in history.prices] == [4.0, 2.0, 1.0]
    assert (history.get_average(), history.get_min_max(hours=48)) == (1.5, (1.0, 4.0))
    assert history.get_trend() == -50.0


def test_every_field_of_metrics_survives_a_restart() -> None:
    CostAnalyzer().analyze_training_run(METRICS)
    assert CostAnalyzer().cost_history["my_run_001"].metrics == METRICS
    assert set(CostAnalyzer().get_cost_comparison()) == {"bert-base"}


def test_every_figure_of_a_report_follows_from_its_metrics() -> None:
    report = CostAnalyzer().analyze_training_run(METRICS)
    assert (report.run_id, report.model_name) == ("my_run_001", "bert-base")
    assert (report.total_cost, report.gpu_hours) == (36.75, 24.5)
    assert (report.cost_per_sample, report.cost_per_epoch) == (36.75 / 100_000, 12.25)
    assert report.cost_per_token == 36.75 / 50  # Of a million.
    assert report.efficiency_score == pytest.approx(0.94 / 36.75 / 10)
    assert report.cost_per_accuracy_point == pytest.approx(36.75 / 0.94)
    assert (report.metrics, report.timestamp) == (METRICS, METRICS.timestamp)


def test_every_field_of_advice_survives_a_restart() -> None:
    given = CostOptimizer().recommend_compute_tier("A100", 2.0, 100.0, {"H100": (3.0, 300.0)})
    assert given is not None
    assert given.category == "compute"
    assert given.estimated_savings > 0
    assert given.title
    assert given.description
    assert given.action
    assert CostOptimizer().recommendations == [given]


def test_advice_is_filtered_by_age_and_by_confidence() -> None:
    def advice(title: str, confidence: float, hours: float) -> OptimizationRecommendation:
        at = utc_now() - timedelta(hours=hours)
        return OptimizationRecommendation(
            "compute", title, "d", 5.0, confidence=confidence, timestamp=at
        )

    optimizer = CostOptimizer()
    optimizer.keep([advice("old", 0.9, 30), advice("sure", 0.8, 2), advice("unsure", 0.79, 1)])
    assert {each.title for each in optimizer.get_all_recommendations()} == {"sure", "unsure"}
    assert [each.title for each in optimizer.get_all_recommendations(hours=1.5)] == ["unsure"]
    assert [each.title for each in optimizer.get_high_confidence_recommendations()] == ["sure"]
    above = optimizer.get_high_confidence_recommendations(confidence_threshold=0.81)
    assert above == []


@pytest.mark.parametrize(
    ("budget", "status", "overage"), [(300, "OK", 0.0), (240, "WARNING", 0.0), (200, "OVER", 20.5)]
)
def test_a_forecast_has_the_status_of_the_budget(
    budget: float, status: str, overage: float
) -> None:
    CostAnalyzer().analyze_training_run(METRICS)
    assert command("cost-report", "--set-budget", "bert-base", str(budget)).code == 0
    found = command("cost-report", "--forecast", "bert-base", "5", "--json").json["forecast"]
    assert (found["planned_runs"], found["estimated_total"]) == (5, 183.75)
    assert (found["budget_status"], found["overage"]) == (status, pytest.approx(overage))


def test_the_summary_has_models_prices_and_budgets() -> None:
    CostAnalyzer().analyze_training_run(METRICS)
    CostAnalyzer().set_budget("bert-base", 40)
    GPUPriceTracker().track_price(GPUPrice("A100", "vast.ai", 1.25))
    shown = command("cost-report", "--summary").out
    assert "36.75" in shown
    assert "1.2500" in shown
    assert "90 %" in shown


def test_the_files_of_the_cost_module_have_what_its_classes_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = tmp_path / ".context" / "training"
    kept.mkdir(parents=True)
    report = CostAnalyzer().analyze_training_run(METRICS)
    advice = CostOptimizer().recommend_early_stopping(
        [0.50, 0.35, 0.25, 0.20, 0.18, 0.1801, 0.1799, 0.1798], 1.5, 8.0, patience=3
    )
    assert advice is not None
    row = json.loads((kept / "cost_history.json").read_text())["my_run_001"]
    documented = {name: value for name, value in report.to_dict().items() if name in row}
    assert row == documented | {"metrics": row["metrics"]}
    assert (row["total_cost"], row["cost_per_epoch"], row["gpu_hours"]) == (36.75, 12.25, 24.5)
    assert row["metrics"]["learning_rate"] == 2e-5
    (written,) = json.loads((kept / "recommendations.json").read_text())
    assert (written["category"], written["title"]) == ("early_stopping", advice.title)
    assert advice.title in command("cost-report", "--recommendations", columns=200).out


def test_a_budget_that_is_set_is_the_one_that_is_shown() -> None:
    CostAnalyzer().analyze_training_run(METRICS)
    assert command("cost-report", "--set-budget", "bert-base", "1000.0").code == 0
    assert command("cost-report", "--set-budget", "bert-base", "30").code == 0
    (row,) = command("cost-report", "--budget", "--json").json["budgets"]
    assert row["model"] == "bert-base"
    assert float(row["percent_used"]) == pytest.approx(122.5)
    assert "EXCEEDED" in command("cost-report", "--budget").out


# -- sweeps ----------------------------------------------------------------------------------------

NODE = """
import json, os, pathlib, sys
told = {"argv": sys.argv[1:], "cwd": os.getcwd()}
kinds = ("MFCL_", "N", "WORLD_", "LOCAL_", "GROUP_", "FROM_", "HYDRA_")
told.update((name, value) for name, value in os.environ.items() if name.startswith(kinds))
print("to the log")
print("this too", file=sys.stderr)
pathlib.Path(os.environ["MFCL_SWEEP_RUN_DIR"], "told.json").write_text(json.dumps(told))
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two nodes of one run were told, each started by its own sweep; and their logs."""
    directory = tmp_path_factory.mktemp("nodes")
    (directory / "work").mkdir()
    (directory / "work" / "node.py").write_text(NODE)
    ports = Ports()
    port = ports.reserve()
    root = {
        "name": "study", "entrypoint": "node.py", "work_dir": str(directory / "work"),
        "overrides": ["a=1"], "env": {"FROM_ROOT": "yes", "OMP_NUM_THREADS": 1},
        "rendezvous": {"backend": "c10d", "id": "7", "conf": "timeout=900"},
    }  # fmt: skip
    sweeps = []
    for rank in range(2):
        entry = {
            "name": "wide", "params": {"lr": 0.1, "amp_dtype": "bf16"}, "nnodes": 2,
            "metadata": {"why": "test"}, "rendezvous": {"endpoint": f"127.0.0.1:{port}"},
        }  # fmt: skip
        output = directory / f"node{rank}"
        grid = root | {"output_dir": str(output), "node_rank": rank, "grid": [entry]}
        (directory / f"grid{rank}.json").write_text(json.dumps(grid))
        words = [sys.executable, "-m", "outlay.sweep", "--enable-sweeps", f"grid{rank}.json"]
        sweeps.append(subprocess.Popen(words, cwd=directory, stdout=subprocess.DEVNULL))
    assert [sweep.wait() for sweep in sweeps] == [0, 0]
    ports.release(port)
    found = []
    for rank in range(2):
        run_dir = directory / f"node{rank}" / "001_wide"
        told = json.loads((run_dir / "told.json").read_text())
        manifest = json.loads((run_dir.parent / "sweep_manifest.json").read_text())
        log = (run_dir / "sweep.log").read_text()
        (run,) = manifest["runs"]
        found.append(told | {"log": log, "command": run["command"], "env": run["env"]})
    return found


def test_two_nodes_of_an_entry_rendezvous_and_get_their_ranks(nodes: list[dict[str, Any]]) -> None:
    assert [told["NNODES"] for told in nodes] == ["2", "2"]
    assert [told["NODE_RANK"] for told in nodes] == ["0", "1"]
    assert [told["WORLD_SIZE"] for told in nodes] == ["2", "2"]
    assert [told["LOCAL_WORLD_SIZE"] for told in nodes] == ["1", "1"]
    assert {told["GROUP_RANK"] for told in nodes} == {"0", "1"}


def test_the_nodes_are_started_with_torchruns_flags(nodes: list[dict[str, Any]]) -> None:
    flags = {"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=7", "--rdzv_conf=timeout=900"}
    for rank, told in enumerate(nodes):
        assert flags | {f"--node_rank={rank}", "--nproc_per_node=1"} <= set(told["command"])
        assert any(word.startswith("--rdzv_endpoint=127.0.0.1:") for word in told["command"])
        assert "--standalone" not in told["command"]


def test_every_key_of_a_grids_root_reaches_the_program(nodes: list[dict[str, Any]]) -> None:
    for told in nodes:
        assert (told["FROM_ROOT"], Path(told["cwd"]).name) == ("yes", "work")
        assert {"a=1", "lr=0.1"} <= set(told["argv"])


def test_a_program_gets_the_documented_variables(nodes: list[dict[str, Any]]) -> None:
    for rank, told in enumerate(nodes):
        assert told["MFCL_SWEEP_RUN_ID"] == "001_wide"
        assert Path(told["MFCL_SWEEP_RUN_DIR"]).parts[-2:] == (f"node{rank}", "001_wide")
        params, metadata = (json.loads(told[f"MFCL_SWEEP_{n}"]) for n in ("PARAMS", "METADATA"))
        assert (params, metadata) == ({"lr": 0.1, "amp_dtype": "bf16"}, {"why": "test"})
        assert (told["NPROC_PER_NODE"], told["env"]["MASTER_ADDR"]) == ("1", "127.0.0.1")
        assert (told["HYDRA_FULL_ERROR"], told["MFCL_AMP_DTYPE"]) == ("1", "bf16")


def planned_commands(tmp_path: Path, entries: list[dict[str, Any]]) -> list[list[str]]:
    """Return the commands of a plan with one run per entry, as the command line shows them."""
    (tmp_path / "grid.json").write_text(json.dumps({"grid": entries}))
    shown = command("sweep", "plan", tmp_path / "grid.json", "--json")
    assert shown.code == 0, shown.err
    return [run["command"] for run in shown.json["runs"]]


def test_values_and_lists_of_parameters_expand_to_their_product(tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    params = {"model": "resnet18", "batch_size": [1, 2], "tau": [0.1, 0.2]}
    grid.write_text(json.dumps({"output_dir": "out", "grid": [{"params": params}]}))
    planned = command("sweep", "plan", grid, "--json").json["runs"]
    stated = [run["params"] for run in planned]
    assert [(one["batch_size"], one["tau"]) for one in stated] == [
        (1, 0.1), (1, 0.2), (2, 0.1), (2, 0.2),
    ]  # fmt: skip
    assert {one["model"] for one in stated} == {"resnet18"}


def test_a_parameter_becomes_its_documented_override(tmp_path: Path) -> None:
    documented = [
        ("model", "resnet18", "model=resnet18"),
        ("method", "simclr", "method=simclr"),
        ("batch_size", 128, "data.batch_size=128"),
        ("tau", 0.2, "method.tau=0.2"),
        ("amp_dtype", "fp16", "train.loss_fp32=false"),
        ("amp_dtype", "bf16", "train.loss_fp32=false"),
        ("amp_dtype", "fp32", "train.loss_fp32=true"),
        ("world_size", 4, "--nproc_per_node=4"),
        ("optim.lr", 0.1, "optim.lr=0.1"),
    ]
    commands = planned_commands(tmp_path, [{"params": {name: v}} for name, v, _ in documented])
    for (*_, override), words in zip(documented, commands, strict=True):
        assert {override, "--standalone"} <= set(words)


CAPS = {"max_comm_bytes": 1000, "max_energy_Wh": 1.5, "steps_per_epoch": 10}


@pytest.mark.parametrize("is_named", [True, False])
def test_a_budget_becomes_its_documented_overrides(tmp_path: Path, *, is_named: bool) -> None:
    documented = [
        ("iso_time", 2.5, "max_minutes"),
        ("iso_tokens", 50_000, "max_tokens"),
        ("iso_epochs", 3, "max_epochs"),
        ("comm_cap", 1000, "max_comm_bytes"),
        ("energy_cap", 1.5, "max_energy_Wh"),
    ]
    entries = []
    for mode, limit, key in documented:
        caps = {name: cap for name, cap in CAPS.items() if name != key}
        entries.append({"budget": {"mode": mode, key if is_named else "limit": limit} | caps})
    commands = planned_commands(tmp_path, entries)
    for (_, limit, key), words in zip(documented, commands, strict=True):
        expected = {"enabled": "true", key: limit} | CAPS
        assert {f"runtime.budget.{name}={value}" for name, value in expected.items()} <= set(words)


def test_the_log_of_a_run_has_both_of_its_streams(nodes: list[dict[str, Any]]) -> None:
    for told in nodes:
        assert "to the log" in told["log"]
        assert "this too" in told["log"]


# -- the spend guard -------------------------------------------------------------------------------

BY_HAND = (
    '{"ts": "2026-01-02T00:00:00Z", "op_label": "a", "estimated": 2.0, "currency": "USD"}\n'
    '{"ts": "2026-01-02T01:00:00Z", "op_label": "a", "actual": 1.5, "currency": "USD"}\n'
)


LAB = """
    import sys
    from outlay import BudgetGuard
    guard = BudgetGuard(ceiling_usd=5.00, log_path=sys.argv[1])
    guard.authorize("lab02-tp-spinup", 3.00)
    print(guard.remaining)
"""


@pytest.mark.parametrize("variable", ["LYNX_CLOUD_BUDGET_USD", "OUTLAY_CEILING_USD"])
@pytest.mark.parametrize(("value", "said"), [(None, "2.0"), ("8.00", "5.0"), ("2.50", "")])
def test_a_variable_overrides_the_ceiling_of_a_lab_that_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None, said: str
) -> None:
    if value is not None:
        monkeypatch.setenv(variable, value)
    done = python(textwrap.dedent(LAB), tmp_path / "spend.jsonl")
    assert done.out.strip() == said
    assert ("BudgetGuardExceeded" in done.err) == (not said)


def test_a_checkpoint_of_the_training_gives_a_new_run_what_is_left(tmp_path: Path) -> None:
    import torch

    with outlay.run("m", dir=tmp_path / "first", budget=outlay.iso_tokens(100)) as run:
        for step in run.steps(range(10), tokens=20):
            if step == 2:
                break
        assert run.budget is not None
        torch.save({"model": {}, "budget": run.budget.snapshot()}, tmp_path / "ckpt_ep0003.pt")
    found = torch.load(tmp_path / "ckpt_ep0003.pt", weights_only=True)["budget"]
    assert (found["mode"], found["limits"]) == ("iso_tokens", {"max_tokens": 100})
    assert found["totals"]["tokens"] == 40
    with outlay.run("m", dir=tmp_path / "second", budget=outlay.iso_tokens(100)) as run:
        assert run.budget is not None
        run.budget.load(found)
        assert len(list(run.steps(range(10), tokens=20))) == 3


def test_every_process_counts_a_log_that_was_written_by_hand(tmp_path: Path) -> None:
    log = tmp_path / "spend.jsonl"
    log.write_text(BY_HAND)
    program = (
        "import sys; from outlay import BudgetGuard; guard = BudgetGuard(5.0, sys.argv[1]); "
        "guard.authorize('b', 1.0); print(guard.total_spent, guard.remaining)"
    )
    assert python(program, log).out == "1.5 2.5\n"
    shown = command("guard", "status", "--log", log, "--ceiling", "5", "--json").json
    amounts = [shown["scopes"][0][name]["micros"] for name in ("spent", "held", "remaining")]
    assert amounts == [1_500_000, 1_000_000, 2_500_000]
    assert log.read_text().startswith(BY_HAND)


def test_the_manifest_of_a_plan_has_the_date_of_the_survey(tmp_path: Path) -> None:
    words = ("--ceiling", "5", "--lab", "02=3", "--vendor", "runpod", "--survey-date", "2026-11-15")
    made = command("guard", "init", tmp_path, *words, "--survey-price", "runpod=0.34")
    assert made.code == 0, made.err
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["vendor_snapshot_date"] == "2026-11-15"
    assert manifest["vendor_snapshot_prices"] == {"runpod": "0.34"}


def test_the_plan_of_the_document_has_its_files_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = Path("experiments/35-cloud-budget")
    caps = ("--lab", "02=3.00", "--lab", "03=0", "--buffer", "2.00")
    assert command("guard", "init", directory, "--ceiling", "5", *caps).code == 0
    assert command("prices", "survey", "-o", directory, "--offline").code == 0
    names = {"vendor-survey.md", "budget.md", "pre-flight-checklist.md", "manifest.json"}
    assert {path.name for path in directory.iterdir()} == names
    assert json.loads((directory / "manifest.json").read_text()) == {
        "seed": 35000, "lab": "00-cloud-budget-and-tooling",
        "hardware_target": "to be filled in lab 02", "vendor": "<chosen>", "currency": "USD",
        "ceiling_usd": 5.0, "ceiling_per_lab": {"02": 3.0, "03": 0.0, "buffer": 2.0},
        "spend_log_path": "experiments/35-cloud-budget/spend.jsonl",
        "vendor_snapshot_date": "", "vendor_snapshot_prices": {},
    }  # fmt: skip
    page = (directory / "budget.md").read_text()
    assert "2 x $0.35/h x 3 h = $2.10" in page
    assert "for setup, container pulls and retries" in page
    survey = (directory / "vendor-survey.md").read_text()
    assert "Assumption, not a price" in survey
    assert "0.70 USD per hour. At most 3 hours = 2.10 USD. Ceiling: 3.00 USD" in survey
    proof = Path("experiments/35-tp-inference/proof-terminated.png")
    proof.parent.mkdir()
    proof.write_bytes(b"a picture")
    shown = command("guard", "postflight", "--label", "lab02", "--proof", proof, "--log", directory)
    assert shown.code == 0, shown.err


# -- goodput ---------------------------------------------------------------------------------------


def test_a_save_on_a_signal_counts_as_checkpoint_save(tmp_path: Path) -> None:
    notices = (signal.SIGUSR1, signal.SIGUSR2)  # Ignored after a notice.
    with handling(notices, lambda *_: None), outlay.run("model", dir=tmp_path) as run:

        def save() -> None:
            with run.span("checkpoint_save"):
                SYSTEM.sleep(0.05)

        run.on_preemption(save)
        for step in run.steps(range(100)):
            SYSTEM.sleep(0.002)
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
    reading = outlay.read_run(tmp_path)
    assert reading.status == "preempted"
    assert reading.phases["checkpoint_save"] >= 50_000_000
