"""The local run log as a goodput log: nothing lost, read on, imported, and beside native runs."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import outlay
from goodput_log import START_S, Job, at
from outlay.account.run import RunAccount
from outlay.clock import SYSTEM, ManualClock
from outlay.compat.ml_goodput_measurement.calculator import GoodputCalculator
from outlay.compat.ml_goodput_measurement.goodput_cache import GoodputCache, import_payloads
from outlay.compat.ml_goodput_measurement.recorder import (
    GoodputRecorder,
    LocalRunLog,
    run_dir_of_job,
)
from outlay.cost.run_cost import cost_of
from outlay.errors import InvalidValue
from outlay.goodput.follower import GoodputFollower, read_view
from outlay.ledger import AttemptStarted, Payload, SegmentId, read_run
from outlay.sweep.aggregate.aggregator import read_ledger

NOW_NS = (START_S + 10_000) * 10**9


def payloads_in(run_dir: Path) -> list[dict[str, object]]:
    return [record.data for record in read_run(run_dir).records if isinstance(record, Payload)]


def written(job: Job, run_dir: Path) -> LocalRunLog:
    log = LocalRunLog(job.name, run_dir)
    for payload in job.payloads:
        log.write_cloud_logging_entry(payload)
    return log


def jsonl(path: Path, entries: list[object]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_payloads_come_back_as_they_were_written(tmp_path: Path) -> None:
    job = Job().start(0.1).steps(0, 3, at=0.3).add(nested={"a": [1, 2.5, None, True]})
    written(job, tmp_path)
    assert payloads_in(tmp_path) == job.payloads


def test_numbers_that_json_does_not_have_keep_their_names(tmp_path: Path) -> None:
    written(Job().add(step_count=1, step_start_time=math.nan), tmp_path)
    assert payloads_in(tmp_path)[0]["step_start_time"] == "nan"


def test_entries_of_other_jobs_are_dropped(tmp_path: Path) -> None:
    log = written(Job().start(0), tmp_path)
    log.write_cloud_logging_entry({"job_name": "other", "job_start_time": 1.0})
    log.write_cloud_logging_entry(None)
    assert len(payloads_in(tmp_path)) == 1


def test_an_entry_that_names_no_job_is_this_jobs(tmp_path: Path) -> None:
    log = LocalRunLog("job", tmp_path)
    log.write_cloud_logging_entry({"job_start_time": 1.0})
    assert log.read_cloud_logging_entries()[0] == [{"job_start_time": 1.0}]


def test_reading_continues_after_the_last_entry(tmp_path: Path) -> None:
    clock = ManualClock()
    log = LocalRunLog("job", tmp_path, clock=clock)
    for payload in Job().start(0).steps(0, 2, at=0).payloads:
        log.write_cloud_logging_entry(payload)
    first, last = log.read_cloud_logging_entries()
    log.write_cloud_logging_entry(Job().step(2, 2).payloads[0])  # At the same instant.
    more, _ = log.read_cloud_logging_entries(last_entry_info=last)
    assert (len(first), more) == (3, Job().step(2, 2).payloads)


def test_reading_a_window(tmp_path: Path) -> None:
    clock = ManualClock(wall_ns=START_S * 10**9)
    log = LocalRunLog("job", tmp_path, clock=clock)
    for payload in Job().steps(0, 5, at=0).payloads:
        log.write_cloud_logging_entry(payload)
        clock.advance(10**9)
    entries, _ = log.read_cloud_logging_entries(at(0), at(2))
    assert [entry["step_count"] for entry in entries] == [1, 2]


def test_reading_a_log_that_is_not_there(tmp_path: Path) -> None:
    assert LocalRunLog("job", tmp_path).read_cloud_logging_entries() == ([], (None, None))


def test_a_job_lives_under_the_home_unless_a_run_directory_is_named(
    private_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run_dir_of_job("job") == private_home / "runs" / "job"
    monkeypatch.setenv("OUTLAY_RUN_DIR", str(tmp_path))
    assert run_dir_of_job("job") == tmp_path


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/etc", "../../x"])
def test_no_job_name_leads_out_of_the_home(name: str, private_home: Path) -> None:
    assert run_dir_of_job(name).parent == private_home / "runs"
    assert run_dir_of_job(name).resolve().parent == (private_home / "runs").resolve()


def test_a_kill_loses_no_recorded_entry(private_home: Path) -> None:
    code = """
