"""The demo: a real training that is killed and resumed, and every figure shown on it."""

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

from command_line import in_process
from outlay.budget.display import read_document
from outlay.demo.mlp import Mlp
from outlay.goodput.follower import GoodputFollower
from outlay.goodput.reliability import disruptions
from outlay.guard.budget_guard import BudgetGuard
from outlay.ledger import Metric, read_run
from outlay.units import Money
from scripts import seconds_of_one_step

KILLED, PREEMPTED, REFUSED = "002_size_01", "003_size_02", "007_greedy"

# The training by itself.


def _spirals(directory: Path, *more: str) -> int:
    command = [sys.executable, "-m", "outlay.demo.mlp", "--dir", str(directory), "--steps", "300"]
    return subprocess.run([*command, "--price", "2.50 USD/h", *more], check=False).returncode


def test_the_training_is_killed_resumed_accounted_for_and_learns(tmp_path: Path) -> None:
    assert _spirals(tmp_path, "--kill-at", "150") == -9
    assert _spirals(tmp_path) == 0
    view = GoodputFollower(tmp_path).view(now_ns=2**62)
    whole = view.break_down()
    assert len(disruptions(view.timeline)) == 1
    assert whole.phases["wasted_progress"] > 0
    assert sum(whole.phases.values()) == whole.wall_ns
    assert whole.cost is not None
    assert sum(cost.micros for cost in whole.cost_by_phase.values()) == whole.cost.micros
    accuracy = _accuracies(tmp_path)
    assert accuracy[-1] > accuracy[0] > 0.5


def test_resuming_continues_the_same_weights(tmp_path: Path) -> None:
    model, other = Mlp(seed=1), Mlp(seed=2)
    model.save(tmp_path / "checkpoint.npz")
    other.load(tmp_path / "checkpoint.npz")
    assert all((a == b).all() for a, b in zip(model.parameters(), other.parameters(), strict=True))


def _accuracies(run_dir: Path) -> list[float]:
    records = read_run(run_dir).records
    return [r.number for r in records if isinstance(r, Metric) and r.name == "accuracy"]


# The whole demo, run once; its own output is checked.


def _demo(directory: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "outlay", "demo", "--dir", str(directory), *more]


