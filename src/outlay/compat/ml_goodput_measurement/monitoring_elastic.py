"""``monitoring_elastic``: uploads metrics while an elastic job runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from outlay.compat.ml_goodput_measurement.cloud import GCPOptions
from outlay.compat.ml_goodput_measurement.monitoring import FLUSH_TIMEOUT_S, GoodputMonitor

__all__ = ["ElasticGoodputMonitor"]


class ElasticGoodputMonitor(GoodputMonitor):
    """A monitor of a job under Pathways that can also upload slice efficiency."""

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        tensorboard_dir: str | Path | None,
        upload_interval: float,
        monitoring_enabled: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        include_badput_breakdown: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        include_step_deviation: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        include_slice_efficiency: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        configured_ideal_step_time: float | None = None,
        step_deviation_interval_seconds: float = 10,
        gcp_options: GCPOptions | None = None,
        skip_final_flush: bool = False,  # noqa: FBT001, FBT002 - documented as positional
        final_flush_timeout_seconds: float | None = FLUSH_TIMEOUT_S,
        gcs_sync_interval_seconds: float = 3600,
        cache_dir: str | None = None,
        max_logs_retention_period: timedelta | None = None,
        **ours: Any,
    ) -> None:
        super().__init__(
            job_name,
            logger_name,
            tensorboard_dir,
            upload_interval,
            monitoring_enabled,
            True,  # noqa: FBT003 - an elastic job runs under Pathways
            include_badput_breakdown,
            include_step_deviation,
            configured_ideal_step_time,
            step_deviation_interval_seconds,
            gcp_options,
            skip_final_flush,
            final_flush_timeout_seconds,
            gcs_sync_interval_seconds,
            cache_dir,
            max_logs_retention_period,
            include_slice_efficiency=include_slice_efficiency,
            **ours,
        )
