"""``outlay runs --sort``: runs by any figure, the largest first."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import in_process
from ledgers import Segment, dollars


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs that wasted 1, 3 and 2 dollars, and one without a price."""
    for place, (name, hours) in enumerate((("a", 1), ("b", 3), ("c", 2), ("free", 9))):
        price = None if name == "free" else dollars(1)
        about = {"price": price, "run_id": name, "name": name, "model": "m"}
        story = Segment(start=place * 10.0, about=about).step(3600 * (5 - hours))
        story.span("evaluation", 3600 * hours).end().write(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("where", ["here", "registered"])
def test_runs_are_ranked_by_waste(runs: Path, where: str) -> None:
    assert in_process("collect", runs).code == 0
    words = [runs] if where == "here" else []
    found = in_process("runs", *words, "--sort", "waste", "--json").json["runs"]
    assert [row["run_id"] for row in found] == ["b", "c", "a", "free"]
    assert "wasted" in in_process("runs", *words, "--sort", "waste", columns=160).out


def test_runs_are_sorted_by_text_and_an_unknown_figure_is_refused(runs: Path) -> None:
    found = in_process("runs", runs, "--sort", "name", "--json").json["runs"]
    assert [row["run_id"] for row in found] == ["a", "b", "c", "free"]
    done = in_process("runs", runs, "--sort", "beauty")
    assert (done.code, "--sort" in done.err) == (2, True)
