"""The coverage page: no number is missing or given twice, and every test that it names exists.

That a test proves its row is checked by people.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from papers import ROOT

PAGE = (ROOT / "docs" / "coverage.md").read_text()
AREAS = ("000", "001", "002", "003", "004")


@dataclass(frozen=True)
class Promise:
    """One row: its number, the promised feature, and the tests that prove it."""

    area: str
    series: str
    number: int
    text: str
    proof: str

    @property
    def deferred(self) -> bool:
        return self.proof.startswith("deferred: ")


def promises(page: str = PAGE) -> list[Promise]:
    rows = re.findall(r"^\| (\d{3})\.(S?)(\d+) \| (.+?) \| (.+) \|$", page, re.MULTILINE)
    return [Promise(area, series, int(number), *rest) for area, series, number, *rest in rows]


def gaps(page: str = PAGE) -> list[str]:
    """Return the numbers that are not one more than the number before."""
    expected: dict[tuple[str, str], int] = {}
    wrong = []
    for promise in promises(page):
        sequence = (promise.area, promise.series)
        expected[sequence] = expected.get(sequence, 0) + 1
        if promise.number != expected[sequence]:
            wrong.append(f"{promise.area}.{promise.series}{promise.number}")
    return wrong


@cache
def nodes_of(path: Path) -> frozenset[str]:
    """Return the node ids of a file's tests, parameters left out."""
    tree = ast.parse(path.read_text())
    found = {name for node in tree.body for name in names_of(node) if "test" in name.lower()}
    return frozenset(f"{path.relative_to(ROOT)}::{name}" for name in found)


def names_of(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name):
            yield name
        case ast.ClassDef(name=name, body=body):
            yield from (f"{name}::{inner}" for each in body for inner in names_of(each))
        case ast.Assign(targets=[ast.Name(id=name)]):  # a state machine's TestCase
            yield name
        case _:
            pass


def unknown_tests(proof: str) -> list[str]:
    """Return the names in a proof that are not tests."""
    named = re.findall(r"`([^`]+)`", proof)
    return [
        node for node in named
        if not (ROOT / node.partition("::")[0]).is_file()
        or node not in nodes_of(ROOT / node.partition("::")[0])
    ]  # fmt: skip


def test_every_area_has_its_promises() -> None:
    """On an empty list the tests below would pass."""
    assert tuple(dict.fromkeys(promise.area for promise in promises())) == AREAS
    assert len(promises()) == len(re.findall(r"^\| \d{3}\.", PAGE, re.MULTILINE)) > 400


def test_no_number_is_left_out_or_given_twice() -> None:
    assert gaps() == []


def test_every_promise_has_an_existing_test_or_is_deferred() -> None:
    unproved = {
        f"{each.area}.{each.series}{each.number}": unknown_tests(each.proof) or "names no test"
        for each in promises()
        if not each.deferred and (unknown_tests(each.proof) or "`tests/" not in each.proof)
    }
    assert unproved == {}


def test_the_summary_has_the_number_of_rows_of_each_area() -> None:
    shown = [
        (int(all_), int(deferred))
        for all_, deferred in re.findall(r"^\| \[.+\| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    ]
    counted = []
    for area in AREAS:
        rows = [promise for promise in promises() if promise.area == area]
        counted.append((len(rows), sum(promise.deferred for promise in rows)))
    assert shown == counted


def test_a_gap_a_repetition_and_an_unknown_test_are_found() -> None:
    here = f"`tests/docs/{Path(__file__).name}::test_no_number_is_left_out_or_given_twice`"
    page = "\n".join(f"| 000.{n} | promise | {here} |" for n in ("1", "3", "3", "S1", "S1"))
    assert gaps(page) == ["000.3", "000.S1"]
    assert unknown_tests(here) == []
    assert unknown_tests("`tests/docs/test_coverage.py::test_nothing`") != []
    assert unknown_tests("`tests/test_nowhere.py::test_nothing`") != []
