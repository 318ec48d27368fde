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


def test_every_line_says_how_runs_stand_and_ctrl_c_ends_it(tmp_path: Path) -> None:
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


def test_a_terminal_shows_one_table_that_changes(tmp_path: Path, private_home: Path) -> None:
    with (
        training(tmp_path / "run", private_home),
        terminal("runs", "--watch", columns=140) as shown,
    ):
        shown.until("live run")
        shown.until("36.00 USD")
