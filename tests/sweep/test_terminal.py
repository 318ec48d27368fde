"""A sweep on a real terminal of 80 columns: the question, the live table, Ctrl-C."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from outlay.proc.identity import marked
from outlay.sweep.state.manifest import read_events, read_manifest
from terminal import terminal

WAIT = "while [ ! -e ../go ]; do sleep 0.05; done"
BUDGET = json.dumps({"limits": {"max_minutes": 2}, "totals": {"time_minutes": 1.5}})


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """A grid whose runs report their budget, and wait for a file to appear."""
    script = f"cd $MFCL_SWEEP_RUN_DIR; echo '{BUDGET}' > budget.json; {WAIT}; test {{x}} != 2"
    stated: dict[str, Any] = {
        "engine": "process", "arguments": "none", "entrypoint": ["sh", "-c", script],
        "output_dir": str(tmp_path / "sweep"), "price": "1 USD/h", "timeout": "1h",
        "ceiling": "5 USD",
        "grid": [{"name": "a-rather-long-name-for-a-group", "params": {"x": [1, 2]}}],
    }  # fmt: skip
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(stated))
    return path


def test_the_plan_is_shown_and_a_no_starts_nothing(grid: Path, tmp_path: Path) -> None:
    with terminal("sweep", "run", grid) as screen:
        screen.until("Start these runs? [y/N]:")
        assert re.search(r"001_a-rather\S* +x=1 ", screen.shown)
        assert "2 runs: 2h00m of training, 2.00 USD (estimated), ceiling 5.00 USD" in screen.shown
        assert "Commands" not in screen.shown
        screen.type("n\n")
        assert screen.end() == 3
    assert not (tmp_path / "sweep").exists()


def test_a_yes_starts_the_runs_and_shows_a_live_table(grid: Path, tmp_path: Path) -> None:
    with terminal("sweep", "run", grid, "--jobs", "2") as screen:
        screen.until("Start these runs? [y/N]:")
        screen.type("y\n")
        screen.until_matches(r"2 running; planned 2.00 USD, running ~0\.\d+ USD, ceiling 5.00 USD")
        screen.until_matches(r"run +status +time +budget used +planned \(USD\) +cost \(USD\)")
        screen.until_matches(r"002_a-r\S*…\S*_01 +running +\S+ +75% +1\.00 +~<?0\.\d+")
        (tmp_path / "sweep" / "go").touch()
        assert screen.end() == 1
        assert re.search(r"001_a-r\S*…\S*_00 +completed ", screen.shown)
        assert re.search(r"002_a-r\S*…\S*_01 +error .*exit code 1", screen.shown)
        assert "1 of the runs did not complete: 002_a-rather" in screen.shown.replace("\n", "")


def test_no_line_of_the_table_is_wider_than_the_terminal(grid: Path, tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "go").touch()
    with terminal("sweep", "run", grid, "--yes") as screen:
        assert screen.end() == 1
        table = screen.shown.partition(" failed: ")[0]  # The path of a log is not broken.
    assert max(len(line.rstrip()) for line in re.split(r"[\r\n]+", table)) <= 80
    with terminal("sweep", "status", tmp_path / "sweep") as screen:
        assert screen.end() == 0
        lines = re.split(r"[\r\n]+", screen.shown)
        assert max(len(x.rstrip()) for x in lines if not x.startswith("  log: ")) <= 80


def test_ctrl_c_on_the_terminal_cancels_and_no_run_is_left(grid: Path, tmp_path: Path) -> None:
    with terminal("sweep", "run", grid, "--yes") as screen:
        screen.until("75%")
        screen.type("\x03")
        assert screen.end() == 130
    manifest = read_manifest(tmp_path / "sweep")
    assert [manifest.state(run).status for run in manifest.runs] == ["cancelled", "pending"]
    tickets = [event.ticket for event in read_events(tmp_path / "sweep") if event.ticket]
    assert [marked(ticket) for ticket in tickets] == [[]]
