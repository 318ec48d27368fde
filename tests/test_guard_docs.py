"""What the guard's pages say is so: every row names a test, every key of a line is described."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from outlay.guard.ceilings import CeilingManifest
from outlay.guard.chain import SLOT_BYTES
from outlay.guard.entries import AnyEntry, Rental, Simple, Vendor
from outlay.guard.lease import Terms
from outlay.units import Duration, Rate
from papers import ROOT

PAGE = (ROOT / "docs" / "guard.md").read_text()
FORMATS = (ROOT / "docs" / "formats.md").read_text().split("## The spend log")[1]


def rows_of_who_dies() -> list[list[str]]:
    table = PAGE.split("## X dies")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]


def rows_of_who_can_do_what() -> list[list[str]]:
    table = PAGE.split("## Who can do what")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]


@cache
def names_of_tests() -> set[str]:
    trees = [ast.parse(path.read_text()) for path in (ROOT / "tests").rglob("test_*.py")]
    found = (node for tree in trees for node in ast.walk(tree))
    return {node.name for node in found if isinstance(node, ast.FunctionDef)}


def test_the_table_of_who_dies_is_read() -> None:
    assert len(rows_of_who_dies()) >= 15


@pytest.mark.parametrize("row", rows_of_who_dies(), ids=lambda row: row[0])
def test_every_row_of_who_dies_names_a_test(row: list[str]) -> None:
    (name,) = re.findall(r"`(test_\w+)`", row[-1])
    assert name in names_of_tests()


@pytest.mark.parametrize("row", rows_of_who_can_do_what(), ids=lambda row: row[1])
def test_whatever_the_threat_model_prevents_or_detects_names_a_test(row: list[str]) -> None:
    names = re.findall(r"`(test_\w+)`", row[-1])
    assert set(names) <= names_of_tests()
    assert names or row[2].startswith("neither")


def test_the_overshoots_are_what_the_defaults_give() -> None:
    terms = Terms(rate=Rate.parse("0.70 USD/h"))
    figures = [terms.overshoot(), terms.cost(10**9), terms.cost(Duration.parse("10m").ns)]
    assert all(f"| {amount.amount} (" in PAGE for amount in figures)


@pytest.mark.parametrize("kind", [*AnyEntry.__args__, Rental, Vendor, Simple, CeilingManifest])
def test_every_key_that_is_written_is_described(kind: type[CeilingManifest]) -> None:
    assert [key for key in kind.__struct_fields__ if f"`{key}`" not in FORMATS] == []


def test_the_size_of_a_head_record_is_described() -> None:
    assert f"two records of {SLOT_BYTES} bytes" in FORMATS
