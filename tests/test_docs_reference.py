"""The reference pages agree with the code: each says all that there is, and nothing that is not."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import typer.main
from sqlalchemy import Table

from outlay.cli.app import app
from outlay.errors import OutlayError
from outlay.goodput import phases
from outlay.ledger import KnownRecord, Price, RunIdentity
from outlay.record.facts import PERSONAL
from outlay.store import schema
from papers import ROOT, blocks

SOURCES = sorted((ROOT / "src").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RECORDS = [*KnownRecord.__args__, Price, RunIdentity]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def rows(text: str) -> list[list[str]]:
    """Return the cells of every table row of a page, without code marks."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]


def first_cells(text: str) -> set[str]:
    """Return the names in the first column of a page's tables, where several may stand."""
    return {name.strip() for cells in rows(text) for name in cells[0].split(",")}


@pytest.mark.parametrize("name", ["cli", "api"])
def test_a_written_reference_is_up_to_date(name: str) -> None:
    tool = runpy.run_path(str(ROOT / "tools" / f"write-{name}-reference"))
    assert page(f"reference/{name}.md") == tool["reference"](), "run `make docs`"


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{path} {name}")


@pytest.mark.parametrize(("path", "command"), list(commands(typer.main.get_command(app), "outlay")))
class TestEveryCommand:
    def test_is_documented(self, path: str, command: Any) -> None:
        assert command.hidden or f"\n## `{path}`\n" in page("reference/cli.md")

    def test_has_a_help_text(self, path: str, command: Any) -> None:
        assert command.help, path

    def test_shows_an_example_unless_it_is_a_group(self, path: str, command: Any) -> None:
        typed = path.removesuffix(" show")  # What a group does when no command of it is named.
        assert hasattr(command, "commands") or f"Example: {typed}" in command.help

    def test_speaks_json_unless_it_is_a_group(self, path: str, command: Any) -> None:
        options = [text for parameter in command.params for text in parameter.opts]
        assert hasattr(command, "commands") or "--json" in options, path


def test_every_variable_the_code_names_is_documented_and_no_other() -> None:
    named = {v for path in SOURCES for v in re.findall(r"\bOUTLAY_[A-Z_]+\b", path.read_text())}
    documented = {n for n in first_cells(page("reference/environment.md")) if n.startswith("OUT")}
    assert documented == named


def test_every_variable_of_a_launcher_is_documented() -> None:
    facts = (ROOT / "src/outlay/record/facts.py").read_text()
    read = set(re.findall(r"""["']([A-Z]+_?[A-Z_]{3,})["']""", facts))
    read.remove("HEAD")  # A file of git's.
    assert read <= first_cells(page("reference/environment.md"))


def error_classes(root: type[OutlayError] = OutlayError) -> Iterator[type[OutlayError]]:
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def test_every_exit_code_is_documented() -> None:
    documented = {cells[0] for cells in rows(page("reference/exit-codes.md"))}
    assert {str(error.exit_code) for error in error_classes()} <= documented


def section(text: str, title: str) -> str:
    """Return what stands under a heading that names ``title``, up to the next one."""
    parts = re.split(r"^#{2,4} ", text, flags=re.MULTILINE)
    found = [part for part in parts if f"`{title}`" in part.splitlines()[0]]
    assert len(found) == 1, f"{title} needs a heading of its own"
    return found[0]


def heading_of(record: type[msgspec.Struct]) -> str:
    return {Price: "price", RunIdentity: "run.json"}.get(record, str(record.__struct_config__.tag))


@pytest.mark.parametrize("record", RECORDS, ids=heading_of)
def test_every_field_of_a_record_is_documented(record: type[msgspec.Struct]) -> None:
    under = section(page("formats.md"), heading_of(record))
    documented = {name for cells in rows(under) for cell in cells[:2] for name in cell.split(", ")}
    assert set(record.__struct_fields__) - {"seq", "t_ns"} <= documented


def test_no_field_is_documented_that_records_do_not_have() -> None:
    start, end = "### Kinds of records", "### What a reader does"
    kinds = page("formats.md").split(start)[1].split(end)[0]
    tags = {heading_of(record) for record in RECORDS}
    fields = {name for record in RECORDS for name in record.__struct_fields__}
    assert first_cells(kinds) - {"field", "kind"} <= fields | tags


@pytest.mark.parametrize("table", schema.metadata.tables.values(), ids=str)
def test_every_table_of_the_store_and_its_columns_are_documented(table: Table) -> None:
    store = page("formats.md").split("### Store")[1]
    names = [table.name, *(column.name for column in table.columns)]
    assert [name for name in names if f"`{name}`" not in store] == []


def test_every_personal_fact_is_listed_with_the_switch() -> None:
    text = page("formats.md").split("## What is recorded about person and host")[1]
    switched = [line for line in text.splitlines() if "| empty" in line]
    named = {name for line in switched for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named == set(PERSONAL)


def packages() -> set[str]:
    found = (ROOT / "src" / "outlay").iterdir()
    return {path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").exists()}


def test_the_architecture_says_truly_what_is_built() -> None:
    table = page("ARCHITECTURE.md").split("## Packages")[1].split("### Layers")[0]
    states = {cells[0]: cells[2] for cells in rows(table)[1:]}
    built = packages() - {"__init__", "__main__"}
    assert {name for name, state in states.items() if state == "built"} == built
    assert set(states.values()) <= {"built", "planned"}


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


def test_readme_and_makefile_agree_on_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in commands)


def test_the_glossary_gives_each_word_one_meaning() -> None:
    words = re.findall(r"^- \*\*(.+?)\*\*", page("glossary.md"), re.MULTILINE)
    assert sorted(words) == sorted(set(words))
    assert {"run", "attempt", "rank", "phase", "budget", "ceiling", "finding"} <= set(words)