import os, signal
from outlay import GoodputRecorder
recorder = GoodputRecorder("job", "log", logging_enabled=True)
recorder.record_job_start_time()
for step in range(100):
    recorder.record_step_start_time(step)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(payloads_in(private_home / "runs" / "job")) == 101


def test_every_process_is_an_attempt(tmp_path: Path) -> None:
    """Even where a restart resumes at the next step and records no job start."""
    written(Job().start(0).steps(0, 11, at=0), tmp_path)
    clock = ManualClock(wall_ns=2 * 10**18)
    log = LocalRunLog("job", tmp_path, clock=clock)
    for payload in Job().steps(10, 11, at=100).end(111).payloads:
        log.write_cloud_logging_entry(payload)
    view = GoodputFollower(tmp_path).view(NOW_NS)
    seconds = {name: ns / 1e9 for name, ns in view.break_down().phases.items()}
    assert seconds == {"step": 21, "recovery": 90}


def test_a_priced_job_has_a_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAY_PRICE", "3.60 USD/h")
    monkeypatch.setenv("OUTLAY_GPUS", "2")
    written(Job().start(0).steps(0, 10, at=0).end(10), tmp_path)
    cost = GoodputFollower(tmp_path).view(NOW_NS).break_down().cost
    assert str(cost) == "0.02 USD"


