"""``goodput_utils``: the library's enums, options, results and small functions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypedDict

import numpy as np

from outlay.compat.ml_goodput_measurement import cloud
from outlay.compat.ml_goodput_measurement.cloud import GCPOptions
from outlay.goodput import phases as ph
from outlay.goodput.throughput import ANOMALOUS_MADS, Floats, StepTimes

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

# Names of badput, as in ml-goodput-measurement 0.2.3.


class BadputType(enum.Enum):
    """The type of badput."""

    TPU_INITIALIZATION = 1
    TRAINING_PREP = 2
    PROGRAM_STARTUP = 3
    DATA_LOADING_SYNC = 4
    DATA_LOADING_ASYNC = 5
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = 6
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = 7
    WASTED_PROGRESS_FROM_DISRUPTION = 8
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = 9
    CUSTOM_BADPUT_EVENTS = 10
    OTHER = 11
    ELASTIC_SLICE_DOWN = 12
    ELASTIC_SCALE_UP = 13
    ELASTIC_REINITIALIZATION = 14


class GoodputType(enum.Enum):
    """The type of goodput."""

    TOTAL = 1


BadputParts = dict[BadputType, float | dict[str, float]]
"""A number per badput type; for CUSTOM_BADPUT_EVENTS a number per name."""

BADPUT_OF_PHASE = {
    ph.ACCELERATOR_INIT: BadputType.TPU_INITIALIZATION,
    ph.TRAINING_PREP: BadputType.TRAINING_PREP,
    ph.PROGRAM_STARTUP: BadputType.PROGRAM_STARTUP,
    ph.DATA_LOADING: BadputType.DATA_LOADING_SYNC,
    ph.CHECKPOINT_SAVE: BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME,
    ph.CHECKPOINT_RESTORE: BadputType.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME,
    ph.WASTED_PROGRESS: BadputType.WASTED_PROGRESS_FROM_DISRUPTION,
    ph.RECOVERY: BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION,
    ph.STALL: BadputType.OTHER,
    ph.PAUSED: BadputType.OTHER,
    ph.OTHER: BadputType.OTHER,
    ph.ELASTIC_SLICE_DOWN: BadputType.ELASTIC_SLICE_DOWN,
    ph.ELASTIC_SCALE_UP: BadputType.ELASTIC_SCALE_UP,
    ph.ELASTIC_REINITIALIZATION: BadputType.ELASTIC_REINITIALIZATION,
}
"""The badput type of each phase; a phase that is not listed is a custom event."""

_ALWAYS_SHOWN = [kind for kind in BadputType if not kind.name.startswith("ELASTIC")]


def seconds(ns: int) -> float:
    """Return nanoseconds in seconds, rounded once."""
    return ns / 1_000_000_000


def badput_parts(
    phases: Mapping[str, int],
    overlapped_load_ns: int,
    share: Callable[[int], float],
    *,
    pathways: bool = False,
) -> BadputParts:
    """Return the unproductive phases by badput type; ``share`` converts nanoseconds.

    Overlapped data loading is reported as DATA_LOADING_ASYNC, which is not badput. With
    ``pathways`` one controller outlives its workers: a lost worker shows as a stalled step, so
    that ``stall`` counts as recovery.
    """
    sums = dict.fromkeys(_ALWAYS_SHOWN, 0)
    custom: dict[str, int] = {}
    for phase, ns in phases.items():
        if phase == ph.STEP:
            continue
        counted_as = ph.RECOVERY if pathways and phase == ph.STALL else phase
        kind = BADPUT_OF_PHASE.get(counted_as, BadputType.CUSTOM_BADPUT_EVENTS)
        sums[kind] = sums.get(kind, 0) + ns
        if kind is BadputType.CUSTOM_BADPUT_EVENTS:
            name = phase.removeprefix("custom:").upper()
            custom[name] = custom.get(name, 0) + ns
    sums[BadputType.DATA_LOADING_ASYNC] = overlapped_load_ns
    parts: BadputParts = {kind: share(ns) for kind, ns in sums.items()}
    parts[BadputType.CUSTOM_BADPUT_EVENTS] = {name: share(ns) for name, ns in custom.items()}
    return parts


ACTIVITY_EXCLUSION_LIST = [BadputType.DATA_LOADING_ASYNC.name]
MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING = cloud.ACCELERATOR_OF_MACHINE_TYPE

get_accelerator_type = cloud.accelerator_type
get_gcp_metadata = cloud.metadata
get_gcp_project_id = cloud.project_id
get_node_zone = cloud.zone


def get_cluster_name() -> str | None:
    """Return the cluster's name, if the metadata service has one."""
    return get_gcp_metadata("instance", "attributes/cluster-name")


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


class WorkloadMetricDetails(TypedDict):
    """All figures of a job, in seconds."""

    goodput_time: dict[GoodputType, float]
    badput_time: BadputParts
    max_productive_step: int
    total_elapsed_time: float
    disruption_count: int
    step_time_deviation: dict[int, float]
    ideal_step_time: float
    total_excluded_time: float


