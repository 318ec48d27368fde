"""Runs that are unlikely to win: status and page suggest to stop them, and stop nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from command_line import in_process
from halving_on_disk import HalvedSweep
from outlay.escaping import html_text
from outlay.report.document import to_markdown
from outlay.report.files import read_sweep
from outlay.runs.collect import collect
from outlay.store import open_store
from outlay.web.book_reader import BookReader, sweep_id
from outlay.web.page import PageQuery
from outlay.web.runs import sweep_page
from sweep_on_disk import NOW_NS

Curve = Callable[[int], float]


def level(step: int) -> float:
    """Return a curve that has reached its level, far below the best; with a little noise."""
    return 0.5 * (1 - math.exp(-step)) + 0.001 * math.sin(7 * step)


def rising(step: int) -> float:
    """Return a curve that rises as far as the best, if it goes on."""
    return 0.04 * step + 0.001 * math.sin(7 * step)


def contest(
    root: Path, curve: Curve, *, used: float = 0.5, count: int = 20, **more: object
) -> Path:
    """Write a sweep of a run that completed with 0.9, and of one that still runs."""
    sweep = HalvedSweep(root)
    sweep.run(1, (0, "paused", 1, 0.7), (1, "completed", 3, 0.9), values=(0.7, 0.9))
    values: Sequence[float] = [curve(step) for step in range(1, count + 1)]
    run_dir = sweep.run(2, (0, "running", 5), values=values, **more)
    document = {"limits": {"max_tokens": 150}, "totals": {"tokens": 150 * used}}
    (run_dir / "budget.json").write_text(json.dumps(document))
    return root


def losing(root: Path) -> list[str]:
    """Return the runs that ``sweep status`` suggests to stop."""
    return [one["run"] for one in in_process("sweep", "status", root, "--json").json["losing"]]


def test_a_run_that_has_levelled_off_below_the_best_is_suggested(tmp_path: Path) -> None:
    shown = in_process("sweep", "status", contest(tmp_path, level), columns=400).out
    assert f"outlay sweep stop {tmp_path} 002_a" in shown
    assert "passes 0.9 of 001_a within its budget is below 0.1%" in shown
    assert "saves about 20.00 USD" in shown  # It has half of its budget left.


def test_a_run_that_may_still_win_is_not_suggested(tmp_path: Path) -> None:
    assert losing(contest(tmp_path, rising)) == []


def test_too_few_values_say_nothing(tmp_path: Path) -> None:
    assert losing(contest(tmp_path, level, count=7)) == []


def test_the_beginning_of_a_budget_says_nothing(tmp_path: Path) -> None:
    assert losing(contest(tmp_path, level, used=0.05)) == []


def test_runs_of_other_budgets_are_not_compared(tmp_path: Path) -> None:
    budget = {"mode": "iso_tokens", "limits": {"max_tokens": 200}}
    assert losing(contest(tmp_path, level, budget=budget)) == []


@pytest.mark.parametrize("curve", [level, rising])
def test_a_loss_is_judged_by_how_far_it_falls(tmp_path: Path, curve: Curve) -> None:
    loss = {"target_metric": "acc", "target_direction": "min"}
    sweep = HalvedSweep(tmp_path)
    sweep.run(1, (1, "completed", 3, 0.1), values=(0.1,), metadata=loss)
    values = [1 - curve(step) for step in range(1, 21)]
    run_dir = sweep.run(2, (0, "running", 5), values=values, metadata=loss)
    (run_dir / "budget.json").write_text(
        json.dumps({"limits": {"max_tokens": 150}, "totals": {"tokens": 75}})
    )
    assert losing(tmp_path) == (["002_a"] if curve is level else [])


def test_the_report_lists_runs_that_are_unlikely_to_win(tmp_path: Path) -> None:
    page = to_markdown(read_sweep(contest(tmp_path, level), NOW_NS).document())
    assert "## Unlikely to win" in page
    assert "outlay sweep stop DIR 002_a" in page


def test_the_page_has_the_command_that_stops_a_run(tmp_path: Path) -> None:
    root = contest(tmp_path / "a sweep", level)
    books = BookReader()
    collect(open_store(), [root / "001_a", root / "002_a"], books.now_ns)
    page = sweep_page(PageQuery(path="/sweep", name=sweep_id(root)), books)
    said = "".join(page.parts).replace("<wbr>", "")
    assert html_text(f"outlay sweep stop '{root}' 002_a") in said
    assert [one.run for one in page.document["losing"]] == ["002_a"]


def test_ended_runs_are_not_suggested(tmp_path: Path) -> None:
    contest(tmp_path, level)
    with (tmp_path / "sweep_journal.jsonl").open("a") as journal:
        journal.write('{"t_ns": 9, "run": "002_a", "status": "cancelled"}\n')
    assert losing(tmp_path) == []
