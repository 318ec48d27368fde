"""A run that outlay starts has one cost, from spawn to reap, in every book to the micro-unit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields

from amounts import assert_one_cost, captured_in, logged_cost
from command_line import in_process, outlay, python
from outlay import BudgetGuard
from outlay import run as begin_run
from outlay.errors import NOT_FOUND
from outlay.guard.entries import Captured, Corrected, amount_of, micros_of
from outlay.guard.spend_log import FileSpendLog
from outlay.ledger import (
    SUPERVISOR,
    AttemptEnded,
    AttemptStarted,
    Note,
    SegmentId,
    encode_line,
    read_run,
    segment_paths,
)
from outlay.ledger.records import UNWRITTEN
from outlay.sweep.grid.files import plan_file
from outlay.sweep.run.harness import SweepOptions
from outlay.sweep.run.sweeps import resume, start
from outlay.sweep.state.manifest import read_events
from outlay.units import Money
from waiting import until

PROGRAMS = Path(__file__).parent / "programs"
TRAINING = [sys.executable, str(PROGRAMS / "one_cost.py")]
NS_PER_HOUR = 3600 * 10**9


def write_grid(tmp_path: Path, **more: Any) -> Path:
    grid = {
        "engine": "process", "arguments": "none", "entrypoint": [*TRAINING, "{how}"],
        "price": "36 USD/h", "timeout": "2m", "retries": 1, "ceiling": "9 USD",
        "output_dir": str(tmp_path / "sweep"), "grid": [{"params": {"how": "plain"}}],
    }  # fmt: skip
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(grid | more))
    return path


def watched_ns(run_dir: Path) -> int:
    """Return how long supervisors watched a run, from each one's first record to its last."""
    watched = [r for s, r in read_run(run_dir).segments.items() if s.rank == SUPERVISOR]
    assert all(isinstance(records[-1], AttemptEnded) for records in watched)
    return sum(records[-1].t_ns - records[0].t_ns for records in watched)


def test_a_sweep_of_processes_with_a_kill_a_preemption_and_a_refusal_has_one_cost_per_run(
    tmp_path: Path,
) -> None:
    refused = {"params": {"how": "plain"}, "timeout": "10h"}
    grid = write_grid(tmp_path, grid=[{"params": {"how": ["plain", "kill", "preempt"]}}, refused])
    result = start(plan_file(grid), None, SweepOptions(jobs=2))
    assert result.counts == {"completed": 3, "skipped": 1}
    costs = assert_one_cost(result.root)
    attempts = {run: state.attempts for run, state in result.manifest.states.items()}
    assert list(attempts.values()) == [1, 2, 2, 0]
    for run, cost in costs.items():
        assert cost == round(watched_ns(result.root / run) * 36_000_000 / NS_PER_HOUR)


def test_a_program_that_records_nothing_has_a_log_and_one_cost(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, entrypoint=["sh", "-c", "sleep 0.1"])
    result = start(plan_file(grid), None, SweepOptions())
    (cost,) = assert_one_cost(result.root).values()
    assert cost >= 1000  # A tenth of a second at a cent a second.


def test_command_that_cannot_be_started_costs_nothing(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, entrypoint=["/no/such/program"], retries=0)
    result = start(plan_file(grid), None, SweepOptions())
    assert result.counts == {"error": 1}
    assert list(assert_one_cost(result.root).values()) == [0]


