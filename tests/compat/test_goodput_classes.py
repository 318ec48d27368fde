"""The documented classes: their arguments and results."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from goodput_log import START_S, Job, MemoryLog, at
from outlay import BadputType, GoodputCache, GoodputCalculator, GoodputRecorder, GoodputType
from outlay.clock import ManualClock
from outlay.compat.ml_goodput_measurement import calculator as module
from outlay.compat.ml_goodput_measurement.calculator import NoGoodputLogs, NoJobTime, NoStepTimes
from outlay.errors import InvalidValue
from outlay.goodput.follower import RunView, overlapped_ns
from outlay.goodput.timeline import Window

RECOVERY = BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION
WASTED = BadputType.WASTED_PROGRESS_FROM_DISRUPTION


def badput(calculator: GoodputCalculator, kind: BadputType) -> float:
    value = calculator.get_job_goodput_details()["badput_time"][kind]
    assert isinstance(value, float)
    return value


def whole_percent(goodput: float, breakdown: dict[BadputType, float | dict[str, float]]) -> float:
    """Return goodput and all badput; loading beside the steps is not badput."""
    parts = [goodput]
    for kind, value in breakdown.items():
        if kind is not BadputType.DATA_LOADING_ASYNC:
            parts += value.values() if isinstance(value, dict) else [value]
    return math.fsum(parts)


# Where the reference library is wrong


def test_a_window_inside_an_outage_is_zero_percent() -> None:
    job = Job().start(0).steps(0, 11, at=0).start(3600).steps(10, 11, at=3600).end(3611)
    answer = job.calculator(now=3611).get_job_goodput_interval(at(1000), at(2000))
    assert answer.goodput == 0
    assert answer.badput_breakdown[RECOVERY] == 100
    assert answer.total_job_time == 1000


def hanging_job() -> Job:
    return Job().start(0).steps(0, 101, at=0).steps(101, 100, at=1100).end(1200)


def test_a_hang_is_badput() -> None:
    answer = hanging_job().calculator(now=1200).get_job_goodput(include_badput_breakdown=True)
    assert answer.goodput == pytest.approx(201 / 1200 * 100)
    assert answer.badput_breakdown[BadputType.OTHER] == pytest.approx(999 / 1200 * 100)


def test_under_pathways_a_hang_is_recovery() -> None:
    calculator = hanging_job().calculator(now=1200, using_pathways=True)
    assert badput(calculator, RECOVERY) == 999
    assert badput(calculator, BadputType.OTHER) == 0


def test_every_start_has_one_blocking_load() -> None:
    job = Job()
    for attempt in range(4):
        begin = attempt * 100
        job.start(begin).span("data_loading", begin, begin + 2)
        job.steps(attempt * 10, 11, at=begin + 2)
    assert badput(job.calculator(now=312), BadputType.DATA_LOADING_SYNC) == 8


def test_overlapping_custom_events_count_once() -> None:
    job = Job().start(0)
    job.add(custom_badput_event_type="a", custom_badput_event_start_time=START_S + 1)
    job.custom("b", 2, 8)
    job.add(custom_badput_event_type="a", custom_badput_event_end_time=START_S + 9)
    details = job.end(10).calculator(now=10).get_job_goodput_details()
    assert details["badput_time"][BadputType.CUSTOM_BADPUT_EVENTS] == {"A": 2, "B": 6}


def test_a_calculator_restarted_over_its_cache_reads_on(tmp_path: Path) -> None:
    job = Job().start(0).steps(0, 11, at=0)
    log = MemoryLog(job.payloads)
    clock = ManualClock(wall_ns=(START_S + 20) * 10**9)

    def last_step() -> int:
        calculator = GoodputCalculator("job", "log", log, cache_dir=tmp_path, clock=clock)
        return calculator.get_job_goodput().last_step

    assert last_step() == 9
    log.entries += Job().steps(11, 5, at=11).payloads
    assert last_step() == 14
    assert log.given == len(log.entries)


def test_a_logger_without_positions_is_not_cached(tmp_path: Path) -> None:
    class Plain(MemoryLog):
        def read_cloud_logging_entries(self, *_: object, **__: object) -> Any:
            return self.entries

    log = Plain(Job().start(0).steps(0, 11, at=0).payloads)
    clock = ManualClock(wall_ns=(START_S + 20) * 10**9)
    calculator = GoodputCalculator("job", "log", log, cache_dir=tmp_path, clock=clock)
    assert [calculator.get_job_goodput().last_step for _ in range(2)] == [9, 9]
    assert GoodputCache("job", tmp_path).is_cache_empty()


def test_a_cache_that_cannot_be_written_loses_no_result_and_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = MemoryLog(Job().start(0).steps(0, 11, at=0).payloads)
    clock = ManualClock(wall_ns=(START_S + 20) * 10**9)
    calculator = GoodputCalculator("job", "log", log, cache_dir=tmp_path, clock=clock)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "outlay"):
        patch.setattr(GoodputCache, "update_cached_entries", full)
        assert calculator.get_job_goodput().last_step == 9
    assert "No space left" in caplog.text
    log.entries += Job().steps(11, 5, at=11).payloads
    assert calculator.get_job_goodput().last_step == 14
    again = GoodputCalculator("job", "log", log, cache_dir=tmp_path, clock=clock)
    assert again.get_job_goodput().last_step == 14
    assert GoodputCache("job", tmp_path).get_cached_entries() == log.entries


def test_the_cache_returns_the_results_of_the_last_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = GoodputCache("job", tmp_path)
    assert (cache.get_goodput_info(), cache.get_step_info()) == (None, None)
    monkeypatch.setattr(module, "GoodputCache", lambda *_: cache)
    log = MemoryLog(Job().start(0).steps(0, 11, at=0).end(11).payloads)
    clock = ManualClock(wall_ns=(START_S + 11) * 10**9)
    calculator = GoodputCalculator("job", "log", log, cache_dir=tmp_path, clock=clock)
    calculator.get_job_goodput()
    found, steps = cache.get_goodput_info(), cache.get_step_info()
    assert found is not None
    assert (found.total_productive_time, found.total_elapsed_time) == (11, 11)
    assert (found.max_productive_step, found.number_of_disruptions) == (10, 0)
    assert steps is not None
    assert steps.ideal_step_time == 1
    assert set(steps.step_deviations.values()) == {0}
    calculator.get_step_deviation(configured_ideal_step_time=3)
    assert cache.get_step_info() != steps


def test_deviation_of_steps_below_a_second() -> None:
    job = Job().start(0).steps(0, 21, at=0, each=0.5).step(21, 11.5).end(12)
    deviation = job.calculator(now=12).get_step_deviation()
    assert {step for step, seconds in deviation.items() if seconds > 0.1} == {20}
    assert deviation[20] == pytest.approx(1.0)


# Results of the calculator


def restarted_job() -> Job:
    """20 s of steps, of which 5 s are repeated after 30 s of downtime and 3 s of init."""
    job = Job().start(0).steps(0, 21, at=0).start(50)
    return job.span("tpu_init", 50, 53).steps(15, 10, at=53).end(63)


def test_parts_sum_to_a_hundred_percent() -> None:
    answer = restarted_job().calculator(now=63).get_job_goodput(include_badput_breakdown=True)
    assert whole_percent(answer.goodput, answer.badput_breakdown) == pytest.approx(100)
    assert answer.goodput == pytest.approx(25 / 63 * 100)
    assert answer.last_step == 24


def test_after_a_disruption_badput_has_its_causes() -> None:
    calculator = restarted_job().calculator(now=63)
    found = {kind: badput(calculator, kind) for kind in (RECOVERY, WASTED)}
    assert found == {RECOVERY: 30, WASTED: 5}
    assert badput(calculator, BadputType.TPU_INITIALIZATION) == 3


def test_without_the_breakdown_it_is_empty() -> None:
    goodput, breakdown, last_step = restarted_job().calculator(now=63).get_job_goodput()
    assert (breakdown, last_step) == ({}, 24)
    assert 0 < goodput < 100


def test_loading_beside_steps_does_not_affect_goodput() -> None:
    job = Job().start(0)
    for step in range(10):
        job.step(step, step).span("data_loading", step + 0.2, step + 0.6)
    calculator = job.end(10).calculator(now=10)
    answer = calculator.get_job_goodput(include_badput_breakdown=True)
    assert answer.badput_breakdown[BadputType.DATA_LOADING_ASYNC] == pytest.approx(36)
    assert answer.badput_breakdown[BadputType.DATA_LOADING_SYNC] == pytest.approx(4)
    assert answer.goodput == pytest.approx(96)


def test_adjacent_windows_add_up() -> None:
    calculator = restarted_job().calculator(now=63)
    windows = [calculator.get_job_goodput_interval(at(a), at(a + 21)) for a in (0, 21, 42)]
    assert sum(w.goodput * w.total_job_time for w in windows) == pytest.approx(100 * 25)
    assert [w.number_of_disruptions for w in windows] == [0, 0, 1]
    assert [w.last_step for w in windows] == [19, 19, 24]


def test_exclusions_leave_the_denominator() -> None:
    calculator = restarted_job().calculator(now=63)
    overlapping = [(at(20), at(45)), (at(40), at(50))]
    answer = calculator.get_job_goodput_with_exclusions(overlapping, include_badput_breakdown=True)
    assert answer.total_excluded_time == 30
    assert answer.goodput == pytest.approx(25 / 33 * 100)
    assert whole_percent(answer.goodput, answer.badput_breakdown) == pytest.approx(100)


def test_details_are_in_seconds() -> None:
    details = restarted_job().calculator(now=63).get_job_goodput_details()
    assert details["goodput_time"] == {GoodputType.TOTAL: 25}
    assert details["total_elapsed_time"] == 63
    assert details["max_productive_step"] == 24
    assert details["ideal_step_time"] == 1
    assert details["step_time_deviation"][24] == 0


def test_interval_details() -> None:
    details = restarted_job().calculator(now=63).get_interval_metric_details(at(0), at(10))
    assert details["interval_goodput"] == {GoodputType.TOTAL: 100}
    assert details["interval_size"] == 10


def test_interval_details_outside_the_job_are_empty() -> None:
    details = restarted_job().calculator(now=63).get_interval_metric_details(at(-10), at(-5))
    assert details == {"interval_goodput": {}, "interval_badput": {}, "interval_size": 5}


def test_a_configured_ideal_step_time_is_used() -> None:
    calculator = restarted_job().calculator(now=63)
    assert set(calculator.get_step_deviation(configured_ideal_step_time=0.75).values()) == {0.25}


def test_a_query_while_the_job_runs() -> None:
    calculator = Job().start(0).steps(0, 11, at=0).calculator(now=12.5)
    assert calculator.get_job_goodput().goodput == pytest.approx(10 / 12.5 * 100)


def test_slices_weigh_goodput() -> None:
    job = Job().start(0).steps(0, 10, at=0)
    for second, active in ((0.0, 4), (5.0, 2)):
        job.add(
            active_slices=active,
            total_slices=4,
            available_slices=4,
            elastic_slice_counts_timestamp=START_S + second,
        )
    found = job.end(10).calculator(now=10).get_slice_efficiency()
    assert found is not None
    assert (found.goodput, found.stepping, found.available) == (0.75, 0.75, 1.0)


def test_a_query_takes_only_new_entries() -> None:
    job = Job().start(0).steps(0, 11, at=0)
    log = MemoryLog(job.payloads)
    calculator = GoodputCalculator("job", "log", log, clock=ManualClock((START_S + 20) * 10**9))
    calculator.get_job_goodput()
    log.entries += Job().steps(11, 5, at=11).payloads
    assert calculator.get_job_goodput().last_step == 14
    assert log.given == len(log.entries)


def test_threads_that_share_a_calculator_are_answered_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering, both = threading.Barrier(2), []

    def meet(view: RunView, windows: Sequence[Window]) -> dict[str, int]:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.append(answering.wait(0.1))
        return overlapped_ns(view, windows)

    monkeypatch.setattr(module, "overlapped_ns", meet)
    calculator = restarted_job().calculator(now=63)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(calculator.get_job_goodput) for _ in range(2)]
    assert answers[0].result() == answers[1].result()
    assert both == []


# Bad input


def test_an_unknown_job_has_no_logs() -> None:
    with pytest.raises(NoGoodputLogs, match=r"job 'nobody': no logs exist in .*nobody"):
        GoodputCalculator("nobody", "log").get_job_goodput()


def test_an_empty_log() -> None:
    with pytest.raises(ValueError, match="no logs exist"):
        Job().calculator(now=10).get_job_goodput()


def test_a_job_without_steps_has_no_goodput() -> None:
    answer = Job().start(0).calculator(now=10).get_job_goodput(include_badput_breakdown=True)
    assert (answer.goodput, answer.badput_breakdown[BadputType.OTHER]) == (0, 100)


def test_a_job_without_any_time() -> None:
    with pytest.raises(NoJobTime, match="no job time yet"):
        Job().start(0).calculator(now=0).get_job_goodput()


def test_no_step_times_yet() -> None:
    with pytest.raises(NoStepTimes, match="no step has a duration yet"):
        Job().start(0).step(0, 1).calculator(now=5).get_step_deviation()


def test_an_interval_that_ends_before_it_starts() -> None:
    with pytest.raises(InvalidValue, match="an end that is after the start"):
        restarted_job().calculator(now=63).get_job_goodput_interval(at(10), at(5))


def test_a_window_without_a_time_zone_is_refused() -> None:
    naive = datetime(2024, 12, 16, 1, 5)  # noqa: DTZ001 - that is the point
    with pytest.raises(InvalidValue, match="a datetime with a time zone"):
        restarted_job().calculator(now=63).get_job_goodput_interval(naive, at(5))


def test_a_window_outside_the_job() -> None:
    with pytest.raises(NoJobTime, match="no job time in the window"):
        restarted_job().calculator(now=63).get_job_goodput_interval(at(100), at(200))


def test_a_bucket_for_the_cache_is_refused() -> None:
    with pytest.raises(InvalidValue, match="mount the bucket"):
        GoodputCalculator("job", "log", gcs_path="gs://bucket")


def test_a_reused_name_is_a_finding_and_the_idle_time_between_is_not_counted() -> None:
    job = Job().start(0).steps(0, 10, at=0).end(10).start(1000).steps(10, 10, at=1000).end(1010)
    calculator = job.calculator(now=1010)
    assert calculator.get_job_goodput().goodput == 100
    assert "was its name re-used?" in calculator.findings[0].message


# The recorder


def recorded(log: MemoryLog) -> list[dict[str, object]]:
    return [{k: v for k, v in entry.items() if k != "job_name"} for entry in log.entries]


def test_the_recorder_writes_the_documented_payloads() -> None:
    log = MemoryLog()
    recorder = GoodputRecorder("job", "log", True, log)
    recorder.record_job_start_time(at(0))
    recorder.record_tpu_init_start_time(at(1))
    recorder.record_tpu_init_end_time(at(2))
    recorder.record_training_preparation_start_time(at(3))
    recorder.record_training_preparation_end_time(at(4))
    recorder.record_data_loading_start_time(at(5))
    recorder.record_data_loading_end_time(at(6))
    recorder.record_step_start_time(np.int64(7), at(7))
    recorder.record_custom_badput_event_start_time(at(8), custom_badput_event_type="eval")
    recorder.record_custom_badput_event_end_time(at(9), custom_badput_event_type="eval")
    recorder.record_checkpoint_progress(7, at(10))
    recorder.record_job_end_time(at(11))
    recorder.flush()
    second = float(START_S)
    assert recorded(log) == [
        {"job_start_time": second},
        {"tpu_init_start_time": second + 1},
        {"tpu_init_end_time": second + 2},
        {"training_prep_start_time": second + 3},
        {"training_prep_end_time": second + 4},
        {"data_loading_start_time": second + 5},
        {"data_loading_end_time": second + 6},
        {"step_count": 7, "step_start_time": second + 7},
        {"custom_badput_event_type": "eval", "custom_badput_event_start_time": second + 8},
        {"custom_badput_event_type": "eval", "custom_badput_event_end_time": second + 9},
        {"checkpoint_step": 7, "checkpoint_start_time": second + 10},
        {"job_end_time": second + 11},
    ]
    assert {entry["job_name"] for entry in log.entries} == {"job"}


def test_a_disabled_recorder_writes_nothing(private_home: Path) -> None:
    recorder = GoodputRecorder("job", "log")
    recorder.record_job_start_time()
    recorder.record_step_start_time(0)
    recorder.record_checkpoint_progress(0, at(0))
    recorder.flush()
    assert list(private_home.iterdir()) == []
    with pytest.raises(NoGoodputLogs):
        GoodputCalculator("job", "log").get_job_goodput()


def test_only_rank_0_writes_by_default(monkeypatch: pytest.MonkeyPatch, private_home: Path) -> None:
    monkeypatch.setenv("RANK", "3")
    GoodputRecorder("job", "log", True).record_job_start_time()
    assert list(private_home.iterdir()) == []


def test_a_checkpoint_makes_progress_committed(tmp_path: Path) -> None:
    from outlay.compat.ml_goodput_measurement.recorder import LocalRunLog
    from outlay.goodput.follower import GoodputFollower
    from outlay.goodput.timeline import progress

    recorder = GoodputRecorder("job", "log", True, LocalRunLog("job", tmp_path))
    recorder.record_job_start_time(at(0))
    for step in range(10):
        recorder.record_step_start_time(step, at(step))
    recorder.record_checkpoint_progress(5, at(6))
    recorder.record_job_end_time(at(10))
    found = progress(GoodputFollower(tmp_path).view((START_S + 10) * 10**9).timeline, None)
    assert (found.committed_step, found.committed_ns, found.at_risk_ns) == (5, 6e9, 4e9)


def test_a_datetime_without_a_zone_is_local_time_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryLog()
    recorder = GoodputRecorder("job", "log", True, log)
    naive = at(0).astimezone().replace(tzinfo=None)
    with caplog.at_level(logging.WARNING, "outlay"):
        recorder.record_job_start_time(naive)
        recorder.record_job_end_time(naive + timedelta(seconds=5))
    assert recorded(log) == [{"job_start_time": START_S}, {"job_end_time": START_S + 5}]
    assert [record.message.count("without a time zone") for record in caplog.records] == [1]


@pytest.mark.parametrize("step", ["7", 7.5, None])
def test_a_step_that_is_no_number_is_refused(step: object) -> None:
    recorder = GoodputRecorder("job", "log", True, MemoryLog())
    with pytest.raises(InvalidValue, match="a whole number"):
        recorder.record_step_start_time(step)  # type: ignore[arg-type]


def test_a_logger_that_fails_does_not_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryLog):
        def write_cloud_logging_entry(self, entry: object) -> None:
            raise ConnectionError(entry)

    recorder = GoodputRecorder("job", "log", True, Broken())
    with caplog.at_level(logging.WARNING, "outlay"):
        recorder.record_step_start_time(0)
        recorder.record_step_start_time(1)
    assert recorder.lost == 2
    assert len(caplog.records) == 1


def test_a_job_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidValue, match="a non-empty name"):
        GoodputRecorder(" ", "log", True)


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    return set(done.stdout.split())


def test_importing_the_recorder_loads_no_arithmetic() -> None:
    heavy = {"numpy", "sqlalchemy", "httpx2", "rich", "typer", "omegaconf"}
    assert loaded_by("from outlay import GoodputRecorder") & heavy == set()


def test_importing_the_calculator_loads_no_database_and_no_network() -> None:
    heavy = {"scipy", "sqlalchemy", "httpx2", "rich", "typer", "omegaconf", "google"}
    assert loaded_by("from outlay import GoodputCalculator") & heavy == set()
