"""A failed run: its log and the log's last lines, wherever its failure is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Outcome, outlay
from outlay.sweep.state.failures import LINE_LENGTH, LINES, last_lines
from terminal import terminal

SCRIPT = """
for line in 1 2 3 4 5 6; do echo "line $line"; done
echo "token $MY_API_KEY"; test {x} != 2
"""


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-from-env")
    path = tmp_path / "grid.json"
    stated = {
        "engine": "process", "arguments": "none", "entrypoint": ["sh", "-c", SCRIPT],
        "output_dir": "sweep", "grid": [{"name": "a", "params": {"x": [1, 2]}}],
    }  # fmt: skip
    path.write_text(json.dumps(stated))
    return path


SHOWN = """\
  log: sweep/002_a_01/sweep.log
  | line 3
  | line 4
  | line 5
  | line 6
  | token <redacted>
"""


def checked(shown: Outcome) -> Outcome:
    assert "s3cr3t-from-env" not in shown.out + shown.err
    return shown


def test_progress_status_and_report_show_the_last_lines_of_the_failed_run_alone(grid: Path) -> None:
    ran = checked(outlay("sweep", "run", grid, "--yes"))
    assert ran.code == 1
    assert f"002_a_01 error: exit code 1\n{SHOWN}" in ran.out
    for command in ("status", "report"):
        shown = checked(outlay("sweep", command, "sweep"))
        assert f"002_a_01 failed: exit code 1\n{SHOWN}" in shown.out, shown.err
        assert shown.out.count("  log: ") == 1


def test_runs_that_failed_alike_are_shown_once(grid: Path) -> None:
    grid.write_text(grid.read_text().replace("test {x} != 2", "test {x} = 0"))
    outlay("sweep", "run", grid, "--yes")
    shown = checked(outlay("sweep", "status", "sweep"))
    assert "001_a_00 and 1 more failed: exit code 1\n" in shown.out
    assert shown.out.count("  log: ") == 1


def test_the_same_is_in_json(grid: Path, tmp_path: Path) -> None:
    failed = {
        "run": "002_a_01", "reason": "exit code 1",
        "log": str(tmp_path / "sweep" / "002_a_01" / "sweep.log"),
        "last_lines": ["line 3", "line 4", "line 5", "line 6", "token <redacted>"],
    }  # fmt: skip
    assert checked(outlay("sweep", "run", grid, "--yes", "--json")).json["failures"] == [failed]
    runs = checked(outlay("sweep", "status", tmp_path / "sweep", "--json")).json["runs"]
    assert [run["failed"] for run in runs] == [None, failed]
    report = checked(outlay("sweep", "report", "sweep", "--json", "--allow-missing"))
    assert report.json["failures"] == [failed]


def test_a_terminal_shows_them_after_the_table(grid: Path) -> None:
    with terminal("sweep", "run", grid, "--yes") as screen:
        assert screen.end() == 1
        assert "002_a_01 failed: exit code 1" in screen.shown
        assert "| line 6" in screen.shown


def test_a_log_is_shown_without_colours_empty_lines_and_progress(tmp_path: Path) -> None:
    log = tmp_path / "sweep.log"
    log.write_bytes(b"\x1b[31mred\x1b[0m\n\n 1%\r 2%\r100%\r\n \nhalf \xff")
    assert last_lines(log) == ["red", "100%", "half \ufffd"]


def test_a_long_log_with_long_lines_is_cut(grid: Path, tmp_path: Path) -> None:
    stated = json.loads(grid.read_text())
    stated["entrypoint"] = [
        "sh",
        "-c",
        "seq -s x 1 200000; echo; yes | head -n 9; seq -s y 900; exit 3",
    ]
    grid.write_text(json.dumps(stated))
    outlay("sweep", "run", grid, "--yes")
    (first, _) = outlay("sweep", "status", tmp_path / "sweep", "--json").json["runs"]
    lines = first["failed"]["last_lines"]
    assert lines[:-1] == ["y"] * (LINES - 1)
    assert len(lines[-1]) == LINE_LENGTH
    assert lines[-1].endswith("…")


def test_a_run_without_a_log_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none") == []
    assert last_lines(tmp_path) == []
