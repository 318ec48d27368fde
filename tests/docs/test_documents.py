"""The examples and commands in the documents of the tools that outlay replaces.

Only import lines and names of modules differ. The snippets of cost analysis are in
test_cost_snippets, those of goodput in test_compat_document.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

import outlay
from command_line import Outcome, run_module
from command_line import outlay as command
from cost_snippets import QUICK_START
from cost_snippets import run as run_snippet
from fake_vendor import as_json, serving
from vendor_shapes import vast_answer

# -- runtime budgets ------------------------------------------------------------------------------

BUDGET = """
budget:
  enabled: true
  mode: iso_tokens        # iso_time | iso_tokens | iso_epochs | comm_cap | energy_cap
  max_tokens: 50_000      # required for iso_tokens
  max_minutes: null       # required for iso_time
  max_epochs: null        # required for iso_epochs
  max_comm_bytes: null    # optional hard cap in any mode
  max_energy_Wh: null     # optional hard cap in any mode
  steps_per_epoch: null   # optional override when loader length is unknown
"""


def trained_under(tmp_path: Path, group: str) -> Path:
    """Train with ``configs/runtime/default.yaml``, and return the run's directory."""
    configs, run_dir = tmp_path / "configs", tmp_path / "run"
    (configs / "runtime").mkdir(parents=True)
    (configs / "runtime" / "default.yaml").write_text(group)
    (configs / "config.yaml").write_text("defaults:\n  - runtime: default\n  - _self_\n")
    with initialize_config_dir(str(configs), version_base="1.3"):
        config = compose("config")
    with outlay.run("model", dir=run_dir, budget=config) as run:
        for _ in run.steps(range(10), tokens=20_000):
            pass
    return run_dir


@pytest.mark.hydra
def test_the_configuration_of_a_budget_ends_training_and_leaves_its_summary(tmp_path: Path) -> None:
    written = json.loads((trained_under(tmp_path, BUDGET) / "budget.json").read_text())
    assert (written["mode"], written["limits"]) == ("iso_tokens", {"max_tokens": 50_000})
    assert written["totals"]["tokens"] == 40_000


@pytest.mark.hydra
def test_a_budget_that_is_not_enabled_leaves_training_as_it_was(tmp_path: Path) -> None:
    run_dir = trained_under(tmp_path, BUDGET.replace("enabled: true", "enabled: false"))
    assert not (run_dir / "budget.json").exists()


# -- cost -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cost_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outlay home of a user who has run the quick start."""
    home = tmp_path_factory.mktemp("cost")
    with serving(as_json(vast_answer())) as vendor, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTLAY_HOME", str(home))
        patch.setenv("OUTLAY_VAST_URL", vendor.url)
        run_snippet(QUICK_START)
    return home


def cost_report(home: Path, patch: pytest.MonkeyPatch, *flags: str) -> Outcome:
    """Run ``python -m MODULE FLAGS``, where the document has the path of a script."""
    with serving(as_json(vast_answer())) as vendor:
        patch.setenv("OUTLAY_HOME", str(home))
        for name in ("VAST", "RUNPOD", "LAMBDA"):
            patch.setenv(f"OUTLAY_{name}_URL", vendor.url)
        return run_module("outlay.compat.cost_module", *flags)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--summary"], "bert-base"),
        (["--fetch-prices"], "vast: 2 offers"),
        (["--prices"], "RTX"),
        (["--model", "bert-base"], "36.75"),
        (["--recommendations"], ""),
        (["--budget"], "bert-base"),
        (["--forecast", "bert-base", "5"], "183.75"),
        (["--set-budget", "bert-base", "1000.0"], "1000.00"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_a_flag_of_the_cost_report_script(
    cost_home: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], shown: str
) -> None:
    done = cost_report(cost_home, monkeypatch, *flags)
    assert done.code == 0, done.err
    assert shown in done.out


# -- sweeps ---------------------------------------------------------------------------------------

TRAINING = """
import json, os, pathlib
run_dir = pathlib.Path(os.environ["MFCL_SWEEP_RUN_DIR"])
metric = json.loads(os.environ["MFCL_SWEEP_METADATA"])["target_metric"]
(run_dir / "timings.csv").write_text("step,epoch,t_step_ms,ips_step\\n1,0,48,210\\n2,0,52,190\\n")
(run_dir / "comms.csv").write_text("step,bytes_total\\n1,1500\\n2,1500\\n")
(run_dir / "linear_eval.csv").write_text(f"step,{metric},time_minutes\\n1,65,0.5\\n2,78,0.8\\n")
totals = {"tokens": 2048, "time_ms": 60000.0, "time_minutes": 1.0, "comm_bytes": 3000.0,
          "energy_Wh": 1.25, "steps": 2, "epochs": 0.1}
budget = {"mode": "iso_time", "limits": {"max_minutes": 2.5}, "totals": totals}
(run_dir / "budget.json").write_text(json.dumps(budget))
"""
GRID = """
name: spec9_demo
engine: process
entrypoint: train.py
grid:
  - name: good
    params: {model: [resnet18, resnet50], method: simclr, batch_size: 128, amp_dtype: bf16}
    budget: {mode: iso_time, limit: 2.5, target_metric: linear.top1, target_value: 70.0}
"""


