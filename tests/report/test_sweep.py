"""``outlay report SWEEP``: the forms that were asked for, as for a run, and no other."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest

from command_line import in_process, outlay
from halving_on_disk import decided_search
from ledgers import Segment, dollars
from outlay.errors import MissingExtra
from outlay.ledger import Metric
from outlay.report.document import to_html, to_markdown
from outlay.report.files import ReportPlace, read_sweep, write_sweep_report
from sweep_on_disk import NOW_NS, Sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of one run that cost a dollar."""
    run = Segment(about={"price": dollars(3600)}).step(1, samples=4)
    run.add(Metric(t_ns=run.now_ns, name="acc", value=0.9, step=0))
    run.end().write(Sweep(tmp_path / "sweep").add("001_a"))
    return tmp_path / "sweep"


def written(directory: Path) -> set[str]:
    """Return the files below a directory."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("flags", "files"),
    [
        ([], {"report.html"}),
        (["--html"], {"report.html"}),
        (["--md"], {"report.md"}),
        (["--html", "--md"], {"report.html", "report.md"}),
        (["--md", "--json"], {"report.md"}),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else None,
)
def test_only_the_requested_formats_are_written(
    sweep: Path, flags: list[str], files: set[str]
) -> None:
    done = in_process("report", sweep, *flags)
    assert done.code == 0, done.err
    assert written(sweep / "reports") == files


def test_the_verdict_and_the_files_are_printed(sweep: Path, tmp_path: Path) -> None:
    shown = outlay("report", sweep, "--md", "--output", tmp_path / "out", columns=300).out
    verdict, file = shown.splitlines()
    assert verdict.startswith("Best: 001_a with acc 0.9")
    assert Path(file) == tmp_path / "out" / "report.md"
    assert Path(file).read_text().startswith("# demo\n")


def test_the_time_of_a_step_is_labelled_as_a_mean_over_all_steps(tmp_path: Path) -> None:
    run = Segment().step(1, wait=1, samples=4).step(8, samples=4)
    run.end().write(Sweep(tmp_path).add("001_a"))
    account = read_sweep(tmp_path, NOW_NS)
    page = to_markdown(account.document())
    assert "mean step (ms)" in page
    assert "| 5,000.00 |" in page
    assert "over the time of all steps, their wait for data included" in page


def test_json_alone_writes_nothing(sweep: Path) -> None:
    found = in_process("report", sweep, "--json").json
    assert found["verdict"].startswith("Best: 001_a")
    assert [run["run_id"] for run in found["runs"]] == ["001_a"]
    assert found["files"] == []
    assert not (sweep / "reports").exists()


def test_pictures_are_written_without_a_page(sweep: Path) -> None:
    found = in_process("report", sweep, "--png", "--json").json
    assert {Path(file).suffix for file in found["files"]} == {".png"}
    assert {str(Path(file).relative_to(sweep / "reports")) for file in found["files"]} == written(
        sweep / "reports"
    )


def test_without_matplotlib_nothing_is_written(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    place = ReportPlace(directory=tmp_path / "out")
    with pytest.raises(MissingExtra):
        write_sweep_report(read_sweep(sweep, NOW_NS), place, ["html", "png"])
    assert written(tmp_path / "out") == set()


def test_a_cluster_that_did_not_answer_is_a_finding(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.add("001_a", status="running", engine="elsewhere", work_dir="/")
    assert "elsewhere" in outlay("report", tmp_path, columns=300).out


def test_a_search_shows_who_went_on_at_what_cost(tmp_path: Path) -> None:
    decided_search(tmp_path)
    account = read_sweep(tmp_path, NOW_NS)
    page, text = to_html(account.document()), to_markdown(account.document())
    rungs = page.split("<h2>Rungs</h2>")[1].split("</section>")[0]
    assert "rung 1: 50 tok: 1 went on, 2 pruned; 4.00 USD" in rungs
    assert "rung 2: 150 tok: 1 completed; 3.00 USD" in rungs
    went = text.split("## Run by rung")[1].split("##")[0]
    assert "| 002_a | lr=2 | 0.7 | 1.00 USD | 0.9 | 3.00 USD | completed |" in went
    assert "001_a" not in went


@pytest.mark.parametrize(("names", "count"), [(("lr",), 0), (("lr", "width"), 1)])
def test_a_grid_of_two_parameters_is_a_heat_map(
    tmp_path: Path, names: tuple[str, ...], count: int
) -> None:
    sweep = Sweep(tmp_path)
    for number, values in enumerate(product((1, 10), repeat=len(names))):
        story = Segment(about={"price": dollars(3600)}).step(1)
        story.add(Metric(t_ns=story.now_ns, name="acc", value=0.9 - number / 10, step=0)).end()
        story.write(sweep.add(f"{number}", params=dict(zip(names, values, strict=True))))
    page = to_html(read_sweep(tmp_path, NOW_NS).document())
    assert page.count('class="rows grid"') == count
    assert page.count("data-places=") == 2 ** len(names)
    if count:
        assert "lr 1, width 10: acc 0.8 over 1 run, 1.00 USD a run" in page
