"""The documented way from a grid to its summary, by the documented commands."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlay.sweep.grid.files import plan_file
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.plan.launch import Place, command_of, environment_of
from outlay.sweep.plan.plan import SweepPlan
from outlay.sweep.plan.planning import make_plan
from outlay.sweep.run.harness import SweepOptions
from outlay.sweep.run.sweeps import start
from outlay.sweep.state.manifest import read_events
from waiting import until

STUB = """\
import csv, json, os, pathlib, sys
run = pathlib.Path(os.environ["MFCL_SWEEP_RUN_DIR"])
batch = json.loads(os.environ["MFCL_SWEEP_PARAMS"])["batch_size"]
if batch == 3:
    sys.exit("out of memory")

def write(name, *rows):
    with (run / name).open("w", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(rows)

steps = range(4)
write("timings.csv", *({"step": n, "t_step_ms": 500, "ips_step": 2 * batch} for n in steps))
write("comms.csv", *({"step": n, "bytes_total": 10 * batch} for n in steps))
write("eval.csv", *({"time_minutes": n, "top1": n / 10 * batch} for n in steps))
write("energy.csv", *({"gpu_id": g, "energy_J_cum": 1800} for g in (0, 1)))
write("fidelity.csv", {"grad_cos": 0.5}, {"grad_cos": 1.0})
totals = {"steps": 4, "time_minutes": 2.0, "tokens": 64, "comm_bytes": 40 * batch}
(run / "budget.json").write_text(json.dumps({"totals": totals}))
"""


def module(name: str, *arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", name, *map(str, arguments)],
        capture_output=True, text=True, check=False, env=os.environ | environ,
    )  # fmt: skip


def plan_of(**grid: Any) -> SweepPlan:
    return make_plan(read_grid(json.dumps(grid), source="grid.json", default_name="grid"))


def launched(plan: SweepPlan, number: int, **inherited: str) -> tuple[list[str], dict[str, str]]:
    run = plan.runs[number]
    place = Place(directory=f"/s/{run.id}", port=4242, inherited=inherited)
    return command_of(plan, run, place), environment_of(run, place)


# -- the whole way ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of programs that do not use outlay, and its summary."""
    directory = tmp_path_factory.mktemp("document")
    (directory / "stub.py").write_text(STUB)
    grid = {
        "engine": "process", "entrypoint": str(directory / "stub.py"), "env": {"FROM_ROOT": "1"},
        "grid": [
            {
                "name": "batch", "params": {"batch_size": [1, 2, 3]}, "env": {"FROM_ENTRY": "2"},
                "budget": {
                    "mode": "iso_time", "limit": 2.5, "target_metric": "top1", "target_value": 0.4,
                },
            }
        ],
    }  # fmt: skip
    (directory / "grid.json").write_text(json.dumps(grid))
    root = directory / "sweep"
    done = module("outlay.sweep", "--enable-sweeps", directory / "grid.json", "--output-dir", root)
    assert done.returncode == 1, done.stderr
    done = module("outlay.sweep.aggregate", "--enable-aggregator", "--root", root)
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(scope="module")
def rows(swept: Path) -> list[dict[str, str]]:
    (table,) = (swept / "reports").glob("summary_*.csv")
    with table.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("ips_mean", ["2.0", "4.0"]),
        ("step_time_ms", ["500.0", "500.0"]),
        ("bytes_per_step", ["10.0", "20.0"]),
        ("accuracy_metric", ["top1", "top1"]),
        ("accuracy_value", ["0.3", "0.6"]),
        ("target_value", ["0.4", "0.4"]),
        ("time_to_target_min", ["", "2.0"]),
        ("budget_mode", ["iso_time", "iso_time"]),
        ("limit_max_minutes", ["2.5", "2.5"]),
        ("steps", ["4", "4"]),
        ("time_minutes", ["2.0", "2.0"]),
        ("tokens", ["64", "64"]),
        ("comm_bytes", ["40", "80"]),
        ("energy_Wh", ["1.0", "1.0"]),
        ("fidelity_mean", ["0.75", "0.75"]),
        ("param_batch_size", ["1", "2"]),
        ("world_size", ["1", "1"]),
    ],
)
def test_a_column_has_the_figure_of_the_files(
    column: str, values: list[str], rows: list[dict[str, str]]
) -> None:
    assert [row[column] for row in rows[:2]] == values


def test_a_run_that_failed_is_a_row_with_its_reason(rows: list[dict[str, str]]) -> None:
    assert [row["status"] for row in rows] == ["completed", "completed", "error"]
    assert rows[2]["run_id"] == "003_batch_02"
    assert rows[2]["errors"] == "error: exit code 1"


def test_the_markdown_summary_names_the_best_configuration(swept: Path) -> None:
    page = (swept / "reports" / "summary.md").read_text()
    assert "Best: batch_size=2 with top1 0.6" in page


def test_every_run_has_a_directory_with_its_output(swept: Path) -> None:
    assert sorted(path.parent.name for path in swept.glob("*/sweep.log")) == [
        "001_batch_00", "002_batch_01", "003_batch_02",
    ]  # fmt: skip
    assert (swept / "003_batch_02" / "sweep.log").read_text() == "out of memory\n"


