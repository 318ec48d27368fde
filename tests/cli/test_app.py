"""The command line as a whole: lazy loading, completion, and help that matches the commands."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from command_line import in_process
from outlay import run
from outlay.cli.app import ENTRIES, FIRST, TOPICS, CommandEntry, build

HEAVY = {"sqlalchemy", "numpy", "httpx2", "omegaconf"}
COMMANDS = {f"outlay.cli.{entry.target.partition(':')[0]}" for entry in ENTRIES}
COMMANDS -= {"outlay.cli.app"}  # Always loaded; `outlay help` is in it.

# Completion goes by the name that a program was called by.
AS_INSTALLED = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
sys.argv[0] = "outlay"
from outlay.cli import main
main()
"""


def loaded_by(*arguments: str | Path, **environment: str) -> set[str]:
    """Return the modules that a call of ``outlay`` imports."""
    done = subprocess.run(
        [sys.executable, "-c", AS_INSTALLED, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules = set(done.stderr.splitlines()[-1].split(" "))
    assert "outlay.cli.app" in modules
    return modules


def completing(words: str) -> dict[str, str]:
    """Return the environment in which bash asks for completions of these words."""
    place = str(len(words.split(" ")) - 1)
    return {"_OUTLAY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}


def test_help_loads_no_command() -> None:
    assert loaded_by("--help").isdisjoint(COMMANDS | HEAVY)


def test_completing_a_command_loads_none() -> None:
    assert loaded_by(**completing("outlay ru")).isdisjoint(COMMANDS | HEAVY)


def test_completing_within_a_group_loads_that_group() -> None:
    assert loaded_by(**completing("outlay log v")) & COMMANDS == {"outlay.cli.importing"}


def test_a_call_loads_the_command_that_it_names() -> None:
    assert loaded_by("log", "--help") & COMMANDS == {"outlay.cli.importing"}


def test_former_names_work_and_are_hidden_in_help() -> None:
    former = {entry.name for entry in ENTRIES if not entry.topic}
    assert former == {"survey", "rates", "ledger", "collect", "cost-report"}
    shown = in_process("help").out
    assert not any(f" {name} " in shown for name in former)
    assert all(in_process(name, "--help").code == 0 for name in former)


def test_help_is_short_and_has_six_ways_in() -> None:
    shown = in_process("--help", COLUMNS="80").out
    assert len(shown.splitlines()) <= 40
    assert [e.name for e in ENTRIES if e.topic == FIRST] == [
        "exec",
        "runs",
        "report",
        "guard",
        "watch",
    ]
    assert "Without a command: what is running now" in shown  # The sixth.
    assert all(f"│ {topic} " in shown for topic in (*TOPICS, "all"))


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_lists_its_commands_and_no_others(topic: str) -> None:
    listed = json.loads(in_process("help", topic, "--json").out)
    assert [row["command"] for row in listed] == [e.name for e in ENTRIES if e.topic == topic] != []
    shown = in_process("help", topic).out
    assert all(row["help"] in shown for row in listed)


def test_all_topics_together_list_every_command() -> None:
    listed = json.loads(in_process("help", "--json").out)
    assert [row["command"] for row in listed] == [e.name for e in ENTRIES if e.topic]


def test_a_topic_that_does_not_exist_is_an_error_with_those_that_do() -> None:
    failed = in_process("help", "monney")
    assert failed.code == 2
    assert "money" in failed.err


@pytest.mark.parametrize("words", [("-h",), ("cost", "-h"), ("guard", "run", "-h"), ("-V",)])
def test_short_options_of_help_and_version(words: tuple[str, ...]) -> None:
    longer = (*words[:-1], {"-h": "--help", "-V": "--version"}[words[-1]])
    assert in_process(*words).out == in_process(*longer).out != ""


@pytest.mark.parametrize("words", [("web",), ("guard", "run")])
def test_a_paragraph_of_help_fills_its_lines(words: tuple[str, ...]) -> None:
    head = in_process(*words, "--help", COLUMNS="80").out.partition("╭")[0]
    for paragraph in re.split(r"\n *\n", head)[2:]:
        lines = [line.strip() for line in paragraph.splitlines()]
        for line, after in pairwise(lines):
            assert len(f"{line} {after.split()[0]}") > 78, paragraph


def options_of(command: Any) -> Iterator[Any]:
    """Yield the options that a command and those below it show."""
    yield from (each for each in command.params if not getattr(each, "hidden", False))
    for below in getattr(command, "commands", {}).values():
        if not below.hidden:
            yield from options_of(below)


@pytest.mark.parametrize(("name", "word"), [("--budget", "stop|end"), ("--ceiling", "refuse")])
def test_a_budget_stops_and_a_ceiling_refuses_on_the_page_of_each_command(
    name: str, word: str
) -> None:
    command = typer.main.get_command(build(loaded=True))
    helps = {each.help for each in options_of(command) if name in each.opts}
    assert helps
    assert [text for text in helps if not re.search(word, text)] == []


@pytest.mark.parametrize("group", ["goodput", "cost", "budget", "log"])
def test_a_group_that_shows_a_run_has_that_in_its_help(group: str) -> None:
    shown = in_process(group, "--help").out
    assert f"outlay {group} [OPTIONS] RUN" in shown.replace("{RUN}", "RUN")  # As typer has it.
    assert f"Example: outlay {group} runs/001" in shown
    assert "--json" in shown
    assert "│ show " not in shown


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_table_of_commands_has_the_help_of_the_command(entry: CommandEntry) -> None:
    command = entry.load()
    text = command.info.help if isinstance(command, typer.Typer) else inspect.getdoc(command)
    assert text is not None
    assert entry.help == text.split("\n\n")[0].replace("\n", " ")


def test_a_list_of_ended_runs_loads_nothing_that_reads_logs(tmp_path: Path) -> None:
    with run("bert", dir=tmp_path / "a", price="1.50 USD/h"):
        pass
    assert in_process("cost", "summary").code == 0  # Reads the log.
    readers = {"numpy", "httpx2", "omegaconf", "outlay.runs.reading", "outlay.account"}
    for words in ((), ("runs",), ("cost", "summary")):
        assert loaded_by(*words).isdisjoint(readers)