@pytest.fixture(scope="module")
def limit_usd(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The budget of each run, a dollar a second: two starts of Python are a small part of it."""
    return max(6, round(8 * seconds_of_one_step(tmp_path_factory.mktemp("one-step"))))


@pytest.fixture(scope="module")
def demo(limit_usd: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("demo") / "runs"
    done = subprocess.run(
        _demo(directory, "--json", "--limit", f"{limit_usd} USD"),
        env=os.environ | {"OUTLAY_HOME": str(_own_home(directory))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def _own_home(directory: Path) -> Path:
    """Return the outlay home of the user who runs the demo."""
    return directory.parent / "own-home"


def _sweep(demo: dict[str, Any]) -> Path:
    return Path(demo["dir"]) / "sweep"


pytestmark = pytest.mark.xdist_group("demo")


def test_six_runs_complete_and_a_seventh_is_refused(demo: dict[str, Any]) -> None:
    assert demo["counts"] == {"completed": 6, "skipped": 1}
    assert not (_sweep(demo) / REFUSED / "ledger").exists()


def test_only_the_killed_and_the_preempted_run_needed_a_second_attempt(
    demo: dict[str, Any],
) -> None:
    twice = {run for run, attempts in demo["attempts"].items() if attempts > 1}
    assert twice == {KILLED, PREEMPTED}


def test_the_killed_run_was_disrupted_and_waiting_after_a_preemption_was_free(
    demo: dict[str, Any],
) -> None:
    killed = GoodputFollower(_sweep(demo) / KILLED).view(now_ns=2**62)
    assert [each.reason for each in disruptions(killed.timeline)] == ["failed killed by SIGKILL"]
    preempted = GoodputFollower(_sweep(demo) / PREEMPTED).view(now_ns=2**62).break_down()
    assert preempted.phases["recovery"] > 0
    assert preempted.cost_by_phase["recovery"] == Money(0)


def test_every_run_was_charged_about_its_limit(demo: dict[str, Any], limit_usd: int) -> None:
    for run in list(demo["attempts"])[:6]:
        document = read_document(_sweep(demo) / run)
        assert document is not None
        assert document["totals"]["cost_usd"] == pytest.approx(limit_usd, rel=0.25)


def test_the_dollars_sum_exactly_to_what_the_guard_captured(demo: dict[str, Any]) -> None:
    parts = {phase: part["micros"] for phase, part in demo["dollars"].items()}
    books = BudgetGuard.of_log(_sweep(demo) / "spend.jsonl").log.books()
    assert sum(parts.values()) == demo["captured"]["micros"] == books.captured()
    assert parts["step"] > 0
    assert parts["program_startup"] > 0


def test_the_ceiling_held_and_nothing_is_held_any_more(demo: dict[str, Any]) -> None:
    assert demo["captured"]["micros"] <= demo["ceiling"]["micros"]
    assert demo["held"] == 0
    assert demo["guard_sound"] is True


def test_three_configurations_are_ranked_with_intervals(demo: dict[str, Any]) -> None:
    means = [one["mean"] for one in demo["ranking"]]
    assert means == sorted(means, reverse=True)
    assert [len(one["runs"]) for one in demo["ranking"]] == [2, 2, 2]
    assert all(one["half_width"] is not None for one in demo["ranking"])


def test_an_evaluation_was_skipped_for_its_budget(demo: dict[str, Any]) -> None:
    assert demo["skipped_evaluations"] >= 1


def test_advice_has_a_saving_and_its_evidence(demo: dict[str, Any]) -> None:
    assert demo["advice"]
    for advice in demo["advice"]:
        assert advice["estimated_savings"] > 0 or advice["at_stake"] > 0
        assert advice["evidence"]


def test_the_reports_are_there(demo: dict[str, Any]) -> None:
    for report in demo["reports"]:
        assert Path(report).read_text().startswith("<!doctype html>")


def test_a_report_can_be_asked_for_again_with_pictures(demo: dict[str, Any]) -> None:
    done = in_process("report", _sweep(demo), "--png", "--json")
    assert done.code == 0, done.err
    assert done.json["verdict"].startswith(("Best: ", "A tie: ", "No winner yet: "))
    assert done.json["files"]
    for picture in done.json["files"]:
        assert Path(picture).read_bytes().startswith(b"\x89PNG")


def test_the_users_own_home_is_not_written(demo: dict[str, Any]) -> None:
    assert (Path(demo["dir"]) / "home").is_dir()
    assert not _own_home(Path(demo["dir"])).exists()


def test_what_is_not_from_the_demo_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    done = subprocess.run(_demo(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not from the demo" in done.stderr
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_ctrl_c_ends_the_runs_and_releases_their_holds(tmp_path: Path) -> None:
    directory = tmp_path / "runs"
    demo = subprocess.Popen(
        _demo(directory), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert demo.stdout is not None
    printed = list(_up_to(demo.stdout, "002_size_01 running"))
    demo.send_signal(signal.SIGINT)
    rest, _ = demo.communicate()
    assert demo.returncode == 130
    assert "The demo was interrupted" in rest, printed
    assert "Traceback" not in rest
    assert BudgetGuard.of_log(directory / "sweep" / "spend.jsonl").holds() == ()
    assert _processes_in(directory) == []


def _up_to(lines: Iterator[str], text: str) -> Iterator[str]:
    for line in lines:
        yield line
        if text in line:
            return
    pytest.fail(f"{text!r} was never printed")


def _processes_in(directory: Path) -> list[int]:
    """Return the processes with a directory in their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if os.fsencode(directory) in words:
            found.append(int(entry.name))
    return found
