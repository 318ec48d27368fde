"""``outlay goodput``: what it shows, what it compares, and how it gates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import outlay
from outlay import run
from outlay.clock import ManualClock

SECOND = 10**9


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Ten steps of a second after ten seconds of preparation: goodput 50 %, 0.03 USD."""
    return _train(tmp_path / "a", prepare_s=10)


def _train(directory: Path, *, prepare_s: int) -> Path:
    clock = ManualClock()
    with run("bert", dir=directory, price="5.40 USD/h", clock=clock) as training:
        with training.span("training_prep"):
            clock.advance(prepare_s * SECOND)
        for _ in training.steps(range(10), tokens=100):
            clock.advance(SECOND)
    return directory


def test_phases_are_shown_in_time_share_and_money(trained: Path) -> None:
    shown = outlay("goodput", trained, "--json").json
    assert shown["goodput"] == 0.5
    assert {row["phase"]: row["ns"] for row in shown["phases"]} == {
        "step": 10 * SECOND,
        "training_prep": 10 * SECOND,
    }
    assert [row["cost"]["micros"] for row in shown["phases"]] == [15_000, 15_000]


@pytest.mark.parametrize("columns", [80, 200])
def test_the_table_fits_the_terminal(trained: Path, columns: int) -> None:
    shown = outlay("goodput", trained, columns=columns)
    assert "goodput 50.0%" in shown.out
    assert all(len(line) <= columns for line in shown.out.splitlines())


def test_a_window_is_clipped_to_what_was_asked(trained: Path) -> None:
    options = ("--since", "2023-11-14T22:13:25Z", "--until", "2023-11-14T22:13:35Z")
    shown = outlay("goodput", trained, *options, "--json").json
    assert {row["phase"]: row["ns"] for row in shown["phases"]} == {
        "step": 5 * SECOND,
        "training_prep": 5 * SECOND,
    }


@pytest.mark.parametrize(("floor", "code"), [("50", 0), ("50.1", 3)])
def test_a_floor_gates_by_exit_code(trained: Path, floor: str, code: int) -> None:
    assert outlay("goodput", trained, "--fail-under", floor).code == code


def test_a_run_with_nothing_in_the_window_is_under_any_floor(trained: Path) -> None:
    assert outlay("goodput", trained, "--window", "1h", "--fail-under", "1").code == 3


@pytest.mark.parametrize(
    "options",
    [
        ("--since", "2023-11-14T22:13:25"),
        ("--since", "yesterday"),
        ("--since", "1h", "--until", "2h"),
        ("--since", "1h", "--window", "2h"),
        ("--fail-under", "101"),
    ],
)
def test_a_window_that_makes_no_sense_is_wrong_usage(
    trained: Path, options: tuple[str, ...]
) -> None:
    failed = outlay("goodput", trained, *options)
    assert failed.code == 2
    assert failed.err.startswith("error:")


def test_two_runs_are_compared_phase_by_phase(trained: Path, tmp_path: Path) -> None:
    other = _train(tmp_path / "b", prepare_s=30)
    compared = outlay("goodput", "diff", trained, other, "--json").json
    assert compared["a"]["goodput"] == 0.5
    assert compared["b"]["goodput"] == 0.25


def test_a_run_without_steps_says_that_productive_is_not_known(tmp_path: Path) -> None:
    run("bert", dir=tmp_path / "r").close()
    assert "no steps recorded" in outlay("goodput", tmp_path / "r").out


def test_a_live_run_counts_until_now(tmp_path: Path) -> None:
    with run("bert", dir=tmp_path / "r"):
        assert outlay("goodput", tmp_path / "r", "--json").json["alive"] is True


def test_logged_payloads_become_a_run_that_can_be_shown(tmp_path: Path) -> None:
    payloads = [{"job_name": "j", "job_start_time": 1000.0}]
    payloads += [
        {"job_name": "j", "step_count": n, "step_start_time": 1010.0 + n} for n in range(11)
    ]
    payloads.append({"job_name": "j", "job_end_time": 1021.0})
    log = tmp_path / "payloads.jsonl"
    log.write_text("".join(json.dumps(payload) + "\n" for payload in payloads))
    assert outlay("goodput", "import", log, tmp_path / "r").code == 0
    shown = outlay("goodput", tmp_path / "r", "--json").json
    assert {row["phase"]: row["ns"] for row in shown["phases"]} == {
        "step": 11 * SECOND,
        "other": 10 * SECOND,
    }


def test_a_file_that_holds_no_payload_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    assert outlay("goodput", "import", tmp_path / "empty.jsonl", tmp_path / "r").code == 2
    assert not (tmp_path / "r").exists()
