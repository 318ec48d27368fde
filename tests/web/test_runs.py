"""Pages of runs, made without a server: settings, commands, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import outlay
from hostile import good_run
from outlay.clock import ManualClock
from outlay.runs.collect import collect
from outlay.store import open_store
from outlay.web.book_reader import BookReader
from outlay.web.page import Page, PageQuery
from outlay.web.runs import compare_page, run_page, sweeps_page
from sweep_on_disk import Sweep


def pages_of_two(
    tmp_path: Path, a: Mapping[str, object], b: Mapping[str, object]
) -> tuple[Page, Page]:
    """Return the page of the first run, and that of both."""
    books, store = BookReader(), open_store()
    for name, about in (("a", a), ("b", b)):
        run_dir = good_run(tmp_path / name, name, run_id=f"id-{name}", **about)
        collect(store, [run_dir], books.now_ns)
    both = PageQuery(path="/compare", query=[("run", "id-a"), ("run", "id-b")])
    return run_page(PageQuery(path="/run/id-a", name="id-a"), books), compare_page(both, books)


def test_compared_runs_differ_in_a_setting_that_is_zero_and_are_also_csv(tmp_path: Path) -> None:
    a, b = ({"config": {"decay": decay, "model": {"width": 8}}} for decay in (0.0, 0.1))
    page, compared = pages_of_two(tmp_path, a, b)
    assert "<td>decay</td><td>0.0</td><td>0.1</td>" in "".join(compared.parts)
    assert "<td>model.width</td><td>8</td>" in "".join(page.parts)
    assert page.document["config"] == {"decay": 0.0, "model": {"width": 8}}
    assert len(compared.rows) == 2


def test_the_command_is_on_a_runs_page_in_its_json_and_compared(tmp_path: Path) -> None:
    a, b = ({"command": ("python", "train.py", "--lr", rate)} for rate in ("0.1", "0.2"))
    page, compared = pages_of_two(tmp_path, a, b)
    assert "<dd>python train.py --lr 0.1</dd>" in "".join(page.parts)
    assert list(page.document["command"]) == ["python", "train.py", "--lr", "0.1"]
    cells = "<td>python train.py --lr 0.1</td><td>python train.py --lr 0.2</td>"
    assert f"<td>command</td>{cells}" in "".join(compared.parts)


def test_page_of_a_growing_run_never_shows_an_older_reading(
    tmp_path: Path, clock: ManualClock
) -> None:
    books = BookReader(clock=clock)
    shown = []
    with outlay.run("m", dir=tmp_path, clock=clock) as run:
        asked = PageQuery(path="/run", name=run.run_id)
        for _ in range(300):
            with run.step():
                clock.advance(2 * 10**9)
            shown += [row["text"] for row in run_page(asked, books).rows if row["label"] == "steps"]
    assert shown == [str(steps) for steps in range(1, 301)]


def test_list_of_sweeps_has_the_amounts_of_both_kinds(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep")
    for kind in ("cash", "showback"):
        price = {"price": "3.6 USD/h", "price_kind": kind, "predicted_cost": "2 USD"}
        run_dir = sweep.add(kind, **price)
        sweep.events[-1] |= {"cost_micros": 1_500_000, "currency": "USD"}
        collect(open_store(), [good_run(run_dir, kind, run_id=kind)], 1)
    sweep.add("last")
    page = sweeps_page(PageQuery(path="/sweeps"), BookReader())
    (row,) = page.rows
    assert row["spent"] == "1.50 USD, 1.50 USD showback"
    assert "<td>2.00 USD, 2.00 USD showback</td>" in "".join(page.parts)
    assert "<td>1.50 USD, 1.50 USD showback</td>" in "".join(page.parts)