def test_the_manifest_holds_configuration_overrides_environment_and_end(swept: Path) -> None:
    run = json.loads((swept / "sweep_manifest.json").read_text())["runs"][1]
    assert run["params"] == {"batch_size": 2}
    assert "data.batch_size=2" in run["overrides"]
    assert "runtime.budget.max_minutes=2.5" in run["command"]
    assert run["metadata"] == {
        "budget_mode": "iso_time", "budget_limit_key": "max_minutes", "budget_limit_value": 2.5,
        "target_metric": "top1", "target_value": 0.4, "target_direction": "max",
    }  # fmt: skip
    stated = {"FROM_ROOT": "1", "FROM_ENTRY": "2", "MFCL_SWEEP_RUN_ID": "002_batch_01"}
    assert stated.items() <= run["env"].items()
    assert (run["status"], run["returncode"]) == ("completed", 0)
    assert run["started_at"] <= run["finished_at"]


# -- ports --------------------------------------------------------------------------------------


def test_a_port_of_the_environment_is_used_by_program_and_torchrun() -> None:
    plan = plan_of(grid=[{"nnodes": 1, "env": {"MASTER_ADDR": "10.0.0.1"}}])
    command, environ = launched(plan, 0, MASTER_PORT="1234", MASTER_ADDR="10.0.0.9")
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("10.0.0.1", "1234")
    assert {"--master_addr=10.0.0.1", "--master_port=1234"} <= set(command)


def test_runs_at_the_same_time_get_different_ports(tmp_path: Path) -> None:
    meet = "cd $MFCL_SWEEP_RUN_DIR/..; touch up{x}; until [ -e up1 -a -e up2 ]; do sleep 0.02; done"
    grid = {
        "engine": "process", "arguments": "none", "entrypoint": ["sh", "-c", meet],
        "output_dir": str(tmp_path / "sweep"), "grid": [{"params": {"x": [1, 2]}}],
    }  # fmt: skip
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    result = start(plan_file(tmp_path / "grid.json"), None, SweepOptions(jobs=2))
    assert result.counts == {"completed": 2}
    ports = {event.env["MASTER_PORT"] for event in read_events(result.root) if event.ticket}
    assert len(ports) == 2


# -- keys ---------------------------------------------------------------------------------------


def test_every_key_of_the_root_reaches_all_runs() -> None:
    plan = plan_of(
        name="n", entrypoint="go.py", output_dir="out", work_dir="work", overrides=["a=1"],
        env={"X": 1}, nnodes=3, node_rank=2,
        rendezvous={"backend": "c10d", "endpoint": "h:1", "id": "i", "conf": "k=v"},
        grid=[{}, {}],
    )  # fmt: skip
    assert (plan.grid.name, plan.grid.output_dir, plan.grid.work_dir) == ("n", "out", "work")
    for number in range(2):
        command, environ = launched(plan, number)
        assert {
            "go.py", "a=1", "--nnodes=3", "--node_rank=2", "--rdzv_backend=c10d",
            "--rdzv_endpoint=h:1", "--rdzv_id=i", "--rdzv_conf=k=v",
        } <= set(command)  # fmt: skip
        assert (environ["X"], environ["NNODES"], environ["NODE_RANK"]) == ("1", "3", "2")


def test_every_key_of_an_entry_reaches_its_own_runs_alone() -> None:
    plan = plan_of(
        env={"X": "root"},
        grid=[
            {
                "name": "own", "params": {"lr": 1}, "overrides": ["b=2"], "env": {"X": "entry"},
                "budget": {"mode": "iso_tokens", "max_tokens": 9}, "metadata": {"why": "test"},
                "nnodes": 2, "node_rank": 1, "rendezvous": {"backend": "c10d", "endpoint": "h:1"},
            },
            {},
        ],
    )  # fmt: skip
    command, environ = launched(plan, 0)
    assert {"lr=1", "b=2", "runtime.budget.max_tokens=9", "--nnodes=2", "--node_rank=1"} <= set(
        command
    )
    assert (plan.runs[0].id, environ["X"]) == ("001_own", "entry")
    assert json.loads(environ["MFCL_SWEEP_METADATA"])["why"] == "test"
    command, environ = launched(plan, 1)
    assert command[:6] == ["python", "-m", "torch.distributed.run", "--standalone",
                           "--nproc_per_node=1", "train.py"]  # fmt: skip
    assert (plan.runs[1].id, environ["X"], environ["NNODES"]) == ("002_group01", "root", "1")


# -- the manifest while it runs -------------------------------------------------------------------


def test_the_manifest_has_the_end_of_a_run_while_the_next_runs(tmp_path: Path) -> None:
    script = "cd $MFCL_SWEEP_RUN_DIR/..; test {x} = 1 || until [ -e go ]; do sleep 0.02; done"
    root = tmp_path / "sweep"
    grid = {
        "engine": "process", "arguments": "none", "entrypoint": ["sh", "-c", script],
        "output_dir": str(root), "grid": [{"params": {"x": [1, 2]}}],
    }  # fmt: skip
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    command = [sys.executable, "-m", "outlay", "sweep", "run", "--yes", f"{tmp_path}/grid.json"]
    harness = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(lambda: _statuses(root) == ["completed", "running"], lambda: str(_statuses(root)))
        (root / "go").touch()
        assert harness.wait() == 0
    finally:
        harness.kill()
        harness.wait()
    assert _statuses(root) == ["completed", "completed"]


def _statuses(root: Path) -> list[str]:
    try:
        return [
            run["status"] for run in json.loads((root / "sweep_manifest.json").read_text())["runs"]
        ]
    except FileNotFoundError:
        return []