def test_the_cost_report_of_a_job_agrees_with_its_goodput(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_PRICE", "3.60 USD/h")
    written(Job().start(0).steps(0, 10, at=0).end(10), tmp_path)
    found = cost_of(read_view(tmp_path, NOW_NS))
    assert (str(found.cost), list(found.by_phase), found.steps) == ("0.01 USD", ["step"], 10)


def test_sweep_figures_of_a_job_agree_with_its_goodput(tmp_path: Path) -> None:
    written(Job().start(0).steps(0, 10, at=0).end(20), tmp_path)
    found = read_ledger(tmp_path, NOW_NS)
    assert found is not None
    assert found.row is not None
    assert (found.row.goodput, found.row.wall_ns) == (0.5, 20 * 10**9)


def test_payloads_of_no_known_kind_are_a_run_with_findings(tmp_path: Path) -> None:
    written(Job().add(nonsense=1), tmp_path)
    view = GoodputFollower(tmp_path).view(NOW_NS)
    assert [finding.message for finding in view.findings] == ["an entry is of no known kind"]


def test_the_calculator_reads_native_run_logs_too(tmp_path: Path) -> None:
    clock = ManualClock()
    with outlay.run("model", dir=tmp_path, clock=clock) as run:
        for _ in run.steps(range(10)):
            clock.advance(10**9)
        clock.advance(10**10)
    calculator = GoodputCalculator("model", "log", LocalRunLog("model", tmp_path), clock=clock)
    assert calculator.get_job_goodput().goodput == 50


def test_a_process_that_records_natively_too_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_RUN_DIR", str(tmp_path))
    clock = ManualClock()
    with outlay.run("job", clock=clock) as run:
        clock.advance(1)
        recorder = GoodputRecorder("job", "log", True, clock=clock)
        recorder.record_job_start_time()
        for step in run.steps(range(10)):
            recorder.record_step_start_time(step)
            clock.advance(10**9)
    view = GoodputFollower(tmp_path).view(clock.wall_ns())
    assert len(view.timeline.attempts) == 1
    assert view.break_down().phases["step"] == 10 * 10**9
    assert "also recorded steps itself" in view.findings[-1].message


# Importing


def test_imported_payloads_give_the_figures_of_their_log(tmp_path: Path) -> None:
    job = Job().start(0).steps(0, 21, at=0).start(50).steps(15, 10, at=50).end(60)
    findings = import_payloads(jsonl(tmp_path / "p.jsonl", [*job.payloads]), tmp_path / "run")
    assert findings == []
    imported = GoodputFollower(tmp_path / "run").view(NOW_NS).break_down().phases
    direct = job.calculator(now=10_000).get_job_goodput_details()
    assert imported["step"] / 1e9 == 25
    assert imported["recovery"] == 30 * 10**9
    assert direct["total_elapsed_time"] == sum(imported.values()) / 1e9


def test_importing_a_file_again_changes_nothing(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "p.jsonl", [*Job().start(0).steps(0, 5, at=0).payloads])
    import_payloads(file, tmp_path / "run")
    (finding,) = import_payloads(file, tmp_path / "run")
    assert "was imported before" in finding.message
    assert len(payloads_in(tmp_path / "run")) == 6


def test_importing_into_another_run_is_refused(tmp_path: Path) -> None:
    import_payloads(jsonl(tmp_path / "a.jsonl", [*Job().start(0).payloads]), tmp_path / "run")
    other = jsonl(tmp_path / "b.jsonl", [*Job().start(9).payloads])
    with pytest.raises(InvalidValue, match="a directory without a run log"):
        import_payloads(other, tmp_path / "run")


def test_bad_lines_are_findings_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    good = [json.dumps(payload) for payload in Job().start(0).steps(0, 3, at=0).payloads]
    nan = '{"job_name": "job", "step_count": 9, "step_start_time": NaN}'
    file.write_text("\n".join([good[0], "{torn", "7", "", nan, *good[1:]]))
    findings = import_payloads(file, tmp_path / "run")
    assert [(finding.source, finding.line) for finding in findings] == [
        ("p.jsonl", 2),
        ("p.jsonl", 3),
    ]
    view = GoodputFollower(tmp_path / "run").view(NOW_NS)
    assert view.break_down().phases == {"step": 2 * 10**9}
    assert [finding.line for finding in view.findings] == [2]


def test_entries_as_cloud_logging_exports_them(tmp_path: Path) -> None:
    entries = [{"insertId": "x", "jsonPayload": p} for p in Job().steps(0, 3, at=0).payloads]
    import_payloads(jsonl(tmp_path / "p.jsonl", [*entries]), tmp_path / "run")
    assert payloads_in(tmp_path / "run") == Job().steps(0, 3, at=0).payloads


def test_another_jobs_entries_are_left_out(tmp_path: Path) -> None:
    entries = [*Job("a").start(0).payloads, *Job("b").start(0).payloads]
    (finding,) = import_payloads(jsonl(tmp_path / "p.jsonl", [*entries]), tmp_path / "run")
    assert "job 'b'" in finding.message
    assert payloads_in(tmp_path / "run") == Job("a").start(0).payloads


def test_a_job_whose_name_is_a_number_keeps_its_entries(tmp_path: Path) -> None:
    entries = [{**payload, "job_name": 7} for payload in Job().steps(0, 3, at=0).payloads]
    assert import_payloads(jsonl(tmp_path / "p.jsonl", [*entries]), tmp_path / "run") == []
    assert payloads_in(tmp_path / "run") == entries


def test_a_line_that_is_nested_too_deeply_is_a_finding(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "p.jsonl", [*Job().start(0).payloads])
    file.write_bytes(file.read_bytes() + b"[" * 100_000 + b"\n")
    (finding,) = import_payloads(file, tmp_path / "run")
    assert finding.line == 2


@pytest.mark.parametrize("text", [None, "", "\n\n", "hello\n"])
def test_a_file_without_payloads_is_refused(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(InvalidValue, match="payloads: got"):
        import_payloads(tmp_path / "p.jsonl", tmp_path / "run")


# The cache


def test_a_torn_line_of_the_cache_is_passed_over_and_sealed(tmp_path: Path) -> None:
    cache = GoodputCache("job", tmp_path)
    cache.update_cached_entries(Job().steps(0, 3, at=0).payloads, (at(0), "3"))
    file = tmp_path / "job_timeline.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    assert len(cache.get_cached_entries()) == 2
    cache.update_cached_entries(Job().steps(2, 2, at=2).payloads)
    assert cache.get_cached_entries() == Job().steps(0, 4, at=0).payloads


def test_uploaders_of_one_job_share_a_cache(tmp_path: Path) -> None:
    entries = Job().steps(0, 50, at=0).payloads

    def append() -> None:
        cache = GoodputCache("job", tmp_path)
        for number, entry in enumerate(entries):
            cache.update_cached_entries([entry], (at(number), str(number)))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(append) for _ in range(4)]:
            done.result()
    kept = GoodputCache("job", tmp_path).get_cached_entries()
    assert sorted(entry["step_count"] for entry in kept) == sorted([*range(50)] * 4)


def test_a_reopened_cache_has_its_entries_and_position(tmp_path: Path) -> None:
    cache = GoodputCache("a/b", tmp_path)
    assert cache.is_cache_empty()
    assert cache.get_last_entry_info() is None
    entries = Job().start(0).steps(0, 3, at=0).start(9).end(12).payloads
    cache.update_cached_entries(entries, (at(1), "id"))
    again = GoodputCache("a/b", tmp_path)
    assert again.get_cached_entries() == entries
    assert again.get_step_entries() == entries[1:4]
    assert (again.get_job_start_time(), again.get_job_end_time()) == (START_S, START_S + 12)
    assert again.get_last_entry_info() == (at(1), "id")
    again.clear_cache()
    assert GoodputCache("a/b", tmp_path).is_cache_empty()


def test_a_damaged_position_is_ignored(tmp_path: Path) -> None:
    cache = GoodputCache("job", tmp_path)
    cache.update_last_entry_info((at(1), "id"))
    (tmp_path / "job_metadata.json").write_text("{")
    assert cache.get_last_entry_info() is None


JOB = """
import sys
from datetime import datetime, timezone
from outlay import GoodputRecorder
recorder = GoodputRecorder("job", "log", logging_enabled=True)
at = lambda second: datetime.fromtimestamp(float(sys.argv[1]) + second, tz=timezone.utc)
recorder.record_job_start_time(at(0))
for step in range(3):
    recorder.record_step_start_time(step, at(1 + step))
recorder.record_job_end_time(at(4))
"""


@pytest.mark.parametrize("later_s", [-3600.0, 3600.0])
def test_an_attempt_begins_at_the_callers_job_start_whenever_the_process_was_started(
    tmp_path: Path, later_s: float
) -> None:
    job_start_s = float(SYSTEM.wall_ns() // 10**9 + later_s)
    environment = os.environ | {"OUTLAY_RUN_DIR": str(tmp_path)}
    command = [sys.executable, "-c", JOB, str(job_start_s)]
    subprocess.run(command, env=environment, check=True)
    timeline = read_view(tmp_path, SYSTEM.wall_ns()).timeline
    assert (timeline.start_ns, timeline.end_ns) == (
        round(job_start_s) * 10**9,
        round(job_start_s + 4) * 10**9,
    )


def test_a_process_start_in_the_header_moves_no_attempt_of_payloads() -> None:
    account = RunAccount()
    header = AttemptStarted(
        t_ns=(START_S + 60) * 10**9, nodes=1, process_start_ns=(START_S - 50) * 10**9
    )
    payloads = Job().start(5).steps(0, 3, at=6).end(9).payloads
    account.fold(SegmentId(header.t_ns), [header])
    account.fold(SegmentId(header.t_ns), [Payload(t_ns=header.t_ns, data=p) for p in payloads])
    (attempt,) = account.attempts()
    assert (attempt.start_ns, attempt.begin) == ((START_S + 5) * 10**9, "record")
