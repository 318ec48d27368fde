"""Runs, sweeps and prices as a notebook shows them: a line, a table, a report, a data frame."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import outlay
from command_line import in_process, python
from ledgers import Segment, dollars
from outlay import list_prices, list_runs, read_run, read_sweep
from outlay.errors import RunInUse
from outlay.ledger import Metric
from sweep_on_disk import Sweep


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Two runs, one of them with markup in its name; the directory above them."""
    for name, count in (("bert", 3), ("<i>&", 5)):
        made = tmp_path / "runs" / str(count)
        with outlay.run(name, dir=made, price="3600 USD/h", gpus=1, tags={"team": name}) as run:
            for _ in run.steps(range(count), tokens=10):
                pass
    return tmp_path / "runs"


def test_a_reading_is_one_line(trained: Path) -> None:
    shown = repr(read_run(trained / "3"))
    assert "\n" not in shown
    assert shown.startswith("<RunReading bert: completed, attempts 1, steps 3, cost ")


def test_a_line_names_no_figure_that_is_unknown(tmp_path: Path) -> None:
    outlay.run("m", dir=tmp_path).close()
    assert repr(read_run(tmp_path)).endswith("steps 0, cost no price>")


def test_a_reading_is_its_report_as_html_without_script_and_style(trained: Path) -> None:
    reading = read_run(trained / "5")
    shown = reading._repr_html_()
    assert str(reading.cost.cost) in shown
    assert "Where time and money went" in shown
    assert "&lt;i&gt;&amp;" in shown
    assert not any(tag in shown for tag in ("<i>&", "<script", "<style"))


def test_the_runs_below_a_directory_are_listed_whether_registered_or_not(trained: Path) -> None:
    listed = list_runs(trained)
    assert [row.steps for row in listed] == [5, 3]
    assert [row.steps for row in list_runs(trained, limit=1)] == [5]
    assert list_runs(trained, limit=1).left_out == 1


@pytest.mark.parametrize(
    ("wanted", "steps"),
    [
        ({"status": "completed"}, [5, 3]),
        ({"status": "failed"}, []),
        ({"tag": "team=bert"}, [3]),
        ({"tag": "team"}, [5, 3]),
        ({"tag": "lab"}, []),
        ({"since": "1h", "limit": 1}, [5]),
    ],
)
def test_they_are_filtered_like_registered_ones(
    trained: Path, wanted: dict[str, object], steps: list[int]
) -> None:
    outlay.list_runs()  # Registers them.
    assert [row.steps for row in list_runs(trained, **wanted)] == steps  # type: ignore[arg-type]
    assert [row.steps for row in list_runs(**wanted)] == steps  # type: ignore[arg-type]


def test_a_list_is_a_line_and_a_table_row_for_each_run(trained: Path) -> None:
    listed = list_runs(trained)
    assert [line.partition(":")[0] for line in repr(listed).splitlines()] == [
        "<2 runs>", "<i>&", "bert",
    ]  # fmt: skip
    assert listed._repr_html_().count("<tr>") == 3
    assert "<i>&" not in listed._repr_html_()


def test_a_part_of_a_list_shows_itself_likewise(trained: Path) -> None:
    part = list_runs(trained)[:1]
    assert repr(part).splitlines()[0] == "<1 run>"
    assert part._repr_html_().count("<tr>") == 2
    assert part.left_out == 1


def test_a_list_is_a_data_frame_with_all_figures(trained: Path) -> None:
    frame = list_runs(trained).to_pandas()
    assert list(frame["steps"]) == [5, 3]
    assert list(frame["cost"]) == [row.cost.amount for row in list_runs(trained) if row.cost]


def test_a_run_that_a_cell_left_open_is_a_line_and_a_report_and_says_how_to_close_it(
    tmp_path: Path,
) -> None:
    left = outlay.run("m", dir=tmp_path / "r", budget="iso_tokens=20")
    assert repr(left).startswith("<Run m: running, no step, ")
    for _ in left.steps(range(3), tokens=10):
        pass
    assert repr(left).startswith("<Run m: tokens: 20 tok of 20 tok used, last step 1, ")
    assert "Where time and money went" in left._repr_html_()
    with pytest.raises(RunInUse, match=r"call run\.close\(\)"):
        outlay.run("m", dir=tmp_path / "r")
    left.close()
    assert repr(left).startswith("<Run m: closed, last step 1, ")
    outlay.run("m", dir=tmp_path / "r").close()


def test_a_run_that_a_killed_notebook_left_is_dead_and_goes_on_in_the_next(tmp_path: Path) -> None:
    cells = f"""
        import os, outlay
        run = outlay.run("m", dir={str(tmp_path / "r")!r})
        run.begin_step(); run.end_step()
        os._exit(1)  # The kernel was restarted.
    """
    python(textwrap.dedent(cells))
    assert read_run(tmp_path / "r").status == "dead"
    outlay.run("m", dir=tmp_path / "r").close()
    assert read_run(tmp_path / "r").status == "completed"


def test_a_run_that_is_not_recorded_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_DISABLED", "1")
    with outlay.run("<i>", dir=tmp_path / "r") as run:
        assert "&lt;i&gt;: running" in run._repr_html_()


def test_a_sweep_is_a_line_and_its_report_and_a_data_frame(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep")
    for name, accuracy in (("001_a", 0.9), ("002_<i>", 0.8)):
        run = Segment(about={"price": dollars(3600)}).step(1, samples=4)
        run.add(Metric(t_ns=run.now_ns, name="acc", value=accuracy, step=0))
        run.end().write(sweep.add(name, params={"name": name}))
    account = read_sweep(tmp_path / "sweep")
    assert repr(account).startswith("<SweepAccount demo: 2 runs. Best: ")
    shown = account._repr_html_()
    assert account.verdict.split(";")[0] in shown
    assert "<summary>Configurations</summary>" in shown
    assert not any(tag in shown for tag in ("<i>", "<script", "<style"))
    assert list(account.to_pandas()["accuracy_value"]) == [0.9, 0.8]


def test_prices_are_a_line_and_a_table() -> None:
    for price, provider in (("2.50 USD/h", "own"), ("2 USD/h", "<i>")):
        in_process("prices", "set", "H100", price, "--provider", provider)
    found = list_prices("H100", max_price="3 USD/h")
    assert [offer.provider for offer in found] == ["<i>", "own"]
    assert repr(found) == "<OfferSearch 2 offers of 2, cheapest 2.00 USD/GPU-h at <i>>"
    shown = found._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<td>&lt;i&gt;</td>" in shown
    assert list(list_prices("H100", max_price="2 USD/h", spot=True)) == []
