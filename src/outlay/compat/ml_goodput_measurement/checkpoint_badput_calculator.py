"""``checkpoint_badput_calculator``: how long Orbax's checkpoints blocked training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from outlay.export.cloud import CloudLogger
from outlay.goodput.throughput import duration_stats, is_local, is_restore, is_save

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
_EVENTS = (
    "(jsonPayload.event_type=save OR jsonPayload.event_type=restore"
    " OR jsonPayload.event_type=emergency_restore)"
)


@dataclass
class SaveCheckpointManagerVerticalStepStats:
    """Durations of saves over all steps, in seconds."""

    total_checkpoint_manager_blocking_time: float = 0.0
    average_checkpoint_manager_blocking_time: float = 0.0
    minimum_checkpoint_manager_blocking_time: float = 0.0
    maximum_checkpoint_manager_blocking_time: float = 0.0
    standard_deviation_checkpoint_manager_blocking_time: float = 0.0
    total_checkpointer_blocking_time: float = 0.0
    average_checkpointer_blocking_time: float = 0.0
    minimum_checkpointer_blocking_time: float = 0.0
    maximum_checkpointer_blocking_time: float = 0.0
    standard_deviation_checkpointer_blocking_time: float = 0.0
    total_wait_for_prev_time: float = 0.0
    average_wait_for_prev_time: float = 0.0
    minimum_wait_for_prev_time: float = 0.0
    maximum_wait_for_prev_time: float = 0.0
    standard_deviation_wait_for_prev_time: float = 0.0
    total_get_old_steps_time: float = 0.0
    average_get_old_steps_time: float = 0.0
    minimum_get_old_steps_time: float = 0.0
    maximum_get_old_steps_time: float = 0.0
    standard_deviation_get_old_steps_time: float = 0.0


@dataclass
class RestoreCheckpointManagerVerticalStepStats:
    """Durations of restores over all steps, in seconds."""

    total_checkpoint_manager_time: float = 0.0
    average_checkpoint_manager_time: float = 0.0
    minimum_checkpoint_manager_time: float = 0.0
    maximum_checkpoint_manager_time: float = 0.0
    standard_deviation_checkpoint_manager_time: float = 0.0
    total_restore_time: float = 0.0
    average_restore_time: float = 0.0
    minimum_restore_time: float = 0.0
    maximum_restore_time: float = 0.0
    standard_deviation_restore_time: float = 0.0
    total_broadcast_time: float = 0.0
    average_broadcast_time: float = 0.0
    minimum_broadcast_time: float = 0.0
    maximum_broadcast_time: float = 0.0
    standard_deviation_broadcast_time: float = 0.0


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
        self.entries: list[Mapping[str, Any]] = []

    def read_entries(self) -> list[Mapping[str, Any]]:
        """Return the job's entries about checkpoints."""
        options = self._options
        if options.use_goodput_logger:
            return self.entries
        if options.client is None:
            found, _ = CloudLogger(
                options.job_name, options.logger_name
            ).read_cloud_logging_entries()
            return [entry for entry in found if is_save(entry) or is_restore(entry)]
        wanted = f'severity=INFO AND jsonPayload.job_name="{options.job_name}" AND {_EVENTS}'
        log = options.client.logger(options.logger_name)
        listed = log.list_entries(filter_=wanted, order_by="timestamp asc", page_size=10_000)
        return [entry.payload for entry in listed]

    def is_valid_save_stats(
        self,
        step_stats: Mapping[str, Any],
        operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL,
    ) -> bool:
        """Return whether an entry is a save to this kind of storage."""
        return is_save(step_stats) and _is_on(step_stats, operation_type)

    def is_valid_restore_stats(
        self,
        step_stats: Mapping[str, Any],
        operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL,
    ) -> bool:
        """Return whether an entry is a restore from this kind of storage."""
        return is_restore(step_stats) and _is_on(step_stats, operation_type)

    def calculate_save_operation_checkpoint_manager_blocking_time(
        self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> SaveCheckpointManagerVerticalStepStats:
        """Return the durations of saves."""
        found = self._stats(self.is_valid_save_stats, operation_type, _SAVE_PARTS)
        return SaveCheckpointManagerVerticalStepStats(**found)

    def calculate_restore_operation_checkpoint_manager_blocking_time(
        self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> RestoreCheckpointManagerVerticalStepStats:
        """Return the durations of restores."""
        found = self._stats(self.is_valid_restore_stats, operation_type, _RESTORE_PARTS)
        return RestoreCheckpointManagerVerticalStepStats(**found)

    def _stats(
        self,
        is_valid: Callable[[Mapping[str, Any], str | None], bool],
        operation_type: str | None,
        parts: Mapping[str, str],
    ) -> dict[str, float]:
        """Return each statistic of each part, by the dataclasses' field names."""
        self.entries = self.read_entries()
        chosen = [entry for entry in self.entries if is_valid(entry, operation_type)]
        return {
            f"{statistic}_{part}_time": seconds
            for part, key in parts.items()
            for statistic, seconds in asdict(duration_stats(chosen, key)).items()
        }


def _is_on(entry: Mapping[str, Any], operation_type: str | None) -> bool:
    if operation_type == OPERATION_TYPE_LOCAL:
        return is_local(entry)
    return operation_type != OPERATION_TYPE_PERSISTENT or not is_local(entry)
