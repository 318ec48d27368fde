"""The report of a run: every part is there, says how it is known, and adds up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import outlay
from command_line import in_process
from ledgers import START_NS, Segment
from outlay.escaping import html_text, markdown_text
from outlay.ledger import EndStatus, Metric, Price
from outlay.report.document import (
    Document,
    Figure,
    NoteBlock,
    Table,
    to_html,
    to_markdown,
)
from outlay.report.run_document import run_document
from outlay.runs.reading import RunReading, read_run
from report_builders import ABOUT, LATER_NS, disrupted_run


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> RunReading:
    return disrupted_run(tmp_path_factory.mktemp("disrupted"))


@pytest.fixture(scope="module")
def document(account: RunReading) -> Document:
    return run_document(account)


def table(document: Document, section: str) -> Table:
    (blocks,) = (each.blocks for each in document.sections if each.title == section)
    return next(block for block in blocks if isinstance(block, Table))


@pytest.mark.parametrize(
    "title",
    [
        "The run", "Where time and money went", "What a unit cost", "Step times",
        "Checkpoints", "Reliability", "What to change", "How the figures are known",
    ],
)  # fmt: skip
def test_the_report_has_every_part(document: Document, title: str) -> None:
    assert title in [section.title for section in document.sections]


def test_the_verdict_names_the_money_the_share_and_the_largest_loss(document: Document) -> None:
    assert re.search(r"In all 23\.5s of wall time, 23\.50 USD; [\d.]+% of the", document.verdict)
    assert "The largest loss was stall" in document.verdict
    assert "over 1 disruption" in document.verdict


def test_the_phases_sum_to_the_total_to_the_last_digit(account: RunReading) -> None:
    shown = table(run_document(account), "Where time and money went")
    *parts, total = (row[3] for row in shown.rows)
    assert sum(part.micros for part in parts if part) == total.micros  # type: ignore[attr-defined]
    assert total == account.goodput.cost


def test_every_figure_says_how_it_is_known(document: Document) -> None:
    graded = [figure.grade for _, figure in document.figures()]
    assert graded
    assert set(graded) <= {"measured", "stated", "estimated", "assumed"}
    assert "cost (stated)" in table(document, "Where time and money went").headings
    assert dict(_texts(document))["mean time to failure"] == "estimated"


def _texts(document: Document) -> list[tuple[str, str]]:
    return [(figure.label, figure.grade) for _, figure in document.figures()]


@pytest.mark.parametrize(("offer", "grade"), [("", "stated"), ("lambda:1xH100", "measured")])
def test_cost_at_a_typed_price_is_stated(tmp_path: Path, offer: str, grade: str) -> None:
    price = Price(10**6, offer=offer, fetched_ns=START_NS)
    Segment(about=ABOUT | {"price": price}).step(1).end().write(tmp_path)
    assert ("cost", grade) in _texts(run_document(read_run(tmp_path, LATER_NS)))


def test_cost_is_assumed_where_no_record_says_whether_it_is_billed(tmp_path: Path) -> None:
    silent = ABOUT | {"boot_id": ""}
    Segment(about=silent).step(1).write(tmp_path)
    Segment(start=5, about=silent).step(1).end().write(tmp_path)
    report = run_document(read_run(tmp_path, LATER_NS))
    assert ("cost", "assumed") in _texts(report)
    assert ("of which assumed", "assumed") in _texts(report)
    money = {str(row[0]): str(row[3]) for row in table(report, "Where time and money went").rows}
    assert (money["total"], money["of which assumed"]) == ("6.00 USD", "4.00 USD")
    assert any(
        isinstance(block, NoteBlock) and "full price is assumed" in block.text
        for block in report.sections[-1].blocks
    )


def test_a_disruption_is_listed_with_its_recovery_times(document: Document) -> None:
    (row,) = table(document, "Reliability").rows
    assert row[1:] == ("node", "killed or crashed", "3.8s", "0s", "500.0ms", "0s", "2.0s")


def test_the_page_opens_offline_and_escapes_what_it_shows(document: Document) -> None:
    text = to_html(document).replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:src|href)=|https?://|@import|url\(", text) == []
    assert "a &lt;b&gt;" in text
    assert "<b>" not in text


def test_markdown_has_every_figure_of_the_page(document: Document) -> None:
    page, text = to_html(document).replace("<wbr>", ""), to_markdown(document)
    assert "# a &lt;b&gt;" in text
    for _, figure in document.figures():
        mark = "" if figure.grade == "measured" else f" ({figure.grade})"
        assert f"- {figure.label}: {markdown_text(figure.text)}{mark}" in text
        assert re.search(
            rf"<dt>{figure.label}(<button.*?</button>)?</dt>"
            rf"<dd[^>]*>(<[^>]*>)?{re.escape(html_text(figure.text))}",
            page,
        )


def test_a_run_without_steps_or_price_says_so(tmp_path: Path) -> None:
    Segment().after(5).end().write(tmp_path)
    report = run_document(read_run(tmp_path, LATER_NS))
    assert "the productive share is unknown" in report.verdict
    assert "No steps were recorded" in to_markdown(report)
    assert "The run has no price" in to_markdown(report)


def test_without_a_price_it_says_that_no_advice_can_be_given(tmp_path: Path) -> None:
    Segment().step(1).step(1).end().write(tmp_path)
    report = to_markdown(run_document(read_run(tmp_path, LATER_NS)))
    assert "Savings cannot be computed without a price." in report


def test_a_single_step_is_not_called_none(tmp_path: Path) -> None:
    Segment(about=ABOUT).step(1).end().write(tmp_path)
    report = to_markdown(run_document(read_run(tmp_path, LATER_NS)))
    assert "No steps were recorded" not in report
    assert "One step was recorded" in report


@pytest.mark.parametrize(
    ("status", "reason", "told"),
    [
        ("failed", "ValueError", "It failed: ValueError."),
        ("interrupted", "KeyboardInterrupt", "It was interrupted: KeyboardInterrupt."),
        ("terminated", "", "It was terminated."),
        ("preempted", "spot reclaim", "It was preempted: spot reclaim."),
    ],
)
def test_the_verdict_says_how_a_run_ended_that_did_not_complete(
    status: EndStatus, reason: str, told: str, tmp_path: Path
) -> None:
    Segment(about=ABOUT).step(1).step(1).end(status, reason).write(tmp_path)
    assert told in run_document(read_run(tmp_path, LATER_NS)).verdict


def test_the_verdict_says_which_limit_stopped_a_run_that_completed(tmp_path: Path) -> None:
    with outlay.run("line", dir=tmp_path, budget="iso_tokens=100") as run:
        for _ in run.steps(range(10), tokens=30):
            pass
    told = run_document(read_run(tmp_path, LATER_NS)).verdict
    assert " Its budget stopped it: tokens: 90 tok of 100 tok used" in told
    assert told.count("used") == 1


def test_the_verdict_says_that_no_end_was_recorded(tmp_path: Path) -> None:
    Segment(about=ABOUT).step(1).step(1).write(tmp_path)
    told = run_document(read_run(tmp_path, LATER_NS)).verdict
    assert "It stopped without recording an end (killed or crashed)." in told


def test_a_run_with_only_a_start_has_a_report(tmp_path: Path) -> None:
    Segment().write(tmp_path)
    report = run_document(read_run(tmp_path, LATER_NS))
    assert report.verdict == "Nothing is recorded yet: the run has no wall time."
    assert "</html>" in to_html(report)


def test_the_command_writes_what_was_asked_for(tmp_path: Path) -> None:
    disrupted_run(tmp_path / "run")
    done = in_process("report", tmp_path / "run", "--html", "--md", "--png", "--output", tmp_path)
    assert done.code == 0
    assert "The largest loss was stall" in " ".join(done.out.split())
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "report.md").read_text().startswith("# a ")
    picture = (tmp_path / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_several_runs_are_compared_on_one_page(tmp_path: Path) -> None:
    disrupted_run(tmp_path / "a")
    other = Segment(about=ABOUT | {"run_id": "other"}).step(0.5)
    other.add(Metric(t_ns=other.now_ns, name="accuracy", value=0.25)).step(0.5)
    other.add(Metric(t_ns=other.now_ns, name="accuracy", value=0.5)).end().write(tmp_path / "b")
    paths = (tmp_path / "a", tmp_path / "b")
    done = in_process("report", *paths, "--html", "--md", "--png", "--output", tmp_path)
    assert done.code == 0, done.err
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# 2 runs\n\n## Side by side\n\n| run | status | steps |")
    assert "| stall |" in text
    assert not re.search(r"^## .*\s+(## |\Z)", text, re.MULTILINE), "a section of charts alone"
    assert "<h2>Differences</h2>" in (tmp_path / "report.html").read_text()
    found = in_process("report", *paths, "--json").json
    assert [run["cost"]["micros"] for run in found["runs"]] == [23_500_000, 1_000_000]
    assert found["files"] == []
    named = in_process("report", *paths, "--output", tmp_path / "both" / "cmp.html")
    assert named.code == 0, named.err
    assert [each.name for each in (tmp_path / "both").iterdir()] == ["cmp.html"]
    assert (tmp_path / "both" / "cmp.html").read_text().startswith("<!doctype html>")


def test_what_is_empty_is_left_out_and_what_to_do_comes_before_tables(tmp_path: Path) -> None:
    Segment(about=ABOUT).step(1).step(1).end().write(tmp_path)
    titles = [each.title for each in run_document(read_run(tmp_path, LATER_NS)).sections]
    assert titles[:2] == ["The run", "What to change"]
    assert not {"Budget", "Reliability", "Attempts"} & set(titles)


def test_hashes_and_paths_are_broken_between_their_parts_only(tmp_path: Path) -> None:
    commit, host = "0123456789abcdef" * 2, "gpu-node-17.cluster.example.org"
    Segment(about=ABOUT | {"git_commit": commit, "host": host}).step(1).end().write(tmp_path)
    page = to_html(run_document(read_run(tmp_path, LATER_NS)))
    assert f'<div class="hash"><dt>commit<button type="button" data-copy="{commit}"' in page
    assert f'<dd><span title="{commit}">{commit}</span></dd>' in page
    assert "<dd>gpu-node-17.<wbr>cluster.<wbr>example.<wbr>org</dd>" in page
    assert '<time datetime="2023-11-14T22:13:20Z">2023-11-14 22:13:20Z</time>' in page


def test_an_empty_run_has_a_picture(tmp_path: Path) -> None:
    Segment().write(tmp_path)
    assert in_process("report", tmp_path, "--png").code == 0
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_the_same_figures_as_json(tmp_path: Path) -> None:
    account = disrupted_run(tmp_path)
    found = in_process("report", tmp_path, "--json").json
    assert found["cost"]["cost"]["micros"] == 23_500_000
    shown = [(figure["label"], figure["grade"]) for figure in found["figures"]]
    assert shown == _texts(run_document(account))
    assert not (tmp_path / "report.html").exists()


def test_a_directory_without_a_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    done = in_process("report", tmp_path)
    assert done.code == 2
    assert "no run log here" in done.err
    assert not (tmp_path / "report.html").exists()


def test_figures_of_a_document_come_with_their_sections(document: Document) -> None:
    found = list(document.figures())
    assert ("The run", Figure("steps", 8, "8", leads=True)) in found
    repeated = Figure("steps executed", 10, "10, repeated ones included")
    assert ("The run", repeated) in found
