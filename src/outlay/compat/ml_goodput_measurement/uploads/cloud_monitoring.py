"""Readings as time series of Google Cloud Monitoring, and the sink that creates them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from outlay.compat.ml_goodput_measurement.cloud import GCPOptions, completed
from outlay.compat.ml_goodput_measurement.gcp_metrics import MonitoringClient, end_time
from outlay.compat.ml_goodput_measurement.goodput_utils import BadputParts, BadputType, GoodputType
from outlay.compat.ml_goodput_measurement.uploads.readings import (
    DeviationReading,
    GoodputReading,
    WindowReading,
    flat,
)
from outlay.export.scalars import FinishedReading
from outlay.goodput.timeline import SliceEfficiency


class CloudMonitoring(msgspec.Struct, frozen=True, tag=True):
    """Time series in Google Cloud Monitoring, for the workload ``workload_id``."""

    workload_id: str
    options: GCPOptions = GCPOptions()


class CloudMonitoringSink:
    """The time series of one workload.

    Args:
        workload_id: The job's name.
        options: Project, location, replica and accelerator; None: from the metadata service.

    Raises:
        MissingExtra: Google's client is not installed.
        InvalidValue: Project or location is not known.
    """

    def __init__(self, workload_id: str, options: GCPOptions) -> None:
        self._options = completed(options)
        assert self._options.project_id is not None
        self._client = MonitoringClient(self._options.project_id)
        self._resource = {
            "location": self._options.location or "",
            "workload_id": workload_id,
            "replica_id": self._options.replica_id,
        }

    def write(self, reading: FinishedReading) -> None:
        """Create one point in each series."""
        found = time_series(reading, self._options)
        self._client.send([self._of(series, reading.t_ns) for series in found])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _of(self, series: MetricSeries, t_ns: int) -> Any:
        kind = "int64_value" if isinstance(series.value, int) else "double_value"
        value = {kind: series.value}
        about = (RESOURCE, self._resource)
        name = PREFIX + series.name
        return self._client.series(name, value, series.labels, about, end_time(t_ns))


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
        case _:
            return []  # Google lists no names for money.


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
