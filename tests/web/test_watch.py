"""``outlay runs --watch``: the figures of running runs, refreshed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from terminal import terminal
from web_server import training

pytestmark = pytest.mark.xdist_group("web")


@pytest.fixture(scope="module")
def live_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home in which a run with a budget trains."""
    home = tmp_path_factory.mktemp("watched")
    with training(home / "run", home, OUTLAY_BUDGET="iso_cost=500 USD"):
        yield home


def test_every_line_has_the_figures_of_each_run_and_ctrl_c_ends_it(live_home: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "outlay", "runs", "--watch", "--json"],
        env=os.environ | {"OUTLAY_HOME": str(live_home)}, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
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


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_terminal_shows_one_table_that_changes_at_any_width(
    live_home: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("OUTLAY_HOME", str(live_home))
    with terminal("runs", "--watch", columns=columns) as shown:
        for text in ("budget left", "100% of 500.00 USD"):
            shown.until(text)
        if columns > 80:
            shown.until("live run")
            shown.until("36.00 USD")
        assert shown.widest <= columns
