"""``outlay goodput``: tables, windows, comparison and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.color import ColorSystem

from command_line import in_process as outlay
from outlay import run
from outlay.cli.goodput import bar_of
from outlay.clock import ManualClock
from outlay.goodput.follower import PhaseRow
from terminal import terminal

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


def test_a_run_without_a_disruption_lost_nothing_to_one(trained: Path) -> None:
    shown = " ".join(outlay("goodput", trained).out.split())
    assert "50.0% of time not lost to the start" in shown


def test_one_checkpoint_is_not_several(tmp_path: Path) -> None:
    with run("bert", dir=tmp_path / "r") as training:
        for _ in training.steps(range(3)):
            pass
        training.checkpoint_committed()
    assert re.search(r"^committed +1 checkpoint *$", outlay("goodput", tmp_path / "r").out, re.M)


def test_phases_are_shown_in_time_share_and_money(trained: Path) -> None:
    shown = outlay("goodput", trained, "--json").json
    assert shown["goodput"] == 0.5
    assert {row["phase"]: row["ns"] for row in shown["phases"]} == {
        "step": 10 * SECOND,
        "training_prep": 10 * SECOND,
    }
    assert [row["cost"]["micros"] for row in shown["phases"]] == [15_000, 15_000]


@pytest.mark.parametrize("columns", [40, 80, 200])
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


def test_a_floor_that_is_met_exactly_is_met(tmp_path: Path) -> None:
    """29 % as a float, times a hundred, is less than 29."""
    clock = ManualClock()
    with run("bert", dir=tmp_path, clock=clock) as training:
        with training.span("training_prep"):
            clock.advance(71 * SECOND)
        for _ in training.steps(range(29)):
            clock.advance(SECOND)
    assert outlay("goodput", tmp_path, "--fail-under", "29").code == 0


def test_in_a_pipe_the_bar_has_a_character_for_what_was_productive(trained: Path) -> None:
    bar = next(line for line in outlay("goodput", trained).out.splitlines() if "▒" in line)
    assert bar == "█" * 50 + "▒" * 50


@pytest.mark.parametrize(
    ("width", "colours", "parts"), [(40, "truecolor", 2), (80, "truecolor", 2), (120, None, 2),
                                    (120, "truecolor", 6)],
)  # fmt: skip
def test_a_bar_has_two_tones_or_where_there_is_room_for_colours_every_phase(
    monkeypatch: pytest.MonkeyPatch, width: int, colours: str | None, parts: int
) -> None:
    monkeypatch.setattr("outlay.cli.output.console.width", width)
    monkeypatch.setattr(
        "outlay.cli.output.console._color_system", colours and ColorSystem.TRUECOLOR
    )
    small = [PhaseRow(phase=f"custom:{n}", ns=1, share=0.0, cost=None) for n in range(5)]
    bar = bar_of([PhaseRow(phase="step", ns=10**9, share=1.0, cost=None), *small])
    assert len(bar) == min(width, 100)
    assert len(bar.spans) == parts
    assert ("▒" in bar.plain) == (parts == 2)


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
        ("--exclude", "2h"),
        ("--exclude", "1h..2h"),
        ("--exclude", "..2h"),
        ("--rolling", "0s"),
        ("--every", "1h"),
        ("--watch", "--json"),
        ("--watch", "--fail-under", "90"),
    ],
)
def test_a_window_that_makes_no_sense_is_wrong_usage(
    trained: Path, options: tuple[str, ...]
) -> None:
    failed = outlay("goodput", trained, *options)
    assert failed.code == 2
    assert failed.err.startswith("error:")


def test_what_is_excluded_is_left_out_of_time_and_money(trained: Path) -> None:
    first = ("--exclude", "2023-11-14T22:13:20Z..2023-11-14T22:13:28Z")
    last = ("--exclude", "2023-11-14T22:13:36Z .. 2023-11-14T22:13:40Z")
    shown = outlay("goodput", trained, *first, *last, "--json").json
    assert {row["phase"]: row["ns"] for row in shown["phases"]} == {
        "step": 6 * SECOND,
        "training_prep": 2 * SECOND,
    }
    assert shown["cost"]["micros"] == 12_000


def test_rolling_windows_add_up_to_the_run(trained: Path) -> None:
    shown = outlay("goodput", trained, "--rolling", "8s", "--json").json
    assert [row["wall_ns"] for row in shown["rolling"]] == [4 * SECOND, 8 * SECOND, 8 * SECOND]
    assert [row["goodput"] for row in shown["rolling"]] == [0, 0.25, 1]
    assert [row["badput"] for row in shown["rolling"]] == ["training_prep", "training_prep", None]
    assert sum(row["cost"]["micros"] for row in shown["rolling"]) == shown["cost"]["micros"]


def test_rolling_windows_are_clipped_and_may_overlap(trained: Path) -> None:
    since = ("--since", "2023-11-14T22:13:28Z")
    options = ("--rolling", "8s", "--every", "6s")
    shown = outlay("goodput", trained, *since, *options, "--json").json
    assert [row["wall_ns"] for row in shown["rolling"]] == [6 * SECOND, 8 * SECOND]


def test_rolling_windows_are_shown_as_a_table(trained: Path) -> None:
    shown = outlay("goodput", trained, "--rolling", "10s", columns=120).out.splitlines()
    assert re.search(r"10\.0s +0\.0% +training_prep +0\.015 USD$", shown[-2])
    assert re.search(r"10\.0s +100\.0% +- +0\.015 USD$", shown[-1])


def test_figures_of_the_whole_run_are_marked_if_there_is_a_window(trained: Path) -> None:
    window = ("--since", "2023-11-14T22:13:25Z")
    shown = outlay("goodput", trained, *window, columns=120).out
    for figure in ("at risk .whole run.", "typical step .whole run.", "stalled steps .whole run."):
        assert re.search(rf"^{figure} ", shown, re.MULTILINE)
    assert "10.0s (0.015 USD) since the start" in shown
    assert outlay("goodput", trained, *window, "--json").json["of_whole_run"] == [
        "mttf", "progress", "typical_step_ns", "stalls", "ranks",
    ]  # fmt: skip
    assert "(whole run)" not in outlay("goodput", trained, columns=120).out


def test_goodput_of_an_elastic_run_is_also_weighted_by_its_slices(tmp_path: Path) -> None:
    clock = ManualClock()
    with run("bert", dir=tmp_path / "r", clock=clock) as training:
        training.set_slices(2, 4, available=3)
        for _ in training.steps(range(10)):
            clock.advance(SECOND)
    shown = outlay("goodput", tmp_path / "r", "--json").json
    assert (shown["goodput"], shown["slices"]["goodput"]) == (1, 0.5)
    line = "goodput 50.0% weighted by slices; 50.0% of them trained, 75.0% could"
    assert line in outlay("goodput", tmp_path / "r", columns=120).out


def test_the_steps_farthest_from_the_ideal_are_shown(tmp_path: Path) -> None:
    clock = ManualClock()
    with run("bert", dir=tmp_path / "r", clock=clock) as training:
        for number in training.steps(range(10)):
            clock.advance(7 * SECOND if number == 6 else SECOND)
    shown = outlay("goodput", "deviation", tmp_path / "r", "--worst", "1", "--json").json
    assert shown["ideal_ns"] == SECOND
    assert shown["worst"] == [{"step": 6, "own_ns": 7 * SECOND, "off_ns": 6 * SECOND}]
    stated = outlay("goodput", "deviation", tmp_path / "r", "--ideal", "2s", "--worst", "2").out
    assert "ideal step 2.0s (stated, host time)" in stated
    assert [line.split() for line in stated.splitlines()[2:]] == [
        ["6", "7.0s", "+5.0s"],
        ["0", "1.0s", "-1.0s"],
    ]


def test_a_run_without_steps_has_no_ideal_one(tmp_path: Path) -> None:
    run("bert", dir=tmp_path / "r").close()
    assert "No step has a duration yet" in outlay("goodput", "deviation", tmp_path / "r").out


def test_watching_shows_what_is_new_until_it_is_interrupted(tmp_path: Path) -> None:
    with (
        run("bert", dir=tmp_path / "r") as training,
        terminal("goodput", tmp_path / "r", "--watch") as screen,
    ):
        screen.until("no steps were recorded")
        for _ in training.steps(range(3)):
            pass
        screen.until("steps 3")
        screen.type("\x03")
        assert screen.end() == 130


def test_what_is_wrong_is_shown_while_watching(trained: Path) -> None:
    log = next((trained / "ledger").glob("*.jsonl"))
    log.write_text(log.read_text() + "no record\n")
    with terminal("goodput", trained, "--watch") as screen:
        screen.until("the line is damaged")
        screen.type("\x03")
        assert screen.end() == 130


def test_what_is_wrong_in_either_run_is_shown_beside_their_difference(
    trained: Path, tmp_path: Path
) -> None:
    other = _train(tmp_path / "b", prepare_s=30)
    log = next((other / "ledger").glob("*.jsonl"))
    log.write_text(log.read_text() + "no record\n")
    shown = outlay("goodput", "diff", trained, other, columns=200)
    assert re.search(rf"(error|warning) .*{log.name}", shown.out)
    compared = outlay("goodput", "diff", trained, other, "--json").json
    assert [len(compared[name]["findings"]) for name in "ab"] == [0, 1]


def test_two_runs_are_compared_phase_by_phase(trained: Path, tmp_path: Path) -> None:
    other = _train(tmp_path / "b", prepare_s=30)
    compared = outlay("goodput", "diff", trained, other, "--json").json
    assert compared["a"]["goodput"] == 0.5
    assert compared["b"]["goodput"] == 0.25


def test_productive_time_of_a_run_without_steps_is_unknown(tmp_path: Path) -> None:
    run("bert", dir=tmp_path / "r").close()
    assert "no steps were recorded" in outlay("goodput", tmp_path / "r").out


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
