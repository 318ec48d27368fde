"""The examples of trainings, each run as its README prints it, in a copy of its directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import outlay

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.xdist_group("examples")


def commands_in(readme: Path) -> str:
    """Return the commands of a README, but for those that install."""
    (block,) = re.findall(r"```console\n(.*?)```", readme.read_text(), re.DOTALL)
    return "".join(line for line in block.splitlines(True) if not line.startswith("pip "))


@pytest.mark.parametrize(
    ("name", "run_dir", "steps", "tokens", "printed"),
    [
        ("transformers", "runs/transformers", 31, 31 * 8 * 16, "stopped after 31 steps"),
        ("lightning", "runs/lightning", 62, 62 * 16, "stopped after 62 steps"),
        ("torch_ddp", "runs/ddp", 390, 390 * 2 * 2 * 32, "stopped after 390 micro-batches"),
    ],
)
def test_an_example_stops_at_its_budget_by_the_commands_of_its_readme(
    name: str, run_dir: str, steps: int, tokens: int, printed: str, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLES / name, tmp_path, dirs_exist_ok=True)
    commands = commands_in(tmp_path / "README.md")
    done = subprocess.run(
        ["bash", "-e"], input=commands, capture_output=True, text=True,
        cwd=tmp_path, check=False, start_new_session=True,
        env=os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert printed in done.stdout
    run = outlay.read_run(tmp_path / run_dir)
    assert (run.figures.steps, run.figures.tokens, run.status) == (steps, tokens, "completed")
    assert run.budget is not None