class IntervalWorkloadMetricDetails(TypedDict):
    """Goodput of a window in percent, and its size in seconds."""

    interval_goodput: dict[GoodputType, float]
    interval_badput: BadputParts
    interval_size: int


class ElasticWorkloadMetricDetails(WorkloadMetricDetails, total=False):
    """A job's details, with slice efficiency if slice counts were recorded."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


class ElasticIntervalWorkloadMetricDetails(IntervalWorkloadMetricDetails, total=False):
    """A window's details, with slice efficiency if slice counts were recorded."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


# Results of the last query.


@dataclass(slots=True)
class GoodputInfo:
    """Results of the last query, in seconds."""

    total_productive_time: float = 0.0
    total_elapsed_time: float = 0.0
    total_unproductive_time: BadputParts = field(default_factory=dict)
    max_productive_step: int = 0
    last_recorded_step: int = 0
    last_updated_timestamp: datetime | None = None
    number_of_disruptions: int = 0
    total_excluded_time: float = 0.0


@dataclass(slots=True)
class StepInfo:
    """The ideal step time and the deviations from it, in seconds."""

    ideal_step_time: float
    step_deviations: dict[int, float]


# Step times.

Values = Floats | Sequence[float]
RECENT, BASELINE = 100, 1000  # The latest steps, and how many before those they are compared with.


def compute_percentile(values: Values, percentile: float) -> float:
    """Return an interpolated percentile; 0 without values."""
    return float(np.percentile(values, percentile)) if len(values) else 0.0


def spike_of(
    deviations: Values, recent: int = RECENT, baseline: int = BASELINE, percent: float = 90
) -> float:
    """Return one number for the deviations of many steps; it rises when steps become uneven.

    It is a percentile of the recent deviations minus the median of the baseline before them; with
    too few for a baseline the percentile alone, with fewer than ``recent`` their mean.
    """
    sizes = np.abs(np.asarray(deviations, dtype=np.float64))
    if len(sizes) < recent:
        return float(np.mean(sizes)) if len(sizes) else 0.0
    spike = compute_percentile(sizes[-recent:], percent)
    if not baseline or len(sizes) < recent + baseline:
        return spike
    return spike - float(np.median(sizes[-recent - baseline : -recent]))


def compute_step_deviation_from_baseline(
    step_time_deviation: Mapping[int, float],
    mode: MonitoringWindowType = MonitoringWindowType.CUMULATIVE,
    recent_window_size: int = RECENT,
    baseline_window_size: int = BASELINE,
    spike_percentile: float = 90,
) -> float:
    """Return one figure for the latest steps; for a window, without a baseline."""
    baseline = baseline_window_size if mode is MonitoringWindowType.CUMULATIVE else 0
    deviations = list(step_time_deviation.values())
    return spike_of(deviations, recent_window_size, baseline, spike_percentile)


def compute_ideal_step_time(step_times: Values) -> float | None:
    """Return the mean of the times that are not anomalously long; None without times."""
    _, usual = _split_anomalous(step_times)
    return float(usual.mean()) if len(usual) else None


def get_anomalous_and_normal_step_times(
    step_times: Sequence[float],
) -> tuple[list[float], list[float]]:
    """Return the anomalously long times, and the others."""
    anomalous, usual = _split_anomalous(step_times)
    return anomalous.tolist(), usual.tolist()


def get_extra_time_from_anomalous_steps(step_times: Sequence[float]) -> float:
    """Return the excess of the anomalous steps over the same number of normal ones."""
    anomalous, usual = _split_anomalous(step_times)
    return float((anomalous - usual.mean()).sum()) if len(anomalous) else 0.0


def _split_anomalous(times: Values) -> tuple[Floats, Floats]:
    """Return the times that are anomalously long, and the others."""
    numbers = np.asarray(times, dtype=np.float64)
    if not len(numbers):
        return numbers, numbers
    median = np.median(numbers)
    spread = np.median(np.abs(numbers - median))
    anomalous = numbers > median + ANOMALOUS_MADS * spread
    return numbers[anomalous], numbers[~anomalous]


def step_deviation(times: StepTimes, ideal_ns: float) -> dict[int, float]:
    """Return the deviation from the ideal in seconds by step number; of repeats, the last counts.

    A record of several steps has the number of its first.
    """
    off = deviations_s(times, ideal_ns)
    return dict(zip(times.number.tolist(), off.tolist(), strict=True))


def deviations_s(times: StepTimes, ideal_ns: float) -> Floats:
    """Return the absolute deviation of each execution in seconds, in order."""
    off: Floats = np.abs(times.own_ns - ideal_ns) / 1e9
    return off


def get_timestamp_from_log_entry(entry: Mapping[str, Any]) -> datetime | None:
    """Return the first timestamp of an entry."""
    times = (value for key, value in entry.items() if "time" in key)
    return next((datetime.fromtimestamp(seconds, UTC) for seconds in times), None)
