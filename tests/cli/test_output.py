"""Output of every command: literal text, widths, pipes, ASCII terminals, shell completion."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from outlay import iso_tokens, run
from outlay.cli.app import app
from outlay.cli.output import console, new_table, print_title
from outlay.clock import ManualClock
from outlay.units import Money

SECOND = 10**9
# What rich would take for the end of a style, for a style and for a picture.
NAME = "a[/b] [red]c :100:"


def outlay(*arguments: str | Path) -> str:
    """Return what a command shows on a wide terminal."""
    words = [str(each) for each in arguments]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlay.cli.output.console.width", 300)


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A run whose name, span and directory hold what rich would interpret."""
    clock = ManualClock()
    run_dir = tmp_path / "a[" / "b] [red]c :100:"
    budget = iso_tokens(50)
    with run(NAME, dir=run_dir, budget=budget, price="3.6 USD/h", clock=clock) as training:
        with training.span(NAME):
            clock.advance(SECOND)
        for _ in training.steps(range(5), tokens=5):
            clock.advance(SECOND)
    return run_dir


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "RUN"],
        ["goodput", "RUN"],
        ["goodput", "RUN", "--rolling", "1s"],
        ["goodput", "diff", "RUN", "RUN"],
        ["cost", "RUN"],
        ["budget", "plan", "--mode", "iso_tokens", "--limit", "50", "--from", "RUN"],
        ["report", "RUN"],
    ],
    ids=" ".join,
)
def test_the_name_of_a_run_or_a_span_is_shown_as_it_is(named: Path, words: list[str]) -> None:
    assert "[red]c :100:" in outlay(*(named if word == "RUN" else word for word in words))


def test_the_label_of_a_spend_is_shown_as_it_is(tmp_path: Path) -> None:
    log = ("--log", tmp_path / "spend.jsonl")
    outlay("guard", "authorize", NAME, "1 USD", "--ceiling", "5", *log)
    for command in ("status", "history"):
        assert NAME in outlay("guard", command, *log)


def test_the_name_of_a_provider_is_shown_as_it_is() -> None:
    outlay("prices", "set", "H100", "1.50 USD/h", "--provider", NAME)
    for words in (["prices", "list"], ["prices", "stats"], ["cost-report", "--prices"]):
        assert NAME in outlay(*words)


def test_the_name_of_a_model_is_shown_as_it_is() -> None:
    assert NAME in outlay("cost", "budget", "set", NAME, "5 USD")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlay.cli.output.console.width", 40)
    monkeypatch.setattr("outlay.cli.output.console._force_terminal", True)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    "words",
    [["runs", "."], ["goodput", "RUN"], ["goodput", "diff", "RUN", "RUN"], ["cost", "RUN"],
     ["budget", "RUN"], ["advise", "RUN"]],
    ids=" ".join,
)  # fmt: skip
def test_figures_are_not_wrapped_at_forty_columns(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clock = ManualClock()
    with run("line", dir="r", budget=iso_tokens(50), price="3.6 USD/h", clock=clock) as training:
        for _ in training.steps(range(5), tokens=5):
            clock.advance(SECOND)
    shown = outlay(*("r" if word == "RUN" else word for word in words))
    assert max(map(len, shown.splitlines())) <= 40
    if words[0] in ("runs", "goodput", "cost"):
        assert "0.0050" in shown


@pytest.mark.usefixtures("narrow")
def test_sentences_wrap_at_forty_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with run("line", dir="r", price="3.6 USD/h"):
        pass
    log = ("--log", tmp_path / "money" / "spend.jsonl")
    for words in (
        ["guard", "authorize", "lab02-tp-spinup", "3 USD", "--ceiling", "5", *log],
        ["guard", "record", "lab02-tp-spinup", "2 USD", *log],
        ["guard", "verify", *log],
        ["log", "r"],
        ["digest"],
        ["digest", "--log", log[1]],
    ):
        shown = outlay(*words)
        assert max(map(len, shown.splitlines())) <= 40, words


def test_only_sentences_are_wrapped_and_names_get_an_ellipsis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "it ran out of memory on the second of four GPUs"
    for prose, expected in (((), 2), (("reason",), 4)):
        table = new_table("run", "reason", ">cost", prose=prose)
        table.add_row("001", text, "0.022368 USD")
        monkeypatch.setattr("outlay.cli.output.console.width", 40)
        console.print(table)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == expected
        assert "0.022368 USD" in lines[1]
        assert ("…" in lines[1]) == (not prose)


def test_a_narrow_table_drops_empty_columns_and_folds_headers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = new_table("model", ">of which assumed", ">mean accuracy", ">cost")
    table.add_row("bert", "-", "0.7950", "0.022368 USD")
    monkeypatch.setattr("outlay.cli.output.console.width", 32)
    console.print(table)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["model", "mean", "cost"], ["accuracy"], ["bert", "0.7950", "0.022368", "USD"],
    ]  # fmt: skip


def test_a_table_says_which_columns_have_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = new_table("run", ">steps", ">cost", first=("run", "cost"))
    table.add_row("001", "1,000,000", Money(1_234_567))
    monkeypatch.setattr("outlay.cli.output.console.width", 18)
    console.print(table)
    assert capsys.readouterr().out.splitlines() == [
        "run  cost (USD)", "001        1.23", "no room for: steps",
    ]  # fmt: skip


def test_nothing_wraps_in_a_pipe_and_paths_are_relative(tmp_path: Path) -> None:
    below = Path(*["a-rather-long-name-of-a-directory"] * 4)
    with run("line", dir=tmp_path / below):
        pass
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    words = [sys.executable, "-m", "outlay", "runs", "."]
    done = subprocess.run(
        words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[1].endswith(f" {below}")


def test_a_title_in_a_pipe_has_no_line_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_title("1. The plan")
    assert capsys.readouterr().out == "1. The plan\n"


SEVERAL = """
import sys
from outlay.cli.app import app
for words in sys.argv[1:]:
    app(words.split(" "), standalone_mode=False)
    print("END")
"""


def test_output_is_ascii_on_a_terminal_without_unicode(tmp_path: Path) -> None:
    with run("größe ≤ 7", dir=tmp_path / "r", price="3.6 USD/h"):
        pass
    commands = ["goodput r", "runs r", "runs r --json", "goodput --help"]
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, *commands], cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.isascii()
    assert all(each.strip() for each in done.stdout.split(b"END")[:-1])
    assert done.stdout.count(b"END") == len(commands)


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from every_command(child, (*path, name))


def test_no_help_shows_the_type_of_a_flag() -> None:
    for path in every_command(typer.main.get_command(app)):
        assert "<bool" not in outlay(*path, "--help").lower()


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has ``outlay`` on the path and an empty home."""
    command = tmp_path / "bin" / "outlay"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom outlay.cli import main\nmain()\n")
    command.chmod(0o755)
    return os.environ | {"HOME": str(tmp_path), "PATH": f"{command.parent}:{os.environ['PATH']}"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    "learn",
    [
        'eval "$(outlay --show-completion)"',
        "outlay --install-completion >/dev/null && source ~/.bashrc",
    ],
)
def test_a_real_bash_completes_what_is_typed(home: dict[str, str], learn: str) -> None:
    expected = {
        "goo": "goodput",
        "sweep rep": "report",
        "goodput runs/001 --fail": "--fail-under",
    }
    script = learn
    for typed in expected:
        words = ["outlay", *typed.split()]
        script += f"""
            COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
            $(complete -p outlay | grep -o '_[a-z_]*') outlay
            echo "${{COMPREPLY[@]}}"
        """
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == list(expected.values()), done.stderr
