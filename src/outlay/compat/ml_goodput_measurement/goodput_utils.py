"""``goodput_utils``: enums, options and small functions."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from outlay.export import gcp
from outlay.export.gcp import GCPOptions
from outlay.goodput import throughput as deviation
from outlay.goodput.calculator import IntervalWorkloadMetricDetails, WorkloadMetricDetails
from outlay.goodput.importing import GoodputInfo, StepInfo
from outlay.goodput.phases import BadputType, GoodputType

__all__ = [
    "ACTIVITY_EXCLUSION_LIST",
    "MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING",
    "BadputType",
    "ElasticIntervalWorkloadMetricDetails",
    "ElasticWorkloadMetricDetails",
    "GCPOptions",
    "GoodputInfo",
    "GoodputType",
    "IntervalMetricType",
    "IntervalWorkloadMetricDetails",
    "MetricType",
    "MonitoringWindowType",
    "StepInfo",
    "WorkloadMetricDetails",
    "compute_ideal_step_time",
    "compute_percentile",
    "compute_step_deviation_from_baseline",
    "get_accelerator_type",
    "get_anomalous_and_normal_step_times",
    "get_cluster_name",
    "get_extra_time_from_anomalous_steps",
    "get_gcp_metadata",
    "get_gcp_project_id",
    "get_node_zone",
    "get_timestamp_from_log_entry",
]

ACTIVITY_EXCLUSION_LIST = [BadputType.DATA_LOADING_ASYNC.name]
MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING = gcp.ACCELERATOR_OF_MACHINE_TYPE

get_accelerator_type = gcp.accelerator_type
get_cluster_name = gcp.cluster_name
get_gcp_metadata = gcp.metadata
get_gcp_project_id = gcp.project_id
get_node_zone = gcp.zone


class MetricType(enum.Enum):
    """The keys of a job's details."""

    GOODPUT_TIME = "goodput_time"
    BADPUT_TIME = "badput_time"
    MAX_PRODUCTIVE_STEP = "max_productive_step"
    TOTAL_ELAPSED_TIME = "total_elapsed_time"
    DISRUPTION_COUNT = "disruption_count"
    STEP_TIME_DEVIATION = "step_time_deviation"
    IDEAL_STEP_TIME = "ideal_step_time"
    TOTAL_EXCLUDED_TIME = "total_excluded_time"


class IntervalMetricType(enum.Enum):
    """The keys of a window's details."""

    INTERVAL_GOODPUT = "interval_goodput"
    INTERVAL_BADPUT = "interval_badput"
    INTERVAL_SIZE = "interval_size"


class MonitoringWindowType(enum.Enum):
    """The scope of a figure: the whole job, or a window."""

    CUMULATIVE = "cumulative"
    INTERVAL = "interval"


class ElasticWorkloadMetricDetails(WorkloadMetricDetails, total=False):
    """A job's details, with slice efficiency if slice counts were recorded."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


class ElasticIntervalWorkloadMetricDetails(IntervalWorkloadMetricDetails, total=False):
    """A window's details, with slice efficiency if slice counts were recorded."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


def compute_percentile(values: Sequence[float], percentile: float) -> float:
    """Return an interpolated percentile; 0 without values."""
    return deviation.percentile(values, percentile)


def compute_step_deviation_from_baseline(
    step_time_deviation: Mapping[int, float],
    mode: MonitoringWindowType = MonitoringWindowType.CUMULATIVE,
    recent_window_size: int = 100,
    baseline_window_size: int = 1000,
    spike_percentile: float = 90,
) -> float:
    """Return one figure for the latest steps; for a window, without a baseline."""
    whole = mode is MonitoringWindowType.CUMULATIVE
    spikes = deviation.Spikes(
        recent=recent_window_size,
        baseline=baseline_window_size if whole else 0,
        percent=spike_percentile,
    )
    return spikes.of(list(step_time_deviation.values()))


def compute_ideal_step_time(step_times: Sequence[float]) -> float | None:
    """Return the mean of the times that are not anomalously long."""
    return deviation.ideal_time(step_times)


def get_anomalous_and_normal_step_times(
    step_times: Sequence[float],
) -> tuple[list[float], list[float]]:
    """Return the anomalously long times, and the others."""
    anomalous, usual = deviation.split_anomalous(step_times)
    return anomalous.tolist(), usual.tolist()


def get_extra_time_from_anomalous_steps(step_times: Sequence[float]) -> float:
    """Return the excess of the anomalous steps over the same number of normal ones."""
    return deviation.anomalous_excess(step_times)


def get_timestamp_from_log_entry(entry: Mapping[str, Any]) -> datetime | None:
    """Return the first timestamp of an entry."""
    times = (value for key, value in entry.items() if "time" in key)
    return next((datetime.fromtimestamp(seconds, UTC) for seconds in times), None)
