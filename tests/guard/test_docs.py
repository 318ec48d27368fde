"""The guard's pages: rows name tests that exist, overshoots are right, all keys are described."""

from __future__ import annotations

import re
from functools import cache

from outlay.guard.ceilings import CeilingManifest
from outlay.guard.chain import SLOT_BYTES
from outlay.guard.entries import AnyEntry, Rental, Simple, Vendor
from outlay.guard.lease import Terms
from outlay.units import Duration, Rate
from papers import ROOT, rows

PAGE = (ROOT / "docs" / "guard.md").read_text()
FORMATS = (ROOT / "docs" / "formats.md").read_text().split("## The spend log")[1]


def rows_under(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, without its header."""
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    return rows(section)[1:]


@cache
def defined_tests() -> set[str]:
    paths = (ROOT / "tests").rglob("test_*.py")
    return {name for path in paths for name in re.findall(r"def (test_\w+)", path.read_text())}


def named_in(cell: str) -> set[str]:
    return set(re.findall(r"test_\w+", cell))


def test_every_row_about_a_failure_names_an_existing_test() -> None:
    failures = rows_under("X dies")
    assert len(failures) >= 15
    assert [row[0] for row in failures if len(named_in(row[-1])) != 1] == []
    assert set().union(*(named_in(row[-1]) for row in failures)) <= defined_tests()


def test_everything_prevented_or_detected_names_an_existing_test() -> None:
    threats = rows_under("Who can do what")
    assert len(threats) >= 15
    unproved = [row for row in threats if not named_in(row[-1])]
    assert [row[1] for row in unproved if not row[2].startswith("neither")] == []
    assert set().union(*(named_in(row[-1]) for row in threats)) <= defined_tests()


def test_the_overshoots_follow_from_the_defaults() -> None:
    terms = Terms(rate=Rate.parse("0.70 USD/h"))
    figures = [terms.overshoot(), terms.cost(10**9), terms.cost(Duration.parse("10m").ns)]
    assert all(f"| {amount.amount} (" in PAGE for amount in figures)


def test_every_key_that_is_written_is_described() -> None:
    kinds = [*AnyEntry.__args__, Rental, Vendor, Simple, CeilingManifest]
    keys = {key for kind in kinds for key in kind.__struct_fields__}
    assert {key for key in keys if f"`{key}`" not in FORMATS} == set()


def test_the_size_of_a_head_record_is_described() -> None:
    assert f"two records of {SLOT_BYTES} bytes" in FORMATS