def test_the_runs_of_a_harness_that_was_killed_have_one_cost_after_the_resume(
    tmp_path: Path,
) -> None:
    root = tmp_path / "sweep"
    script = "touch up; until [ -e go ]; do sleep 0.02; done"
    grid = write_grid(
        tmp_path, entrypoint=["sh", "-c", "cd $OUTLAY_RUN_DIR; " + script], retries=0
    )  # fmt: skip
    command = [sys.executable, "-m", "outlay", "sweep", "run", "--yes", str(grid)]
    harness = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    (up,) = [root / run.id / "up" for run in plan_file(grid).runs]
    until(up.exists, lambda: "the run to start")
    harness.kill()
    harness.wait()
    until((up.parent / "sweep_exit.json").exists, lambda: "the keeper to end the run")
    (up.parent / "go").touch()
    result = resume(root, SweepOptions(), grid=None, retry_failed=False)
    assert result.counts == {"completed": 1}
    assert result.manifest.state(up.parent.name).attempts == 2
    assert_one_cost(root)


def test_a_record_after_the_capture_yields_a_correction(tmp_path: Path) -> None:
    grid = write_grid(tmp_path)
    result = start(plan_file(grid), None, SweepOptions())
    (run,) = result.manifest.runs
    (before,) = assert_one_cost(result.root).values()
    (path,) = [p for p in segment_paths(result.root / run) if p.name.endswith("-r0.jsonl")]
    last_ns = max(record.t_ns for record in read_run(result.root / run).records)
    late = Note(t_ns=last_ns + 60 * 10**9, text="a straggler")
    with path.open("ab") as stream:
        stream.write(encode_line(late, 10**6))
    for report in (result.root / "reports").iterdir():
        report.unlink()
    assert (
        resume(result.root, SweepOptions(), grid=None, retry_failed=False).counts["completed"] == 1
    )
    (after,) = assert_one_cost(result.root).values()
    assert after - before == pytest.approx(600_000, abs=1)  # rounded twice
    lines = (result.root / "spend.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["hold", "capture", "correct"]
    assert [event.corrects for event in read_events(result.root)] == [False, False, True]


def test_a_sweep_of_torchrun_has_one_cost_per_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    grid = write_grid(
        tmp_path, engine="torchrun", entrypoint=[TRAINING[1], "{how}"], timeout="4m",
        grid=[{"params": {"how": "plain", "world_size": 2}}],
    )  # fmt: skip
    result = start(plan_file(grid), None, SweepOptions())
    assert result.counts == {"completed": 1}
    ((run, cost),) = assert_one_cost(result.root).items()
    assert cost == round(watched_ns(result.root / run) * 2 * 36_000_000 / NS_PER_HOUR)


@pytest.mark.parametrize("how", ["plain", "kill"])
def test_what_guard_run_captures_is_what_the_log_costs(how: str, tmp_path: Path) -> None:
    log, run_dir = tmp_path / "spend.jsonl", tmp_path / "run"
    done = outlay(
        "guard", "run", "--label", "lab02-x", "--rate", "36 USD/h", "--ceiling", "5", "--log", log,
        "--dir", run_dir, "--json", "--", *TRAINING, how,
    )  # fmt: skip
    assert done.code == (137 if how == "kill" else 0), done.err
    cost = logged_cost(run_dir)
    assert captured_in(log, "lab02-x") == done.json["actual"]["micros"] == cost
    assert cost == round(watched_ns(run_dir) * 36_000_000 / NS_PER_HOUR)


def test_a_command_that_guard_run_cannot_start_leaves_a_log_that_costs_nothing(
    tmp_path: Path,
) -> None:
    log, run_dir = tmp_path / "spend.jsonl", tmp_path / "run"
    done = outlay(
        "guard", "run", "--label", "x", "--rate", "36 USD/h", "--ceiling", "5", "--log", log,
        "--dir", run_dir, "--", "/no/such/program",
    )  # fmt: skip
    assert done.code == NOT_FOUND
    assert (
        captured_in(log, "x")
        == in_process("cost", "show", run_dir, "--json").json["cost"]["cost"]["micros"]
        == 0
    )


@pytest.mark.parametrize("how", ["plain", "kill"])
def test_a_run_under_exec_costs_from_spawn_to_reap(how: str, tmp_path: Path) -> None:
    done = outlay("exec", "--price", "36 USD/h", "--dir", tmp_path, "--json", "--", *TRAINING, how)
    cost = logged_cost(tmp_path)
    assert done.json["run"]["cost"]["micros"] == cost
    assert cost == round(watched_ns(tmp_path) * 36_000_000 / NS_PER_HOUR)


def test_a_run_that_guards_itself_captures_its_cost_to_its_last_record(tmp_path: Path) -> None:
    log, run_dir = tmp_path / "spend.jsonl", tmp_path / "run"
    script = (
        "import outlay\n"
        f"guard = outlay.BudgetGuard(5, {str(log)!r})\n"
        f"with outlay.run('m', dir={str(run_dir)!r}, price='36 USD/h', guard=guard) as run:\n"
        "    for _ in run.steps(range(3)): pass\n"
    )
    for _ in range(2):
        assert python(script).code == 0
    cost = logged_cost(run_dir)
    assert captured_in(log, "m") == cost > 0
    phases = {row["phase"] for row in in_process("goodput", run_dir, "--json").json["phases"]}
    assert "program_startup" in phases


def test_goodput_of_a_command_without_steps_is_unknown(tmp_path: Path) -> None:
    done = outlay("exec", "--price", "36 USD/h", "--dir", tmp_path, "--", "sh", "-c", "sleep 0.05")
    assert done.code == 0
    assert in_process("goodput", tmp_path, "--json").json["goodput"] is None
    assert "goodput unknown: no steps were recorded" in in_process("goodput", tmp_path).out
    assert in_process("report", tmp_path, "--json").json["goodput"]["goodput"] is None
    assert in_process("goodput", tmp_path, "--fail-under", "1").code == 3


# `guard verify` holds captures to the logs of their runs


def capture_of(log: Path) -> Captured:
    """Return the one capture in a spend log."""
    (line,) = (line for line in FileSpendLog(log).lines() if isinstance(line, Captured))
    return line


def guard_run(tmp_path: Path) -> Captured:
    """Run a command under the guard, and return what was captured for it."""
    log = tmp_path / "spend.jsonl"
    done = outlay(
        "guard", "run", "--label", "lab02-x", "--rate", "36 USD/h", "--ceiling", "5", "--log", log,
        "--dir", tmp_path / "run", "--", "sh", "-c", "sleep 0.05",
    )  # fmt: skip
    assert done.code == 0, done.err
    return capture_of(log)


@pytest.fixture(scope="module")
def guarded_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spend log, the run that it captures, and the home in which the run is registered."""
    directory = tmp_path_factory.mktemp("guarded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTLAY_HOME", str(directory / "home"))
        guard_run(directory)
        assert in_process("guard", "verify", "--log", directory / "spend.jsonl").code == 0
    return directory


@pytest.fixture
def guarded(guarded_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Captured:
    """The capture of a run that this test only reads."""
    monkeypatch.setenv("OUTLAY_HOME", str(guarded_dir / "home"))
    return capture_of(guarded_dir / "spend.jsonl")


def record_anew(log: Path, captured: Captured, actual: Money) -> BudgetGuard:
    """Write a log in which the same run was captured at another amount."""
    guard = BudgetGuard(5, log, environ={})
    hold = guard.authorize(captured.op_label, 1)
    guard.record_actual(captured.op_label, actual, hold=hold, part=captured.part)
    return guard


def test_a_capture_below_what_the_run_log_costs_is_found(guarded: Captured, tmp_path: Path) -> None:
    log, less = tmp_path / "spend.jsonl", Money(micros_of(guarded.actual) - 1)
    record_anew(log, guarded, less)
    done = in_process("guard", "verify", "--log", log, "--json")
    assert done.code == 3
    (finding,) = done.json["findings"]
    assert finding["line"] == 2
    assert finding["message"].startswith(f"it captures {less}; ")
    assert finding["message"].endswith(f"says {Money(micros_of(guarded.actual))}")


def test_a_capture_that_was_corrected_to_what_the_run_log_costs_is_sound(
    guarded: Captured, tmp_path: Path
) -> None:
    log = tmp_path / "spend.jsonl"
    guard = record_anew(log, guarded, Money(micros_of(guarded.actual) - 5))
    guard.correct("lab02-x", amount_of(4), "not enough")
    assert in_process("guard", "verify", "--log", log).code == 3
    guard.correct("lab02-x", amount_of(1), "the rest")
    assert in_process("guard", "verify", "--log", log).code == 0


def test_cost_of_an_unguarded_earlier_attempt_is_no_shortfall(tmp_path: Path) -> None:
    unguarded = outlay(
        "exec", "--price", "36 USD/h", "--dir", tmp_path / "run", "--", "sh", "-c", "sleep 0.05"
    )
    assert unguarded.code == 0
    captured = guard_run(tmp_path)
    assert micros_of(captured.actual) < logged_cost(tmp_path / "run")
    assert in_process("guard", "verify", "--log", tmp_path / "spend.jsonl").code == 0


def test_captures_of_sweeps_and_of_runs_that_guard_themselves_name_their_runs(
    tmp_path: Path,
) -> None:
    result = start(plan_file(write_grid(tmp_path)), None, SweepOptions())
    sweep_log, log = result.root / "spend.jsonl", tmp_path / "spend.jsonl"
    with begin_run("m", dir=tmp_path / "m", price="36 USD/h", guard=BudgetGuard(5, log)) as own:
        for _ in own.steps(range(3)):
            pass
    for each in (sweep_log, log):
        captured = capture_of(each)
        assert captured.part is not None
        assert in_process("guard", "verify", "--log", each).code == 0
        below = each.parent / "below" / "spend.jsonl"
        record_anew(below, captured, Money(micros_of(captured.actual) - 1))
        assert in_process("guard", "verify", "--log", below).code == 3


def test_a_rank_that_records_after_an_unsupervised_capture_yields_a_correction(
    tmp_path: Path,
) -> None:
    """Rank 1 ends two seconds after rank 0 captured; the next command about money adds them."""
    log = tmp_path / "spend.jsonl"
    guard = BudgetGuard(1000, log, environ={})
    with begin_run("bert", dir=tmp_path / "run", price="3600 USD/h", guard=guard) as run:
        list(run.steps(range(2)))
    (path,) = segment_paths(tmp_path / "run")
    header, last = (read_run(tmp_path / "run").records[place] for place in (0, -1))
    assert isinstance(header, AttemptStarted)
    rank_1 = replace_fields(header, rank=1, pid=header.pid + 1, seq=UNWRITTEN)
    ended = AttemptEnded(t_ns=last.t_ns + 2 * 10**9, status="completed")
    late = SegmentId(header.t_ns, 1, header.host, header.pid + 1)
    path.with_name(late.file_name).write_bytes(encode_line(rank_1, 0) + encode_line(ended, 1))

    before = micros_of(capture_of(log).actual)
    for _ in range(2):  # Corrected once, however often somebody looks.
        assert in_process("guard", "status", "--log", log).code == 0
        assert captured_in(log, "bert") == logged_cost(tmp_path / "run")
    (line,) = (line for line in FileSpendLog(log).lines() if isinstance(line, Corrected))
    assert micros_of(line.actual) == captured_in(log, "bert") - before
    assert "after the capture" in line.reason
    assert in_process("guard", "verify", "--log", log).code == 0


def test_a_capture_that_is_too_low_for_another_reason_is_left_to_verify(
    guarded: Captured, tmp_path: Path
) -> None:
    log = tmp_path / "spend.jsonl"
    record_anew(log, guarded, Money(micros_of(guarded.actual) - 1))
    assert in_process("guard", "status", "--log", log).code == 0
    assert in_process("guard", "verify", "--log", log).code == 3
