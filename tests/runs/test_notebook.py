"""Runs as a notebook shows them: one line, a table, a report without script, a data frame."""

from __future__ import annotations

from pathlib import Path

import pytest

import outlay
from outlay import list_runs, read_run
from outlay.errors import RunInUse


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


def test_a_list_is_a_data_frame_with_all_figures(trained: Path) -> None:
    frame = list_runs(trained).to_pandas()
    assert list(frame["steps"]) == [5, 3]
    assert list(frame["cost"]) == [row.cost.amount for row in list_runs(trained) if row.cost]


def test_a_run_that_a_cell_left_open_says_how_to_close_it(tmp_path: Path) -> None:
    left = outlay.run("m", dir=tmp_path / "r")
    with pytest.raises(RunInUse, match=r"call run\.close\(\)"):
        outlay.run("m", dir=tmp_path / "r")
    left.close()
    outlay.run("m", dir=tmp_path / "r").close()
