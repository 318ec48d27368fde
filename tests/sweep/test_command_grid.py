"""A program and its parameters on a command line: the grid that they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import in_process, outlay
from outlay.errors import InvalidValue
from outlay.sweep.grid.command_grid import (
    GridOptions,
    parse_values,
    program_name,
    read_command,
)
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.state.manifest import read_manifest

TRAIN = """\
import os, pathlib, sys
pathlib.Path(os.environ["OUTLAY_RUN_DIR"], "words").write_text(" ".join(sys.argv[1:]))
"""
BUDGET = ("--budget", "iso_time=10m")


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,0.2", [0.1, 0.2]),
        ("1e-3", [0.001]),
        ("64", [64]),
        ("relu, gelu", ["relu", "gelu"]),
        ("true,false,null", [True, False, None]),
        ('"1"', ["1"]),
        ("'a,b',c", ["a,b", "c"]),
        ("it's", ["it's"]),
        ("[1, 2],[3]", [[1, 2], [3]]),
        ("cuda:0", ["cuda:0"]),
        ("cuda:0,cuda:1", ["cuda:0", "cuda:1"]),
        ("http://a:8080/x", ["http://a:8080/x"]),
        ("'12:30'", ["12:30"]),
        ("5e3a9c1", ["5e3a9c1"]),
        ("''", [""]),
        ("-1", [-1]),
        ("64:512", {"low": 64, "high": 512}),
        ("64:512:64", {"low": 64, "high": 512, "step": 64}),
        ("1e-5:1e-1:log", {"low": 1e-5, "high": 0.1, "log": True}),
        ("-1:1", {"low": -1, "high": 1}),
    ],
)
def test_values_are_typed_as_in_a_grid_and_colons_make_a_range(text: str, values: Any) -> None:
    assert parse_values("x", text) == values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a value"),
        ("1,", "a value"),
        ("512:64", "below its high end"),
        ("1:1", "below its high end"),
        ("1:max", "a range of numbers"),
        ("0:1:log", "above zero"),
        ("1:2:5", "a step above zero"),
        ("1:2:0", "a step above zero"),
        ("1:2:fast", "a step above zero"),
        ("1:2,3", "either a range or values"),
        ("{a: 1}", "a number, a text"),
        ("[1", "a number, a text"),
        ("&x", "a number, a text"),
        ("!!str 5", "a number, a text"),
    ],
)
def test_a_wrong_value_says_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(InvalidValue, match=f"^x: got .*{expected}"):
        parse_values("x", text)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["train.py"], "train"),
        (["src/my train.py"], "mytrain"),
        (["python", "-u", "a/b.py", "--epochs", "3"], "b"),
        (["-m", "package.train"], "train"),
        (["/opt/bin/tool"], "tool"),
        ([], "program"),
    ],
)
def test_a_sweep_is_named_after_its_program(words: list[str], name: str) -> None:
    assert program_name(words) == name


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda t: "$" not in t)
    | st.sampled_from(["1e-3", "null", "yes", "0x1f", "12:30", "- a", "a: b", "a #b", "...", " a"])
)


@given(st.dictionaries(st.text("abc_.1", min_size=1, max_size=4), st.lists(scalars, min_size=1)))
def test_the_written_grid_reads_as_the_same_values(params: dict[str, list[Any]]) -> None:
    params.pop("world_size", None)
    grid = read_command("train.py", (), GridOptions(budget="iso_time=10m"))
    grid.tree["grid"][0]["params"] = params
    (entry,) = read_grid(grid.text, source="g", default_name="g").entries
    assert entry.axes == {name: tuple(values) for name, values in params.items()}


def test_every_problem_of_a_command_line_is_named_at_once(at: Path) -> None:
    shown = in_process(
        "sweep", "plan", "gone.py", "lr=", "a,b", "w=2:1", "x=1", "x=2", "--style", "w",
        "--ceiling", "lots", "--maximize", "a", "--minimize", "b", "--timeout", "soon",
    )  # fmt: skip
    assert shown.code == 2
    lines = shown.err.splitlines()
    assert lines[0] == "error: 11 problems in the grid; nothing was started"
    for part in (
        "arguments: got 'w'", "--maximize and --minimize", "no --budget", "no --price",
        "lr: got ''", "argument: got 'a,b'", "w: got '2:1'", "x is stated twice",
        "PROGRAM: got 'gone.py'", "ceiling: got 'lots'", "timeout: got 'soon'",
    ):  # fmt: skip
        assert sum(f"  command line: {part}" in line for line in lines) == 1, part
    assert [path.name for path in at.iterdir()] == ["train.py"]


@pytest.mark.usefixtures("at")
def test_a_problem_of_many_runs_is_said_once() -> None:
    words = ("train.py", "lr=1,2,3", "--budget", "iso_tokens=1k", "--records", "--yes")
    refused = in_process("sweep", "run", *words, "--ceiling", "2 USD", "--price", "1 USD/h")
    assert refused.code == 2
    assert refused.err.count("the duration is unknown") == 1
    assert "and 2 more: " in refused.err


@pytest.mark.usefixtures("at")
def test_a_limit_on_money_needs_a_price_which_may_be_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("sweep", "plan", "train.py", "lr=1", "--budget", "iso_cost=2 USD", "--json")
    refused = in_process(*words)
    assert refused.code == 2
    assert "1 problem" in refused.err
    assert "no --price for a limit on money" in refused.err
    monkeypatch.setenv("OUTLAY_PRICE", "1 USD/h")
    (run,) = in_process(*words).json["runs"]
    assert (run["predicted_cost"], run["price"]) == ("2.00 USD", "1.00 USD/h")


@pytest.mark.parametrize(
    "more", [["lr=1"], ["--budget", "iso_time=1m"], ["--trials", "3"], ["--style", "flags"]]
)
def test_a_grid_file_takes_nothing_that_it_states_itself(at: Path, more: list[str]) -> None:
    (at / "g.yaml").write_text("grid: [{params: {a: 1}}]")
    shown = in_process("sweep", "plan", "g.yaml", *more)
    assert shown.code == 2
    assert "nothing besides a grid file" in shown.err


@pytest.mark.parametrize(
    ("style", "words"),
    [
        (None, ["--lr_max=0.1", "--act=relu", "--on=True", "--off=False", "--dims=[1, 2]"]),
        ("equals", ["--lr_max=0.1", "--act=relu", "--on=True", "--off=False", "--dims=[1, 2]"]),
        ("switches", ["--lr_max", "0.1", "--act", "relu", "--on", "--dims", "1", "2"]),
        ("flags", ["--lr-max", "0.1", "--act", "relu", "--on", "--no-off", "--dims", "1", "2"]),
        ("pairs", ["lr_max=0.1", "act=relu", "on=true", "off=false", "dims=[1, 2]", "no=null"]),
        ("none", []),
    ],
)
@pytest.mark.usefixtures("at")
def test_a_style_decides_how_parameters_are_passed(style: str | None, words: list[str]) -> None:
    chosen = [] if style is None else ["--style", style]
    params = ["lr_max=0.1", "act=relu", "on=true", "off=false", "dims=[1, 2]", "no=null"]
    shown = in_process("sweep", "plan", "train.py", *params, *BUDGET, *chosen, "--json")
    (run,) = shown.json["runs"]
    assert run["command"] == ["python", "train.py", *words]
    assert run["arguments"] == (style or "equals")


def test_pairs_pass_the_overrides_of_a_grid_and_nothing_of_hydra(at: Path) -> None:
    grid = {
        "engine": "process", "arguments": "pairs", "overrides": ["+new=1"],
        "aliases": {"lr": "o.lr"}, "budget": {"mode": "iso_time", "limit": 9},
        "grid": [{"params": {"lr": 0.1, "model": "big"}}],
    }  # fmt: skip
    (at / "g.json").write_text(json.dumps(grid))
    (run,) = in_process("sweep", "plan", "g.json", "--json").json["runs"]
    assert run["command"] == ["python", "train.py", "+new=1", "o.lr=0.1", "model=big"]
    (at / "g.json").write_text(json.dumps(grid | {"arguments": "equals"}))
    (warning,) = in_process("sweep", "plan", "g.json", "--json").json["warnings"]
    assert "`overrides` are not passed with `arguments: equals`" in warning


@pytest.mark.usefixtures("at")
def test_a_plan_names_the_style_and_shows_the_first_command() -> None:
    shown = in_process("sweep", "plan", "train.py --fast", "lr=0.1,0.2", *BUDGET, columns=120)
    assert "Parameters are passed as --key=value (arguments: equals)." in shown.out
    assert "python train.py --fast --lr=0.1" in shown.out


def test_a_sweep_without_a_file_leaves_a_grid_that_gives_the_same_plan(at: Path) -> None:
    words = ("train.py", "lr=0.1,1e-5", "name='1e3'", *BUDGET)
    done = outlay("sweep", "run", *words, "--dir", at / "sweep", "--yes", "--json")
    assert done.code == 0, done.err
    assert done.json["counts"] == {"completed": 2}
    said = (at / "sweep" / "001_train_00" / "words").read_text()
    assert said == "--lr=0.1 --name=1e3"
    written = at / "sweep" / "sweep_grid.yaml"
    assert read_manifest(at / "sweep").about["grid_path"] == str(written)
    plans = [outlay("sweep", "plan", *of, "--json") for of in (words, (written,))]
    assert plans[0].json == plans[1].json
    (at / "sweep").rename(at / "moved")
    resumed = outlay("sweep", "resume", at / "moved", "--json")
    assert (resumed.code, resumed.json["counts"]) == (0, {"completed": 2})


@pytest.mark.usefixtures("at")
def test_ranges_and_a_search_reach_the_grid() -> None:
    shown = in_process(
        "sweep", "plan", "train.py", "lr=1e-5:1e-1:log", "width=64:512:64", "act=relu,gelu",
        *BUDGET, "--maximize", "accuracy", "--method", "random", "--trials", "5", "--seed", "7",
        "--json",
    )  # fmt: skip
    assert shown.code == 0, shown.err
    assert len(shown.json["runs"]) == 5


@pytest.mark.parametrize(
    ("words", "options", "problem"),
    [
        (["--lr=1"], {}, "key=value without hyphens: lr=..."),
        (["{a}=1"], {}, "key=value; the arguments"),
        ([], {"budget": "iso_time=1m,allow_change=true"}, "without allow_change"),
        ([], {"budget": "enabled=false"}, "no --budget"),
        ([], {"budget": "iso_time"}, "budget: got 'iso_time'"),
        ([], {"budget": "iso_tokens=9"}, "limits on time and cost"),
    ],
)
def test_a_word_or_budget_that_cannot_be_used_is_a_problem(
    words: list[str], options: dict[str, Any], problem: str
) -> None:
    grid = read_command("train.py", words, GridOptions(**{"budget": "iso_time=1m"} | options))
    (found,) = grid.findings
    assert problem in found.message


WRITTEN = """\
# Written by outlay from a command line.
name: train
engine: process
arguments: equals
entrypoint: [train.py]
price: 1 USD/h
ceiling: 20 USD
budget: {mode: iso_cost, max_cost_usd: 2, target_metric: val_bpb, target_direction: min}
search: {method: tpe, trials: 40, seed: 0}
grid:
  - name: train
    params:
      lr: {low: 1e-05, high: 0.1, log: true}
"""


def test_search_options_are_the_search_section_of_the_grid() -> None:
    options = GridOptions(
        budget="iso_cost=2 USD", price="1 USD/h", ceiling="20 USD",
        minimize="val_bpb", method="tpe", trials=40, seed=0, records=True,
    )  # fmt: skip
    grid = read_command("train.py", ("lr=1e-5:1e-1:log",), options)
    assert grid.findings == []
    assert grid.text == WRITTEN
