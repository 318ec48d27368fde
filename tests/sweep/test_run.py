"""Sweeps run for real: statuses, resuming, cancelling, timeouts, retries, secrets, moving."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from command_line import Outcome, outlay, run_module
from outlay.clock import SYSTEM
from outlay.proc.identity import marked
from outlay.sweep.errors import InvalidGrid, RunElsewhere, SweepNotRecorded
from outlay.sweep.grid.files import plan_file
from outlay.sweep.run.harness import Harness, SweepOptions
from outlay.sweep.run.sweep_guard import SweepGuard
from outlay.sweep.run.sweeps import Cancelled, Result, cancel, resume, start
from outlay.sweep.state.manifest import Journal, read_events, read_manifest
from outlay.sweep.state.outcomes import Event, RunState
from outlay.sweep.state.setup import LOCK_FILE as LOCK
from outlay.sweep.state.setup import lock_sweep
from outlay.units import Money
from waiting import until

NS = 10**9


def write_grid(tmp_path: Path, script: str, **more: Any) -> Path:
    """Write a grid whose runs are shell scripts; ``{x}`` is the parameter."""
    grid = {
        "engine": "process",
        "arguments": "none",
        "entrypoint": ["sh", "-c", script],
        "output_dir": str(tmp_path / "sweep"),
        "grid": [{"params": {"x": [1, 2, 3]}}],
    }
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(grid | more))
    return path


def run_grid(tmp_path: Path, script: str, *, jobs: int = 2, **more: Any) -> Result:
    return start(plan_file(write_grid(tmp_path, script, **more)), None, SweepOptions(jobs=jobs))


def state(result: Result, number: int) -> RunState:
    return result.manifest.state(list(result.manifest.runs)[number - 1])


def starts(root: Path) -> dict[str, int]:
    counted: dict[str, int] = {}
    for event in read_events(root):
        if event.status == "running":
            counted[event.run] = counted.get(event.run, 0) + 1
    return counted


def test_one_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    result = run_grid(tmp_path, "exit $(({x} == 2))")
    assert result.counts == {"completed": 2, "error": 1}
    assert state(result, 2).reason == "exit code 1"
    assert state(result, 2).returncode == 1


def test_a_failed_run_is_tried_again_as_often_as_the_grid_says(tmp_path: Path) -> None:
    script = "cd $MFCL_SWEEP_RUN_DIR; echo >> tries; test $(wc -l < tries) -gt {x}"
    result = run_grid(tmp_path, script, retries=2)
    assert [state(result, n).status for n in (1, 2, 3)] == ["completed", "completed", "error"]
    assert [state(result, n).attempts for n in (1, 2, 3)] == [2, 3, 3]


def test_a_run_past_its_timeout_is_ended_with_that_reason(tmp_path: Path) -> None:
    result = run_grid(tmp_path, "test {x} = 1 || sleep 600", timeout="500ms", jobs=3)
    assert [state(result, n).status for n in (1, 2, 3)] == ["completed", "error", "error"]
    assert "timeout" in state(result, 2).reason


def test_a_program_that_does_not_exist_is_an_error_of_its_run(tmp_path: Path) -> None:
    result = run_grid(tmp_path, "", entrypoint=["./nowhere"])
    assert result.counts == {"error": 3}
    assert "could not be started" in state(result, 1).reason


def test_the_manifest_has_the_documented_keys_and_paths_below_the_sweep(tmp_path: Path) -> None:
    run_grid(tmp_path, "echo hello", price=1)
    document = json.loads((tmp_path / "sweep" / "sweep_manifest.json").read_text())
    assert {"name", "created_at", "grid_path", "output_dir", "runs", "environment", "git_commit",
            "versions", "host"} <= set(document)  # fmt: skip
    first = document["runs"][0]
    documented = {
        "id", "run_dir", "world_size", "overrides", "params", "metadata", "env", "nnodes",
        "node_rank", "rendezvous", "status", "returncode", "command", "launcher_log",
        "started_at", "finished_at",
    }  # fmt: skip
    assert documented <= set(first)
    run_dir = str(tmp_path / "sweep" / "001_group00_00")
    assert (document["output_dir"], first["run_dir"]) == (str(tmp_path / "sweep"), run_dir)
    assert first["env"]["MFCL_SWEEP_RUN_DIR"] == run_dir
    assert first["command"] == ["sh", "-c", "echo hello"]
    assert first["cost"] > 0
    assert Path(first["launcher_log"]).read_text() == "hello\n"


def test_the_manifest_lists_every_override_of_the_command(tmp_path: Path) -> None:
    run_grid(
        tmp_path, "exit 0", arguments="overrides", overrides=["a=1"],
        grid=[{
            "name": "good", "params": {"batch_size": [8, 16]}, "overrides": ["b=2"],
            "budget": {"mode": "iso_time", "limit": 2.5, "max_comm_bytes": 9},
        }],
    )  # fmt: skip
    runs = json.loads((tmp_path / "sweep" / "sweep_manifest.json").read_text())["runs"]
    run_dir = json.dumps(str(tmp_path / "sweep" / "001_good_00"))
    assert [run["id"] for run in runs] == ["001_good_00", "002_good_01"]
    assert runs[0]["overrides"] == [
        "a=1", "b=2", "runtime.budget.enabled=true", 'runtime.budget.mode="iso_time"',
        "runtime.budget.max_minutes=2.5", "runtime.budget.max_comm_bytes=9", "data.batch_size=8",
        f"train.save_dir={run_dir}", f"hydra.run.dir={run_dir}", "hydra.output_subdir=null",
        "hydra.job.chdir=false",
    ]  # fmt: skip
    assert runs[0]["command"] == ["sh", "-c", "exit 0", *runs[0]["overrides"]]


def test_a_sweep_with_ids_of_another_numbering_keeps_them(tmp_path: Path) -> None:
    root = run_grid(tmp_path, "test {x} != 2 || test -e $MFCL_SWEEP_RUN_DIR/again").root
    for name in ("sweep_manifest.json", "sweep_journal.jsonl"):
        text = (root / name).read_text()
        (root / name).write_text(re.sub(r"(00(\d)_group)00_0\d", r"\g<1>01_0\2", text))
    for number in (3, 2, 1):
        run_dir = root / f"00{number}_group00_0{number - 1}"
        run_dir.rename(root / f"00{number}_group01_0{number}")
    (root / "002_group01_02" / "again").touch()
    result = resume(root, SweepOptions(), grid=None, retry_failed=True)
    assert result.counts == {"completed": 3}
    assert list(result.manifest.runs) == [f"00{n}_group01_0{n}" for n in (1, 2, 3)]
    assert not list(root.glob("*_group00_*"))


def test_resume_takes_the_flags_that_acknowledge_a_run(tmp_path: Path) -> None:
    root = run_grid(tmp_path, "exit 0").root
    assert outlay("sweep", "resume", "--enable-sweeps", "--yes", root).code == 0


def test_a_moved_sweep_can_be_resumed(tmp_path: Path) -> None:
    root = run_grid(tmp_path, "test {x} != 2 || test -e $MFCL_SWEEP_RUN_DIR/again").root
    moved = tmp_path / "elsewhere"
    shutil.move(root, moved)
    (moved / "002_group00_01" / "again").touch()
    result = resume(moved, SweepOptions(), grid=None, retry_failed=True)
    assert result.counts == {"completed": 3}
    assert not root.exists()


def test_no_secret_of_the_environment_is_in_any_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-from-env")
    monkeypatch.setenv("DATABASE_URL", "postgres://user:hunter2hunter2@host/db")
    run_grid(
        tmp_path, "exit 0", env={"HF_TOKEN": "t0k3n-in-grid"}, arguments="overrides",
        overrides=["key=${oc.env:MY_API_KEY}"], price=1, timeout="1h", ceiling="5 USD",
    )  # fmt: skip
    files = [path for path in (tmp_path / "sweep").rglob("*") if path.is_file()]
    assert len(files) >= 4
    written = b"".join(path.read_bytes() for path in files)
    for secret in (b"s3cr3t-from-env", b"hunter2hunter2", b"t0k3n-in-grid"):
        assert secret not in written


def test_a_variable_that_is_no_text_reaches_the_program_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environb, b"HYDRA_LATIN", b"caf\xe9")
    result = run_grid(tmp_path, 'printf %s "$HYDRA_LATIN"', grid=[{}])
    assert (result.root / "001_group00" / "sweep.log").read_bytes() == b"caf\xe9"
    environment = read_manifest(result.root).about["environment"]
    assert environment["HYDRA_LATIN"] == "caf\\udce9"


def test_runs_get_budget_price_and_directory_from_the_environment(tmp_path: Path) -> None:
    program = (
        "import outlay; r = outlay.run('m'); r.close(); print(r.dir, r.budget.snapshot()['mode'])"
    )
    result = run_grid(
        tmp_path, "", entrypoint=[sys.executable, "-c", program], price="2 USD/h",
        grid=[{"budget": {"mode": "iso_time", "limit": 1}}],
    )  # fmt: skip
    assert result.counts == {"completed": 1}
    root = tmp_path / "sweep"
    printed = (root / "001_group00" / "sweep.log").read_text()
    assert printed.endswith(f"\n{root}/001_group00 iso_time\n")
    assert (root / "001_group00" / "ledger").is_dir()
    assert (root / "001_group00" / "outlay_facts.json").exists()  # Kept as it ended.


def test_no_gpu_is_allocated_to_two_runs_at_once(tmp_path: Path) -> None:
    script = "cd $MFCL_SWEEP_RUN_DIR/..; mkdir gpu$CUDA_VISIBLE_DEVICES; sleep 0.1; rmdir gpu*"
    grid = write_grid(tmp_path, script.replace("gpu*", "gpu$CUDA_VISIBLE_DEVICES"))
    how = SweepOptions(jobs=3, devices=("0", "5"))
    assert start(plan_file(grid), None, how).counts == {"completed": 3}
    used = {e.env["CUDA_VISIBLE_DEVICES"] for e in read_events(tmp_path / "sweep") if e.ticket}
    assert used == {"0", "5"}


# -- going on -------------------------------------------------------------------------------


def test_resuming_runs_only_what_is_not_done(tmp_path: Path) -> None:
    root = run_grid(tmp_path, "exit $(({x} == 2))").root
    assert resume(root, SweepOptions(), grid=None, retry_failed=False).counts == {
        "completed": 2, "error": 1,
    }  # fmt: skip
    resume(root, SweepOptions(), grid=None, retry_failed=True)
    assert starts(root) == {"001_group00_00": 1, "002_group00_01": 2, "003_group00_02": 1}


def test_resume_matches_runs_by_content_after_an_entry_was_inserted(tmp_path: Path) -> None:
    root = run_grid(tmp_path, "exit 0").root
    write_grid(tmp_path, "exit 0", grid=[{"params": {"x": 9}}, {"params": {"x": [1, 3]}}])
    result = resume(root, SweepOptions(), grid=None, retry_failed=False)
    assert starts(root) == dict.fromkeys([*list(result.manifest.runs)[:3], "001_group00"], 1)
    assert "002_group00_01 is no longer in the grid" in result.findings[0].message


def test_a_sweep_is_not_begun_twice(tmp_path: Path) -> None:
    run_grid(tmp_path, "exit 0")
    again = outlay("sweep", "run", tmp_path / "grid.json", "--yes")
    assert again.code == 2
    assert "outlay sweep resume" in again.err


def test_a_torn_journal_is_read_up_to_the_tear_and_appended_to(tmp_path: Path) -> None:
    root = run_grid(tmp_path, "exit 0").root
    journal = root / "sweep_journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    torn = read_manifest(root)
    assert sorted(s.status for s in torn.states.values()) == ["completed", "completed", "running"]
    assert resume(root, SweepOptions(), grid=None, retry_failed=False).counts == {"completed": 3}
    assert max(starts(root).values()) == 1  # How it ended stood in its directory.


def left_running(root: Path, run: str, ceiling: str = "") -> None:
    """Record a start two hours ago without an end, as after a harness died."""
    hold = ""
    if ceiling:
        guard = SweepGuard(root, Money.parse(ceiling)).budget_guard
        hold = guard.authorize(run, "1 USD").id
    journal = Journal(root)
    ticket = "0123456789abcdef/gone/"
    shutil.rmtree(root / run / "ledger")
    begun_ns = SYSTEM.wall_ns() - 2 * 3600 * 10**9
    journal.append(Event(t_ns=begun_ns, run=run, status="running", ticket=ticket, hold=hold))
    journal.close()


def test_a_run_removed_from_the_grid_is_not_left_running(
    tmp_path: Path,
) -> None:
    more: dict[str, Any] = {"price": "1 USD/h", "timeout": "1h", "ceiling": "50 USD"}
    root = run_grid(tmp_path, "exit 0", **more).root
    left_running(root, "002_group00_01", ceiling="50 USD")
    write_grid(tmp_path, "exit 0", grid=[{"params": {"x": [1, 3]}}], **more)
    result = resume(root, SweepOptions(), grid=None, retry_failed=False)
    assert result.counts == {"completed": 2, "cancelled": 1}
    guard = SweepGuard(root, Money.parse("50 USD")).budget_guard
    assert guard.holds() == ()
    assert guard.log.books().captured() > 1_000_000  # Nobody knows what it cost: all it held.


def test_a_sweep_that_was_removed_may_be_started_again_in_its_place(tmp_path: Path) -> None:
    more: dict[str, Any] = {"price": "1 USD/h", "timeout": "1h", "ceiling": "50 USD"}
    shutil.rmtree(run_grid(tmp_path, "exit 0", **more).root)
    again = run_grid(tmp_path, "exit 0", **more)
    assert again.counts == {"completed": 3}
    guard = SweepGuard(again.root, Money.parse("50 USD")).budget_guard
    assert "a new sweep was started where there had been another" in str(guard.findings()[0])


def test_resume_uses_the_current_grid(tmp_path: Path) -> None:
    more: dict[str, Any] = {"price": "1 USD/h", "timeout": "1h"}
    root = run_grid(tmp_path, "exit 0", ceiling="50 USD", **more).root
    grid = write_grid(tmp_path, "pwd", ceiling="60 USD", work_dir=str(tmp_path), **more)
    moved = grid.rename(tmp_path / "moved.json")
    resume(root, SweepOptions(), grid=moved, retry_failed=False)
    about = read_manifest(root).about
    assert about["ceiling"] == "60.00 USD"
    assert about["grid_path"] == str(moved)
    printed = {path.read_text() for path in root.glob("*-*/sweep.log")}
    assert printed == {f"{tmp_path}\n"}


def test_resume_with_an_unusable_grid_changes_nothing(tmp_path: Path) -> None:
    root = run_grid(tmp_path, "exit 0").root
    before = (root / "sweep_manifest.json").read_bytes()
    write_grid(tmp_path, "exit 1", ceiling="5 USD")
    with pytest.raises(InvalidGrid, match="no price"):
        resume(root, SweepOptions(), grid=None, retry_failed=False)
    assert (root / "sweep_manifest.json").read_bytes() == before


# -- the command ----------------------------------------------------------------------------


def test_without_a_yes_nothing_is_started(tmp_path: Path) -> None:
    shown = outlay("sweep", "run", write_grid(tmp_path, "exit 0"))
    assert shown.code == 3
    assert "--yes" in shown.err
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    "command", [partial(outlay, "sweep", "run"), partial(run_module, "outlay.sweep")],
    ids=["command", "module"],
)  # fmt: skip
def test_failures_are_named_and_exit_1(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    grid = write_grid(tmp_path, "exit $(({x} == 2))")
    shown = command("--enable-sweeps", "--jobs", "2", grid)
    assert shown.code == 1
    assert "002_group00_01" in shown.err
    assert "2 completed, 1 error" in shown.out


def test_the_documented_variable_acknowledges_too(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, "exit 0")
    assert outlay("sweep", "run", grid, MFCL_SWEEPS_ENABLED="1").code == 0
    status = outlay("sweep", "status", tmp_path / "sweep", "--json").json
    assert status["counts"] == {"completed": 3}


@pytest.mark.parametrize("how", ["SIGTERM", "cancel"])
def test_sigterm_and_cancel_end_the_active_run_and_leave_the_rest_pending(
    tmp_path: Path, how: str
) -> None:
    script = "test {x} = 1 && exit 0; echo up; exec sleep 600"
    grid = write_grid(tmp_path, script)
    command = [sys.executable, "-m", "outlay", "sweep", "run", "--yes", str(grid)]
    harness = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    root = tmp_path / "sweep"
    _until_logged(root / "002_group00_01" / "sweep.log", "up\n")
    if how == "cancel":  # Sends SIGINT.
        assert outlay("sweep", "cancel", root).code == 0
    else:
        harness.send_signal(signal.SIGTERM)
    assert harness.wait() == 130
    statuses = [s.status for _, s in sorted(read_manifest(root).states.items())]
    assert statuses == ["completed", "cancelled"]
    ticket = next(e.ticket for e in read_events(root) if e.run.startswith("002") and e.ticket)
    assert marked(ticket) == []


def left_on_a_cluster(directory: Path) -> Path:
    """Return a sweep of which one run is recorded as running on Slurm."""
    root = run_grid(directory, "exit 0").root
    document = json.loads((root / "sweep_manifest.json").read_text())
    document["runs"][1]["engine"] = "slurm"
    (root / "sweep_manifest.json").write_text(json.dumps(document))
    left_running(root, "002_group00_01")
    return root


def test_cancelling_jobs_of_an_unreachable_cluster_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = left_on_a_cluster(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = outlay("sweep", "cancel", root)
    assert shown.code == 1
    assert "002_group00_01" in shown.err
    assert "login node" in shown.err


def test_an_engine_is_closed_also_if_a_job_cannot_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, engine = left_on_a_cluster(tmp_path), Mock()
    engine.reattach.side_effect = OSError("no answer")
    monkeypatch.setattr("outlay.sweep.run.sweeps.engine_named", lambda *_: engine)
    with lock_sweep(root), pytest.raises(OSError, match="no answer"):
        cancel(root, ["002_group00_01"])
    engine.close.assert_called_once_with()


def test_cancelling_a_run_that_a_sweep_does_not_have_names_those_it_has(tmp_path: Path) -> None:
    root = run_grid(tmp_path, "exit 0").root
    shown = outlay("sweep", "cancel", root, "nothing")
    assert (shown.code, "001_group00_00" in shown.err) == (2, True)


def test_a_sweep_that_another_machine_runs_is_not_cancelled_here(tmp_path: Path) -> None:
    root = run_grid(tmp_path, "exit 0").root
    with lock_sweep(root):
        (root / LOCK).write_text(f"{os.getpid()} another-machine")
        with pytest.raises(RunElsewhere, match="on another-machine"):
            cancel(root)


def test_a_sweep_whose_process_is_gone_has_no_holder(tmp_path: Path) -> None:
    root = run_grid(tmp_path, "exit 0").root
    with lock_sweep(root):
        (root / LOCK).write_text(str(2**22 + 1))
        assert cancel(root) == Cancelled()


def test_a_second_signal_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With an hour's notice, nothing but the second signal can end a run that ignores the first.
    monkeypatch.setattr("outlay.sweep.run.harness.NOTICE_NS", 3600 * NS)
    grid = write_grid(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.1; done")
    log = tmp_path / "sweep" / "001_group00_00" / "sweep.log"
    told: list[int] = []

    def interrupt(_: Harness) -> None:
        if len(told) < 2 and log.exists() and log.read_text() == "up\n":
            told.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    result = start(plan_file(grid), None, SweepOptions(watch=interrupt))
    assert result.cancelled
    assert (state(result, 1).status, state(result, 1).returncode) == ("cancelled", -signal.SIGKILL)


def _until_logged(path: Path, text: str) -> None:
    until(lambda: path.exists() and path.read_text() == text, f"no {text!r} in {path}")


# -- a ceiling ------------------------------------------------------------------------------


def test_what_no_longer_fits_under_the_ceiling_is_skipped(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, "sleep 0.6", price="3600 USD/h", timeout="10s", ceiling="10.5 USD")
    shown = outlay("sweep", "run", grid, "--yes", "--json")
    assert shown.code == 3
    assert shown.json["counts"] == {"completed": 1, "skipped": 2}
    entries = [
        json.loads(line) for line in (tmp_path / "sweep" / "spend.jsonl").read_text().splitlines()
    ]
    assert len(entries) == 2  # One hold, one capture.


def test_a_run_is_ended_when_the_ceiling_has_no_more_for_it(tmp_path: Path) -> None:
    grid = [{"budget": {"mode": "iso_time", "limit": "1s"}}]
    result = run_grid(tmp_path, "exec sleep 60", price="3600 USD/h", ceiling="3 USD", grid=grid)
    assert result.counts == {"cancelled": 1}
    assert "no more money" in state(result, 1).reason
    micros = state(result, 1).cost_micros
    assert micros is not None
    assert micros <= 3_000_000


def test_a_run_that_fits_the_ceiling_with_its_notice_finishes(tmp_path: Path) -> None:
    grid = [{"budget": {"mode": "iso_time", "limit": "1s"}}]  # ending it may take 1.1 s
    result = run_grid(tmp_path, "sleep 0.2", price="3600 USD/h", ceiling="2 USD", grid=grid)
    assert result.counts == {"completed": 1}


SLOW_TO_END = """
import itertools, time, outlay
with outlay.run("toy") as run:
    for _ in run.steps(itertools.count(), tokens=1):
        pass
    time.sleep({x} * 600)  # A last evaluation, say.
