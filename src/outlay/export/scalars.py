"""Readings as named numbers, and as time series of Google Cloud Monitoring. Pure.

A *finished reading* is a job's goodput, a window of it, its step deviation, or a run's figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from outlay.export.gcp import GCPOptions
from outlay.goodput.phases import BadputParts, BadputType, GoodputType
from outlay.goodput.readings import DeviationReading, GoodputReading, Reading, WindowReading
from outlay.goodput.timeline import SliceEfficiency
from outlay.runs.reading import RunReading

# Named numbers, for TensorBoard, trackers and files

STEP_DEVIATION = "step_deviation"
FinishedReading = Reading | RunReading


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number with its name and step, and the length in seconds if it is of a window."""

    name: str
    value: float
    step: int
    window_s: int | None = None


def scalars(reading: FinishedReading) -> list[Scalar]:
    """Return a reading's numbers; of a job: percentages, or seconds off the ideal step."""
    match reading:
        case RunReading():
            step = reading.step
            return [Scalar(name, value, step) for name, value in reading.values.items()]
        case GoodputReading() | WindowReading():
            return list(_shares(reading))
        case DeviationReading():
            return [
                Scalar(STEP_DEVIATION, seconds, step)
                for step, seconds in sorted(reading.deviations_s.items())
            ]
        case _:
            assert_never(reading)


def new_scalars(reading: FinishedReading, last_step: int) -> tuple[list[Scalar], int]:
    """Return numbers without deviations up to ``last_step``, and the last step with one."""
    new = [s for s in scalars(reading) if s.name != STEP_DEVIATION or s.step > last_step]
    steps = (scalar.step for scalar in new if scalar.name == STEP_DEVIATION)
    return new, max(steps, default=last_step)


def _shares(reading: GoodputReading | WindowReading) -> Iterator[Scalar]:
    window_s = reading.window_s if isinstance(reading, WindowReading) else None
    yield Scalar("goodput/goodput", reading.goodput_percent, reading.last_step, window_s)
    for source, percent in flat(reading.badput_percent):
        name = "/".join(part.lower() for part in source)
        yield Scalar(f"badput/{name}", percent, reading.last_step, window_s)


def flat(parts: BadputParts) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield each badput by its type's name, or by type and custom event."""
    for kind, value in parts.items():
        if isinstance(value, dict):
            for name, part in value.items():
                yield (kind.name, name), part
        else:
            yield (kind.name,), value


# Time series of Google Cloud Monitoring
#
# Names, labels and units are those that Google lists under ``compute.googleapis.com/workload``:
# seconds for a whole job, percentages for a window. ``performance`` is the ideal step time;
# ``step_time_deviation`` is how uneven the latest steps are.

PREFIX = "compute.googleapis.com/workload/"
RESOURCE = "compute.googleapis.com/Workload"


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """A number of a workload; the service distinguishes int and float."""

    name: str
    value: int | float
    labels: dict[str, str] = field(default_factory=dict)


def time_series(reading: FinishedReading, options: GCPOptions) -> list[MetricSeries]:
    """Return a reading's series with their labels."""
    accelerator = {"accelerator_type": options.acc_type or "UNKNOWN"}
    if options.cluster_name:
        accelerator["cluster_name"] = options.cluster_name
    match reading:
        case GoodputReading():
            return list(_of_job(reading, accelerator))
        case WindowReading():
            return list(_of_window(reading, accelerator))
        case DeviationReading():
            return [MetricSeries("step_time_deviation", reading.spike_s, accelerator)]
        case RunReading():
            return []  # Google lists no names for money.
        case _:
            assert_never(reading)


def _of_job(reading: GoodputReading, about: dict[str, str]) -> Iterator[MetricSeries]:
    cumulative = {**about, "window_type": "cumulative"}
    total = {**about, "goodput_source": GoodputType.TOTAL.name}
    yield MetricSeries("goodput_time", reading.goodput_s, total)
    yield from _badput("badput_time", reading.badput_s, about)
    yield MetricSeries("disruptions", reading.disruptions, cumulative)
    yield MetricSeries("max_productive_steps", reading.last_step, about)
    yield MetricSeries("total_elapsed_time", reading.elapsed_s, cumulative)
    if reading.ideal_step_s is not None:
        yield MetricSeries("performance", reading.ideal_step_s)
    whole = {**about, "window_type": "CUMULATIVE", "rolling_window_size": "0"}
    yield from _slices(reading.slices, whole)


def _of_window(reading: WindowReading, about: dict[str, str]) -> Iterator[MetricSeries]:
    about = {**about, "rolling_window_size": str(reading.window_s)}
    total = {**about, "goodput_source": GoodputType.TOTAL.name}
    yield MetricSeries("interval_goodput", reading.goodput_percent, total)
    yield from _badput("interval_badput", reading.badput_percent, about)
    yield from _slices(reading.slices, {**about, "window_type": "INTERVAL"})


def _badput(name: str, parts: BadputParts, about: dict[str, str]) -> Iterator[MetricSeries]:
    for source, value in flat(parts):
        if source != (BadputType.DATA_LOADING_ASYNC.name,):  # Beside steps: no badput.
            yield MetricSeries(name, value, {**about, "badput_source": ".".join(source)})


def _slices(slices: SliceEfficiency | None, about: dict[str, str]) -> Iterator[MetricSeries]:
    if slices is not None:
        yield MetricSeries("stepping_slice_efficiency", slices.stepping, about)
        yield MetricSeries("available_slice_efficiency", slices.available, about)
