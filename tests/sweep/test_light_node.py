"""What runs on a node needs two small packages, and loads neither SQL nor HTTP nor the CLI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import platformdirs
import pytest
import typing_extensions

import outlay
from outlay.decoding import read_document
from outlay.proc.exit_record import ExitRecord, exit_path
from outlay.sweep.engines.base import Task
from outlay.sweep.engines.remote.spec_writer import spec_of, write_spec

NEEDED = (msgspec, platformdirs, typing_extensions, outlay)
TRAINING = """
import sys, outlay
with outlay.run("m", budget=outlay.iso_tokens(300), price="1 USD/h") as run:
    run.on_stop(run.checkpoint_committed)
    for _ in run.steps(iter(int, 1), tokens=100):
        run.metric("loss", 1.0)
loaded = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print("loaded", *sorted(loaded - {"__main__"}))
"""


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """The environment of a node with a Python that has outlay and what it needs there alone."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for module in NEEDED:
        path = Path(str(module.__file__))
        path = path.parent if path.name == "__init__.py" else path
        (packages / path.name).symlink_to(path)
    return {"PYTHONPATH": str(packages), "HOME": str(tmp_path), "PATH": os.defpath}


def test_a_job_runs_on_a_node_with_two_small_packages(
    tmp_path: Path, image: dict[str, str]
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    task = Task(
        name="run", ticket="ray/run/0", command=(sys.executable, "-S", "-c", TRAINING),
        env={"OUTLAY_RUN_DIR": str(directory)}, cwd=tmp_path, directory=directory,
        log=directory / "log",
    )  # fmt: skip
    path = write_spec(spec_of(task, notice_ns=10**9))
    command = [sys.executable, "-S", "-m", "outlay.sweep.engines.ray.node", str(path)]
    done = subprocess.run(command, env=image, check=False, capture_output=True, text=True)
    printed = task.log.read_text()
    assert (done.returncode, done.stderr) == (0, ""), printed
    assert "loaded msgspec outlay platformdirs typing_extensions" in printed
    assert read_document(exit_path(directory), ExitRecord).returncode == 0
    assert outlay.read_run(directory).figures.tokens == 300


@pytest.mark.parametrize(
    "module",
    ["outlay.sweep.engines.ray.node", "outlay.sweep.engines.slurm.job", "outlay.proc.keeper"],
)
def test_the_processes_of_a_node_load_nothing_else(image: dict[str, str], module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", code]
    loaded = subprocess.run(command, env=image, check=True, capture_output=True, text=True)
    unwanted = {"outlay.cli", "outlay.store.runs", "http.client", "asyncio", "ssl", "sqlite3"}
    assert unwanted & set(loaded.stdout.split()) == set()
