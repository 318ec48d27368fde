"""``outlay sweep run --probe``: one run alone, the plan with its start-up, then the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Outcome, outlay
from outlay.sweep.state.manifest import read_events, read_manifest
from terminal import terminal

TRAIN = """\
import sys
import outlay
with outlay.run("toy") as run:
    for _ in run.steps(range(2), tokens=1):
        pass
sys.exit("--fails=True" in sys.argv)
"""
WORDS = ("train.py", "x=1,2,3", "--budget", "iso_time=10m", "--price", "36 USD/h", "--dir", "sweep")


@pytest.fixture(autouse=True)
def _at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)


def probe(*more: str) -> Outcome:
    return outlay("sweep", "run", *WORDS, "--probe", "--yes", *more, columns=200)


def statuses() -> list[str]:
    manifest = read_manifest(Path("sweep"))
    return [manifest.state(run).status for run in manifest.runs]


def test_a_probe_runs_alone_states_start_up_and_the_rest_follows() -> None:
    shown = probe("--jobs", "3")
    assert shown.code == 0, shown.err
    assert "Start-up takes about" in shown.out
    assert "measured on one start of earlier runs" in shown.out
    events = [(event.run, event.status) for event in read_events(Path("sweep"))]
    first = "001_train_00"
    assert events[:2] == [(first, "running"), (first, "completed")]
    assert statuses() == ["completed"] * 3
    assert sum(status == "running" for _, status in events) == 3


def test_a_probe_that_fails_is_the_only_run_that_was_started() -> None:
    shown = probe("fails=true")
    assert shown.code == 1
    assert "did not complete: 001_train_00" in shown.err
    assert statuses() == ["error", "pending", "pending"]
    assert "outlay sweep resume sweep" in shown.out


def test_a_probe_that_shows_too_little_money_is_the_only_run_that_was_started() -> None:
    shown = probe("--ceiling", "18.01 USD")
    assert shown.code == 3
    assert "not enough for all runs" in shown.err
    assert statuses() == ["completed", "pending", "pending"]
    assert outlay("sweep", "resume", "sweep").code == 0
    assert statuses() == ["completed"] * 3


def test_a_probe_is_not_detached() -> None:
    shown = probe("--detach")
    assert shown.code == 2
    assert "--probe" in shown.err
    assert not Path("sweep").exists()


def test_a_program_that_records_no_steps_has_an_unknown_start_up() -> None:
    Path("train.py").write_text("")
    shown = probe()
    assert shown.code == 0, shown.err
    assert "001_train_00 recorded no steps, so that its start-up stays unknown." in shown.out
    assert statuses() == ["completed"] * 3


def test_on_a_terminal_both_parts_are_asked_for() -> None:
    with terminal("sweep", "run", *WORDS, "--probe") as screen:
        screen.until("Start one run, to measure start-up? [y/N]:")
        screen.type("y\n")
        screen.until("Start the other runs? [y/N]:")
        assert "Start-up takes about" in screen.shown
        screen.type("n\n")
        assert screen.end() == 0
    assert statuses() == ["completed", "pending", "pending"]
