"""What people see of a search: its rungs, who was pruned and why, and what it cost."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import in_process, outlay
from halving_on_disk import HalvedSweep, decided_search
from ledgers import Segment
from ledgers import dollars as dollars_an_hour
from outlay.ledger import EndStatus, Metric
from outlay.report.document import to_markdown
from outlay.report.drawing.charts import LineChart, SpanChart
from outlay.report.files import read_sweep
from outlay.report.run_document import run_document
from outlay.runs.collect import collect
from outlay.runs.reading import read_run
from outlay.store import open_store
from outlay.sweep.search.results import search_results
from outlay.sweep.state.manifest import read_manifest
from outlay.web.book_reader import BookReader, sweep_id
from outlay.web.page import PageQuery
from outlay.web.runs import run_page, runs_page, sweep_page, sweeps_page
from sweep_on_disk import NOW_NS, Sweep


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A search of three runs that is over."""
    return decided_search(tmp_path).root


def search(root: Path) -> Any:
    """Return the search as ``sweep status --json`` shows it."""
    return in_process("sweep", "status", root, "--json").json["search"]


def dollars(amount: Any) -> float:
    """Return an amount in a JSON document."""
    assert amount["currency"] == "USD"
    return float(amount["micros"]) / 1e6


# -- rungs ----------------------------------------------------------------------------------


def test_each_rung_shows_who_went_on(root: Path) -> None:
    counts = ("rung", "budget", "runs", "went_on", "pruned", "completed", "open", "failed")
    assert [tuple(row[name] for name in counts) for row in search(root)["rungs"]] == [
        (1, "50 tok", 3, 1, 2, 0, 0, 0), (2, "150 tok", 1, 0, 0, 1, 0, 0),
    ]  # fmt: skip


def test_each_rung_shows_its_best_configuration(root: Path) -> None:
    found = [(row["best"], row["best_run"]) for row in search(root)["rungs"]]
    assert found == [(0.7, "002_a"), (0.9, "002_a")]


def test_a_loss_is_best_if_it_is_small(tmp_path: Path) -> None:
    sweep = HalvedSweep(tmp_path)
    for number, value in ((1, 0.5), (2, 0.7)):
        sweep.run(number, (0, "paused", 1, value), metadata={"target_metric": "loss"})
    assert search(tmp_path)["rungs"][0]["best"] == 0.5


def test_the_best_at_a_rung_is_a_mean_over_seeds(tmp_path: Path) -> None:
    sweep = HalvedSweep(tmp_path)
    for number, value in enumerate((0.2, 0.8, 0.6), 1):
        sweep.run(number, (0, "paused", 1, value), configuration="a" if number < 3 else "b")
    assert search(tmp_path)["rungs"][0]["best_run"] == "003_a"


def test_the_cost_of_a_rung_is_that_of_its_attempts(root: Path) -> None:
    assert [dollars(row["cost"]) for row in search(root)["rungs"]] == [4, 3]


def test_a_failed_attempt_is_paid_for_at_its_rung(tmp_path: Path) -> None:
    HalvedSweep(tmp_path).run(1, (0, "paused", 1, 0.5), (1, "error", 2), (1, "error", 4))
    rungs = search(tmp_path)["rungs"]
    assert [(dollars(row["cost"]), row["failed"]) for row in rungs] == [(1, 0), (6, 1)]


def passing(root: Path, status: str) -> Any:
    """Return the rungs of a run that does not pause: it passed the first after a second of four."""
    sweep = HalvedSweep(root)
    sweep.run(1, (0, status, 4, 0.9 if status == "completed" else None), resumable=False)
    began, *ended = sweep.events
    passed = began | {
        "t_ns": began["t_ns"] + 10**9, "reports": True, "passes": True, "metric": 0.5,
    }  # fmt: skip
    sweep.events = [began, passed, *(event | {"rung": 1} for event in ended)]
    sweep.write_journal()
    return search(root)["rungs"]


def test_the_cost_of_runs_that_do_not_pause_is_divided_by_time(tmp_path: Path) -> None:
    rungs = passing(tmp_path, "completed")
    assert [(dollars(row["cost"]), row["runs"]) for row in rungs] == [(1, 1), (3, 1)]


@pytest.mark.parametrize(
    ("status", "open_", "pruned"), [("running", [0, 1], [0, 0]), ("pruned", [0, 0], [1, 0])]
)
def test_a_run_that_does_not_pause_is_past_the_rungs_that_it_reported_at(
    tmp_path: Path, status: str, open_: list[int], pruned: list[int]
) -> None:
    rungs = passing(tmp_path, status)
    assert [row["open"] for row in rungs] == open_
    assert [row["pruned"] for row in rungs] == pruned