"""


def test_a_run_that_reached_its_budget_is_completed_if_the_ceiling_ends_it_then(
    tmp_path: Path,
) -> None:
    grid = [{"params": {"x": 1}, "budget": {"mode": "iso_tokens", "limit": 5, "max_minutes": 0.05}}]
    result = run_grid(
        tmp_path, "", price="3600 USD/h", ceiling="30 USD", grid=grid,
        entrypoint=[sys.executable, "-c", SLOW_TO_END],
    )  # fmt: skip
    assert result.counts == {"completed": 1}
    assert state(result, 1).reason.startswith("it had reached its budget; then the ceiling left")


@pytest.mark.parametrize(
    ("more", "advice"),
    [
        ({}, "add `price"),
        ({"price": 1}, "add `timeout`"),
        ({"price": "1 EUR/h", "timeout": "1h"}, "EUR"),
    ],
)
def test_a_ceiling_without_predictable_costs_is_refused_with_advice(
    tmp_path: Path, more: dict[str, Any], advice: str
) -> None:
    shown = outlay("sweep", "run", write_grid(tmp_path, "", ceiling="5 USD", **more), "--yes")
    assert shown.code == 2
    assert advice in shown.err
    assert not (tmp_path / "sweep").exists()


# -- the journal ----------------------------------------------------------------------------


def test_a_start_that_cannot_be_recorded_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sweep"

    def full(descriptor: int, data: bytes) -> int:
        if b'"run":"002_group00_01","status":"running"' in bytes(data):
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    real = os.write
    grid = write_grid(tmp_path, "echo ran")
    monkeypatch.setattr("outlay.sweep.state.manifest.os.write", full)
    with pytest.raises(Exception, match="No space left"):
        start(plan_file(grid), None, SweepOptions(jobs=1))
    monkeypatch.undo()
    assert [p.parent.name for p in sorted(root.glob("*/sweep.log"))] == ["001_group00_00"]
    assert resume(root, SweepOptions(), grid=None, retry_failed=False).counts == {"completed": 3}
    assert max(starts(root).values()) == 1


def test_an_unwritten_end_survives_a_half_written_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [0]

    def nearly_full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = real(descriptor, data[: room[0]])
        room[0] -= written
        return written

    real = os.write
    journal = Journal(tmp_path)
    monkeypatch.setattr("outlay.sweep.state.manifest.os.write", nearly_full)
    with pytest.raises(SweepNotRecorded):
        journal.append(Event(t_ns=1, run="a", status="completed"))
    room[0] = 5
    with pytest.raises(SweepNotRecorded):
        journal.append(Event(t_ns=2, run="b", status="running"), keep=False)
    room[0] = 10**6
    journal.append(Event(t_ns=3, run="c", status="completed"))
    journal.close()
    assert [event.run for event in read_events(tmp_path)] == ["a", "c"]


def test_a_journal_terminates_a_torn_line_before_it_appends(tmp_path: Path) -> None:
    (tmp_path / "sweep_journal.jsonl").write_bytes(b'{"t_ns": 1, "run": "a"')
    journal = Journal(tmp_path)
    journal.append(Event(t_ns=1, run="b", status="completed"))
    journal.close()
    assert [event.run for event in read_events(tmp_path)] == ["b"]