def module(name: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", name, *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a sweep that both commands of the document have been given."""
    directory = tmp_path_factory.mktemp("sweep")
    (directory / "train.py").write_text(TRAINING)
    (directory / "path" / "to").mkdir(parents=True)
    (directory / "path" / "to" / "grid.yaml").write_text(GRID)
    ran = module("outlay.sweep", "--enable-sweeps", "path/to/grid.yaml", cwd=directory)
    assert ran.returncode == 0, ran.stderr
    (root,) = (directory / "runs").iterdir()
    words = ("--enable-aggregator", "--root", str(root))
    summed_up = module("outlay.sweep.aggregate", *words, cwd=directory)
    assert summed_up.returncode == 0, summed_up.stderr
    return root


def test_a_sweep_is_run_by_its_documented_command(sweep: Path) -> None:
    runs = json.loads((sweep / "sweep_manifest.json").read_text())["runs"]
    assert [(run["id"], run["status"]) for run in runs] == [
        ("001_good_00", "completed"),
        ("002_good_01", "completed"),
    ]
    stated = {"model=resnet18", "method=simclr", "data.batch_size=128", "train.loss_fp32=false"}
    assert stated | {"runtime.budget.max_minutes=2.5"} <= set(runs[0]["overrides"])
    assert runs[0]["env"]["MFCL_AMP_DTYPE"] == "bf16"


def test_a_sweep_is_summarised_by_its_documented_command(sweep: Path) -> None:
    (table,) = (sweep / "reports").glob("summary_*.csv")
    with table.open() as stream:
        row, _ = csv.DictReader(stream)
    assert (row["step_time_ms"], row["bytes_per_step"]) == ("50.0", "1500.0")
    assert (row["accuracy_value"], row["time_to_target_min"]) == ("78.0", "0.8")
    assert (row["accuracy_metric"], row["target_value"]) == ("linear.top1", "70.0")
    page = (sweep / "reports" / "summary.md").read_text()
    assert f"`{table.name}`" in page
    assert {"`ips_mean`", "`param_model`", "`time_to_target_min`"} <= set(
        re.findall("`[^`]+`", page)
    )


# -- the spend guard ------------------------------------------------------------------------------

GUARD_TEST = """
from pathlib import Path

import pytest
from outlay import BudgetGuard, BudgetGuardExceeded


def test_the_lab():
    guard = BudgetGuard(ceiling_usd=5.00, log_path=Path("experiments/35-cloud-budget/spend.jsonl"))
    guard.authorize("lab02-tp-spinup", 3.00)
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("hypothetical-lab", 10.00)
    guard.record_actual("lab02-tp-spinup", 2.10)
    assert (guard.total_spent, guard.remaining) == (2.10, 2.90)
"""


@pytest.mark.parametrize("is_testing", [True, False])
def test_the_guards_own_test_runs_and_its_mode_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_testing: bool
) -> None:
    test = tmp_path / "tests" / "minitrain" / "test_budget_guard.py"
    test.parent.mkdir(parents=True)
    (tmp_path / "experiments" / "35-cloud-budget").mkdir(parents=True)
    test.write_text(GUARD_TEST)
    monkeypatch.chdir(tmp_path)
    if is_testing:
        monkeypatch.setenv("BUDGET_GUARD_TEST_MODE", "1")
    done = run_module("pytest", "tests/minitrain/test_budget_guard.py", "-q")
    assert done.code == 0, done.out
    assert "1 passed" in done.out
    log = tmp_path / "experiments" / "35-cloud-budget" / "spend.jsonl"
    assert log.exists() is not is_testing


MANIFEST = """
{
"seed": 35000,
"lab": "00-cloud-budget-and-tooling",
"hardware_target": "to be filled in lab 02",
"vendor": "<chosen>",
"currency": "USD",
"ceiling_usd": 5.00,
"ceiling_per_lab": {"02": 3.00, "buffer": 2.00},
"spend_log_path": "experiments/35-cloud-budget/spend.jsonl",
"vendor_snapshot_date": "<lab date>",
"vendor_snapshot_prices": {"<vendor>": "<per-gpu $/hr>"}
}
"""


def test_the_documented_manifest_limits_a_vendors_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlay import BudgetGuard, BudgetGuardExceeded

    monkeypatch.chdir(tmp_path)
    directory = Path("experiments/35-cloud-budget")
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(MANIFEST)
    manifest = json.loads((directory / "manifest.json").read_text())
    guard = BudgetGuard(manifest["ceiling_usd"], Path(manifest["spend_log_path"]))
    guard.authorize("lab02-tp-spinup", 3.00)
    subprocess.run([sys.executable, "-c", "print('runpodctl create')"], check=True)
    guard.record_actual("lab02-tp-spinup", 2.10)
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("lab02-tp-spinup", 1.00)  # The lab has 3.00, of which 2.10 are spent.
    scopes = command("guard", "status", "--log", directory, "--json").json["scopes"]
    assert [each["remaining"]["micros"] for each in scopes] == [2_900_000, 900_000, 2_000_000]
    lines = [json.loads(line) for line in (directory / "spend.jsonl").read_text().splitlines()]
    assert {"ts", "op_label", "estimated", "currency"} <= set(lines[0])
    assert (lines[-1]["op_label"], lines[-1]["actual"]) == ("lab02-tp-spinup", 2.1)


def test_the_variable_tightens_the_ceiling_without_touching_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlay import BudgetGuard, BudgetGuardExceeded

    monkeypatch.setenv("LYNX_CLOUD_BUDGET_USD", "2.50")
    guard = BudgetGuard(ceiling_usd=5.00, log_path=tmp_path / "spend.jsonl")
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("lab02-tp-spinup", 3.00)
    assert guard.remaining == 2.50
