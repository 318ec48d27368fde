"""The examples of trainings, each run as its README prints it, in a copy of its directory.

That they add at most eight lines is computed: their code without the lines of the README's diff has
no outlay in it. Stopwatches in the examples, or in their trainers, read the same clock inside of
what outlay measures and around it: a slow machine cannot make a comparison of the two fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
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


def records_of_rank_0(run_dir: Path) -> list[ledger.Record]:
    """Return what rank 0 recorded."""
    found = ledger.read_run(run_dir).segments.items()
    return next(each for segment, each in found if segment.rank == 0)


def steps_in(run_dir: Path) -> list[ledger.Step]:
    """Return the steps of rank 0, as recorded."""
    return [each for each in records_of_rank_0(run_dir) if isinstance(each, ledger.Step)]


def steps_ns(run_dir: Path) -> int:
    """Return the time of the steps of rank 0, without the spans inside them, as recorded."""
    records, steps = records_of_rank_0(run_dir), steps_in(run_dir)
    begun = {each.seq: each.t_ns for each in records if isinstance(each, ledger.SpanBegun)}
    spans = [each for each in records if isinstance(each, ledger.SpanEnded)]
    inside = [
        (span.t_ns - begun[span.begun])
        for span in spans
        for step in steps
        if step.t_ns - step.dur_ns <= begun[span.begun] and span.t_ns <= step.t_ns
    ]
    return sum(step.dur_ns for step in steps) - sum(inside)


def stopwatches_in(printed: str) -> dict[str, int]:
    """Return what an example's stopwatches show, in nanoseconds."""
    return {name: int(ns) for name, ns in re.findall(r"(\w+) (\d+) ns\b", printed)}


def check_loop(run_dir: Path, stopwatches: Mapping[str, int]) -> None:
    """Compare the steps of a run with the stopwatches of its program.

    Args:
        run_dir: Where the run is.
        stopwatches: ``train`` within each step, and ``loop`` around all steps and within the run.
    """
    assert 0 < stopwatches["train"] <= steps_ns(run_dir)
    passed_ns = sum(step.dur_ns + step.wait_ns for step in steps_in(run_dir))
    assert passed_ns <= stopwatches["loop"] <= outlay.read_run(run_dir).figures.wall_ns


def check_wall(run_dir: Path, around_ns: int) -> None:
    """Compare the time of a run, and its parts, with a stopwatch around its process."""
    run = outlay.read_run(run_dir)
    assert sum(run.phases.values()) == run.figures.wall_ns
    assert 0 < run.phases["step"] <= steps_ns(run_dir) <= run.figures.wall_ns
    # The kernel tells when a process started in ticks, rounded down.
    assert run.figures.wall_ns <= around_ns + 10**9 // os.sysconf("SC_CLK_TCK")


STOPWATCH = """\
import json, runpy, time
import {library} as library

laps = {{}}

class Mark(library.{callback}):
    def __init__(self, place):
        self.place = place
    def mark(self, name):
        laps.setdefault(f"{{self.place}} {{name}}", []).append(time.perf_counter_ns())
    def {begin}(self, *args, **kwargs):
        self.mark("begin")
    def {end}(self, *args, **kwargs):
        self.mark("end")

init = library.Trainer.__init__

def watched(self, *args, callbacks, **kwargs):
    init(self, *args, callbacks=[Mark("first"), *callbacks, Mark("last")], **kwargs)

library.Trainer.__init__ = watched
runpy.run_path("train.py", run_name="__main__")
with open("laps.json", "w") as stream:
    json.dump(laps, stream)
"""
TRAINERS = {
    "transformers": ("TrainerCallback", "on_step_begin", "on_step_end"),
    "lightning": ("Callback", "on_train_batch_start", "on_train_batch_end"),
}


def with_stopwatch(name: str, commands: str, directory: Path) -> str:
    """Return the commands with a stopwatch in the Trainer: before and after its callbacks."""
    callback, begin, end = TRAINERS[name]
    code = STOPWATCH.format(library=name, callback=callback, begin=begin, end=end)
    (directory / "watched.py").write_text(code)
    assert "python train.py\n" in commands
    return commands.replace("python train.py\n", "python watched.py\n")