def test_without_survivors_the_whole_grid_costs_as_predicted(tmp_path: Path) -> None:
    sweep = HalvedSweep(tmp_path)
    sweep.run(1, (0, "error", 1))
    sweep.run(2, (0, "error", 1))
    shown = in_process("sweep", "status", tmp_path, columns=200).out
    assert "All 2 runs up to the last rung were predicted to cost 10.00 USD." in shown


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ((0.1, 0.2, 0.3, 0.4), "How sure: the order hardly changed between rungs"),
        ((0.4, 0.3, 0.2, 0.1), "How sure: the order changed between rungs"),
    ],
)
def test_status_says_whether_the_order_changed_between_rungs(
    tmp_path: Path, last: tuple[float, ...], said: str
) -> None:
    sweep = HalvedSweep(tmp_path)
    for number, value in enumerate(last, 1):
        sweep.run(number, (0, "paused", 1, number / 10), (1, "completed", 3, value))
    assert said in in_process("sweep", "status", tmp_path, columns=300).out
    assert search(tmp_path)["order"][0]["configurations"] == 4


def test_a_search_is_compared_with_the_whole_grid(root: Path) -> None:
    found = search(root)
    assert dollars(found["spent"]) == 7
    assert dollars(found["whole_planned"]) == 15
    assert dollars(found["whole_estimated"]) == 12  # Three times the one that completed.


def test_a_paused_run_waits_at_its_rung(tmp_path: Path) -> None:
    HalvedSweep(tmp_path).run(1, (0, "paused", 1, 0.5))
    found = search(tmp_path)
    assert found["rungs"][0]["open"] == 1
    shown = in_process("sweep", "status", tmp_path, "--all", columns=200).out
    assert re.search(r"^001_a +paused .* rung 1 of 2: acc 0\.5\b", shown, re.MULTILINE)
    assert "0 of 1 run completed, 0 pruned at smaller budgets, 1 open." in shown


def test_a_sweep_without_rungs_has_no_search(tmp_path: Path) -> None:
    Sweep(tmp_path).add("001_a")
    assert search(tmp_path) is None


# -- screens --------------------------------------------------------------------------------


def test_every_document_has_the_same_search(root: Path) -> None:
    expected = search(root)
    assert in_process("sweep", "report", root, "--json").json["search"] == expected
    assert in_process("report", root, "--json").json["search"] == expected


def test_the_page_of_a_sweep_has_its_rungs(root: Path) -> None:
    books = BookReader()
    collect(open_store(), [root / "001_a", root / "002_a"], books.now_ns)
    page = sweep_page(PageQuery(path="/sweep", name=sweep_id(root)), books)
    manifest = read_manifest(root)
    states = [(run, manifest.state(name)) for name, run in manifest.runs.items()]
    assert page.document["search"] == search_results(states)
    shown = "".join(page.parts)
    assert "<h2>Rungs</h2>" in shown
    assert "pruned by a test" in shown


def test_the_list_of_sweeps_counts_pruned_runs(root: Path) -> None:
    books = BookReader()
    collect(open_store(), [root / "001_a"], books.now_ns)
    shown = "".join(sweeps_page(PageQuery(path="/sweeps"), books).parts)
    assert re.findall(r'<td class="n"[^>]*>(\d+)</td>', shown) == ["3", "1", "0", "0", "2"]


def test_status_shows_what_a_run_may_cost_up_to_its_rung(root: Path) -> None:
    runs = in_process("sweep", "status", root, "--json").json["runs"]
    assert [(run["planned"], run["rung"]) for run in runs] == [
        ("2.00 USD", 1), ("6.00 USD", 2), ("2.00 USD", 1),
    ]  # fmt: skip


def test_a_narrow_status_shows_every_rung(root: Path) -> None:
    _, *lines = in_process("sweep", "status", root, columns=40).out.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("rung"))
    table = lines[start : lines.index("", start)]
    assert max(map(len, table)) <= 40
    assert [line.split()[:2] for line in table if line[3:4].isdigit()] == [
        ["1", "50"],
        ["2", "150"],
    ]


def test_pruned_runs_are_no_errors_in_the_summary(root: Path) -> None:
    rows = in_process("sweep", "report", root, "--json").json["runs"]
    assert [(row["status"], row["errors"]) for row in rows] == [
        ("pruned", ""), ("completed", ""), ("pruned", ""),
    ]  # fmt: skip


def test_the_verdict_compares_survivors_and_counts_the_pruned(root: Path) -> None:
    said = in_process("sweep", "report", root, "--json").json["verdict"]
    assert said.startswith("Best: lr=2 with acc 0.9 for 4.00 USD a run; no other configuration")
    assert "2 configurations were pruned at smaller budgets" in said


