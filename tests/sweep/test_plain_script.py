"""``examples/plain_script``, swept as its page says; budgets that are enforced from outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import outlay
from command_line import in_process
from command_line import outlay as run_outlay
from outlay.clock import ManualClock
from outlay.sweep.run.outside_budget import OutsideBudget
from outlay.sweep.state.manifest import SweepManifest, read_manifest
from outlay.sweep.state.outcomes import RunVerdict
from papers import ROOT

EXAMPLE = ROOT / "examples" / "plain_script"
PAGE = ROOT / "docs" / "howto" / "programs.md"


def test_the_example_ends_at_its_budgets_by_the_commands_of_its_readme(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    (commands,) = re.findall(r"```console\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.S)
    done = subprocess.run(
        ["bash", "-e"], input=commands, capture_output=True, text=True, cwd=tmp_path, check=False,
        start_new_session=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    plain = read_manifest(tmp_path / "runs" / "plain")
    assert reasons(plain) == [("completed", "reached its budget of 2.0s")] * 2
    recorded = read_manifest(tmp_path / "runs" / "recorded")
    assert reasons(recorded) == [("completed", "")] * 2
    for run in recorded.runs:
        read = outlay.read_run(recorded.root / run)
        assert (read.figures.steps or 0) > 0
        assert read.budget is not None
        assert "time: " in (read.budget.stop_reason or "")


def test_the_page_shows_the_scripts_of_the_example() -> None:
    shown = re.findall(r"<!-- file: (\w+\.py) -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    assert dict(shown) == {path.name: path.read_text() for path in EXAMPLE.glob("*.py")}


def reasons(manifest: SweepManifest) -> list[tuple[str, str]]:
    states = [manifest.state(run) for run in manifest.runs]
    return [(state.status, state.reason) for state in states]


# Budgets that are enforced from outside.


def swept(tmp_path: Path, script: str, budget: dict[str, Any], **more: Any) -> SweepManifest:
    """Run a sweep of one shell script."""
    grid = {
        "engine": "process", "arguments": "none", "entrypoint": ["sh", "-c", script],
        "output_dir": str(tmp_path / "sweep"), "grid": [{"name": "a", "budget": budget}],
    }  # fmt: skip
    (tmp_path / "g.json").write_text(json.dumps(grid | more))
    run_outlay("sweep", "run", tmp_path / "g.json", "--yes")
    return read_manifest(tmp_path / "sweep")


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        ({"mode": "iso_time", "limit": "1s", "max_cost_usd": 9}, "1.0s"),
        ({"mode": "iso_cost", "limit": "1 USD", "max_minutes": 9}, "1.00 USD"),
    ],
)
def test_a_program_that_records_nothing_is_ended_at_the_first_limit_on_time_or_cost(
    tmp_path: Path, budget: dict[str, Any], text: str
) -> None:
    manifest = swept(tmp_path, "exec sleep 600", budget | {"enforce": True}, price="3600 USD/h")
    assert reasons(manifest) == [("completed", f"reached its budget of {text}")]
    cost = manifest.state("001_a").cost_micros
    assert cost is not None
    assert cost >= 1_000_000
    end = outlay.read_run(manifest.root / "001_a").status
    assert end == "completed"


def test_a_program_that_fails_before_its_budget_has_failed(tmp_path: Path) -> None:
    budget = {"mode": "iso_time", "limit": "10m", "enforce": True}
    assert reasons(swept(tmp_path, "exit 3", budget)) == [("error", "exit code 3")]


def test_a_program_that_records_is_left_to_stop_itself(tmp_path: Path, clock: ManualClock) -> None:
    limit = OutsideBudget(limit_ns=10, reached="1s", directory=tmp_path, since_ns=clock.wall_ns())
    assert limit.verdict(9) is None
    assert limit.verdict(10) == RunVerdict("completed", "reached its budget of 1s")
    clock.advance(1)
    with outlay.run("toy", dir=tmp_path, clock=clock):
        assert limit.verdict(10) is None
        earlier = replace(limit, since_ns=clock.wall_ns() + 1)  # The run's is another attempt's.
        assert earlier.verdict(10) is not None


@pytest.mark.parametrize(
    ("grid", "problem"),
    [
        ({"budget": {"mode": "iso_tokens", "limit": 9, "enforce": True}}, "time and cost alone"),
        ({"budget": {"mode": "iso_cost", "limit": 9, "enforce": True}}, "add `price"),
        ({"budget": {"mode": "iso_time", "limit": 9, "enforce": "yes"}}, "true or false"),
        (
            {"engine": "slurm", "budget": {"mode": "iso_time", "limit": 9, "enforce": True}},
            "only at",
        ),
    ],
)
def test_a_budget_that_cannot_be_enforced_from_outside_is_refused(
    tmp_path: Path, grid: dict[str, Any], problem: str
) -> None:
    (tmp_path / "g.json").write_text(json.dumps({**grid, "grid": [{"params": {"a": 1}}]}))
    shown = in_process("sweep", "plan", tmp_path / "g.json")
    assert shown.code == 2
    assert problem in shown.err


@pytest.mark.parametrize(
    ("more", "enforced"),
    [([], True), (["--records"], False), (["--style", "overrides"], False)],
)
def test_on_a_command_line_a_budget_is_enforced_unless_the_program_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], *, enforced: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    words = ("sweep", "run", "train.py", "--budget", "iso_time=9m", "--dir", "sweep", "--yes")
    assert in_process(*words, *more).code == 0
    assert ("enforce: true" in (tmp_path / "sweep" / "sweep_grid.yaml").read_text()) == enforced
    refused = in_process("sweep", "plan", "train.py", "--budget", "iso_tokens=9", *more)
    assert (refused.code == 2) == enforced