def check_laps(run_dir: Path, laps: Mapping[str, list[int]]) -> None:
    """Compare each step with the stopwatch in the Trainer.

    Callbacks are called in order, so that the last one's begin and the first one's end are within
    what is recorded, and the first one's begin and the last one's end are around it. A batch that
    was refused has a begin alone.
    """
    steps = steps_in(run_dir)
    assert len(laps["last begin"]) == len(laps["last end"]) == len(steps)
    pairs = (("last begin", "first end"), ("first begin", "last end"))
    within, around = (
        [end - begin for begin, end in zip(laps[first], laps[last], strict=False)]
        for first, last in pairs
    )
    assert [
        (step.step, inner, step.dur_ns, outer)
        for step, inner, outer in zip(steps, within, around, strict=True)
        if not 0 < inner <= step.dur_ns <= outer
    ] == []


FILES = {"notebook": "training.ipynb"} | dict.fromkeys(
    ("while_true", "jax_loop", "torch_ddp", "lightning", "transformers"), "train.py"
)


@pytest.mark.parametrize("name", FILES)
def test_what_was_added_is_the_diff_of_at_most_8_lines_in_the_readme(name: str) -> None:
    plain = without_outlay(name)
    compile(plain, name, "exec")
    assert re.findall(r"\b(outlay|run\.|callback\b).*", plain.split('"""')[-1]) == []


def test_the_loop_is_as_its_own_stopwatch_and_counter_say(tmp_path: Path) -> None:
    began_ns = time.monotonic_ns()
    printed = python(code_of(EXAMPLES / "while_true/train.py"), tmp_path)
    around_ns = time.monotonic_ns() - began_ns
    counted = json.loads(printed.splitlines()[-1])
    read = outlay.read_run(tmp_path / "runs/while_true")
    assert (read.figures.steps, read.figures.tokens) == (counted["iters"], counted["tokens"])
    assert counted["tokens"] == 34 * 1024
    watches = {name: counted[f"{name}_ns"] for name in ("train", "eval", "loop")}
    check_loop(tmp_path / "runs/while_true", watches)
    check_wall(tmp_path / "runs/while_true", around_ns)
    assert steps_ns(tmp_path / "runs/while_true") <= watches["loop"] - watches["eval"]
    assert watches["eval"] <= read.phases["evaluation"] <= watches["loop"] - watches["train"]


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
    began_ns = time.monotonic_ns()
    printed = python(
        f"{cells[: -len(shown)]}\nprint(outlay.list_runs('runs')._repr_html_())", tmp_path
    )
    around_ns = time.monotonic_ns() - began_ns
    (said,) = re.findall(r"31 batches, .*", printed)
    check_loop(tmp_path / "runs/notebook", stopwatches_in(said))
    check_wall(tmp_path / "runs/notebook", around_ns)
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
    if name in TRAINERS:
        commands = with_stopwatch(name, commands, tmp_path)
    began_ns = time.monotonic_ns()
    done = subprocess.run(
        ["bash", "-e"], input=commands, capture_output=True, text=True,
        cwd=tmp_path, check=False, start_new_session=True,
        env=os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1",
        },
    )  # fmt: skip
    around_ns = time.monotonic_ns() - began_ns
    assert done.returncode == 0, done.stderr[-4000:]
    (said,) = re.findall(rf"{printed}: .*", done.stdout)
    run = outlay.read_run(tmp_path / run_dir)
    assert (run.figures.steps, run.figures.tokens, run.status) == (steps, tokens, "completed")
    assert run.budget is not None
    check_wall(tmp_path / run_dir, around_ns)
    if name in TRAINERS:
        check_laps(tmp_path / run_dir, json.loads((tmp_path / "laps.json").read_text()))
    else:
        check_loop(tmp_path / run_dir, stopwatches_in(said))
