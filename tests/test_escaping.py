"""Untrusted text is escaped in every output: terminal, HTML, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from command_line import in_process, outlay
from hostile import ESCAPE, TEXTS, good_run
from ledgers import Segment, dollars
from outlay.escaping import (
    csv_cell,
    html_text,
    json_text,
    latex_text,
    markdown_table,
    markdown_text,
    one_line,
    terminal_text,
    write_csv,
)
from outlay.ledger import Metric, Note
from outlay.report.html import asset
from outlay.report.sweep_document import latex_table as latex_table
from outlay.sweep.aggregate.rows import Cells

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
every_text = pytest.mark.parametrize("text", TEXTS.values(), ids=[*TEXTS])


class Elements(HTMLParser):
    """The elements and attributes that a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, [name for name, _ in attrs]))


def elements(page: str) -> list[tuple[str, list[str]]]:
    parser = Elements()
    parser.feed(page)
    return parser.seen


@every_text
def test_a_terminal_gets_no_control_characters(text: str) -> None:
    assert CONTROL.search(terminal_text(text)) is None
    assert terminal_text(terminal_text(text)) == terminal_text(text)


@every_text
def test_text_stays_on_one_line(text: str) -> None:
    assert "\n" not in one_line(text)
    assert CONTROL.search(one_line(text)) is None


@every_text
def test_html_has_no_element_but_its_own(text: str) -> None:
    page = f'<p title="{html_text(text)}">{html_text(text)}</p>'
    assert elements(page) == [("p", ["title"])]


@every_text
def test_markdown_shows_the_text_itself(text: str) -> None:
    shown = markdown_text(text)
    assert "\n" not in shown
    assert "<" not in shown
    assert re.search(r"[\[\]`*|]", re.sub(r"\\.", "", shown)) is None


@every_text
def test_a_markdown_row_has_as_many_cells_as_were_given(text: str) -> None:
    *_, row = markdown_table([">a", "b"], [[text, "b"]])
    assert re.sub(r"\\.", "", row).count("|") == 3


@every_text
def test_latex_runs_no_command(text: str) -> None:
    commands = re.findall(r"\\([A-Za-z]+)", latex_text(text))
    assert set(commands) <= {"textbackslash", "textasciitilde", "textasciicircum"}
    assert re.search(r"(?<!\\)[%$#&]", latex_text(text)) is None


@every_text
def test_no_cell_of_a_table_is_a_formula(text: str) -> None:
    stream = io.StringIO()
    write_csv(stream, ["a", text], [{"a": text, text: 1}])
    rows = list(csv.reader(io.StringIO(stream.getvalue())))
    assert [len(row) for row in rows] == [2, 2]
    for cell in (rows[0][1], rows[1][0]):
        assert not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))


@pytest.mark.parametrize("value", [-1, -1.5, "-1.5", "+2e3", "1", "", None, "-inf", "plain", "a=b"])
def test_numbers_and_plain_text_stay_as_they_are(value: object) -> None:
    assert csv_cell(value) == value


@pytest.mark.parametrize("text", ["bert-base_v2", "lr=0.1 bs=8", "a/b/c.py:3", "5 % of x", "naïve"])
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert terminal_text(text) == one_line(text) == markdown_text(text) == html_text(text) == text


def test_json_keeps_its_meaning() -> None:
    assert json_text('"a\x9bb"') == '"a\\u009bb"'


@pytest.fixture
def hostile_run(tmp_path: Path) -> Path:
    """A run whose every text is hostile."""
    everything = "".join(TEXTS.values()).replace("\x00", "")
    about = {"model": everything, "name": everything, "host": "h", "user": everything,
             "price": dollars(1), "tags": {everything: everything}, "command": (everything,),
             "config": {everything: everything}}  # fmt: skip
    segment = Segment(about=about)
    for _ in range(4):
        segment.step(1, tokens=5)
    segment.span(everything, 2)
    segment.add(Metric(t_ns=segment.now_ns, name=everything, value=0.5, step=2))
    segment.add(Note(t_ns=segment.now_ns, text=everything, data={everything: everything}))
    segment.end("failed", everything).write(tmp_path / "run")
    return tmp_path / "run"


COMMANDS = [
    ["runs"], ["collect"], ["cost", "show"], ["goodput"], ["ledger", "cat"], ["ledger", "verify"],
    ["report"], ["advise"], ["budget", "show"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_commands_print_no_control_characters(
    hostile_run: Path, command: list[str], form: list[str]
) -> None:
    ended = in_process(*command, hostile_run, *form)
    assert CONTROL.findall(ended.out + ended.err) == []


def test_the_listing_and_the_overview_of_registered_runs_are_safe(hostile_run: Path) -> None:
    in_process("collect", hostile_run)
    for command in (["runs"], [], ["cost", "summary"], ["runs", "--json"]):
        ended = in_process(*command)
        assert ended.code == 0
        assert ESCAPE not in ended.out + ended.err


def test_the_pages_of_a_hostile_run_hold_no_element_of_its_own(hostile_run: Path) -> None:
    in_process("report", hostile_run)
    own = f"<script>{asset('page.js')}{asset('reading.js')}</script>"
    page = (hostile_run / "report.html").read_text().replace(own, "", 1)
    names = {tag for tag, _ in elements(page)}
    assert not names & {"script", "img", "iframe"}
    assert all(href.startswith("#") for href in re.findall(r'href="([^"]*)"', page))
    assert not [a for _, attributes in elements(page) for a in attributes if a.startswith("on")]
    assert CONTROL.search(page) is None


@every_text
def test_plan_with_hostile_names_is_shown_escaped(tmp_path: Path, text: str) -> None:
    grid = tmp_path / "grid.json"
    grid_document = {"name": "g", "grid": [{"name": text, "params": {"p": [text]}}]}
    grid.write_text(json.dumps(grid_document))
    for form in ([], ["--json"], ["--commands"]):
        ended = in_process("sweep", "plan", grid, *form)
        assert CONTROL.findall(ended.out + ended.err) == []


def test_a_latex_table_of_hostile_labels_has_its_own_commands_alone() -> None:
    row: Cells = {"run_id": TEXTS["latex"], "status": "completed", "param_x": TEXTS["latex"]}
    assert "\\input{" not in latex_table([row])


def test_a_directory_whose_name_is_no_text_is_listed(tmp_path: Path) -> None:
    good_run(tmp_path / "caf\udce9", "latin")
    for form in ([], ["--json"]):
        ended = outlay("runs", tmp_path, *form)
        assert ended.code == 0
        assert "latin" in ended.out