def test_a_configuration_of_which_a_seed_completed_is_not_pruned(tmp_path: Path) -> None:
    sweep = HalvedSweep(tmp_path)
    same = {"configuration": "one", "params": {"lr": 1}}
    sweep.run(1, (0, "paused", 1, 0.5), (0, "pruned"), values=(0.5,), **same)
    sweep.run(2, (0, "paused", 1, 0.7), (1, "completed", 3, 0.9), values=(0.9,), **same)
    assert read_sweep(tmp_path, NOW_NS).verdict.endswith("it is the only configuration.")


def test_the_report_says_when_and_why_a_run_was_pruned(root: Path) -> None:
    page = to_markdown(read_sweep(root, NOW_NS).document())
    pattern = r"\| 001_a \| lr=1 \| 1 \| 0\.5 \| 1\.00 USD \| \d{4}-.*Z \| pruned by a test \|"
    assert re.search(pattern, page)


def test_a_pause_is_no_failed_attempt_on_the_chart(tmp_path: Path) -> None:
    sweep = HalvedSweep(tmp_path)
    sweep.run(1, (0, "paused", 1, 0.5), (1, "error", 2), values=(0.5,))
    (chart,) = (c for c in read_sweep(tmp_path, NOW_NS).charts() if isinstance(c, SpanChart))
    assert [one.mark for one in chart.stretches] == ["", "error: "]


def test_the_time_of_a_pause_is_not_on_the_money_axis(tmp_path: Path) -> None:
    run_dir = Sweep(tmp_path).add("001_a")
    ends: dict[int, EndStatus] = {0: "paused", 100: "completed"}
    for start, status in ends.items():
        boot = {"price": dollars_an_hour(3600), "boot_id": str(start)}
        story = Segment(start=start, about=boot).step(2, number=start)
        story.add(Metric(t_ns=story.now_ns, name="acc", value=0.5, step=start))
        story.end(status).write(run_dir)
    (chart,) = (c for c in read_sweep(tmp_path, NOW_NS).charts() if c.title.startswith("Learning"))
    assert isinstance(chart, LineChart)
    assert chart.curves[0].points == ((2.0, 0.5), (4.0, 0.5))


# -- a run that is paused -------------------------------------------------------------------


def test_a_paused_run_is_no_failure_on_its_page(root: Path) -> None:
    books = BookReader()
    collect(open_store(), [root / "001_a"], books.now_ns)
    page = run_page(PageQuery(path="/run", name="001_a"), books)
    said = "It paused at the end of its budget, and is not continued (pruned: pruned by a test)."
    assert page.verdict.endswith(said)


def test_a_run_that_waits_at_a_rung_can_continue(tmp_path: Path) -> None:
    HalvedSweep(tmp_path).run(1, (0, "paused", 1, 0.5), values=(0.5,))
    books = BookReader()
    collect(open_store(), [tmp_path / "001_a"], books.now_ns)
    page = run_page(PageQuery(path="/run", name="001_a"), books)
    assert page.verdict.endswith("It paused at the end of its budget, and can continue.")


def test_the_time_of_a_pause_is_no_loss(tmp_path: Path) -> None:
    Segment(about={"boot_id": "one"}).step(9).end("paused").write(tmp_path)
    Segment(start=100, about={"boot_id": "two"}).step(9, number=1).end().write(tmp_path)
    run = read_run(tmp_path, NOW_NS)
    assert [(row.phase, row.ns) for row in run.goodput.phases] == [
        ("step", 18 * 10**9), ("paused", 91 * 10**9),
    ]  # fmt: skip
    assert "Nothing was lost." in run_document(run).verdict


def test_the_list_of_runs_can_be_filtered_for_paused_ones(root: Path) -> None:
    books = BookReader()
    collect(open_store(), [root / "001_a", root / "002_a"], books.now_ns)
    page = runs_page(PageQuery(path="/runs", query=[("status", "paused")]), books)
    assert [row["run_id"] for row in page.rows] == ["001_a"]
    assert ">paused</option>" in "".join(page.parts)


# -- a search that runs ---------------------------------------------------------------------


def test_a_search_whose_runs_were_pruned_exits_with_0(tmp_path: Path) -> None:
    program = str(Path(__file__).parents[1] / "programs" / "searched_run.py")
    grid = {
        "engine": "process", "arguments": "none", "output_dir": str(tmp_path / "sweep"),
        "entrypoint": [sys.executable, program, "{final}", "1", "plain"],
        "budget": {"target_metric": "loss"},
        "search": {"halving": {"first": "50tok", "last": "100tok", "factor": 2}},
        "grid": [{"params": {"final": [0.9, 0.1]}}],
    }  # fmt: skip
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    done = outlay("sweep", "run", tmp_path / "grid.json", "--yes")
    assert done.code == 0, done.err
    assert "001_group00_00 paused: rung 1 of 2: loss 1.067\n" in done.out
    assert "1 completed, 1 pruned; no price\n" in done.out
