"""``checkpoint_badput_calculator``: how long Orbax's checkpoints blocked training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any

from outlay.compat.ml_goodput_measurement.cloud import CloudLogger

__all__ = [
    "CheckpointBadputCalculator",
    "CheckpointLoggerOptions",
    "RestoreCheckpointManagerVerticalStepStats",
    "SaveCheckpointManagerVerticalStepStats",
]

OPERATION_TYPE_SAVE = "save"
OPERATION_TYPE_RESTORE = "restore"
OPERATION_TYPE_EMERGENCY_RESTORE = "emergency_restore"
OPERATION_TYPE_LOCAL = "local"
OPERATION_TYPE_PERSISTENT = "persistent"
OPERATION_TYPE_PERSISTENT_AND_LOCAL = "persistent_and_local"

_SAVE_PARTS = {
    "checkpoint_manager_blocking": "checkpoint_manager_blocking_duration_secs",
    "checkpointer_blocking": "checkpointer_blocking_duration_secs",
    "wait_for_prev": "wait_for_prev_duration_secs",
    "get_old_steps": "get_old_steps_duration_secs",
}
_RESTORE_PARTS = {
    "checkpoint_manager": "checkpoint_manager_duration_secs",
    "restore": "checkpointer_duration_secs",
    "broadcast": "broadcast_duration_secs",
}
_STATISTICS = ("total", "average", "minimum", "maximum", "standard_deviation")
_EVENTS = (
    "(jsonPayload.event_type=save OR jsonPayload.event_type=restore"
    " OR jsonPayload.event_type=emergency_restore)"
)


# Durations of checkpoints, from the entries of Orbax's checkpoint logger.
#
# All hosts of a job log the same save: durations are averaged per step first, separately for local
# and persistent storage. An entry of a killed save lacks some durations; it counts for the others.

Entry = Mapping[str, Any]


def _is_save(entry: Entry) -> bool:
    """Return whether an entry is a save."""
    return entry.get("event_type") == "save"


def _is_restore(entry: Entry) -> bool:
    """Return whether an entry is a restore or an emergency restore."""
    return entry.get("event_type") in ("restore", "emergency_restore")


def _is_local(entry: Entry) -> bool:
    """Return whether a checkpoint is local: not in a bucket, or an emergency restore."""
    if _is_restore(entry):
        return bool(entry["event_type"] == "emergency_restore")
    return not str(entry.get("directory", "")).startswith("gs://")


def _duration_stats(entries: Iterable[Entry], key: str) -> tuple[float, ...]:
    """Return ``_STATISTICS`` of the durations under ``key`` over steps; zeros without any."""
    by_step: dict[tuple[object, bool], list[float]] = {}
    for entry in entries:
        seconds = _seconds(entry.get(key))
        if seconds is not None:
            by_step.setdefault((entry.get("step"), _is_local(entry)), []).append(seconds)
    means = [statistics.fmean(seconds) for seconds in by_step.values()] or [0.0]
    deviation = statistics.stdev(means) if len(means) > 1 else 0.0
    return math.fsum(means), statistics.fmean(means), min(means), max(means), deviation


def _seconds(value: Any) -> float | None:
    """Parse a duration, which Orbax may write as text; None if it is invalid."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _stats_class(name: str, doc: str, parts: Iterable[str]) -> Any:
    """Return a dataclass with each statistic of each part, 0 by default."""
    fields = [(f"{each}_{part}_time", float, 0.0) for part in parts for each in _STATISTICS]
    return make_dataclass(name, fields, namespace={"__doc__": doc, "__module__": __name__})


SaveCheckpointManagerVerticalStepStats = _stats_class(
    "SaveCheckpointManagerVerticalStepStats",
    "Durations of saves over all steps, in seconds.",
    _SAVE_PARTS,
)
RestoreCheckpointManagerVerticalStepStats = _stats_class(
    "RestoreCheckpointManagerVerticalStepStats",
    "Durations of restores over all steps, in seconds.",
    _RESTORE_PARTS,
)


@dataclass
class CheckpointLoggerOptions:
    """The source of entries: Cloud Logging, or ``entries`` with ``use_goodput_logger``."""

    job_name: str = "checkpoint_job"
    logger_name: str = "checkpoint_logger"
    client: Any = None
    use_goodput_logger: bool = False


class CheckpointBadputCalculator:
    """Computes how long checkpoints blocked training."""

    def __init__(self, options: CheckpointLoggerOptions | None = None) -> None:
        self._options = options or CheckpointLoggerOptions()
        self.entries: list[Entry] = []

    def read_entries(self) -> list[Entry]:
        """Return the job's entries about checkpoints."""
        options = self._options
        if options.use_goodput_logger:
            return self.entries
        if options.client is None:
            found, _ = CloudLogger(
                options.job_name, options.logger_name
            ).read_cloud_logging_entries()
            return [entry for entry in found if _is_save(entry) or _is_restore(entry)]
        wanted = f'severity=INFO AND jsonPayload.job_name="{options.job_name}" AND {_EVENTS}'
        log = options.client.logger(options.logger_name)
        listed = log.list_entries(filter_=wanted, order_by="timestamp asc", page_size=10_000)
        return [entry.payload for entry in listed]

    def is_valid_save_stats(
        self,
        step_stats: Entry,
        operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL,
    ) -> bool:
        """Return whether an entry is a save to this kind of storage."""
        return _is_save(step_stats) and _is_on(step_stats, operation_type)

    def is_valid_restore_stats(
        self,
        step_stats: Entry,
        operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL,
    ) -> bool:
        """Return whether an entry is a restore from this kind of storage."""
        return _is_restore(step_stats) and _is_on(step_stats, operation_type)

    def calculate_save_operation_checkpoint_manager_blocking_time(
        self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> Any:
        """Return the durations of saves."""
        found = self._stats(self.is_valid_save_stats, operation_type, _SAVE_PARTS)
        return SaveCheckpointManagerVerticalStepStats(**found)

    def calculate_restore_operation_checkpoint_manager_blocking_time(
        self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> Any:
        """Return the durations of restores."""
        found = self._stats(self.is_valid_restore_stats, operation_type, _RESTORE_PARTS)
        return RestoreCheckpointManagerVerticalStepStats(**found)

    def _stats(
        self,
        is_valid: Callable[[Entry, str | None], bool],
        operation_type: str | None,
        parts: Mapping[str, str],
    ) -> dict[str, float]:
        """Return each statistic of each part, by the dataclasses' field names."""
        self.entries = self.read_entries()
        chosen = [entry for entry in self.entries if is_valid(entry, operation_type)]
        return {
            f"{statistic}_{part}_time": seconds
            for part, key in parts.items()
            for statistic, seconds in zip(_STATISTICS, _duration_stats(chosen, key), strict=True)
        }


def _is_on(entry: Entry, operation_type: str | None) -> bool:
    if operation_type == OPERATION_TYPE_LOCAL:
        return _is_local(entry)
    return operation_type != OPERATION_TYPE_PERSISTENT or not _is_local(entry)
