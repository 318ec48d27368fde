"""The examples of trainings, each run as its README prints it, in a copy of its directory.

That they add at most eight lines is computed: their code without the lines of the README's diff has
no outlay in it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import outlay
from outlay import ledger

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.xdist_group("examples")


def commands_in(readme: Path) -> str:
    """Return the commands of a README, but for those that install."""
    (block,) = re.findall(r"```console\n(.*?)```", readme.read_text(), re.DOTALL)
    return "".join(line for line in block.splitlines(True) if not line.startswith("pip "))


def code_of(file: Path) -> str:
    """Return the code of a script, or of a notebook's cells."""
    if file.suffix != ".ipynb":
        return file.read_text()
    cells = json.loads(file.read_text())["cells"]
    return "".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")


def without_outlay(name: str) -> str:
    """Return an example's code with the diff of its README taken back."""
    (diff,) = re.findall(
        r"```diff\n(.*?)```", (EXAMPLES / name / "README.md").read_text(), re.DOTALL
    )
    code, instead = code_of(EXAMPLES / name / FILES[name]), ""
    assert sum(line.startswith("+") for line in diff.splitlines()) <= 8
    for line in diff.splitlines(keepends=True):
        if line[0] == "-":
            instead = line[1:]
        if line[0] == "+":
            head, found, tail = code.partition(f"\n{line[1:]}")
            assert found, line
            code, instead = f"{head}\n{instead}{tail}", ""
    return code


def python(code: str, directory: Path) -> str:
    """Run code as a script of its own and return what it printed."""
    (directory / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, check=False, cwd=directory
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def steps_s(run_dir: Path) -> float:
    """Return the time of the steps of rank 0, without the spans inside them, as recorded."""
    found = ledger.read_run(run_dir).segments.items()
    records = next(each for segment, each in found if segment.rank == 0)
    begun = {each.seq: each.t_ns for each in records if isinstance(each, ledger.SpanBegun)}
    spans = [each for each in records if isinstance(each, ledger.SpanEnded)]
    steps = [each for each in records if isinstance(each, ledger.Step)]
    inside = [
        (span.t_ns - begun[span.begun])
        for span in spans
        for step in steps
        if step.t_ns - step.dur_ns <= begun[span.begun] and span.t_ns <= step.t_ns
    ]
    return (sum(step.dur_ns for step in steps) - sum(inside)) / 1e9


FILES = {"notebook": "training.ipynb"} | dict.fromkeys(
    ("while_true", "jax_loop", "torch_ddp", "lightning", "transformers"), "train.py"
)


@pytest.mark.parametrize("name", FILES)
def test_what_was_added_is_the_diff_of_at_most_8_lines_in_the_readme(name: str) -> None:
    plain = without_outlay(name)
    compile(plain, name, "exec")
    assert re.findall(r"\b(outlay|run\.|callback\b).*", plain.split('"""')[-1]) == []


def test_the_loop_is_as_its_own_stopwatch_and_counter_say(tmp_path: Path) -> None:
    counted = json.loads(
        python(code_of(EXAMPLES / "while_true/train.py"), tmp_path).splitlines()[-1]
    )
    read = outlay.read_run(tmp_path / "runs/while_true")
    assert (read.figures.steps, read.figures.tokens) == (counted["iters"], counted["tokens"])
    assert counted["tokens"] == 34 * 1024
    # Its stopwatches run within what outlay measures, and that within its loop.
    loop_s, train_s, eval_s = (counted[f"{each}_s"] for each in ("loop", "train", "eval"))
    assert train_s <= steps_s(tmp_path / "runs/while_true") <= loop_s - eval_s
    assert eval_s <= read.phases["evaluation"] / 1e9 <= loop_s - train_s


def test_a_loop_that_ended_early_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    code = code_of(EXAMPLES / "while_true/train.py")
    first = json.loads(python(code.replace("1000", "15"), tmp_path).splitlines()[-1])
    second = json.loads(python(code, tmp_path).splitlines()[-1])
    assert (first["iters"], second["iters"]) == (15, 34)
    assert second["tokens"] == (34 - 10) * 1024
    figures = outlay.read_run(tmp_path / "runs/while_true").figures
    assert (figures.steps, figures.attempts) == (34, 2)


def test_the_loop_without_outlay_trains_the_same(tmp_path: Path) -> None:
    with_it = python(code_of(EXAMPLES / "while_true/train.py"), tmp_path).splitlines()
    (tmp_path / "alone").mkdir()
    alone = python(without_outlay("while_true"), tmp_path / "alone").splitlines()
    assert with_it[:-1] == alone[: len(with_it) - 1]


def test_the_notebook_runs_and_its_last_cells_show_the_run(tmp_path: Path) -> None:
    cells = code_of(EXAMPLES / "notebook/training.ipynb")
    shown = 'outlay.list_runs("runs")\n'
    assert cells.endswith(shown)
    printed = python(
        f"{cells[: -len(shown)]}\nprint(outlay.list_runs('runs')._repr_html_())", tmp_path
    )
    assert "31 batches" in printed
    assert "<table" in printed
    figures = outlay.read_run(tmp_path / "runs/notebook").figures
    assert (figures.steps, figures.tokens, figures.status) == (31, 31 * 32, "completed")


@pytest.mark.parametrize(
    ("name", "run_dir", "steps", "tokens", "printed"),
    [
        ("transformers", "runs/transformers", 31, 31 * 8 * 16, "stopped after 31 steps"),
        ("lightning", "runs/lightning", 62, 62 * 16, "stopped after 62 steps"),
        ("torch_ddp", "runs/ddp", 390, 390 * 2 * 2 * 32, "stopped after 390 micro-batches"),
        ("jax_loop", "runs/jax", 156, 156 * 64, "stopped after 156 steps"),
    ],
)
def test_an_example_stops_at_its_budget_as_its_own_counter_and_stopwatch_say(
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
    (said,) = re.findall(rf"{printed}: .*", done.stdout)
    stopwatch = {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+) s\b", said)}
    run = outlay.read_run(tmp_path / run_dir)
    assert (run.figures.steps, run.figures.tokens, run.status) == (steps, tokens, "completed")
    assert run.budget is not None
    # Their stopwatches: around the work of a step, if it has one, and around the loop.
    assert stopwatch.get("train", 0) <= steps_s(tmp_path / run_dir) <= stopwatch["loop"]
    assert stopwatch["loop"] <= run.figures.wall_ns / 1e9
