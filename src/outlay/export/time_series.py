"""A reading as Google Cloud Monitoring's time series of a workload. Pure.

Names, labels and units are those that Google lists under ``compute.googleapis.com/workload``:
seconds for a whole job, percentages for a window. ``performance`` is the ideal step time and
nothing else; how uneven the latest steps are is ``step_time_deviation``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from outlay.export.gcp import GCPOptions
from outlay.export.scalars import flat, overlapped
from outlay.goodput.elastic import SliceEfficiency
from outlay.goodput.readings import DeviationReading, GoodputReading, Reading, WindowReading
from outlay.goodput.types import BadputParts, GoodputType

PREFIX = "compute.googleapis.com/workload/"
RESOURCE = "compute.googleapis.com/Workload"


@dataclass(frozen=True, slots=True)
class Series:
    """A number of a workload: an int or a float, which the service tells apart."""

    name: str
    value: int | float
    labels: dict[str, str] = field(default_factory=dict)


def time_series(reading: Reading, options: GCPOptions) -> list[Series]:
    """Return a reading's series, with the labels that say what they are about."""
    accelerator = {"accelerator_type": options.acc_type or "UNKNOWN"}
    if options.cluster_name:
        accelerator["cluster_name"] = options.cluster_name
    match reading:
        case GoodputReading():
            return list(_of_job(reading, accelerator))
        case WindowReading():
            return list(_of_window(reading, accelerator))
        case DeviationReading():
            return [Series("step_time_deviation", reading.spike_s, accelerator)]
        case _:
            assert_never(reading)


def _of_job(reading: GoodputReading, about: dict[str, str]) -> Iterator[Series]:
    cumulative = {**about, "window_type": "cumulative"}
    total = {**about, "goodput_source": GoodputType.TOTAL.name}
    yield Series("goodput_time", reading.goodput_s, total)
    yield from _badput("badput_time", reading.badput_s, about)
    yield Series("disruptions", reading.disruptions, cumulative)
    yield Series("max_productive_steps", reading.last_step, about)
    yield Series("total_elapsed_time", reading.elapsed_s, cumulative)
    if reading.ideal_step_s is not None:
        yield Series("performance", reading.ideal_step_s)
    whole = {**about, "window_type": "CUMULATIVE", "rolling_window_size": "0"}
    yield from _slices(reading.slices, whole)


def _of_window(reading: WindowReading, about: dict[str, str]) -> Iterator[Series]:
    about = {**about, "rolling_window_size": str(reading.window_s)}
    total = {**about, "goodput_source": GoodputType.TOTAL.name}
    yield Series("interval_goodput", reading.goodput_percent, total)
    yield from _badput("interval_badput", reading.badput_percent, about)
    yield from _slices(reading.slices, {**about, "window_type": "INTERVAL"})


def _badput(name: str, parts: BadputParts, about: dict[str, str]) -> Iterator[Series]:
    for source, value in flat(parts):
        if not overlapped(source):
            yield Series(name, value, {**about, "badput_source": ".".join(source)})


def _slices(slices: SliceEfficiency | None, about: dict[str, str]) -> Iterator[Series]:
    if slices is not None:
        yield Series("stepping_slice_efficiency", slices.stepping, about)
        yield Series("available_slice_efficiency", slices.available, about)
