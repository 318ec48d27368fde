"""The reference pages, ARCHITECTURE, the README and the glossary agree with the code.

Files and records are tested in test_docs_formats.
"""

from __future__ import annotations

import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, ClassVar

import pytest
import typer.core
import typer.main

from outlay.cli.app import app
from outlay.cli.output import DEFAULT
from outlay.errors import OutlayError
from outlay.goodput import phases
from papers import ROOT, blocks, first_cells, markdown_files, page, prose, rows

SOURCES = sorted((ROOT / "src").rglob("*.py"))
OUTLAY = typer.main.get_command(app)  # Takes a second to build.
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("name", ["cli", "api", "figures"])
def test_a_written_reference_is_up_to_date(name: str) -> None:
    tool = runpy.run_path(str(ROOT / "tools" / f"write-{name}-reference"))
    assert page(f"reference/{name}.md") == tool["reference"](), "run `make docs`"


def test_the_api_reference_lists_cached_properties() -> None:
    assert "\n- `cost: RunCost`: " in page("reference/api.md")


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command with its path, without former names."""
    if command.hidden and not path.endswith(f" {DEFAULT}"):
        return
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{path} {name}")


class TestEveryCommand:
    COMMANDS: ClassVar = dict(commands(OUTLAY, "outlay"))
    LEAVES: ClassVar = {path: c for path, c in COMMANDS.items() if not hasattr(c, "commands")}

    def test_is_documented(self) -> None:
        reference = page("reference/cli.md")
        shown = [path for path, command in self.COMMANDS.items() if not command.hidden]
        assert len(shown) > 50
        assert [path for path in shown if f"\n## `{path}`\n" not in reference] == []

    def test_has_a_help_text(self) -> None:
        assert [path for path, command in self.COMMANDS.items() if not command.help] == []

    def test_shows_an_example_unless_it_is_a_group(self) -> None:
        # A group's default command is typed without its name.
        typed = {path: path.removesuffix(f" {DEFAULT}") for path in self.LEAVES}
        lacking = [
            path for path, command in self.LEAVES.items()
            if f"Example: {typed[path]}" not in command.help
        ]  # fmt: skip
        assert lacking == []

    def test_has_the_option_json_unless_it_is_a_group(self) -> None:
        options = {
            path: {text for parameter in command.params for text in parameter.opts}
            for path, command in self.LEAVES.items()
        }
        assert [path for path, found in options.items() if "--json" not in found] == []


def typed_commands(text: str) -> Iterator[str]:
    """Yield the outlay commands in code marks, and in blocks one per line, without their name."""
    yield from re.findall(r"`outlay ([a-z][^`]*)`", prose(text))
    for block in blocks(text):
        lines = block.text.replace("\\\n", " ")
        yield from re.findall(r"^(?:\$ )?outlay ([a-z][^#\n]*)", lines, re.MULTILINE)


def unknown_words(typed: str) -> list[str]:
    """Return the subcommand or the options of a typed command that do not exist."""
    command: Any = OUTLAY
    words = shlex.split(typed)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if isinstance(command, typer.core.TyperGroup):
        if DEFAULT not in command.commands:
            return words[:1]
        command = command.commands[DEFAULT]
    known = {text for each in command.params for text in (*each.opts, *each.secondary_opts)}
    options = takewhile(lambda word: word != "--", words)
    found = [word.split("=")[0] for word in options if re.match(r"--\w", word)]
    return [word for word in found if word not in known | {"--help"}]


def test_every_command_in_the_pages_exists() -> None:
    # The changelog has former names, cli.md is written from the commands.
    pages = [path for path in markdown_files() if path.name not in ("CHANGELOG.md", "cli.md")]
    typed = {
        f"{path.relative_to(ROOT)}: outlay {each}": unknown_words(each)
        for path in pages
        for each in typed_commands(path.read_text())
        if each != "spend log"  # The text that a spend log's first hash is of.
    }
    assert len(typed) > 200
    assert {shown: words for shown, words in typed.items() if words} == {}


def test_an_unknown_command_or_option_is_found() -> None:
    assert unknown_words("goodput RUN --fail-under 90") == []
    assert unknown_words("exec -- python train.py --lr 1") == []
    assert unknown_words("sweep plan --commands GRID") == ["--commands"]
    assert unknown_words("sweep draw GRID") == ["draw"]


def test_the_page_of_variables_lists_those_in_the_code_and_no_other() -> None:
    named = {v for path in SOURCES for v in re.findall(r"\bOUTLAY_[A-Z_]+\b", path.read_text())}
    documented = {n for n in first_cells(page("reference/environment.md")) if n.startswith("OUT")}
    assert documented == named


def test_every_variable_of_a_launcher_is_documented() -> None:
    facts = (ROOT / "src/outlay/record/facts.py").read_text()
    read = set(re.findall(r"""["']([A-Z]+_?[A-Z_]{3,})["']""", facts))
    assert read <= first_cells(page("reference/environment.md"))


def error_classes(root: type[OutlayError] = OutlayError) -> Iterator[type[OutlayError]]:
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def test_every_exit_code_is_documented() -> None:
    documented = {cells[0] for cells in rows(page("reference/exit-codes.md"))}
    assert {str(error.exit_code) for error in error_classes()} <= documented


def packages() -> set[str]:
    found = (ROOT / "src" / "outlay").iterdir()
    return {path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").exists()}


def test_the_architecture_names_every_package_and_no_other() -> None:
    table = page("ARCHITECTURE.md").split("## Packages")[1].split("### Layers")[0]
    assert {cells[0] for cells in rows(table)[1:]} == packages() - {"__init__", "__main__"}


def test_the_architecture_shows_the_layers_that_are_enforced() -> None:
    (contract,) = (c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["name"] == "Layers")
    enforced = [re.sub(r"[()]", "", layer) for layer in contract["layers"]]
    drawn = [block.text.split("\n")[:-1] for block in blocks(page("ARCHITECTURE.md"))]
    assert enforced in drawn


def test_the_architecture_lists_the_phases_in_their_order() -> None:
    (listed,) = re.findall(r"^Phases, in the order.*?\n\n", page("ARCHITECTURE.md"), re.M | re.S)
    named = re.findall(r"`([\w:<>]+)`", listed)
    assert [name for name in named if name != "custom:<name>"] == list(phases.ORDER)
    assert named.index("custom:<name>") + 1 == named.index(phases.STALL)


def test_every_dependency_was_decided_on() -> None:
    named = {re.split(r"[<>=\[~!]", text)[0] for text in PROJECT["project"]["dependencies"]}
    decisions = "".join(path.read_text() for path in (ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert {name for name in named if f"`{name}`" not in decisions} == set()


def test_the_readme_is_short_and_has_its_sections_in_order() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 90
    before, *sections = re.split(r"^## ", readme, flags=re.MULTILINE)
    assert "<picture>" in before
    assert [section.splitlines()[0] for section in sections] == [
        "Start", "A limit and its refusal", "In your code", "Where to go", "What it cannot do",
    ]  # fmt: skip
    for section, shown in {0: "outlay: cost", 1: "error: ", 2: "on_stop(save)"}.items():
        assert shown in sections[section]
    rows = [line for line in sections[3].splitlines() if line.startswith("| ")][1:]
    assert [len(re.findall(r"\]\(", row)) for row in rows] == [1] * 5


def test_the_page_of_pages_links_every_page() -> None:
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    own = {path for path in pages if path.startswith("adr/0")} | {"overview.md"}
    assert pages - own - set(re.findall(r"\]\(([^)#]+)\)", page("overview.md"))) == set()


def test_readme_and_makefile_agree_on_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in commands)


@pytest.mark.parametrize(
    ("option", "stated"),
    [
        # A budget stops a run, a ceiling refuses a launch; the limits of a plan stop nothing yet.
        ("--budget", r"ends|stopped"),
        ("--ceiling", r"launches are refused"),
        ("--limit", r"[Bb]udget|^How much"),
    ],
)
def test_a_limit_has_the_same_word_on_the_page_of_each_command(option: str, stated: str) -> None:
    rows = re.findall(rf"^\| `{option} [A-Z]+` \| (.*?) \|", page("reference/cli.md"), re.MULTILINE)
    assert rows
    assert [row for row in rows if not re.search(stated, row)] == []


def test_the_glossary_gives_each_word_one_meaning() -> None:
    words = re.findall(r"^- \*\*(.+?)\*\*", page("glossary.md"), re.MULTILINE)
    assert sorted(words) == sorted(set(words))
    assert {"run", "attempt", "rank", "phase", "budget", "ceiling", "finding"} <= set(words)
