"""Readings have the calculator's numbers; deviations are reported once."""

from __future__ import annotations

from fractions import Fraction

import pytest

from goodput_log import START_S, Job, MemoryLog
from outlay.clock import ManualClock
from outlay.compat.ml_goodput_measurement.calculator import NoJobTime, NoStepTimes
from outlay.compat.ml_goodput_measurement.goodput_utils import seconds
from outlay.compat.ml_goodput_measurement.uploads.readings import GoodputReader


def reader(job: Job, now: float) -> GoodputReader:
    clock = ManualClock(round((START_S + now) * 1e9))
    return GoodputReader(job.name, "log", MemoryLog(job.payloads), clock=clock)


def restarted_job() -> Job:
    job = Job().start(0).steps(0, 21, at=0).start(50)
    return job.span("tpu_init", 50, 53).steps(15, 10, at=53).end(63)


def test_a_reading_has_the_numbers_of_the_calculator() -> None:
    reading = reader(restarted_job(), 63).read_goodput()
    calculator = restarted_job().calculator(now=63)
    percent = calculator.get_job_goodput(include_badput_breakdown=True)
    details = calculator.get_job_goodput_details()
    assert (reading.goodput_percent, reading.badput_percent, reading.last_step) == percent
    assert [reading.goodput_s] == list(details["goodput_time"].values())
    assert reading.badput_s == details["badput_time"]
    assert reading.elapsed_s == details["total_elapsed_time"]
    assert reading.disruptions == details["disruption_count"]
    assert reading.ideal_step_s == details["ideal_step_time"]
    assert reading.t_ns == (START_S + 63) * 10**9


def test_a_window_ends_now() -> None:
    reading = reader(restarted_job(), 63).read_window(20)
    assert reading.goodput_percent == 50  # Of 20 s, 7 s are recovery and 3 s initialisation.
    assert reading.window_s == 20


def test_a_window_after_the_job_has_no_job_time() -> None:
    with pytest.raises(NoJobTime):
        reader(restarted_job(), 1000).read_window(20)


def test_deviations_are_those_of_the_calculator() -> None:
    reading = reader(restarted_job(), 63).read_deviation()
    assert reading.deviations_s == restarted_job().calculator(now=63).get_step_deviation()


def test_deviations_start_after_a_given_step() -> None:
    job = Job().start(0).steps(0, 10, at=0).step(10, 12).end(13)
    reading = reader(job, 13).read_deviation(after_step=8)
    assert reading.deviations_s == {9: 2.0, 10: 0.0}


def test_a_configured_ideal_is_used() -> None:
    reading = reader(restarted_job(), 63).read_deviation(22, configured_ideal_step_time=0.75)
    assert reading.deviations_s == {23: 0.25, 24: 0.25}
    assert reading.ideal_step_s == 0.75


def test_the_spike_is_of_the_latest_steps() -> None:
    job = Job().start(0).steps(0, 1101, at=0).steps(1101, 100, at=1103, each=3.0)
    reading = reader(job, 1500).read_deviation()
    assert reading.spike_s == pytest.approx(2.0)


def test_without_steps_there_is_no_deviation() -> None:
    with pytest.raises(NoStepTimes):
        reader(Job().start(0), 5).read_deviation()


def test_slices_are_read_when_asked_for() -> None:
    job = (
        Job()
        .start(0)
        .add(
            active_slices=1.0,  # As Cloud Logging gives a count back.
            total_slices=2.0,
            available_slices=2.0,
            elastic_slice_counts_timestamp=float(START_S),
        )
    )
    job.steps(0, 10, at=0).end(10)
    found = reader(job, 10).read_goodput(slices=True).slices
    assert found is not None
    assert found.stepping == 0.5
    assert reader(job, 10).read_goodput().slices is None


def test_counts_that_became_floats_are_counts() -> None:
    job = Job().start(0).steps(0, 10, at=0).end(10)
    for payload in job.payloads:
        if "step_count" in payload:
            payload["step_count"] = float(payload["step_count"])
    asked = reader(job, 10)
    assert asked.read_goodput().last_step == 9
    assert asked.findings == ()


@pytest.mark.parametrize("ns", [42_994_951_600_747_580, 179_395_575_141_116_209])
def test_seconds_of_more_than_104_days_are_rounded_once(ns: int) -> None:
    assert seconds(ns) == float(Fraction(ns, 10**9))
