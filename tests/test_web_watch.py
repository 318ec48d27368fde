"""``outlay runs --watch``: what runs now, again and again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from terminal import terminal
from web_server import training

pytestmark = pytest.mark.xdist_group("web")


def watch(home: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "outlay", "runs", "--watch", *more],
        env=os.environ | {"OUTLAY_HOME": str(home)}, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def test_every_line_says_how_runs_stand_and_ctrl_c_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_BUDGET", "iso_cost=500 USD")
    with training(tmp_path / "run", tmp_path), watch(tmp_path, "--json") as process:
        assert process.stdout is not None
        seen: list[dict[str, Any]] = []
        for line in process.stdout:
            seen += json.loads(line)
            if len({each["steps"] for each in seen}) > 2:
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert seen[-1]["name"] == "live run"
    assert seen[-1]["steps"] > seen[0]["steps"]
    assert seen[-1]["burn_micros_per_hour"] == 36_000_000
    assert seen[-1]["budget_limit"] == "max_cost_usd"
    assert seen[-1]["budget_left"] == 1 - seen[-1]["budget_used"] < 1


def test_a_terminal_shows_one_table_that_changes(tmp_path: Path, private_home: Path) -> None:
    with (
        training(tmp_path / "run", private_home),
        terminal("runs", "--watch", columns=140) as shown,
    ):
        shown.until("live run")
        shown.until("36.00 USD")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_what_is_left_of_a_budget_is_shown_with_its_limit_at_any_width(
    tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("OUTLAY_BUDGET", "iso_cost=500 USD")
    with (
        training(tmp_path / "run", private_home),
        terminal("runs", "--watch", columns=columns) as shown,
    ):
        shown.until("budget left")
        shown.until("100% of 500.00 USD")
        assert shown.widest <= columns
